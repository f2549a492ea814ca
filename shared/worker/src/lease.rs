//! Keeping an item: heartbeats, each naming the one before it, so that a worker that was given up
//! notices and stops.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{Worker, client::CallError, item::Item, key::Key, pause::Backoff};

/// How often at most and at least.
const BEAT_S_MIN: u64 = 1;
const BEAT_S_MAX: u64 = 30;

/// First heartbeat of an item.
const NONE_YET: &str = "NO_HEARTBEAT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// No heartbeat was answered yet.
    Asked,
    Held,
    /// The server wants the item back.
    Ending,
    /// Somebody else may have it.
    Lost,
}

#[derive(Debug, Deserialize)]
struct Beat {
    last_heartbeat: String,
    lease_extended: bool,
    state: String,
    ttl_seconds: u64,
}

/// Beats until the item is lost or to end, and says so.
pub(crate) async fn keep(worker: &Worker, item: &Item, key: &Key, lease: &watch::Sender<Lease>) {
    let mut last = NONE_YET.to_owned();
    let mut until = Instant::now() + Duration::from_secs(u64::from(worker.config.lease_s));
    let mut backoff = Backoff::new(500, 5_000);
    loop {
        match beat(worker, item, key, &last).await {
            Ok(beat) => {
                if !beat.lease_extended || matches!(beat.state.as_str(), "stopping" | "stopped") {
                    lease.send_replace(Lease::Ending);
                    return;
                }
                lease.send_replace(Lease::Held);
                last = beat.last_heartbeat;
                until = Instant::now() + Duration::from_secs(beat.ttl_seconds);
                backoff.reset();
                let wait_ms =
                    (beat.ttl_seconds * 500).clamp(BEAT_S_MIN * 1_000, BEAT_S_MAX * 1_000);
                sleep(Duration::from_millis(wait_ms)).await;
            }
            Err(error) if error.may_pass() && Instant::now() < until => {
                tracing::warn!(%error, work = item.id, "a heartbeat got no answer");
                backoff.wait().await;
            }
            Err(error) => {
                tracing::warn!(%error, work = item.id, "the work item is lost");
                lease.send_replace(Lease::Lost);
                return;
            }
        }
    }
}

async fn beat(worker: &Worker, item: &Item, key: &Key, last: &str) -> Result<Beat, CallError> {
    let lease_s = worker.config.lease_s;
    let last: String = last.bytes().map(escaped).collect();
    let query = format!("expected_last_heartbeat={last}&desired_ttl_seconds={lease_s}");
    let path = format!("{}/heartbeat?{query}", item.path(worker));
    worker.client.call(Method::POST, &path, key, None).await
}

/// A byte of a query's value.
fn escaped(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    }
}
