//! What the process knows about its sessions without asking the database: heads and the last
//! records of those in use, leases, and every due time.
//!
//! This process alone writes the database (the directory is locked), so that the board is never
//! stale. Only the writer thread adds to it, after the commit: whatever is seen here is durable,
//! but for two things that are worth nothing after a crash. Leases die with the process, and a due
//! time moved by a beat only matters while the holder lives: see [`super::Store::open`].

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{Entry, Head, Lease};

use super::rows::Place;

/// The part of one session's log that may stay in memory: the last few steps, which is what the next
/// step reads.
const TAIL_BYTES_MAX: usize = 16 * 1024;

pub(super) struct Board {
    inner: Mutex<Inner>,
}

struct Inner {
    sessions: HashMap<Arc<SessionKey>, Known>,
    due: BTreeSet<(UnixMs, Arc<SessionKey>)>,
    /// Sessions up to this number were there when the process started.
    older_no_max: i64,
    bytes: usize,
    bytes_max: usize,
    /// What the last look for things to forget left.
    bytes_left: usize,
    /// Counts uses; the view that was used least recently goes first.
    tick: u64,
}

#[derive(Default)]
struct Known {
    view: Option<View>,
    /// As the beats of this process left it.
    lease: Option<Lease>,
    /// An intent was written in this process, so that a holder from before it is history.
    taken: bool,
    due_at_ms: Option<UnixMs>,
}

/// A session's head and the end of its log.
struct View {
    place: Place,
    head: Option<Arc<Head>>,
    tail: VecDeque<Entry>,
    tail_bytes: usize,
    /// The head is newer than the stored one.
    dirty: bool,
    used: u64,
}

/// What one batch of the writer did to one session, to be shown when it is committed.
#[derive(Default)]
pub(super) struct Staged {
    pub place: Place,
    pub entries: Vec<Entry>,
    /// The head after the batch.
    pub head: Option<Arc<Head>>,
    /// The head was written in this batch, and its due time with it.
    pub projected: bool,
    pub intent_written: bool,
    pub beats: Vec<Beat>,
    /// What was known before this batch is void; the session may have begun anew since.
    pub purged: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Beat {
    pub intent: Seq,
    pub due_at_ms: UnixMs,
}

/// What a beat finds.
pub(super) enum Beaten {
    /// Done; the head's last record.
    Done(Seq),
    /// The session has no head, or is not due, and so not at work.
    Unknown,
    /// The intent of another attempt is newer.
    Fenced(Seq),
    /// The writer has to see to it: the session is not on the board, or its stored head has no due
    /// time, which the beat must then make durable.
    Writer,
}

/// What a reader finds.
pub(super) enum Found<T> {
    Here(T),
    /// The database has it.
    Elsewhere,
}

impl Board {
    pub(super) fn new(
        older_no_max: i64,
        bytes_max: usize,
        due: impl Iterator<Item = (SessionKey, UnixMs)>,
    ) -> Self {
        let mut inner = Inner {
            sessions: HashMap::new(),
            due: BTreeSet::new(),
            older_no_max,
            bytes: 0,
            bytes_max,
            bytes_left: 0,
            tick: 0,
        };
        for (key, due_at_ms) in due {
            inner.set_due(&Arc::new(key), Some(due_at_ms));
        }
        Self { inner: Mutex::new(inner) }
    }

    pub(super) fn head(&self, key: &SessionKey) -> Found<Option<Head>> {
        let mut inner = self.lock();
        let Some(view) = inner.view(key) else { return Found::Elsewhere };
        let (no, head) = (view.place.no, view.head.clone());
        Found::Here(head.map(|head| inner.dress(no, key, (*head).clone())))
    }

    /// `head` of session `no` as it came from the database, brought up to date.
    pub(super) fn update(&self, no: i64, head: Head) -> Head {
        let inner = self.lock();
        let key = SessionKey::new(&head.tenant, &head.session);
        let newer = inner.sessions.get(&key).and_then(|known| known.view.as_ref()?.head.clone());
        let head = match newer {
            Some(newer) if newer.last_seq > head.last_seq => (*newer).clone(),
            Some(_) | None => head,
        };
        inner.dress(no, &key, head)
    }

