//! Where work items are kept: the live one of each session, and every one that there was.

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tailstep_core::{
    ids::UnixMs,
    work::{WorkItem, WorkState},
};

use crate::{
    Runtime,
    error::RuntimeError,
    ports::{Document, DocumentKind, DocumentsError, Expect, ListDocuments},
};

/// Live items that one poll looks at, in pages of this size; the rest waits for the next poll.
const LIVE_PAGE: usize = 100;
const LIVE_MAX: usize = 1_000;

/// A live item as it is stored, with what it is now.
pub(super) struct Live {
    pub(super) tenant: String,
    pub(super) revision: u64,
    pub(super) stored: WorkState,
    pub(super) item: WorkItem,
}

/// What [`DocumentKind::WorkPast`] holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Past {
    pub(super) session: String,
    /// How it ended; absent while it is live, and for an item that never came to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<WorkItem>,
}

pub(super) async fn get(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    session: &str,
) -> Result<Option<Live>, RuntimeError> {
    let place = place(environment, session);
    let found = runtime.documents.get(tenant, DocumentKind::Work, &place).await?;
    found.as_ref().map(|document| live(document, runtime.clock.now_ms())).transpose()
}

pub(super) async fn all(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
) -> Result<Vec<Live>, RuntimeError> {
    let now_ms = runtime.clock.now_ms();
    let mut found = Vec::new();
    let mut after = None;
    while found.len() < LIVE_MAX {
        let prefix = place(environment, "");
        let query = ListDocuments { prefix, after, limit: LIVE_PAGE, descending: false };
        let page = runtime.documents.list(tenant, DocumentKind::Work, &query).await?;
        for document in &page.items {
            found.push(live(document, now_ms)?);
        }
        after = page.items.last().map(|document| document.id.clone());
        if !page.more || after.is_none() {
            break;
        }
    }
    Ok(found)
}

fn live(document: &Document, now_ms: UnixMs) -> Result<Live, RuntimeError> {
    let item: WorkItem = read(document)?;
    let (tenant, revision) = (document.tenant.clone(), document.revision);
    Ok(Live { tenant, revision, stored: item.state, item: item.at(now_ms) })
}

pub(super) async fn put(
    runtime: &Runtime,
    tenant: &str,
    item: &WorkItem,
    revision: u64,
) -> Result<bool, RuntimeError> {
    let id = place(&item.environment, &item.session);
    write(runtime, tenant, DocumentKind::Work, id, revision, item.created_at_ms, item).await
}

pub(super) async fn put_past(
    runtime: &Runtime,
    tenant: &str,
    item: &WorkItem,
    ended: Option<WorkItem>,
    revision: u64,
) -> Result<bool, RuntimeError> {
    let id = place(&item.environment, &item.id);
    let past = Past { session: item.session.clone(), ended };
    write(runtime, tenant, DocumentKind::WorkPast, id, revision, item.created_at_ms, &past).await
}

/// `false` when the document has another revision.
async fn write(
    runtime: &Runtime,
    tenant: &str,
    kind: DocumentKind,
    id: String,
    revision: u64,
    created_at_ms: UnixMs,
    value: &impl Serialize,
) -> Result<bool, RuntimeError> {
    let body = serde_json::to_vec(value).map_err(|error| unreadable(&id, &error))?;
    let document = Document {
        tenant: tenant.to_owned(),
        kind,
        id,
        revision: revision + 1,
        created_at_ms,
        body: Bytes::from(body),
    };
    let expect = if revision == 0 { Expect::Absent } else { Expect::Revision(revision) };
    match runtime.documents.put(&document, expect).await {
        Ok(()) => Ok(true),
        Err(DocumentsError::Conflict { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn read<T: DeserializeOwned>(document: &Document) -> Result<T, RuntimeError> {
    serde_json::from_slice(&document.body).map_err(|error| unreadable(&document.id, &error))
}

fn unreadable(id: &str, error: &serde_json::Error) -> RuntimeError {
    DocumentsError::Refused { what: format!("work item {id}: {error}") }.into()
}

pub(super) fn place(environment: &str, id: &str) -> String {
    format!("{environment}#{id}")
}
