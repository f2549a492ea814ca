//! The head as an item, and the update expressions that move it.
//!
//! The tenant index and the due index hold keys only, so that an ordinary step, which changes neither
//! the tenant nor (mostly) anything but the projection, costs no write to the former.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{Head, Lease, SessionStatus};

use crate::item::{
    Item, binary, find_number, find_text, get_binary, get_number, get_text, join_key, number, text,
};

/// Sort key of the head.
pub(super) const HEAD: &str = "HEAD";
pub(super) const TENANT_INDEX: &str = "by-tenant";
pub(super) const DUE_INDEX: &str = "due";
/// Partitions of the due index. Each step moves a due time, an index partition takes 1,000 writes a
/// second, and an index that cannot follow holds the table up.
pub(super) const DUE_SHARDS: u8 = 8;
/// A head exists, and it is older. An older projection never overwrites a newer one.
pub(super) const NEWER: &str = "last_seq < :last_seq";
/// The same, or no head exists.
pub(super) const NEW_OR_NEWER: &str = "attribute_not_exists(last_seq) OR last_seq < :last_seq";
/// Item layout that this version writes; it refuses newer ones.
const LAYOUT: u64 = 1;

/// The partition of a session.
pub(super) fn partition(key: &SessionKey) -> String {
    join_key(&[&key.tenant, &key.session])
}

/// The partition of a tenant in the tenant index. The prefix keeps an empty tenant from being an
/// empty key, which DynamoDB does not take.
pub(super) fn list_partition(tenant: &str) -> String {
    join_key(&["tenant", tenant])
}

pub(super) fn due_partition(shard: u8) -> String {
    format!("due#{shard}")
}

fn due_shard(key: &SessionKey) -> u8 {
    Sha256::digest(partition(key).as_bytes())[0] % DUE_SHARDS
}

/// The condition for the head that goes with record `seq`: only a first record makes a head.
pub(super) fn may_write(seq: Seq) -> &'static str {
    if seq == 1 { NEW_OR_NEWER } else { NEWER }
}

/// An update of the whole projection. Attribute names go by placeholder, since `status` and others
/// are reserved words.
pub(super) struct HeadUpdate {
    pub(super) expression: String,
    pub(super) names: HashMap<String, String>,
    pub(super) values: Item,
}

/// Writes everything of `head` but the lease.
pub(super) fn update(key: &SessionKey, head: &Head) -> HeadUpdate {
    let status = encode_status(head.status);
    let usage = serde_json::to_string(&head.usage).unwrap_or_default();
    let set = [
        ("layout", number(LAYOUT)),
        ("tenant", text(&key.tenant)),
        ("session", text(&key.session)),
        ("list_pk", text(list_partition(&key.tenant))),
        ("list_sk", text(&key.session)),
        ("last_seq", number(head.last_seq)),
        ("status", text(status)),
        ("agent_id", text(&head.agent_id)),
        ("agent_version", number(head.agent_version)),
        ("environment_id", text(&head.environment_id)),
        ("created_at_ms", number(head.created_at_ms)),
        ("updated_at_ms", number(head.updated_at_ms)),
        ("usage", text(usage)),
        ("snapshot", binary(&head.snapshot)),
    ];
    let optional = [
        ("title", head.title.as_deref().map(text)),
        ("archived_at_ms", head.archived_at_ms.map(number)),
        ("due_pk", head.due_at_ms.map(|_| text(due_partition(due_shard(key))))),
        ("due_ms", head.due_at_ms.map(number)),
    ];
    let mut update =
        HeadUpdate { expression: String::new(), names: HashMap::new(), values: Item::new() };
    let mut assignments = Vec::new();
    let mut removals = Vec::new();
    let all = set.into_iter().map(|(name, value)| (name, Some(value))).chain(optional);
    for (name, value) in all {
        update.names.insert(format!("#{name}"), name.to_owned());
        match value {
            Some(value) => {
                assignments.push(format!("#{name} = :{name}"));
                update.values.insert(format!(":{name}"), value);
            }
            None => removals.push(format!("#{name}")),
        }
    }
    update.expression = format!("SET {}", assignments.join(", "));
    if !removals.is_empty() {
        update.expression.push_str(" REMOVE ");
        update.expression.push_str(&removals.join(", "));
    }
    update
}

/// A write to the lease and the due time alone.
pub(super) struct LeaseUpdate {
    pub(super) expression: &'static str,
    pub(super) condition: &'static str,
    pub(super) values: Item,
}

/// One more beat of the attempt that holds the lease. A head without a due time is not at work.
pub(super) fn beat_again(key: &SessionKey, intent: Seq, due_at_ms: UnixMs) -> LeaseUpdate {
    LeaseUpdate {
        expression: "SET lease_version = lease_version + :one, due_ms = :due, due_pk = :shard",
        condition: "lease_intent = :intent AND attribute_exists(due_ms)",
        values: lease_values(key, intent, due_at_ms),
    }
}

