//! Wall time, for time stamps and due times only: no guarantee rests on it.

use std::time::{SystemTime, UNIX_EPOCH};

use tailstep_core::ids::UnixMs;

pub trait Clock: Send + Sync {
    fn now_ms(&self) -> UnixMs;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> UnixMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
