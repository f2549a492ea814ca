//! One transaction for many operations. Each is decided by reading, in order, before it writes
//! anything, so that a refused one leaves nothing behind and its neighbours go on.

use std::{collections::HashMap, sync::Arc};

use rusqlite::Connection;
use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::ports::{Appended, Document, Entry, Expect, Head, Projection};

use super::{
    board::{Beat, Board, Staged},
    op::{Answer, Op, Refusal},
    rows::{self, Place},
};

/// A stored head may be so many records behind. It bounds what is read again after a crash.
const HEAD_LAG_RECORDS_MAX: Seq = 32;

type Decided = rusqlite::Result<Result<Answer, Refusal>>;

pub(super) struct Batch<'a> {
    c: &'a Connection,
    board: &'a Board,
    /// The highest session number given so far.
    numbers: &'a mut i64,
    staged: HashMap<Arc<SessionKey>, Staged>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(c: &'a Connection, board: &'a Board, numbers: &'a mut i64) -> Self {
        Self { c, board, numbers, staged: HashMap::new() }
    }

    /// What to show once the transaction is committed.
    pub(super) fn into_staged(self) -> HashMap<Arc<SessionKey>, Staged> {
        self.staged
    }

    pub(super) fn run(&mut self, op: &Op) -> Decided {
        match op {
            Op::Append { key, entry, head, projection } => {
                self.append(key, entry, head, *projection)
            }
            Op::Project { key, head } => self.project(key, head),
            Op::Beat { key, beat } => self.beat(key, *beat),
            Op::Purge { key } => self.purge(key),
            Op::PutDocument { document, expect } => self.put_document(document, *expect),
            Op::DeleteDocument { tenant, kind, id, revision } => {
                let found = rows::revision(self.c, tenant, *kind, id)?;
                if let (Some(found), Some(expected)) = (found, revision)
                    && found != *expected
                {
                    return Ok(Err(Refusal::Conflict(found)));
                }
                rows::delete_document(self.c, tenant, *kind, id)?;
                Ok(Ok(Answer::Done))
            }
        }
    }

    /// Stores a head that has been newer than the stored one for a while.
    pub(super) fn store_head(&mut self, key: &Arc<SessionKey>) -> rusqlite::Result<()> {
        let c = self.c;
        if let Some(staged) = self.load(key)? {
            staged.store_head(c)?;
        }
        Ok(())
    }

    fn append(
        &mut self,
        key: &Arc<SessionKey>,
        entry: &Entry,
        head: &Arc<Head>,
        projection: Projection,
    ) -> Decided {
        let last_seq = self.load(key)?.map_or(0, |staged| staged.place.last_seq);
        if entry.seq > last_seq.saturating_add(1) {
            return Ok(Err(Refusal::Missing(last_seq.saturating_add(1))));
        }
        let appended = if entry.seq > last_seq {
            self.insert(key, entry)?;
            Appended::Now
        } else {
            match self.nonce(key, entry.seq)? {
                Some(nonce) if nonce == entry.nonce => Appended::AlreadyMine,
                Some(_) => return Ok(Err(Refusal::Conflict(entry.seq))),
                None => return Ok(Err(Refusal::Missing(entry.seq))),
            }
        };
        let c = self.c;
        if let Some(staged) = self.staged.get_mut(key) {
            match projection {
                Projection::Lag => staged.intent_written |= appended == Appended::Now,
                Projection::Follow => staged.project(c, head)?,
                Projection::Atomic => {
                    staged.project(c, head)?;
                    staged.store_head(c)?;
                }
            }
        }
        Ok(Ok(Answer::Appended(appended)))
    }

    fn insert(&mut self, key: &Arc<SessionKey>, entry: &Entry) -> rusqlite::Result<()> {
        let begun = self.staged.get(key);
        if begun.is_none_or(Staged::is_void) {
            *self.numbers += 1;
            rows::insert_session(self.c, *self.numbers, key)?;
            let purged = begun.is_some();
            let place = Place { no: *self.numbers, ..Place::default() };
            self.staged.insert(key.clone(), Staged { place, purged, ..Staged::default() });
        }
        if let Some(staged) = self.staged.get_mut(key) {
            rows::insert_record(self.c, staged.place.no, entry)?;
            staged.place.last_seq = entry.seq;
            staged.entries.push(entry.clone());
        }
        Ok(())
    }

    fn project(&mut self, key: &Arc<SessionKey>, head: &Arc<Head>) -> Decided {
        let c = self.c;
        // A head without records would bring a purged session back to life.
        if let Some(staged) = self.load(key)? {
            staged.project(c, head)?;
        }
        Ok(Ok(Answer::Done))
    }

    fn beat(&mut self, key: &Arc<SessionKey>, beat: Beat) -> Decided {
        let (c, board) = (self.c, self.board);
        let unknown = Ok(Err(Refusal::Conflict(beat.intent)));
        let Some(staged) = self.load(key)? else { return unknown };
        // A head that is not due is not at work.
        let at_work = staged.head.as_ref().filter(|head| head.due_at_ms.is_some());
        let Some(head_seq) = at_work.map(|head| head.last_seq) else { return unknown };
        let beats = staged.beats.iter().map(|beat| beat.intent);
        let holder = beats.max().max(board.lease_intent(key));
        if let Some(newer) = holder.filter(|holder| *holder > beat.intent) {
            return Ok(Err(Refusal::Conflict(newer)));
        }
        if staged.place.stored_due_ms.is_none() {
            rows::write_due(c, staged.place.no, beat.due_at_ms)?;
            staged.place.stored_due_ms = Some(beat.due_at_ms);
        }
        staged.beats.push(beat);
        Ok(Ok(Answer::HeadSeq(head_seq)))
    }

    fn purge(&mut self, key: &Arc<SessionKey>) -> Decided {
        let c = self.c;
        if let Some(staged) = self.load(key)? {
            rows::purge(c, staged.place.no)?;
            *staged = Staged { purged: true, ..Staged::default() };
        }
        Ok(Ok(Answer::Done))
    }

    fn put_document(&mut self, document: &Document, expect: Expect) -> Decided {
        let found = rows::revision(self.c, &document.tenant, document.kind, &document.id)?;
        let expected = match expect {
            Expect::Absent => None,
            Expect::Revision(revision) => Some(revision),
        };
        if found != expected {
            return Ok(Err(Refusal::Conflict(found.unwrap_or(0))));
        }
        rows::write_document(self.c, document)?;
        Ok(Ok(Answer::Done))
    }

    /// The session as this batch has left it so far; `None` when there is none.
    fn load(&mut self, key: &Arc<SessionKey>) -> rusqlite::Result<Option<&mut Staged>> {
        if !self.staged.contains_key(key) {
            let (place, head) = match self.board.place(key) {
                Some(known) => known,
                None => {
                    let Some(place) = rows::place(self.c, key)? else { return Ok(None) };
                    (place, rows::head(self.c, key)?.map(|(_, head)| Arc::new(head)))
                }
            };
            self.staged.insert(key.clone(), Staged { place, head, ..Staged::default() });
        }
        Ok(self.staged.get_mut(key).filter(|staged| !staged.is_void()))
    }

    fn nonce(&self, key: &SessionKey, seq: Seq) -> rusqlite::Result<Option<String>> {
        let Some(staged) = self.staged.get(key) else { return Ok(None) };
        let here = staged.entries.iter().find(|entry| entry.seq == seq);
        if let Some(nonce) = here.map(|entry| entry.nonce.clone()) {
            return Ok(Some(nonce));
        }
        match self.board.nonce(key, seq) {
            Some(nonce) => Ok(Some(nonce)),
            None => rows::nonce(self.c, staged.place.no, seq),
        }
    }
}

