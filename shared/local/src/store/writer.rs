//! The one thread that writes. It takes all that waits, does it in one transaction, and answers when
//! that is on the disk: while one commit runs, the next batch gathers.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode};
use tailstep_core::ids::SessionKey;
use tailstep_runtime::memory::Watchers;
use tokio::sync::oneshot;

use super::{
    batch::Batch,
    board::{Board, Staged},
    op::{Answer, Op, Refusal},
};

/// Operations in one transaction. It bounds the wait of the first one and the size of the commit.
const BATCH_OPS_MAX: usize = 1_024;

/// A head that no append carries along is stored after this long. It bounds what is read again after
/// a crash, and costs an idle session one more commit.
const HEAD_LAG: Duration = Duration::from_millis(200);

type Reply = Result<Answer, Refusal>;

/// What waits for the writer.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    asks: Vec<Ask>,
    closed: bool,
}

struct Ask {
    op: Op,
    reply: oneshot::Sender<Reply>,
}

impl Inbox {
    pub(super) async fn ask(&self, op: Op) -> Reply {
        let (reply, answer) = oneshot::channel();
        {
            let mut waiting = self.lock();
            if waiting.closed {
                return Err(closed());
            }
            waiting.asks.push(Ask { op, reply });
            // A busy writer looks for itself when it is through.
            if waiting.asks.len() == 1 {
                self.arrived.notify_one();
            }
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// What is waiting is still done, and nothing more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    /// The next asks, none after `idle` without any; `None` when it is closed and empty.
    fn take(&self, idle: Duration) -> Option<Vec<Ask>> {
        let waiting = self.lock();
        let quiet = |waiting: &mut Waiting| waiting.asks.is_empty() && !waiting.closed;
        let (mut waiting, _) = self
            .arrived
            .wait_timeout_while(waiting, idle, quiet)
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.asks.is_empty() {
            return if waiting.closed { None } else { Some(Vec::new()) };
        }
        let count = waiting.asks.len().min(BATCH_OPS_MAX);
        let rest = waiting.asks.split_off(count);
        Some(mem::replace(&mut waiting.asks, rest))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn closed() -> Refusal {
    Refusal::Unavailable("the store is closed".to_owned())
}

pub(super) struct Writer {
    pub connection: Connection,
    pub board: Arc<Board>,
    pub inbox: Arc<Inbox>,
    pub watchers: Arc<Watchers>,
    /// The highest session number given so far.
    pub numbers: i64,
}

impl Writer {
    pub(super) fn start(mut self) -> std::io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name("tailstep-log".to_owned()).spawn(move || self.run())
    }

    fn run(&mut self) {
        // Also when this thread panics: nobody may wait for it then.
        let inbox = self.inbox.clone();
        let _closing = Closing(&inbox);
        let mut store_at = Instant::now() + HEAD_LAG;
        let mut idle = HEAD_LAG;
        while let Some(asks) = inbox.take(idle) {
            let now = Instant::now();
            let dirty = if now < store_at { Vec::new() } else { self.board.dirty() };
            if now >= store_at {
                store_at = now + HEAD_LAG;
            }
            if asks.is_empty() && dirty.is_empty() {
                // Only an ask can make a head newer.
                idle = if now < store_at { store_at - now } else { FOREVER };
                continue;
            }
            idle = HEAD_LAG;
            self.serve(asks, &dirty);
        }
        let dirty = self.board.dirty();
        self.serve(Vec::new(), &dirty);
        // Not needed for durability: it keeps the directory down to one file.
        let _ = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE);");
    }

    fn serve(&mut self, asks: Vec<Ask>, dirty: &[Arc<SessionKey>]) {
        let (ops, replies): (Vec<Op>, Vec<oneshot::Sender<Reply>>) =
            asks.into_iter().map(|ask| (ask.op, ask.reply)).unzip();
        let answers = match self.transact(&ops, dirty) {
            Ok(answers) => answers,
            Err(error) if ops.len() <= 1 => vec![Err(refusal(&error)); ops.len()],
            // One of them, or the disk: let each find out for itself.
            Err(_) => ops.iter().map(|op| self.alone(op)).collect(),
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Nobody may be waiting any more.
            let _ = reply.send(answer);
        }
    }

    fn alone(&mut self, op: &Op) -> Reply {
        match self.transact(std::slice::from_ref(op), &[]) {
            Ok(mut answers) => answers.pop().unwrap_or_else(|| Err(closed())),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Everything or nothing. What it did is on the board when it returns.
    fn transact(&mut self, ops: &[Op], dirty: &[Arc<SessionKey>]) -> rusqlite::Result<Vec<Reply>> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        match self.decide(ops, dirty) {
            Ok((answers, staged)) => {
                let committed = match self.connection.prepare_cached("COMMIT") {
                    Ok(mut commit) => commit.execute([]).map(|_| ()),
                    Err(error) => Err(error),
                };
                if let Err(error) = committed {
                    self.roll_back();
                    return Err(error);
                }
                self.publish(staged);
                Ok(answers)
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "the two halves of one result, used once")]
    fn decide(
        &mut self,
        ops: &[Op],
        dirty: &[Arc<SessionKey>],
    ) -> rusqlite::Result<(Vec<Reply>, HashMap<Arc<SessionKey>, Staged>)> {
        let mut batch = Batch::new(&self.connection, &self.board, &mut self.numbers);
        let answers = ops.iter().map(|op| batch.run(op)).collect::<rusqlite::Result<_>>()?;
        for key in dirty {
            batch.store_head(key)?;
        }
        Ok((answers, batch.into_staged()))
    }

    fn publish(&self, staged: HashMap<Arc<SessionKey>, Staged>) {
        let grown: Vec<Arc<SessionKey>> = staged
            .iter()
            .filter(|(_, staged)| staged.purged || !staged.entries.is_empty())
            .map(|(key, _)| key.clone())
            .collect();
        self.board.publish(staged);
        for key in grown {
            self.watchers.notify(&key);
        }
    }

    fn roll_back(&self) {
        // Some errors have rolled back already, and then this one says so.
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "cannot roll back");
        }
    }
}

/// An hour: any ask ends it.
const FOREVER: Duration = Duration::from_secs(3_600);

struct Closing<'a>(&'a Inbox);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.closed = true;
        // Dropping an ask answers it.
        waiting.asks.clear();
    }
}

pub(super) fn refusal(error: &rusqlite::Error) -> Refusal {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseCorrupt
            | ErrorCode::NotADatabase
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::TooBig,
        ) => Refusal::Refused(error.to_string()),
        Some(_) | None => Refusal::Unavailable(error.to_string()),
    }
}
