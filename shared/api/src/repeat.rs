//! The same request twice. A client that does not see our answer sends its request again; the second
//! one must find what the first one made.
//!
//! - An `Idempotency-Key` names a create for good, in a document, and a send for as long as the
//!   session remembers it ([`tailstep_core::session::RECENT_REQUESTS_MAX`] sends).
//! - Official clients send no such key, but count their own tries in `x-stainless-retry-count`. A
//!   later try is matched with the newest request of the same credential, path and body of the last
//!   minute. First tries are never matched: somebody may mean to say the same thing twice. For a send
//!   the match is in the session; for a create it is in this process, so a retry that reaches another
//!   process makes a second resource unless the client sends a key.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use tailstep_core::{
    ids::{SessionKey, UnixMs, sha256_hex},
    session::Session,
};
use tailstep_runtime::{
    ids::{new_id, nonce},
    load::load,
    ports::DocumentKind,
};

use crate::{
    Api,
    auth::Caller,
    error::ApiError,
    store::{self, Stored},
};

/// Clients give up after their second retry, within seconds; a minute covers a slow answer, too.
const RETRY_WINDOW_MS: u64 = 60_000;

/// Creates remembered at once.
const RECENT_MAX: usize = 1_024;

const KEY_CHARS_MAX: usize = 255;

/// The id of the resource that a create request makes or made.
pub(crate) struct Creation {
    pub(crate) id: String,
    /// An earlier try has chosen the id, so the resource may exist.
    pub(crate) repeated: bool,
    reservation: Option<Reservation>,
    recent: String,
}

/// A key that is not written down yet.
struct Reservation {
    document_id: String,
    request: Request,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Request {
    body_sha256: String,
    resource: String,
}

impl Creation {
    /// `prefix` is that of the resource's id; `route` names the route that makes it.
    pub(crate) async fn begin(
        api: &Api,
        caller: &Caller,
        headers: &HeaderMap,
        route: &str,
        body: &[u8],
        prefix: &str,
    ) -> Result<Self, ApiError> {
        let now_ms = api.now_ms();
        let recent = fingerprint(caller, route, body);
        let id = new_id(prefix, now_ms);
        let Some(key) = idempotency_key(headers)? else {
            let earlier = is_retry(headers).then(|| api.creates.get(&recent, now_ms)).flatten();
            let repeated = earlier.is_some();
            let id = earlier.unwrap_or(id);
            return Ok(Self { id, repeated, reservation: None, recent });
        };
        let document_id = sha256_hex(format!("{route}\n{key}").as_bytes());
        let request = Request { body_sha256: sha256_hex(body), resource: id.clone() };
        match reserved(api, caller, &document_id, &request).await? {
            Some(id) => Ok(Self { id, repeated: true, reservation: None, recent }),
            None => {
                let reservation = Some(Reservation { document_id, request });
                Ok(Self { id, repeated: false, reservation, recent })
            }
        }
    }