impl Staged {
    /// There is no such session (any more).
    pub(super) fn is_void(&self) -> bool {
        self.place.no == 0
    }

    /// Takes a newer head. It is stored at once where a crash would otherwise lose a wake-up, and
    /// soon in the other cases.
    fn project(&mut self, c: &Connection, head: &Arc<Head>) -> rusqlite::Result<()> {
        if self.head.as_ref().is_some_and(|known| known.last_seq >= head.last_seq) {
            return Ok(());
        }
        self.head = Some(head.clone());
        self.projected = true;
        let wakes = head.due_at_ms.is_some() && self.place.stored_due_ms.is_none();
        let covered = |stored: Seq| head.last_seq.saturating_sub(stored) < HEAD_LAG_RECORDS_MAX;
        if wakes || !self.place.stored_seq.is_some_and(covered) {
            self.store_head(c)?;
        }
        Ok(())
    }

    fn store_head(&mut self, c: &Connection) -> rusqlite::Result<()> {
        let Some(head) = &self.head else { return Ok(()) };
        if self.place.stored_seq != Some(head.last_seq) {
            rows::write_head(c, self.place.no, head)?;
            self.place.stored_seq = Some(head.last_seq);
            self.place.stored_due_ms = head.due_at_ms;
        }
        Ok(())
    }
}
