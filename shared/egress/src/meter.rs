//! How much passes, and how fast.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{config::Config, refusal::Refusal};

/// How far a burst may run ahead of the rate.
const BURST_MS: u64 = 250;

/// What all connections of a broker share.
#[derive(Debug)]
pub(crate) struct Totals {
    bytes: AtomicU64,
    bytes_max: u64,
    connection_bytes_max: u64,
    rate_bytes_per_s: u64,
    /// Up to when the rate is used up.
    used: Mutex<Instant>,
}

/// One connection's share.
#[derive(Debug)]
pub(crate) struct Meter {
    totals: Arc<Totals>,
    up: AtomicU64,
    down: AtomicU64,
    started: Instant,
    /// Milliseconds after `started` at which something last moved.
    moved_ms: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

impl Totals {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            bytes_max: config.total_bytes_max,
            connection_bytes_max: config.connection_bytes_max,
            rate_bytes_per_s: config.rate_bytes_per_s.max(1),
            used: Mutex::new(Instant::now()),
        }
    }

    fn wait_until(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let cost_us = bytes.saturating_mul(1_000_000) / self.rate_bytes_per_s;
        *used = (*used).max(now) + Duration::from_micros(cost_us);
        used.checked_sub(Duration::from_millis(BURST_MS)).unwrap_or(now)
    }
}

impl Meter {
    pub(crate) fn new(totals: Arc<Totals>) -> Self {
        Self {
            totals,
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            started: Instant::now(),
            moved_ms: AtomicU64::new(0),
        }
    }

    /// Takes `bytes`, which are about to pass, and waits for their turn.
    ///
    /// # Errors
    /// When a limit is reached.
    pub(crate) async fn take(&self, direction: Direction, bytes: usize) -> Result<(), Refusal> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let own = match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        };
        let own_max = self.totals.connection_bytes_max;
        if own.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > own_max {
            return Err(Refusal::limit(format!(
                "a connection may carry {own_max} bytes each way, and this one has"
            )));
        }
        let all_max = self.totals.bytes_max;
        if self.totals.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > all_max {
            return Err(Refusal::limit(format!(
                "this sandbox may send and receive {all_max} bytes in all, and it has"
            )));
        }
        sleep_until(self.totals.wait_until(bytes)).await;
        self.touch();
        Ok(())
    }

    /// Notes that the connection is alive.
    pub(crate) fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.fetch_max(now, Ordering::Relaxed);
    }

    /// Ends when nothing has moved for `idle_ms`.
    pub(crate) async fn idle(&self, idle_ms: u64) -> Refusal {
        loop {
            let moved = Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
            let silent = self.started.elapsed().saturating_sub(moved);
            let idle = Duration::from_millis(idle_ms);
            if silent >= idle {
                let why = format!("nothing moved for {idle_ms} ms, so the connection was closed");
                return Refusal::origin(why).with_status(504);
            }
            sleep(idle - silent).await;
        }
    }
}
