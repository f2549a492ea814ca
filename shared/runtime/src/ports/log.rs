//! The session log: the only ground state.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tailstep_core::{
    ids::{Seq, SessionKey, UnixMs},
    model::Usage,
};
use thiserror::Error;

/// Append-only records, one dense sequence a session, written by compare-and-set; beside it one
/// *head* a session, a projection that may lag behind the records and can be rebuilt from them.
///
/// Records are opaque bytes here: an adapter never looks into one.
#[async_trait]
pub trait Log: Send + Sync {
    /// The head as it is stored (strongly consistent), or `None` for an unknown session.
    async fn head(&self, key: &SessionKey) -> Result<Option<Head>, LogError>;

    /// Records with `seq > after`, in order, at most `limit` of them. Strongly consistent: whatever
    /// was appended before the call started is seen. A gap inside the answer is
    /// [`LogError::Corrupt`]; an adapter pages for itself where its service cuts pages short, and
    /// returns fewer than `limit` records only at the end of the log.
    async fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, LogError>;

    /// Appends `entry` if its `seq` is free and its predecessor exists (the caller has read it).
    /// Durable when it returns. The head is written as `projection` says.
    ///
    /// Finding the place taken by an entry with the same nonce is success
    /// ([`Appended::AlreadyMine`]): the earlier answer was lost on its way back.
    async fn append(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError>;

    /// Writes `head` unless the stored one is as new or newer by `last_seq` (then it is left as it
    /// is, and that is success). Never touches the lease.
    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError>;

    /// The lease holder of attempt `intent` says that it is alive: the version goes up by one (a new
    /// `intent` starts at 1), and the head's due time moves to `due_at_ms`. Answers the stored head's
    /// `last_seq`, by which the holder notices that somebody else wrote.
    ///
    /// [`LogError::Conflict`] when a later intent has the lease, and when the head has no due time: a
    /// session that is not due is not at work, and a late beat of an attempt that has lost it would
    /// have the sweeper wake it for ever.
    async fn beat(&self, key: &SessionKey, intent: Seq, due_at_ms: UnixMs)
    -> Result<Seq, LogError>;

    /// Waits until the log may hold a record with `seq > after`, or for about `wait_ms`. May return
    /// early; the caller reads to find out. Adapters with a notification use it, others poll the
    /// head no more often than about twice a second.
    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError>;

    /// Sessions whose due time is at or before `until_ms`, the most overdue first; may lag.
    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError>;

    /// Heads of one tenant's sessions in order of session id (ids sort by creation time); may lag.
    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError>;

    /// Removes all records of an ended session, and then its head. Idempotent.
    async fn purge(&self, key: &SessionKey) -> Result<(), LogError>;
}

/// One stored record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub seq: Seq,
    /// Chosen at random by the writer of this entry, to recognise its own write.
    pub nonce: String,
    /// An encoded record; any size (adapters move large ones to blobs).
    pub body: Bytes,
}

/// How the head follows an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// Not now: an intent, whose outcome will write the head soon. The due time already stored keeps
    /// the session under the sweeper's eye. Its writer is alive, so an abandoned lease ends here.
    Lag,
    /// After the record. A crash in between leaves a head that the next step repairs.
    Follow,
    /// Together with the record or not at all: it wakes a session that nothing else would wake.
    Atomic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    Now,
    AlreadyMine,
}

/// A session at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub tenant: String,
    pub session: String,
    /// The last record that this projection covers.
    pub last_seq: Seq,
    pub status: SessionStatus,
    pub agent_id: String,
    pub agent_version: u64,
    pub environment_id: String,
    pub title: Option<String>,
    pub created_at_ms: UnixMs,
    pub updated_at_ms: UnixMs,
    pub archived_at_ms: Option<UnixMs>,
    /// When somebody should look whether this session moves; `None` while it waits for people.
    pub due_at_ms: Option<UnixMs>,
    pub usage: Usage,
    /// The encoded fold at `last_seq` (opaque to adapters; a few kilobytes).
    pub snapshot: Bytes,
    /// Who works on the session, as the holder's last beat left it. Set by [`Log::beat`] only;
    /// ignored in writes.
    pub lease: Option<Lease>,
}

/// Liveness of the attempt whose intent is record `intent`. No clock is in it: the holder moves the
/// version, and an observer who sees it unmoved for a whole lease by its own clock may take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub intent: Seq,
    pub version: u64,
    /// The adapter knows that whoever held the session is gone (a process that no longer exists) and
    /// that nobody has written an intent or beaten since, so that nobody needs to wait.
    #[serde(default)]
    pub abandoned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Idle,
    Running,
    Rescheduling,
    Terminated,
    /// Its records are being removed; it answers as unknown.
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSessions {
    /// Continue behind this session id.
    pub after: Option<String>,
    pub limit: usize,
    pub descending: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// More may follow behind the last item.
    pub more: bool,
}

#[derive(Debug, Error)]
pub enum LogError {
    /// Another writer has the place; re-read and check again.
    #[error("record {seq} of session {session} is written already")]
    Conflict { session: String, seq: Seq },
    /// Records are missing or unreadable: never continued silently.
    #[error("log of session {session} is corrupt at record {seq}: {what}")]
    Corrupt { session: String, seq: Seq, what: String },
    /// The store is busy or out of reach; the same call may succeed later. Whether a write was
    /// applied is unknown.
    #[error("log store is unavailable: {what}")]
    Unavailable { what: String },
    /// The store refuses for a reason that time does not heal (access, configuration, format).
    #[error("log store refuses: {what}")]
    Refused { what: String },
}
