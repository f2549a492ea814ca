//! Keeps an attempt alive while its effect is under way, and notices when it has lost the session.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    Runtime,
    error::{Retry, RuntimeError},
    load::{Loaded, catch_up},
    ports::Delivery,
};

pub(super) enum Lost {
    /// Another attempt took over, or the turn was stopped.
    Fenced,
    /// The lease could not be renewed for so long that somebody may be about to take over.
    CannotRenew,
}

/// Beats until the attempt has lost the session; for ever if it does not.
///
/// # Errors
/// When the log turns out to be unreadable.
pub(super) async fn keep(
    runtime: &Runtime,
    delivery: &Delivery,
    mut loaded: Loaded,
) -> Result<Lost, RuntimeError> {
    let intent = loaded.session.seq;
    let lease_ms = runtime.limits.lease_ms;
    let beat_ms = lease_ms / 3;
    // Dies with the lease: a taker waits a whole one, so stopping at two thirds is early enough.
    let patience = Duration::from_millis(beat_ms * 2);
    let mut renewed = Instant::now();
    loop {
        let round = Instant::now();
        let changed = runtime.log.changed(&loaded.key, loaded.session.seq, beat_ms).await;
        let seen = changed.is_ok() && catch_up(runtime.log.as_ref(), &mut loaded).await.is_ok();
        if seen {
            let open = loaded.session.open().map(|open| open.intent);
            if open != Some(intent) {
                return Ok(Lost::Fenced);
            }
        }
        // `changed` may return early, for something that does not concern this attempt.
        let early = Duration::from_millis(beat_ms).saturating_sub(round.elapsed());
        if !early.is_zero() && renewed.elapsed() < Duration::from_millis(beat_ms) {
            // Where the log cannot be read, asking again at once would only add to its trouble.
            if !seen {
                tokio::time::sleep(early).await;
            }
            continue;
        }
        // The log may take the beat long before its answer is here, and a taker waits from then.
        let asked = Instant::now();
        let now_ms = runtime.clock.now_ms();
        match runtime.log.beat(&loaded.key, intent, now_ms).await {
            Ok(_) => {
                renewed = asked;
                hide(runtime, delivery, lease_ms).await;
            }
            Err(error) => {
                let error = RuntimeError::from(error);
                if error.retry() == Retry::Never {
                    return Err(error);
                }
                tracing::warn!(%error, session = %loaded.key, "a lease could not be renewed");
            }
        }
        if renewed.elapsed() >= patience {
            return Ok(Lost::CannotRenew);
        }
    }
}

/// Lets the message come back one lease after its holder's death instead of after the queue's whole
/// visibility time. Failing costs latency only.
pub(super) async fn hide(runtime: &Runtime, delivery: &Delivery, lease_ms: u64) {
    if let Err(error) = runtime.queue.hide(delivery, lease_ms).await {
        tracing::warn!(%error, session = %delivery.wake.key, "a message could not be hidden");
    }
}
