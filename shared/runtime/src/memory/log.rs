//! [`Log`] in memory.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::lock;
use crate::ports::{Appended, Entry, Head, Lease, ListSessions, Log, LogError, Page, Projection};

#[derive(Default)]
pub struct MemoryLog {
    sessions: Mutex<BTreeMap<SessionKey, Stored>>,
    watchers: Watchers,
}

#[derive(Default)]
struct Stored {
    records: BTreeMap<Seq, Entry>,
    /// With the lease.
    head: Option<Head>,
}

impl MemoryLog {
    /// Loses one record, as a failing store would.
    pub fn lose(&self, key: &SessionKey, seq: Seq) {
        if let Some(stored) = lock(&self.sessions).get_mut(key) {
            stored.records.remove(&seq);
        }
    }

    /// Says what a restarted process would say of every lease: its holder is gone.
    pub fn abandon_leases(&self) {
        for stored in lock(&self.sessions).values_mut() {
            if let Some(head) = &mut stored.head {
                let none = Lease { intent: 0, version: 0, abandoned: true };
                head.lease = Some(Lease { abandoned: true, ..head.lease.unwrap_or(none) });
            }
        }
    }
}

#[async_trait]
impl Log for MemoryLog {
    async fn head(&self, key: &SessionKey) -> Result<Option<Head>, LogError> {
        Ok(lock(&self.sessions).get(key).and_then(|stored| stored.head.clone()))
    }

    async fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, LogError> {
        let sessions = lock(&self.sessions);
        let Some(stored) = sessions.get(key) else { return Ok(Vec::new()) };
        let mut entries: Vec<Entry> = Vec::new();
        for entry in stored.records.range((Bound::Excluded(after), Bound::Unbounded)).take(limit) {
            let expected = after.saturating_add(1).saturating_add(entries.len() as u64);
            if *entry.0 != expected {
                return Err(missing(key, expected));
            }
            entries.push(entry.1.clone());
        }
        Ok(entries)
    }

    async fn append(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError> {
        let appended = {
            let mut sessions = lock(&self.sessions);
            // A refused append leaves no trace of an unknown session.
            let last = sessions.get(key).map_or(0, Stored::last_seq);
            if entry.seq > last.saturating_add(1) {
                return Err(missing(key, last.saturating_add(1)));
            }
            let stored = sessions.entry(key.clone()).or_default();
            let appended = stored.insert(key, entry)?;
            match projection {
                Projection::Lag => stored.forget_abandoned_lease(),
                Projection::Follow | Projection::Atomic => stored.project(head),
            }
            appended
        };
        self.watchers.notify(key);
        Ok(appended)
    }

    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError> {
        // A head without records would bring a purged session back to life.
        if let Some(stored) = lock(&self.sessions).get_mut(key) {
            stored.project(head);
        }
        Ok(())
    }

    async fn beat(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        let conflict = |seq| LogError::Conflict { session: key.session.clone(), seq };
        let mut sessions = lock(&self.sessions);
        let head = sessions.get_mut(key).and_then(|stored| stored.head.as_mut());
        // Only a session with a due time can be at work.
        let head = head.filter(|head| head.due_at_ms.is_some()).ok_or_else(|| conflict(intent))?;
        head.lease = Some(next_lease(head.lease, intent).map_err(conflict)?);
        head.due_at_ms = Some(due_at_ms);
        Ok(head.last_seq)
    }

    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError> {
        let longer = || lock(&self.sessions).get(key).is_some_and(|s| s.last_seq() > after);
        self.watchers.wait(key, wait_ms, longer).await;
        Ok(())
    }

    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError> {
        let sessions = lock(&self.sessions);
        let due = |(key, stored): (&SessionKey, &Stored)| {
            let due_at_ms = stored.head.as_ref()?.due_at_ms?;
            (due_at_ms <= until_ms).then(|| (due_at_ms, key.clone()))
        };
        let mut found: Vec<(UnixMs, SessionKey)> = sessions.iter().filter_map(due).collect();
        found.sort();
        Ok(found.into_iter().take(limit).map(|(_, key)| key).collect())
    }

    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError> {
        let sessions = lock(&self.sessions);
        let mut heads: Vec<&Head> = sessions
            .range(SessionKey::new(tenant, "")..)
            .take_while(|(key, _)| key.tenant == tenant)
            .filter_map(|(_, stored)| stored.head.as_ref())
            .collect();
        if query.descending {
            heads.reverse();
        }
        let behind = |head: &&Head| match (&query.after, query.descending) {
            (None, _) => true,
            (Some(after), false) => head.session > *after,
            (Some(after), true) => head.session < *after,
        };
        let mut rest = heads.into_iter().filter(behind);
        let items = rest.by_ref().take(query.limit).cloned().collect();
        Ok(Page { items, more: rest.next().is_some() })
    }

    async fn purge(&self, key: &SessionKey) -> Result<(), LogError> {
        lock(&self.sessions).remove(key);
        self.watchers.notify(key);
        Ok(())
    }
}

impl Stored {
    fn last_seq(&self) -> Seq {
        self.records.keys().next_back().copied().unwrap_or(0)
    }

