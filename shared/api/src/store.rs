//! Documents as this crate's types: encoding, sizes, and the shapes of ids.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tailstep_core::ids::UnixMs;
use tailstep_runtime::{
    memory::DOCUMENT_BYTES_MAX,
    ports::{Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments, Page},
};

use crate::{
    error::ApiError,
    page::{Scope, fill},
};

/// A document, read.
#[derive(Debug, Clone)]
pub(crate) struct Stored<T> {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) created_at_ms: UnixMs,
    pub(crate) value: T,
}

pub(crate) async fn get<T: DeserializeOwned>(
    documents: &dyn Documents,
    tenant: &str,
    kind: DocumentKind,
    id: &str,
) -> Result<Option<Stored<T>>, ApiError> {
    documents.get(tenant, kind, id).await?.map(read).transpose()
}

pub(crate) fn read<T: DeserializeOwned>(document: Document) -> Result<Stored<T>, ApiError> {
    let value = serde_json::from_slice(&document.body).map_err(|error| {
        let kind = document.kind.as_str();
        tracing::error!(%error, kind, id = document.id, "a stored document cannot be read");
        ApiError::internal()
    })?;
    let Document { id, revision, created_at_ms, .. } = document;
    Ok(Stored { id, revision, created_at_ms, value })
}

/// Writes `stored` as revision 1 (`stored.revision` 0) or as the one after `stored.revision`.
/// `Ok(false)`: somebody else wrote it meanwhile, or it exists already.
pub(crate) async fn put<T: Serialize>(
    documents: &dyn Documents,
    tenant: &str,
    kind: DocumentKind,
    stored: &Stored<T>,
) -> Result<bool, ApiError> {
    let body = serde_json::to_vec(&stored.value).map_err(|error| {
        tracing::error!(%error, "a document could not be written as JSON");
        ApiError::internal()
    })?;
    if body.len() > DOCUMENT_BYTES_MAX {
        return Err(ApiError::too_large(format!(
            "the definition takes {} bytes when stored; at most {DOCUMENT_BYTES_MAX} are allowed",
            body.len()
        )));
    }
    let document = Document {
        tenant: tenant.to_owned(),
        kind,
        id: stored.id.clone(),
        revision: stored.revision + 1,
        created_at_ms: stored.created_at_ms,
        body: Bytes::from(body),
    };
    let expect = match stored.revision {
        0 => Expect::Absent,
        revision => Expect::Revision(revision),
    };
    match documents.put(&document, expect).await {
        Ok(()) => Ok(true),
        Err(DocumentsError::Conflict { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Which documents a list shows.
pub(crate) struct Listed<'a> {
    pub(crate) kind: DocumentKind,
    /// Of their ids.
    pub(crate) prefix: &'a str,
    /// The list's name in cursors, its parent's id included.
    pub(crate) name: &'a str,
}

/// Up to `limit` documents for which `keep` holds, newest first, from the cursor `page` on; and the
/// cursor of the page behind them.
pub(crate) async fn list<T: DeserializeOwned>(
    documents: &dyn Documents,
    tenant: &str,
    listed: Listed<'_>,
    limit: usize,
    page: Option<String>,
    keep: impl Fn(&Stored<T>) -> bool,
) -> Result<(Vec<Stored<T>>, Option<String>), ApiError> {
    let Listed { kind, prefix, name } = listed;
    let scope = Scope { tenant, list: name, order: "desc" };
    let after = page.map(|cursor| scope.place(&cursor)).transpose()?;
    let fetch = |after, limit| async move {
        let query = ListDocuments { prefix: prefix.to_owned(), after, limit, descending: true };
        let page = documents.list(tenant, kind, &query).await?;
        let items = page.items.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok(Page { items, more: page.more })
    };
    let (found, more) =
        fill(limit, after, fetch, |stored: &Stored<T>| stored.id.as_str(), keep).await?;
    let next_page = found.last().filter(|_| more).map(|last| scope.cursor(&last.id));
    Ok((found, next_page))
}

/// Whether `id` has the shape of an id that `runtime::ids::new_id` makes. Anything else cannot exist
/// and never reaches a store's key.
pub(crate) fn is_id(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == 26 && rest.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
    })
}
