//! A process that appends, wakes and acknowledges is killed at random moments, again and again on
//! the same directory. After each kill everything that it had been told is there, whole and dense,
//! and every session that was under way is woken at once.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test with a main of its own")]

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tailstep_core::{ids::SessionKey, model::Usage};
use tailstep_local::{Config, Local};
use tailstep_runtime::ports::{
    Clock, Document, DocumentKind, Entry, Expect, Head, Lease, Log, Projection, SessionStatus,
    SystemClock, Wake,
};

const CHILD: &str = "--be-the-process-that-is-killed";
const SESSIONS: u64 = 12;
const KILLS: u64 = 20;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let args: Vec<String> = env::args().collect();
    match args.iter().position(|arg| arg == CHILD) {
        Some(place) => runtime.block_on(child(Path::new(&args[place + 1]))),
        None => parent(&runtime),
    }
}

/// What the child was told is done: the last record of each session, and the document's revision.
type Told = BTreeMap<String, u64>;

fn parent(runtime: &tokio::runtime::Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let (mut told, mut slowest) = (Told::new(), Duration::ZERO);
    for kill in 0..KILLS {
        // Between right after the first append and some thousands of records later.
        let after = Duration::from_millis(3 + kill * kill * 2 + random() % 40);
        run_and_kill(dir.path(), after, &mut told);
        let woken = runtime.block_on(check(dir.path(), &told));
        slowest = slowest.max(woken);
    }
    let records: u64 = told.values().sum();
    assert!(records > KILLS * SESSIONS, "the child had time to work: {records}");
    println!(
        "{KILLS} kills, {records} acknowledged writes, none lost; slowest wake-up after {slowest:?}"
    );
}

fn run_and_kill(dir: &Path, after: Duration, told: &mut Told) {
    let mut child = Command::new(env::current_exe().unwrap())
        .arg(CHILD)
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reader = thread::spawn(move || {
        let mut told = Told::new();
        for line in lines {
            let line = line.unwrap();
            // The last line may have been cut off by the kill.
            let Some((name, number)) = line.strip_suffix('.').and_then(|l| l.split_once(' '))
            else {
                continue;
            };
            told.insert(name.to_owned(), number.parse().unwrap());
            let _ = begun.send(());
        }
        told
    });
    begins.recv_timeout(Duration::from_secs(60)).unwrap();
    thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    told.extend(reader.join().unwrap());
}

async fn check(dir: &Path, told: &Told) -> Duration {
    let local = Local::open(&Config::new(dir)).await.unwrap();
    let opened = Instant::now();
    let mut under_way = Vec::new();
    for n in 0..SESSIONS {
        let key = key(n);
        let entries = local.log.read(&key, 0, usize::MAX / 2).await.unwrap();
        let acknowledged = told.get(&key.session).copied().unwrap_or(0);
        assert!(entries.len() as u64 >= acknowledged, "{key}: {acknowledged} were acknowledged");
        for (seq, got) in (1..).zip(&entries) {
            assert!(*got == entry(&key, seq), "record {seq} of {key} is torn");
        }
        let Some(head) = local.log.head(&key).await.unwrap() else {
            assert_eq!(entries.len(), 0, "{key} has records and no head");
            continue;
        };
        assert!(head.last_seq <= entries.len() as u64, "{key}: the head is ahead of its log");
        assert_eq!(head.lease, Some(Lease { intent: 0, version: 0, abandoned: true }));
        assert_eq!(head.snapshot, snapshot(head.last_seq));
        under_way.push(key.session);
    }
    let stored = local.documents.get("default", DocumentKind::Agent, "agent").await.unwrap();
    let revision = stored.map_or(0, |document| document.revision);
    assert!(revision >= told.get("document").copied().unwrap_or(0));

    let mut woken = Vec::new();
    while woken.len() < under_way.len() {
        let got = local.queue.receive(100, 10_000).await.unwrap();
        assert!(!got.is_empty(), "only {woken:?} were woken of {under_way:?}");
        woken.extend(got.into_iter().map(|delivery| delivery.wake.key.session));
    }
    let passed = opened.elapsed();
    woken.sort();
    under_way.sort();
    assert_eq!(woken, under_way);
    local.close();
    passed
}