    fn insert(&mut self, key: &SessionKey, entry: &Entry) -> Result<Appended, LogError> {
        match self.records.get(&entry.seq) {
            Some(found) if found.nonce == entry.nonce => Ok(Appended::AlreadyMine),
            Some(_) => Err(LogError::Conflict { session: key.session.clone(), seq: entry.seq }),
            // Below the last record there is no free place, only a lost one.
            None if entry.seq <= self.last_seq() => Err(missing(key, entry.seq)),
            None => {
                self.records.insert(entry.seq, entry.clone());
                Ok(Appended::Now)
            }
        }
    }

    /// An intent has been written now, so its owner is alive although it has not beaten yet.
    fn forget_abandoned_lease(&mut self) {
        if let Some(head) = &mut self.head {
            head.lease = head.lease.filter(|lease| !lease.abandoned);
        }
    }

    fn project(&mut self, head: &Head) {
        let stored = self.head.as_ref();
        if stored.is_some_and(|stored| stored.last_seq >= head.last_seq) {
            return;
        }
        let lease = stored.and_then(|stored| stored.lease);
        self.head = Some(Head { lease, ..head.clone() });
    }
}

/// The lease after a beat of `intent`; the newer intent's number when there is one, which a late
/// beat of its fenced predecessor must not push aside.
fn next_lease(lease: Option<Lease>, intent: Seq) -> Result<Lease, Seq> {
    match lease {
        Some(lease) if lease.intent > intent => Err(lease.intent),
        Some(lease) if lease.intent == intent => {
            Ok(Lease { intent, version: lease.version.saturating_add(1), abandoned: false })
        }
        Some(_) | None => Ok(Lease { intent, version: 1, abandoned: false }),
    }
}

fn missing(key: &SessionKey, seq: Seq) -> LogError {
    LogError::Corrupt { session: key.session.clone(), seq, what: "record is missing".to_owned() }
}

/// Who waits for which session's log to grow, within one process.
#[derive(Default)]
pub struct Watchers {
    waiting: Mutex<BTreeMap<SessionKey, (usize, Arc<Notify>)>>,
}

impl Watchers {
    /// The log of `key` may have grown.
    pub fn notify(&self, key: &SessionKey) {
        let waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return;
        }
        if let Some((_, notify)) = waiting.get(key) {
            notify.notify_waiters();
        }
    }

    /// Waits for a notification on `key`, but no longer than `wait_ms`, and not at all when
    /// `already` holds once notifications are being listened for.
    pub async fn wait(&self, key: &SessionKey, wait_ms: u64, already: impl Fn() -> bool) {
        let notify = {
            let mut waiting = lock(&self.waiting);
            let place = waiting.entry(key.clone()).or_default();
            place.0 += 1;
            place.1.clone()
        };
        // Also when the future is dropped.
        let _leaving = Leaving { watchers: self, key };
        let mut notified = std::pin::pin!(notify.notified());
        notified.as_mut().enable();
        if !already() {
            let until = Instant::now() + Duration::from_millis(wait_ms);
            let _ = timeout_at(until, notified).await;
        }
    }
}

struct Leaving<'a> {
    watchers: &'a Watchers,
    key: &'a SessionKey,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.watchers.waiting);
        if let Some(place) = waiting.get_mut(self.key) {
            place.0 -= 1;
            if place.0 == 0 {
                waiting.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_is_remembered_who_stopped_waiting() {
        let log = MemoryLog::default();
        let key = SessionKey::new("t", "s");
        let wait = tokio::time::timeout(Duration::from_millis(5), log.changed(&key, 0, 1_000));
        assert!(wait.await.is_err());
        log.changed(&key, 0, 10).await.unwrap();
        assert!(lock(&log.watchers.waiting).is_empty());
    }
}