/// The first beat of an attempt. A later attempt keeps the lease: its holder has taken over.
pub(super) fn first_beat(key: &SessionKey, intent: Seq, due_at_ms: UnixMs) -> LeaseUpdate {
    LeaseUpdate {
        expression: "SET lease_intent = :intent, lease_version = :one, due_ms = :due, due_pk = :shard",
        condition: "attribute_exists(due_ms) AND (attribute_not_exists(lease_intent) OR lease_intent < :intent)",
        values: lease_values(key, intent, due_at_ms),
    }
}

fn lease_values(key: &SessionKey, intent: Seq, due_at_ms: UnixMs) -> Item {
    Item::from([
        (":intent".to_owned(), number(intent)),
        (":one".to_owned(), number(1)),
        (":due".to_owned(), number(due_at_ms)),
        (":shard".to_owned(), text(due_partition(due_shard(key)))),
    ])
}

/// Reads a head; the error says what is wrong with the item.
pub(super) fn decode(item: &Item) -> Result<Head, String> {
    let layout = get_number(item, "layout")?;
    if layout > LAYOUT {
        return Err(format!("item layout {layout}, this version reads up to {LAYOUT}"));
    }
    let usage = serde_json::from_str(get_text(item, "usage")?)
        .map_err(|error| format!("usage: {error}"))?;
    Ok(Head {
        tenant: get_text(item, "tenant")?.to_owned(),
        session: get_text(item, "session")?.to_owned(),
        last_seq: get_number(item, "last_seq")?,
        status: decode_status(get_text(item, "status")?)?,
        agent_id: get_text(item, "agent_id")?.to_owned(),
        agent_version: get_number(item, "agent_version")?,
        environment_id: get_text(item, "environment_id")?.to_owned(),
        title: find_text(item, "title")?.map(str::to_owned),
        created_at_ms: get_number(item, "created_at_ms")?,
        updated_at_ms: get_number(item, "updated_at_ms")?,
        archived_at_ms: find_number(item, "archived_at_ms")?,
        due_at_ms: find_number(item, "due_ms")?,
        usage,
        snapshot: get_binary(item, "snapshot")?,
        lease: decode_lease(item)?,
    })
}

fn decode_lease(item: &Item) -> Result<Option<Lease>, String> {
    let Some(intent) = find_number(item, "lease_intent")? else { return Ok(None) };
    // Lambda tells nobody that a holder is gone, so it is never known to be.
    Ok(Some(Lease { intent, version: get_number(item, "lease_version")?, abandoned: false }))
}

fn encode_status(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Idle => "idle",
        SessionStatus::Running => "running",
        SessionStatus::Rescheduling => "rescheduling",
        SessionStatus::Terminated => "terminated",
        SessionStatus::Deleted => "deleted",
    }
}

fn decode_status(name: &str) -> Result<SessionStatus, String> {
    serde_json::from_value(serde_json::Value::String(name.to_owned()))
        .map_err(|_| format!("status {name} is not known to this version"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tailstep_core::model::Usage;

    use super::*;

    fn head(due_at_ms: Option<u64>) -> Head {
        Head {
            tenant: "t".into(),
            session: "sesn_1".into(),
            last_seq: 3,
            status: SessionStatus::Running,
            agent_id: "a".into(),
            agent_version: 1,
            environment_id: "e".into(),
            title: None,
            created_at_ms: 1,
            updated_at_ms: 2,
            archived_at_ms: None,
            due_at_ms,
            usage: Usage::default(),
            snapshot: Bytes::from_static(b"s"),
            lease: Some(Lease { intent: 9, version: 9, abandoned: false }),
        }
    }

    #[test]
    fn absent_fields_are_removed_and_the_lease_is_never_written() {
        let key = SessionKey::new("t", "sesn_1");
        let idle = update(&key, &head(None));
        assert!(idle.expression.contains("REMOVE #title, #archived_at_ms, #due_pk, #due_ms"));
        assert!(!idle.values.contains_key(":due_ms"));
        let due = update(&key, &head(Some(7)));
        assert!(due.expression.contains("#due_ms = :due_ms") && due.values.contains_key(":due_pk"));
        assert!(!due.expression.contains("lease"));
    }

    #[test]
    fn every_status_has_a_name_that_reads_back() {
        for status in [
            SessionStatus::Idle,
            SessionStatus::Running,
            SessionStatus::Rescheduling,
            SessionStatus::Terminated,
            SessionStatus::Deleted,
        ] {
            assert_eq!(decode_status(encode_status(status)), Ok(status));
        }
        assert!(decode_status("dreaming").is_err());
    }
}