    /// Writes down that this request makes this id, before it is made. To be called once the request
    /// is known to be valid, so that a mended request can use the same key.
    pub(crate) async fn reserve(&mut self, api: &Api, caller: &Caller) -> Result<(), ApiError> {
        let now_ms = api.now_ms();
        if let Some(Reservation { document_id, request }) = self.reservation.take() {
            let documents = api.app.documents.as_ref();
            let stored = Stored {
                id: document_id.clone(),
                revision: 0,
                created_at_ms: now_ms,
                value: request.clone(),
            };
            let first =
                store::put(documents, &caller.tenant, DocumentKind::Request, &stored).await?;
            if !first && let Some(id) = reserved(api, caller, &document_id, &request).await? {
                self.id = id;
                self.repeated = true;
            }
        }
        api.creates.put(&self.recent, &self.id, now_ms);
        Ok(())
    }
}

async fn reserved(
    api: &Api,
    caller: &Caller,
    document_id: &str,
    request: &Request,
) -> Result<Option<String>, ApiError> {
    let documents = api.app.documents.as_ref();
    let found: Option<Stored<Request>> =
        store::get(documents, &caller.tenant, DocumentKind::Request, document_id).await?;
    match found {
        None => Ok(None),
        Some(found) if found.value.body_sha256 == request.body_sha256 => {
            Ok(Some(found.value.resource))
        }
        Some(_) => Err(key_reused()),
    }
}

fn key_reused() -> ApiError {
    ApiError::conflict(
        "Idempotency-Key: this key was used with another body; use a new key for a new request",
    )
}

/// The request id under which a send is stored. Equal ids are one send.
pub(crate) async fn send_id(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    key: &SessionKey,
    body: &[u8],
) -> Result<String, ApiError> {
    if let Some(named) = idempotency_key(headers)? {
        let prefix = format!("k{}:", digest(named.as_bytes()));
        let id = format!("{prefix}{}", digest(body));
        return match earlier(&session(api, key).await?, &prefix, 0) {
            Some(found) if found != id => Err(key_reused()),
            Some(_) | None => Ok(id),
        };
    }
    let route = format!("/v1/sessions/{}/events", key.session);
    let prefix = format!("r{}:", fingerprint(caller, &route, body));
    if is_retry(headers) {
        let since_ms = api.now_ms().saturating_sub(RETRY_WINDOW_MS);
        if let Some(found) = earlier(&session(api, key).await?, &prefix, since_ms) {
            return Ok(found);
        }
    }
    Ok(format!("{prefix}{}", nonce()))
}

async fn session(api: &Api, key: &SessionKey) -> Result<Session, ApiError> {
    Ok(load(api.app.runtime.log.as_ref(), key).await?.session)
}

/// The newest request of `session` whose id begins so.
fn earlier(session: &Session, prefix: &str, since_ms: UnixMs) -> Option<String> {
    let found = session.recent.iter().rev().find(|request| request.id.starts_with(prefix))?;
    (found.at_ms >= since_ms).then(|| found.id.clone())
}

/// Names one credential saying one thing to one path.
fn fingerprint(caller: &Caller, route: &str, body: &[u8]) -> String {
    let mut said = format!("{}\n{route}\n", caller.key_hash).into_bytes();
    said.extend_from_slice(body);
    digest(&said)
}

/// 96 bits: enough to tell apart a minute's requests, and short in every log.
fn digest(bytes: &[u8]) -> String {
    let mut digest = sha256_hex(bytes);
    digest.truncate(24);
    digest
}

fn is_retry(headers: &HeaderMap) -> bool {
    let count = headers.get("x-stainless-retry-count").and_then(|value| value.to_str().ok());
    count.and_then(|count| count.trim().parse::<u32>().ok()).is_some_and(|count| count > 0)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.trim().is_empty() && key.len() <= KEY_CHARS_MAX => Ok(Some(key)),
        Ok(_) | Err(_) => Err(ApiError::invalid(format!(
            "Idempotency-Key: must be 1 to {KEY_CHARS_MAX} printable ASCII characters"
        ))),
    }
}

/// What was created lately in this process, by fingerprint.
#[derive(Default)]
pub(crate) struct RecentCreates {
    entries: Mutex<BTreeMap<String, (String, UnixMs)>>,
}

impl RecentCreates {
    fn get(&self, fingerprint: &str, now_ms: UnixMs) -> Option<String> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, at_ms) = entries.get(fingerprint)?;
        (at_ms.saturating_add(RETRY_WINDOW_MS) >= now_ms).then(|| id.clone())
    }

    fn put(&self, fingerprint: &str, id: &str, now_ms: UnixMs) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= RECENT_MAX {
            let young = |at_ms: UnixMs| at_ms.saturating_add(RETRY_WINDOW_MS) >= now_ms;
            entries.retain(|_, (_, at_ms)| young(*at_ms));
        }
        if entries.len() >= RECENT_MAX {
            let oldest = entries.iter().min_by_key(|(_, (_, at_ms))| *at_ms);
            if let Some(oldest) = oldest.map(|(fingerprint, _)| fingerprint.clone()) {
                entries.remove(&oldest);
            }
        }
        entries.insert(fingerprint.to_owned(), (id.to_owned(), now_ms));
    }
}
