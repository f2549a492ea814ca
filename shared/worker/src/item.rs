//! One work item: taking it, serving its session while its lease is held, and giving it back.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    Worker,
    client::CallError,
    key::Key,
    lease::{self, Lease},
    pause::Backoff,
    session,
};

/// Tries of a call that an item begins or ends with.
const TRIES_MAX: u32 = 5;

#[derive(Debug, Deserialize)]
pub(crate) struct Item {
    pub(crate) id: String,
    data: Data,
    #[serde(default)]
    secret: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Data {
    #[serde(rename = "type")]
    kind: String,
    id: String,
}

#[derive(Deserialize)]
struct Secret {
    sessions_token: String,
}

impl Item {
    pub(crate) fn checked(self) -> Result<Self, CallError> {
        if is_plain(&self.id) && is_plain(&self.data.id) {
            Ok(self)
        } else {
            Err(CallError::Malformed { what: "an id of a work item is not one".to_owned() })
        }
    }

    pub(crate) fn path(&self, worker: &Worker) -> String {
        format!("/v1/environments/{}/work/{}", worker.config.environment, self.id)
    }

    pub(crate) fn session(&self) -> &str {
        &self.data.id
    }

    /// What is good for this item only, if the server gives such a thing.
    fn token(&self) -> Option<Key> {
        let bytes = URL_SAFE_NO_PAD.decode(self.secret.as_deref()?).ok()?;
        let secret: Secret = serde_json::from_slice(&bytes).ok()?;
        Some(Key::new(secret.sessions_token))
    }
}

/// Ids become parts of paths, of addresses and on disk.
pub(crate) fn is_plain(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 128
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Serves the item until its session rests, is over, or somebody says stop.
pub(crate) async fn serve(worker: &Worker, item: &Item, stop: &watch::Receiver<bool>) {
    let (work, session) = (item.id.as_str(), item.session());
    let key = &worker.config.key;
    if let Err(error) = acknowledge(worker, item).await {
        tracing::warn!(%error, work, "a work item cannot be taken");
        if !error.may_pass() {
            give_back(worker, item, key).await;
        }
        return;
    }
    let key = &item.token().unwrap_or_else(|| key.clone());
    if item.data.kind != "session" {
        tracing::warn!(work, kind = item.data.kind, "a work item of an unknown kind is given back");
        return give_back(worker, item, key).await;
    }
    tracing::info!(work, session, "serving");
    let lease = watch::Sender::new(Lease::Asked);
    let ended = tokio::select! {
        biased;
        // When the lease ends gently, the session winds down; only when it is lost all stops.
        () = kept(worker, item, key, &lease) => Ended::Lost,
        ended = held(worker, item, key, &lease, stop) => ended,
    };
    match ended {
        Ended::Lost => tracing::warn!(work, session, "dropped"),
        Ended::Done => {
            give_back(worker, item, key).await;
            tracing::info!(work, session, "served");
        }
    }
}

enum Ended {
    Done,
    /// The item is somebody else's by now.
    Lost,
}

/// Returns only when the lease is lost.
async fn kept(worker: &Worker, item: &Item, key: &Key, lease: &watch::Sender<Lease>) {
    lease::keep(worker, item, key, lease).await;
    if *lease.borrow() != Lease::Lost {
        std::future::pending::<()>().await;
    }
}

/// Nothing runs before the first heartbeat was answered: until then another worker may have it.
async fn held(
    worker: &Worker,
    item: &Item,
    key: &Key,
    lease: &watch::Sender<Lease>,
    stop: &watch::Receiver<bool>,
) -> Ended {
    let mut state = lease.subscribe();
    let _ = state.wait_for(|state| *state != Lease::Asked).await;
    session::serve(worker, item.session(), key, state, stop).await;
    Ended::Done
}

async fn acknowledge(worker: &Worker, item: &Item) -> Result<(), CallError> {
    let path = format!("{}/ack", item.path(worker));
    retried(worker, &path, &worker.config.key, None).await
}

/// Ends the item on the server. When that fails, its lease runs out.
async fn give_back(worker: &Worker, item: &Item, key: &Key) {
    let path = format!("{}/stop", item.path(worker));
    match retried(worker, &path, key, Some(&json!({"force": true}))).await {
        Ok(()) => {}
        // Somebody else has stopped it.
        Err(error) if error.is_status(409) => {}
        Err(error) => tracing::warn!(%error, work = item.id, "a work item was not given back"),
    }
}

async fn retried(
    worker: &Worker,
    path: &str,
    key: &Key,
    body: Option<&Value>,
) -> Result<(), CallError> {
    let mut backoff = Backoff::new(300, 3_000);
    let mut tries = 1;
    loop {
        match worker.client.call::<Value>(Method::POST, path, key, body).await {
            Ok(_) => return Ok(()),
            Err(error) if error.may_pass() && !error.is_status(409) && tries < TRIES_MAX => {
                tries += 1;
                backoff.wait().await;
            }
            Err(error) => return Err(error),
        }
    }
}
