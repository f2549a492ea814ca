//! Waiting: between tries that failed, and with enough chance in it that many workers do not come
//! back in the same moment.

use std::time::Duration;

use tokio::{sync::watch, time::sleep};

/// Waits that double, from the first to the longest, until something works.
#[derive(Debug)]
pub(crate) struct Backoff {
    next_ms: u64,
    first_ms: u64,
    max_ms: u64,
}

impl Backoff {
    pub(crate) fn new(first_ms: u64, max_ms: u64) -> Self {
        Self { next_ms: first_ms, first_ms, max_ms }
    }

    pub(crate) fn reset(&mut self) {
        self.next_ms = self.first_ms;
    }

    pub(crate) async fn wait(&mut self) {
        sleep(Duration::from_millis(spread(self.next_ms))).await;
        self.next_ms = self.next_ms.saturating_mul(2).min(self.max_ms);
    }
}

/// `ms`, and up to half of it on top.
pub(crate) fn spread(ms: u64) -> u64 {
    // Without randomness workers still work, only closer together.
    let random = getrandom::u64().unwrap_or(0);
    ms + random % (ms / 2 + 1)
}

/// Ends when somebody says stop; the sender's end says so too.
pub(crate) async fn told(stop: &watch::Receiver<bool>) {
    let _ = stop.clone().wait_for(|stop| *stop).await;
}
