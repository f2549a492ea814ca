//! Wall time, CPU time of the whole process, and peak memory.

use std::time::Instant;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

pub(crate) struct Meter {
    wall: Instant,
    cpu_ms: f64,
}

pub(crate) struct Spent {
    pub(crate) wall_s: f64,
    pub(crate) cpu_ms: f64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now(), cpu_ms: cpu_ms() }
    }

    pub(crate) fn stop(&self) -> Spent {
        Spent { wall_s: self.wall.elapsed().as_secs_f64(), cpu_ms: cpu_ms() - self.cpu_ms }
    }
}

fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds of CPU time are small")]
    let ms = time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6;
    ms
}

/// Highest resident memory of this process so far, in megabytes.
pub(crate) fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1)).context("no VmHWM")?;
    Ok(kb.parse::<f64>()? / 1024.0)
}