    /// Records behind `after`, at most `limit`.
    pub(super) fn read(&self, key: &SessionKey, after: Seq, limit: usize) -> Found<Vec<Entry>> {
        let mut inner = self.lock();
        let Some(view) = inner.view(key) else { return Found::Elsewhere };
        if after >= view.place.last_seq || limit == 0 {
            return Found::Here(Vec::new());
        }
        match view.tail.front() {
            Some(first) if first.seq <= after + 1 => {
                let skip = usize::try_from(after + 1 - first.seq).unwrap_or(usize::MAX);
                Found::Here(view.tail.iter().skip(skip).take(limit).cloned().collect())
            }
            Some(_) | None => Found::Elsewhere,
        }
    }

    /// The last record that is known to be committed; 0 when the session is not on the board.
    pub(super) fn last_seq(&self, key: &SessionKey) -> Seq {
        self.lock().view(key).map_or(0, |view| view.place.last_seq)
    }

    /// Where the session stands, and its head without the lease.
    pub(super) fn place(&self, key: &SessionKey) -> Option<(Place, Option<Arc<Head>>)> {
        self.lock().view(key).map(|view| (view.place, view.head.clone()))
    }

    pub(super) fn nonce(&self, key: &SessionKey, seq: Seq) -> Option<String> {
        let mut inner = self.lock();
        let tail = &inner.view(key)?.tail;
        let skip = usize::try_from(seq.checked_sub(tail.front()?.seq)?).ok()?;
        tail.get(skip).map(|entry| entry.nonce.clone())
    }

    pub(super) fn beat(&self, key: &SessionKey, beat: Beat) -> Beaten {
        let mut inner = self.lock();
        let Some(view) = inner.view(key) else { return Beaten::Writer };
        let Some(last_seq) = view.head.as_ref().map(|head| head.last_seq) else {
            return Beaten::Unknown;
        };
        if view.head.as_ref().is_some_and(|head| head.due_at_ms.is_none()) {
            return Beaten::Unknown;
        }
        if view.place.stored_due_ms.is_none() {
            return Beaten::Writer;
        }
        match inner.beat(key, beat) {
            Ok(()) => Beaten::Done(last_seq),
            Err(newer) => Beaten::Fenced(newer),
        }
    }

    pub(super) fn lease_intent(&self, key: &SessionKey) -> Option<Seq> {
        Some(self.lock().sessions.get(key)?.lease?.intent)
    }

    pub(super) fn due(&self, until_ms: UnixMs, limit: usize) -> Vec<SessionKey> {
        let inner = self.lock();
        let due = inner.due.iter().take_while(|(due_at_ms, _)| *due_at_ms <= until_ms);
        due.take(limit).map(|(_, key)| (**key).clone()).collect()
    }

