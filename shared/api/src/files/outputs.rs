//! What sessions have put out, as files. Nothing is written for it: the session's newest manifest
//! says what there is, and an id holds the session's own and a digest of path and bytes. So a file
//! that the agent changes later is another file, and the old id is gone.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tailstep_core::{
    files::{Manifest, OutputFile},
    ids::{UnixMs, sha256_hex},
};
use tailstep_runtime::ports::{DocumentKind, ListDocuments};

use super::{File, ID_PREFIX, Output, kinds, shown};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, json as answer},
    error::ApiError,
    page::{PageBody, Scope},
    sessions,
    store::{self, Stored},
};

const SESSION_PREFIX: &str = "sesn_";

/// Digits of the digest in an id: 128 bits.
const DIGEST_CHARS: usize = 32;

/// Documents asked for at once.
const BATCH: usize = 100;

/// Says that an output was deleted by a client. The log cannot forget it, so the file is hidden.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Hidden {
    at_ms: UnixMs,
}

fn id_of(session: &str, file: &OutputFile) -> String {
    let mut digest = sha256_hex(format!("{}\n{}", file.content.sha256, file.path).as_bytes());
    digest.truncate(DIGEST_CHARS);
    let session = session.strip_prefix(SESSION_PREFIX).unwrap_or(session);
    format!("{ID_PREFIX}{session}_{digest}")
}

/// The session that an output's id names; `None` when it is not the id of an output.
pub(super) fn session_of(id: &str) -> Option<String> {
    let (session, digest) = id.strip_prefix(ID_PREFIX)?.split_once('_')?;
    let is_digest = digest.len() == DIGEST_CHARS
        && digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let session = format!("{SESSION_PREFIX}{session}");
    (is_digest && sessions::is_id(&session)).then_some(session)
}

pub(super) async fn find(api: &Api, caller: &Caller, id: &str) -> Result<Option<File>, ApiError> {
    let Some(session) = session_of(id) else { return Ok(None) };
    let all = match all(api, caller, &session).await {
        Ok(all) => all,
        // The session is gone, and its files with it.
        Err(error) if error.status == axum::http::StatusCode::NOT_FOUND => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(found) = all.into_iter().find(|file| file.id == id) else { return Ok(None) };
    let documents = api.app.documents.as_ref();
    let hidden: Option<Stored<Hidden>> =
        store::get(documents, &caller.tenant, DocumentKind::HiddenOutput, id).await?;
    Ok(hidden.is_none().then_some(found))
}

/// All outputs of a session, hidden ones included; newest first, then by path.
async fn all(api: &Api, caller: &Caller, session: &str) -> Result<Vec<File>, ApiError> {
    let loaded = sessions::visible(api, caller, session).await?;
    let Some(blob) = &loaded.session.outputs else { return Ok(Vec::new()) };
    let stored: Bytes = api.app.blobs.get(&caller.tenant, blob).await?;
    let manifest = Manifest::decode(&stored).map_err(|error| {
        tracing::error!(%error, session, "a manifest cannot be read");
        ApiError::internal()
    })?;
    let mut files: Vec<File> =
        manifest.files.into_iter().map(|file| of_output(session, file)).collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.created_at_ms));
    Ok(files)
}

fn of_output(session: &str, file: OutputFile) -> File {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    File {
        id: id_of(session, &file),
        filename: name.to_owned(),
        mime_type: kinds::of_name(name).to_owned(),
        created_at_ms: file.collected_at_ms,
        expires_at_ms: None,
        output: Some(Output { session: session.to_owned(), path: file.path }),
        content: file.content,
    }
}

pub(super) async fn list(
    api: &Api,
    caller: &Caller,
    session: &str,
    limit: usize,
    page: Option<String>,
) -> Answer {
    let name = format!("files/{session}");
    let scope = Scope { tenant: &caller.tenant, list: &name, order: "desc" };
    let after = page.map(|cursor| scope.place(&cursor)).transpose()?;
    let mut files = all(api, caller, session).await?;
    let hidden = hidden(api, caller, session).await?;
    if let Some(after) = after {
        // The last file of the page before; when the agent has changed it meanwhile, the list has
        // changed, and its beginning is the only place that is surely right.
        let next = files.iter().position(|file| file.id == after).map_or(0, |at| at + 1);
        files.drain(..next);
    }
    files.retain(|file| hidden.binary_search(&file.id).is_err());
    let more = files.len() > limit;
    files.truncate(limit);
    let next_page = files.last().filter(|_| more).map(|last| scope.cursor(&last.id));
    answer(&PageBody { data: files.iter().map(shown).collect(), next_page })
}

/// Ids of the session's hidden outputs, in order.
async fn hidden(api: &Api, caller: &Caller, session: &str) -> Result<Vec<String>, ApiError> {
    let session = session.strip_prefix(SESSION_PREFIX).unwrap_or(session);
    let prefix = format!("{ID_PREFIX}{session}_");
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let query =
            ListDocuments { prefix: prefix.clone(), after, limit: BATCH, descending: false };
        let kind = DocumentKind::HiddenOutput;
        let page = api.app.documents.list(&caller.tenant, kind, &query).await?;
        ids.extend(page.items.into_iter().map(|document| document.id));
        after = ids.last().cloned();
        if !page.more || after.is_none() {
            return Ok(ids);
        }
    }
}

pub(super) async fn hide(api: &Api, caller: &Caller, id: &str) -> Result<(), ApiError> {
    let at_ms = api.now_ms();
    let value = Hidden { at_ms };
    let stored = Stored { id: id.to_owned(), revision: 0, created_at_ms: at_ms, value };
    let documents = api.app.documents.as_ref();
    // Somebody who was faster has hidden it, too.
    store::put(documents, &caller.tenant, DocumentKind::HiddenOutput, &stored).await?;
    Ok(())
}
