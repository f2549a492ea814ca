//! The JSON of work items and heartbeats.

use serde_json::{Value, json};
use tailstep_core::work::{Beat, WorkItem};

use crate::stamp::stamp;

/// The item without its secret, which only a poll shows.
pub(super) fn shown(item: &WorkItem) -> Value {
    json!({
        "id": item.id,
        "type": "work",
        "environment_id": item.environment,
        "state": item.state,
        "data": {"type": "session", "id": item.session},
        "metadata": item.metadata,
        "secret": null,
        "created_at": stamp(item.created_at_ms),
        "acknowledged_at": item.acknowledged_at_ms.map(stamp),
        "started_at": item.started_at_ms.map(stamp),
        "latest_heartbeat_at": item.beat_at_ms.map(stamp),
        "stop_requested_at": item.stop_requested_at_ms.map(stamp),
        "stopped_at": item.stopped_at_ms.map(stamp),
    })
}

pub(super) fn beat(beat: &Beat) -> Value {
    json!({
        "type": "work_heartbeat",
        "last_heartbeat": beat.item.beat_at_ms.map(stamp).unwrap_or_default(),
        "lease_extended": beat.extended,
        "state": beat.item.state,
        "ttl_seconds": beat.item.lease_s,
    })
}
