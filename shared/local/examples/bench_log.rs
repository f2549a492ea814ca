//! Appends per second and CPU per append: `cargo run --profile fast --example bench_log -p
//! tailstep-local [1|50|500]`. Each writer is a session that does what a step does to the log: an intent, a
//! beat, an outcome with its head, and the reads before them.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for a terminal")]

use std::{fs, sync::Arc, time::Instant};

use bytes::Bytes;
use tailstep_core::{ids::SessionKey, model::Usage};
use tailstep_local::{Config, Local};
use tailstep_runtime::ports::{Entry, Head, Log, Projection, SessionStatus};

const INTENT_BYTES: usize = 120;
const OUTCOME_BYTES: usize = 500;
const SNAPSHOT_BYTES: usize = 2_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    println!(
        "{:>8} {:>12} {:>14} {:>12} {:>12}",
        "writers", "appends/s", "CPU µs/append", "RSS KB", "disk KB"
    );
    // One row alone when a number is given: the peak of memory is the process's.
    let only: Option<usize> = std::env::args().nth(1).map(|arg| arg.parse().unwrap());
    let rows = [(1, 2_000), (50, 400), (500, 40)];
    for (writers, steps) in rows.into_iter().filter(|row| only.is_none_or(|only| only == row.0)) {
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(run(dir.path(), writers, steps));
    }
}

async fn run(dir: &std::path::Path, writers: usize, steps: u64) {
    let local = Local::open(&Config::new(dir)).await.unwrap();
    let (cpu, start) = (cpu_us(), Instant::now());
    let tasks: Vec<_> =
        (0..writers).map(|n| tokio::spawn(session(local.log.clone(), n, steps))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let (cpu, passed) = (cpu_us() - cpu, start.elapsed());
    let appends = (writers as u64 * steps * 2) as f64;
    let disk: u64 = fs::read_dir(dir).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    println!(
        "{writers:>8} {:>12.0} {:>14.1} {:>12} {:>12}",
        appends / passed.as_secs_f64(),
        cpu as f64 / appends,
        rss_kb(),
        disk / 1024,
    );
    local.close();
}

async fn session(log: Arc<dyn Log>, n: usize, steps: u64) {
    let key = SessionKey::new("bench", format!("sesn_{n:08}"));
    for step in 0..steps {
        let last = log.head(&key).await.unwrap().map_or(0, |head| head.last_seq);
        assert_eq!(last, step * 2);
        assert!(log.read(&key, last, 1_000).await.unwrap().is_empty());
        let head = head(&key, last + 2);
        let intent = entry(last + 1, INTENT_BYTES);
        let projection = if step == 0 { Projection::Atomic } else { Projection::Lag };
        let first = self::head(&key, 1);
        log.append(&key, &intent, &first, projection).await.unwrap();
        log.beat(&key, last + 1, 1_000).await.unwrap();
        let outcome = entry(last + 2, OUTCOME_BYTES);
        log.append(&key, &outcome, &head, Projection::Follow).await.unwrap();
    }
}

fn entry(seq: u64, bytes: usize) -> Entry {
    Entry { seq, nonce: format!("{seq:032x}"), body: Bytes::from(vec![b'x'; bytes]) }
}

fn head(key: &SessionKey, last_seq: u64) -> Head {
    Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq,
        status: SessionStatus::Running,
        agent_id: "agent_00000001".to_owned(),
        agent_version: 1,
        environment_id: "env_00000001".to_owned(),
        title: None,
        created_at_ms: 1,
        updated_at_ms: last_seq,
        archived_at_ms: None,
        due_at_ms: Some(last_seq),
        usage: Usage::default(),
        snapshot: Bytes::from(vec![b's'; SNAPSHOT_BYTES]),
        lease: None,
    }
}

/// User and system time of this process, in microseconds.
fn cpu_us() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // Linux counts in hundredths of a second on every common platform.
    ticks * 10_000
}

fn rss_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
