//! Wake-ups of the local form: in memory, over a durable due time.
//!
//! A message is only a wake-up, and every one that matters can be told from the log again: the due
//! time of a head is stored in the same transaction as the append that makes the session due (see
//! `store`). So sending and acknowledging write nothing, and a step costs its appends alone. What is
//! durable before it is acknowledged is the *due time*.
//!
//! Opening the database sends a wake-up for each session with a due time: at once if it is past, or
//! if the session was moving when the last process ended (its owner is gone, whatever its lease had
//! left to run); at the due time otherwise. A delay longer than its session's due time is therefore
//! kept for this process's life only, and after a restart the due time counts.

use std::sync::Arc;

use tailstep_runtime::{
    memory::{MemoryQueue, TokioClock},
    ports::{Clock, Queue, SystemClock, Wake},
};

use crate::store::Overdue;

/// A queue that holds the wake-ups of `overdue`.
pub(crate) async fn open(overdue: Vec<Overdue>, visibility_ms: u64) -> Arc<dyn Queue> {
    // Delays are spans of time, so they follow a clock that is never set.
    let clock = TokioClock::starting_at(SystemClock.now_ms());
    let queue = MemoryQueue::new(Arc::new(clock), visibility_ms);
    for Overdue { key, delay_ms } in overdue {
        // Sending to memory cannot fail.
        let _ = queue.send(&Wake::new(key), delay_ms).await;
    }
    Arc::new(queue)
}