    /// Sessions whose heads are newer here than in the database.
    pub(super) fn dirty(&self) -> Vec<Arc<SessionKey>> {
        let inner = self.lock();
        let dirty = |known: &Known| known.view.as_ref().is_some_and(|view| view.dirty);
        inner
            .sessions
            .iter()
            .filter(|(_, known)| dirty(known))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Shows what a committed batch did.
    pub(super) fn publish(&self, batch: HashMap<Arc<SessionKey>, Staged>) {
        let mut inner = self.lock();
        for (key, staged) in batch {
            inner.publish(&key, staged);
        }
        inner.shrink();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic here is a bug of ours that has been reported; the others go on.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn view(&mut self, key: &SessionKey) -> Option<&mut View> {
        let view = self.sessions.get_mut(key)?.view.as_mut()?;
        self.tick += 1;
        view.used = self.tick;
        Some(view)
    }

    /// The lease and the due time, which are newer here than anywhere.
    fn dress(&self, no: i64, key: &SessionKey, head: Head) -> Head {
        let known = self.sessions.get(key);
        let older = no <= self.older_no_max && !known.is_some_and(|known| known.taken);
        let lease = if older {
            Some(Lease { intent: 0, version: 0, abandoned: true })
        } else {
            known.and_then(|known| known.lease)
        };
        Head { lease, due_at_ms: known.and_then(|known| known.due_at_ms), ..head }
    }

    fn beat(&mut self, key: &SessionKey, beat: Beat) -> Result<(), Seq> {
        let Some((key, _)) = self.sessions.get_key_value(key) else { return Ok(()) };
        let key = key.clone();
        let known = self.sessions.entry(key.clone()).or_default();
        let intent = beat.intent;
        let version = match known.lease {
            // A late beat of a fenced attempt must not push its successor aside.
            Some(lease) if lease.intent > intent => return Err(lease.intent),
            Some(lease) if lease.intent == intent => lease.version.saturating_add(1),
            Some(_) | None => 1,
        };
        known.lease = Some(Lease { intent, version, abandoned: false });
        known.taken = true;
        self.set_due(&key, Some(beat.due_at_ms));
        Ok(())
    }

    fn set_due(&mut self, key: &Arc<SessionKey>, due_at_ms: Option<UnixMs>) {
        let known = self.sessions.entry(key.clone()).or_default();
        if known.due_at_ms == due_at_ms {
            return;
        }
        if let Some(old_ms) = std::mem::replace(&mut known.due_at_ms, due_at_ms) {
            self.due.remove(&(old_ms, key.clone()));
        }
        if let Some(new_ms) = due_at_ms {
            self.due.insert((new_ms, key.clone()));
        }
    }

    fn publish(&mut self, key: &Arc<SessionKey>, staged: Staged) {
        if staged.purged {
            self.set_due(key, None);
            if let Some(view) = self.sessions.remove(key).and_then(|known| known.view) {
                self.bytes -= view.bytes();
            }
        }
        if staged.is_void() {
            return;
        }
        self.tick += 1;
        let tick = self.tick;
        let known = self.sessions.entry(key.clone()).or_default();
        known.taken |= staged.intent_written;
        let mut view = match known.view.take() {
            Some(view) => {
                self.bytes -= view.bytes();
                view
            }
            None => View::new(staged.place),
        };
        view.used = tick;
        view.place = staged.place;
        view.show(staged.head, staged.entries);
        self.bytes += view.bytes();
        let due_at_ms = view.head.as_ref().and_then(|head| head.due_at_ms);
        known.view = Some(view);
        if staged.projected {
            self.set_due(key, due_at_ms);
        }
        for beat in staged.beats {
            // A newer attempt that beat since the writer looked keeps the lease.
            let _ = self.beat(key, beat);
        }
    }

    /// Forgets what was not used for longest, down to three quarters of the limit. Of a session whose
    /// head is not stored yet, only the records can go.
    fn shrink(&mut self) {
        // Not at every batch when nothing could go the last time.
        if self.bytes <= self.bytes_max || self.bytes < self.bytes_left + self.bytes_max / 8 {
            return;
        }
        let used = |(key, known): (&Arc<SessionKey>, &Known)| {
            known.view.as_ref().map(|view| (view.used, key.clone()))
        };
        let mut oldest: Vec<(u64, Arc<SessionKey>)> =
            self.sessions.iter().filter_map(used).collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in oldest {
            if self.bytes <= self.bytes_max / 4 * 3 {
                break;
            }
            self.forget(&key);
        }
        self.bytes_left = self.bytes;
    }

    fn forget(&mut self, key: &Arc<SessionKey>) {
        let Some(known) = self.sessions.get_mut(key) else { return };
        let Some(view) = known.view.as_mut() else { return };
        if view.dirty {
            self.bytes -= view.tail_bytes;
            view.drop_tail();
            return;
        }
        self.bytes -= view.bytes();
        known.view = None;
        // Without a due time nobody works on the session, and its lease is of no interest.
        if known.due_at_ms.is_none() {
            self.sessions.remove(key);
        }
    }
}

impl View {
    fn new(place: Place) -> Self {
        Self { place, head: None, tail: VecDeque::new(), tail_bytes: 0, dirty: false, used: 0 }
    }

    fn show(&mut self, head: Option<Arc<Head>>, entries: Vec<Entry>) {
        for entry in entries {
            self.tail_bytes += entry_bytes(&entry);
            self.tail.push_back(entry);
        }
        while self.tail_bytes > TAIL_BYTES_MAX
            && let Some(first) = self.tail.pop_front()
        {
            self.tail_bytes -= entry_bytes(&first);
        }
        if head.is_some() {
            self.head = head;
        }
        self.dirty = self.head.as_ref().map(|head| head.last_seq) != self.place.stored_seq;
    }

    fn drop_tail(&mut self) {
        self.tail = VecDeque::new();
        self.tail_bytes = 0;
    }

    fn bytes(&self) -> usize {
        let head = self.head.as_ref().map_or(0, |head| head.snapshot.len());
        // The fixed part of a view and a head with its short texts, roughly.
        800 + head + self.tail_bytes
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    entry.body.len() + entry.nonce.len() + size_of::<Entry>()
}
