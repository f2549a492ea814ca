//! [`Documents`] in memory.

use std::{collections::BTreeMap, ops::Bound, sync::Mutex};

use async_trait::async_trait;

use super::lock;
use crate::ports::{
    Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments, Page,
};

/// Largest body of a document. A DynamoDB item may have 400 KB with its names and keys; the same
/// limit everywhere means that what works locally deploys.
pub const DOCUMENT_BYTES_MAX: usize = 300_000;

type Place = (String, DocumentKind, String);

#[derive(Debug, Default)]
pub struct MemoryDocuments {
    stored: Mutex<BTreeMap<Place, Document>>,
}

#[async_trait]
impl Documents for MemoryDocuments {
    async fn get(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<Document>, DocumentsError> {
        Ok(lock(&self.stored).get(&place(tenant, kind, id)).cloned())
    }

    async fn put(&self, document: &Document, expect: Expect) -> Result<(), DocumentsError> {
        check_document(document, expect)?;
        let place = place(&document.tenant, document.kind, &document.id);
        let mut stored = lock(&self.stored);
        let held = match (stored.get(&place), expect) {
            (None, Expect::Absent) => true,
            (Some(old), Expect::Revision(revision)) => old.revision == revision,
            (Some(_), Expect::Absent) | (None, Expect::Revision(_)) => false,
        };
        if !held {
            return Err(DocumentsError::Conflict { id: document.id.clone() });
        }
        stored.insert(place, document.clone());
        Ok(())
    }

    async fn list(
        &self,
        tenant: &str,
        kind: DocumentKind,
        query: &ListDocuments,
    ) -> Result<Page<Document>, DocumentsError> {
        let stored = lock(&self.stored);
        let from = Bound::Included(place(tenant, kind, ""));
        let mut found: Vec<&Document> = stored
            .range((from, Bound::Unbounded))
            .take_while(|((t, k, _), _)| t == tenant && *k == kind)
            .map(|(_, document)| document)
            .filter(|document| document.id.starts_with(&query.prefix))
            .collect();
        if query.descending {
            found.reverse();
        }
        let behind = |document: &&Document| match (&query.after, query.descending) {
            (None, _) => true,
            (Some(after), false) => document.id > *after,
            (Some(after), true) => document.id < *after,
        };
        let mut rest = found.into_iter().filter(behind);
        let items = rest.by_ref().take(query.limit).cloned().collect();
        Ok(Page { items, more: rest.next().is_some() })
    }

    async fn delete(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<(), DocumentsError> {
        lock(&self.stored).remove(&place(tenant, kind, id));
        Ok(())
    }

    async fn delete_at(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
        revision: u64,
    ) -> Result<(), DocumentsError> {
        let place = place(tenant, kind, id);
        let mut stored = lock(&self.stored);
        if stored.get(&place).is_some_and(|document| document.revision != revision) {
            return Err(DocumentsError::Conflict { id: id.to_owned() });
        }
        stored.remove(&place);
        Ok(())
    }
}

/// What every adapter asks of a document before it stores it: a revision that follows `expect`, and
/// a body within [`DOCUMENT_BYTES_MAX`].
///
/// # Errors
/// [`DocumentsError::Refused`], naming the document and the limit.
pub fn check_document(document: &Document, expect: Expect) -> Result<(), DocumentsError> {
    let next = match expect {
        Expect::Absent => 1,
        Expect::Revision(revision) => revision.saturating_add(1),
    };
    let what = if document.revision != next {
        format!("document {}: revision is {}, must be {next}", document.id, document.revision)
    } else if document.body.len() > DOCUMENT_BYTES_MAX {
        let bytes = document.body.len();
        format!("document {}: body has {bytes} bytes, at most {DOCUMENT_BYTES_MAX}", document.id)
    } else {
        return Ok(());
    };
    Err(DocumentsError::Refused { what })
}

fn place(tenant: &str, kind: DocumentKind, id: &str) -> Place {
    (tenant.to_owned(), kind, id.to_owned())
}
