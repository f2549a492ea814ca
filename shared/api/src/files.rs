//! Files: what clients upload, and what sessions leave in their outputs directory. Both are shown,
//! downloaded and deleted in the same way; only uploads are documents of their own, while outputs
//! are read from the session's newest manifest.

mod content;
mod kinds;
mod outputs;
mod upload;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, State},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailstep_core::{files::FileContent, ids::UnixMs};
use tailstep_runtime::ports::DocumentKind;

pub(crate) use self::{content::download, upload::upload};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, json as answer},
    error::ApiError,
    page::PageBody,
    query::Query,
    stamp::stamp,
    store::{self, Listed, Stored},
};

const ID_PREFIX: &str = "file_";
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 1_000;
const IDS_MAX: usize = 100;

/// An uploaded file, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Upload {
    filename: String,
    mime_type: String,
    content: FileContent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<UnixMs>,
}

/// A file, wherever it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) id: String,
    pub(crate) filename: String,
    mime_type: String,
    pub(crate) content: FileContent,
    created_at_ms: UnixMs,
    expires_at_ms: Option<UnixMs>,
    /// Where it comes from, when it is an output.
    output: Option<Output>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Output {
    session: String,
    /// Within the outputs directory.
    path: String,
}

impl File {
    fn of_upload(stored: Stored<Upload>) -> Self {
        let Upload { filename, mime_type, content, expires_at_ms } = stored.value;
        let created_at_ms = stored.created_at_ms;
        let id = stored.id;
        Self { id, filename, mime_type, content, created_at_ms, expires_at_ms, output: None }
    }

    fn is_expired(&self, now_ms: UnixMs) -> bool {
        self.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    fn is_of(&self, scope: &str) -> bool {
        self.output.as_ref().is_some_and(|output| output.session == scope)
    }
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    answer(&shown(&existing(&api, &caller, &id).await?))
}

/// The file, if it is the caller's and neither deleted nor expired.
pub(crate) async fn existing(api: &Api, caller: &Caller, id: &str) -> Result<File, ApiError> {
    let found = find(api, caller, id).await?.ok_or_else(|| ApiError::not_found("file", id))?;
    if found.is_expired(api.now_ms()) {
        let missing = ApiError::missing(format!("file `{id}` has expired; upload it again"));
        return Err(missing.with_code("file_expired"));
    }
    Ok(found)
}

async fn find(api: &Api, caller: &Caller, id: &str) -> Result<Option<File>, ApiError> {
    if outputs::session_of(id).is_some() {
        return outputs::find(api, caller, id).await;
    }
    if !store::is_id(id, ID_PREFIX) {
        return Ok(None);
    }
    let documents = api.app.documents.as_ref();
    let found = store::get(documents, &caller.tenant, DocumentKind::File, id).await?;
    Ok(found.map(File::of_upload))
}

/// The bytes stay in the blob store, where other files and logs may name the same ones; nothing
/// reaches them through this file any more.
pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Answer {
    let found = find(&api, &caller, &id).await?.ok_or_else(|| ApiError::not_found("file", &id))?;
    if found.output.is_some() {
        outputs::hide(&api, &caller, &id).await?;
    } else {
        api.app.documents.delete(&caller.tenant, DocumentKind::File, &id).await?;
    }
    answer(&json!({"id": id, "type": "file_deleted"}))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let scope_id = query.one("scope_id")?;
    let ids = query.list("ids");
    let paged = query.one("limit")?;
    let page = query.one("page")?;
    query.finish()?;
    if !ids.is_empty() {
        if paged.is_some() || page.is_some() {
            return Err(ApiError::invalid("ids[]: cannot be combined with limit or page"));
        }
        return by_ids(&api, &caller, &ids, scope_id.as_deref()).await;
    }
    let limit = limit(paged.as_deref())?;
    match scope_id {
        Some(session) => outputs::list(&api, &caller, &session, limit, page).await,
        None => uploads(&api, &caller, limit, page).await,
    }
}

fn limit(text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(PAGE_DEFAULT) };
    let limit = text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
    limit.ok_or_else(|| ApiError::invalid(format!("limit: must be from 1 to {PAGE_MAX}")))
}

/// Those that are there, in the order in which they were asked for.
async fn by_ids(api: &Api, caller: &Caller, ids: &[String], scope: Option<&str>) -> Answer {
    if ids.len() > IDS_MAX {
        let count = ids.len();
        return Err(ApiError::invalid(format!("ids[]: {count} ids, at most {IDS_MAX}")));
    }
    let now_ms = api.now_ms();
    let mut data = Vec::new();
    for id in ids {
        let found = find(api, caller, id).await?.filter(|file| !file.is_expired(now_ms));
        let found = found.filter(|file| scope.is_none_or(|scope| file.is_of(scope)));
        data.extend(found.as_ref().map(shown));
    }
    answer(&PageBody { data, next_page: None })
}

/// Newest first.
async fn uploads(api: &Api, caller: &Caller, limit: usize, page: Option<String>) -> Answer {
    let now_ms = api.now_ms();
    let keep =
        |stored: &Stored<Upload>| stored.value.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms);
    let listed = Listed { kind: DocumentKind::File, prefix: "", name: "files" };
    let documents = api.app.documents.as_ref();
    let (found, next_page) =
        store::list(documents, &caller.tenant, listed, limit, page, keep).await?;
    let data = found.into_iter().map(|stored| shown(&File::of_upload(stored))).collect();
    answer(&PageBody { data, next_page })
}

fn shown(file: &File) -> Value {
    let mut shown = json!({
        "id": file.id,
        "type": "file",
        "filename": file.filename,
        "mime_type": file.mime_type,
        "size_bytes": file.content.size_bytes,
        "created_at": stamp(file.created_at_ms),
        "downloadable": true,
        "expires_at": file.expires_at_ms.map(stamp),
        "scope": null,
        "x_sha256": file.content.sha256,
    });
    if let Some(Output { session, path }) = &file.output {
        shown["scope"] = json!({"type": "session", "id": session});
        shown["x_path"] = json!(path);
    }
    shown
}
