//! The database: one file, one thread that writes, and readers beside it.
//!
//! **What is durable before it is acknowledged:** every record, with it the head wherever a wake-up
//! would be lost without it (see [`batch`]), and every document. A head that only moves on (a
//! running session's next step) is shown at once and stored within 200 ms or 32 records: it is a
//! projection, and the next step reads the records behind it.
//!
//! **What dies with the process:** leases. They say that somebody in this process is at work, and
//! after a restart nobody is. So each session that was there when the database was opened reports
//! its lease as abandoned (intent 0, version 0) until an intent is written or beaten in this life,
//! whether or not its last holder had come to its first beat.

mod batch;
mod board;
mod op;
mod rows;
mod schema;
mod writer;

pub(crate) use board::Beat;
pub(crate) use op::{Answer, Op, Refusal};

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use rusqlite::Connection;
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::{
    memory::Watchers,
    ports::{Document, DocumentKind, Entry, Head, ListDocuments, ListSessions, Page},
};

use crate::error::{LocalError, io_error};
use board::{Beaten, Board, Found};
use writer::{Inbox, Writer, refusal};

/// Readers that are kept open. More are opened while more read at once, which lasts microseconds.
const READERS_KEPT: usize = 4;

pub(crate) struct Store {
    file: PathBuf,
    board: Arc<Board>,
    inbox: Arc<Inbox>,
    watchers: Arc<Watchers>,
    readers: Mutex<Vec<Connection>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Another process may write from now on, so that the board would be stale.
    closed: AtomicBool,
}

/// A session that has to be woken, as the database says when it is opened.
pub(crate) struct Overdue {
    pub key: SessionKey,
    /// How long after now; 0 for one that was moving when the last process ended, because its owner
    /// is gone.
    pub delay_ms: u64,
}

impl Store {
    /// Opens `<dir>/tailstep.db`. The caller holds the directory's lock.
    pub(crate) fn open(
        dir: &Path,
        cache_bytes: usize,
        now_ms: UnixMs,
    ) -> Result<(Self, Vec<Overdue>), LocalError> {
        let file = dir.join("tailstep.db");
        let connection = schema::open_writer(dir, &file)?;
        let failed = |source| LocalError::Database { dir: dir.to_owned(), source };
        let numbers = rows::sessions_max(&connection).map_err(failed)?;
        let due = rows::due(&connection).map_err(failed)?;
        let overdue = due
            .iter()
            .map(|due| Overdue {
                key: due.key.clone(),
                delay_ms: if due.moving { 0 } else { due.due_at_ms.saturating_sub(now_ms) },
            })
            .collect();
        let due = due.into_iter().map(|due| (due.key, due.due_at_ms));
        let board = Arc::new(Board::new(numbers, cache_bytes, due));
        let (inbox, watchers) = (Arc::new(Inbox::default()), Arc::new(Watchers::default()));
        let writer = Writer {
            connection,
            board: board.clone(),
            inbox: inbox.clone(),
            watchers: watchers.clone(),
            numbers,
        };
        let writer = writer.start().map_err(io_error("start the writer of", &file))?;
        let store = Self {
            file,
            board,
            inbox,
            watchers,
            readers: Mutex::default(),
            writer: Mutex::new(Some(writer)),
            closed: AtomicBool::new(false),
        };
        Ok((store, overdue))
    }

    /// Does what is waiting, stores the heads that are not yet, and ends the writer. Later calls are
    /// refused as unavailable. Takes as long as a commit.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.inbox.close();
        let writer = lock(&self.writer).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the writer of the log had panicked");
        }
        lock(&self.readers).clear();
    }

    pub(crate) async fn ask(&self, op: Op) -> Result<Answer, Refusal> {
        self.inbox.ask(op).await
    }

    pub(crate) fn head(&self, key: &SessionKey) -> Result<Option<Head>, Refusal> {
        self.check_open()?;
        if let Found::Here(head) = self.board.head(key) {
            return Ok(head);
        }
        let found = self.query(|c| rows::head(c, key))?;
        Ok(found.map(|(no, head)| self.board.update(no, head)))
    }

    /// In order; a gap is the caller's to see.
    pub(crate) fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, Refusal> {
        self.check_open()?;
        match self.board.read(key, after, limit) {
            Found::Here(entries) => Ok(entries),
            Found::Elsewhere => self.query(|c| rows::records(c, key, after, limit)),
        }
    }

    pub(crate) fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, Refusal> {
        let heads = self.query(|c| rows::heads(c, tenant, query))?;
        let heads = heads.into_iter().map(|(no, head)| self.board.update(no, head));
        Ok(page(heads.collect(), query.limit))
    }

    pub(crate) fn due(&self, until_ms: UnixMs, limit: usize) -> Vec<SessionKey> {
        self.board.due(until_ms, limit)
    }

    /// The head's last record after the beat.
    pub(crate) async fn beat(&self, key: &SessionKey, beat: Beat) -> Result<Seq, Refusal> {
        self.check_open()?;
        match self.board.beat(key, beat) {
            Beaten::Done(last_seq) => Ok(last_seq),
            Beaten::Unknown => Err(Refusal::Conflict(beat.intent)),
            Beaten::Fenced(newer) => Err(Refusal::Conflict(newer)),
            Beaten::Writer => {
                match self.ask(Op::Beat { key: Arc::new(key.clone()), beat }).await? {
                    Answer::HeadSeq(last_seq) => Ok(last_seq),
                    Answer::Done | Answer::Appended(_) => Ok(0),
                }
            }
        }
    }

    pub(crate) async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) {
        let longer = || {
            self.board.last_seq(key) > after
                || self.read(key, after, 1).map_or(true, |entries| !entries.is_empty())
        };
        self.watchers.wait(key, wait_ms, longer).await;
    }

    pub(crate) fn document(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<Document>, Refusal> {
        self.query(|c| rows::document(c, tenant, kind, id))
    }

    pub(crate) fn documents(
        &self,
        tenant: &str,
        kind: DocumentKind,
        query: &ListDocuments,
    ) -> Result<Page<Document>, Refusal> {
        let found = self.query(|c| rows::documents(c, tenant, kind, query))?;
        Ok(page(found, query.limit))
    }

    fn check_open(&self) -> Result<(), Refusal> {
        if self.closed.load(Ordering::Acquire) { Err(writer::closed()) } else { Ok(()) }
    }

    /// Reads on the caller's thread: a read takes a few microseconds, less than handing it to another
    /// thread and back, and readers do not wait for the writer.
    fn query<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Refusal> {
        self.check_open()?;
        let kept = lock(&self.readers).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => schema::open_reader(&self.file).map_err(|error| refusal(&error))?,
        };
        let found = read(&connection).map_err(|error| refusal(&error))?;
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_KEPT {
            readers.push(connection);
        }
        Ok(found)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

fn page<T>(mut items: Vec<T>, limit: usize) -> Page<T> {
    let more = items.len() > limit;
    items.truncate(limit);
    Page { items, more }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
