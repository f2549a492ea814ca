//! Wall time that follows tokio's clock.

use tailstep_core::ids::UnixMs;
use tokio::time::Instant;

use crate::ports::Clock;

/// A clock that starts at a given time and goes on with tokio's. It never jumps, and it stands still
/// and leaps with paused time in tests.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: Instant,
    start_ms: UnixMs,
}

impl TokioClock {
    pub fn starting_at(start_ms: UnixMs) -> Self {
        Self { start: Instant::now(), start_ms }
    }
}

impl Clock for TokioClock {
    fn now_ms(&self) -> UnixMs {
        let passed_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.start_ms.saturating_add(passed_ms)
    }
}