async fn child(dir: &Path) {
    let local = Arc::new(Local::open(&Config::new(dir)).await.unwrap());
    for n in 0..SESSIONS {
        let key = key(n);
        if local.log.head(&key).await.unwrap().is_none() {
            local
                .log
                .append(&key, &entry(&key, 1), &head(&key, 1), Projection::Atomic)
                .await
                .unwrap();
            say(&key.session, 1);
            local.queue.send(&Wake::new(key), 0).await.unwrap();
        }
    }
    for _ in 0..4 {
        let local = local.clone();
        tokio::spawn(async move {
            loop {
                for delivery in local.queue.receive(2, 1_000).await.unwrap() {
                    step(local.log.as_ref(), &delivery.wake.key).await;
                    local.queue.send(&Wake::new(delivery.wake.key.clone()), 0).await.unwrap();
                    local.queue.ack(&delivery).await.unwrap();
                }
            }
        });
    }
    loop {
        let old = local.documents.get("default", DocumentKind::Agent, "agent").await.unwrap();
        let revision = old.as_ref().map_or(1, |old| old.revision + 1);
        let expect = old.map_or(Expect::Absent, |old| Expect::Revision(old.revision));
        let document = Document {
            tenant: "default".to_owned(),
            kind: DocumentKind::Agent,
            id: "agent".to_owned(),
            revision,
            created_at_ms: 1,
            body: Bytes::from_static(b"{}"),
        };
        local.documents.put(&document, expect).await.unwrap();
        say("document", revision);
    }
}

async fn step(log: &dyn Log, key: &SessionKey) {
    let covered = log.head(key).await.unwrap().unwrap().last_seq;
    let behind = log.read(key, covered, 1_000).await.unwrap().len() as u64;
    let intent = covered + behind + 1;
    log.append(key, &entry(key, intent), &head(key, intent), Projection::Lag).await.unwrap();
    say(&key.session, intent);
    log.beat(key, intent, SystemClock.now_ms() + 3_600_000).await.unwrap();
    let outcome = intent + 1;
    log.append(key, &entry(key, outcome), &head(key, outcome), Projection::Follow).await.unwrap();
    say(&key.session, outcome);
}

/// One line, in one write.
fn say(name: &str, number: u64) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{name} {number}.\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn key(n: u64) -> SessionKey {
    SessionKey::new("default", format!("sesn_{n:02}"))
}

/// Some bodies are larger than a page of the database, so that a torn one would show.
fn entry(key: &SessionKey, seq: u64) -> Entry {
    let nonce = format!("{}-{seq}", key.session);
    let times = if seq.is_multiple_of(7) { 2_000 } else { 10 };
    let body = Bytes::from(format!("{nonce} ").repeat(times));
    Entry { seq, nonce, body }
}

fn snapshot(last_seq: u64) -> Bytes {
    Bytes::from(format!("snapshot at {last_seq} ").repeat(40))
}

fn head(key: &SessionKey, last_seq: u64) -> Head {
    Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq,
        status: SessionStatus::Running,
        agent_id: "agent".to_owned(),
        agent_version: 1,
        environment_id: "env".to_owned(),
        title: None,
        created_at_ms: 1,
        updated_at_ms: last_seq,
        archived_at_ms: None,
        // As the runtime does: not due for a while, because the next step is on its way.
        due_at_ms: Some(SystemClock.now_ms() + 60_000),
        usage: Usage::default(),
        snapshot: snapshot(last_seq),
        lease: None,
    }
}

/// Moments need no better randomness than the clock's last digits.
fn random() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::from(now.subsec_micros())
}
