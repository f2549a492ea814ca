//! The safety net under the queue: sessions that have been due for long are woken again. Switching it
//! off costs latency only.

use crate::{Runtime, error::RuntimeError, ports::Wake};

/// Sessions woken in one sweep; the most overdue come first, and the next sweep takes the rest.
const WAKES_MAX: usize = 500;

/// Wakes the overdue; returns how many.
///
/// # Errors
/// When the log or the queue is out of reach; the next sweep tries again.
pub async fn sweep(runtime: &Runtime) -> Result<usize, RuntimeError> {
    let until_ms = runtime.clock.now_ms().saturating_sub(runtime.limits.overdue_ms);
    let due = runtime.log.due(until_ms, WAKES_MAX).await?;
    let woken = due.len();
    for key in due {
        runtime.queue.send(&Wake::new(key), 0).await?;
    }
    Ok(woken)
}
