//! `make bench`: what a step costs. Real steps over the real SQLite store, each durable before the
//! next; the model is scripted and answers at once, the tool returns 200 bytes, so that the time is
//! the runtime's own.
//!
//! Wall times depend on the machine's disk and neighbours: compare figures of one run only.
#![allow(clippy::print_stdout, reason = "printing is what a benchmark is for")]

mod fixture;
mod meter;

use std::path::Path;

use crate::{
    fixture::{Bench, say},
    meter::Meter,
};
use anyhow::Result;

/// Steps of one session in the first table: model and tool in turn.
const STEPS: u32 = 20;

/// Steps of the long session.
const LONG_STEPS: u32 = 2_000;

fn main() -> Result<()> {
    let root = std::env::args().nth(1).unwrap_or_else(|| "target/bench".to_owned());
    let root = Path::new(&root);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("steps: model and tool in turn, durable; model scripted, tool returns 200 bytes\n");
    println!(
        "{:>8} {:>7} {:>9} {:>12} {:>9} {:>13}",
        "at once", "steps", "steps/s", "cpu ms/step", "peak MB", "log B/step"
    );
    // One at a time is over too soon to measure, so several follow each other.
    for (sessions, rounds) in [(1, 50), (50, 4), (500, 1)] {
        runtime.block_on(many(&root.join(format!("many-{sessions}")), sessions, rounds))?;
    }
    println!("\none session of {LONG_STEPS} steps");
    runtime.block_on(long(&root.join("long")))
}

async fn many(data: &Path, sessions: usize, rounds: usize) -> Result<()> {
    let bench = Bench::open(data).await?;
    let mut keys = Vec::new();
    for _ in 0..sessions * rounds {
        keys.push(bench.create().await?);
    }
    let meter = Meter::start();
    for round in keys.chunks(sessions) {
        for key in round {
            say(&bench.runtime, key, &task(STEPS)).await?;
        }
        for key in round {
            bench.idle(key).await?;
        }
    }
    let spent = meter.stop();
    let steps = bench.steps();
    let mut stored = 0;
    for key in &keys {
        stored += bench.log_bytes(key).await?;
    }
    println!(
        "{sessions:>8} {steps:>7} {:>9.0} {:>12.3} {:>9.1} {:>13}",
        f64::from(steps) / spent.wall_s,
        spent.cpu_ms / f64::from(steps),
        meter::peak_mb()?,
        stored / u64::from(steps),
    );
    bench.close().await
}

/// Asks for `steps` steps: half of them tool calls, and one model call before each.
fn task(steps: u32) -> String {
    format!("Take {} steps with the bash tool: true", steps / 2)
}

async fn long(data: &Path) -> Result<()> {
    let bench = Bench::open(data).await?;
    let key = bench.create().await?;
    say(&bench.runtime, &key, &task(LONG_STEPS)).await?;
    let first = hundred(&bench, 0).await?;
    let last = hundred(&bench, LONG_STEPS - 100).await?;
    bench.idle(&key).await?;
    println!("  steps    1 to  100: {:.3} cpu ms/step", first / 100.0);
    println!("  steps 1901 to 2000: {:.3} cpu ms/step", last / 100.0);
    println!("  last / first: {:.2}", last / first);
    println!("  log: {} B/step", bench.log_bytes(&key).await? / u64::from(bench.steps()));
    bench.close().await
}

/// CPU milliseconds from step `from` until 100 steps later.
async fn hundred(bench: &Bench, from: u32) -> Result<f64> {
    bench.reached(from).await;
    let meter = Meter::start();
    bench.reached(from + 100).await;
    Ok(meter.stop().cpu_ms)
}
