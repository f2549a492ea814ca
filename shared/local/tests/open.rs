//! Opening, closing and opening again.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tailstep_core::{ids::SessionKey, model::Usage};
use tailstep_local::{Config, Local, LocalError};
use tailstep_runtime::ports::{
    Clock, Entry, Head, Lease, LogError, Projection, SessionStatus, SystemClock,
};

const FAR_MS: u64 = 3_600_000;

async fn open(dir: &Path) -> Local {
    Local::open(&Config::new(dir)).await.unwrap()
}

async fn refused(dir: &Path) -> LocalError {
    match Local::open(&Config::new(dir)).await {
        Ok(_) => panic!("must be refused"),
        Err(error) => error,
    }
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("default", session)
}

fn entry(seq: u64) -> Entry {
    Entry { seq, nonce: format!("nonce {seq}"), body: Bytes::from(format!("record {seq}")) }
}

fn head(key: &SessionKey, last_seq: u64, status: SessionStatus, due_at_ms: Option<u64>) -> Head {
    Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq,
        status,
        agent_id: "agent_1".to_owned(),
        agent_version: 1,
        environment_id: "env_1".to_owned(),
        title: None,
        created_at_ms: 1,
        updated_at_ms: last_seq,
        archived_at_ms: None,
        due_at_ms,
        usage: Usage::default(),
        snapshot: Bytes::from_static(b"snapshot"),
        lease: None,
    }
}

/// Appends record `seq` with a head of status running, due in an hour.
async fn append(local: &Local, key: &SessionKey, seq: u64, projection: Projection) {
    let due_at_ms = Some(SystemClock.now_ms() + FAR_MS);
    let head = head(key, seq, SessionStatus::Running, due_at_ms);
    local.log.append(key, &entry(seq), &head, projection).await.unwrap();
}

async fn lease(local: &Local, key: &SessionKey) -> Option<Lease> {
    local.log.head(key).await.unwrap().unwrap().lease
}

#[tokio::test]
async fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).await;
    let error = refused(dir.path()).await.to_string();
    assert!(error.contains("in use") && error.contains(dir.path().to_str().unwrap()), "{error}");
    first.close();
    open(dir.path()).await;
}

#[tokio::test]
async fn a_newer_format_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.close();
    let file = dir.path().join("tailstep.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch("PRAGMA user_version = 2;").unwrap();
    drop(connection);
    let before = fs::read(&file).unwrap();
    let error = refused(dir.path()).await.to_string();
    assert!(error.contains("format 2") && error.contains("upgrade"), "{error}");
    assert!(fs::read(&file).unwrap() == before);
}

#[tokio::test]
async fn another_program_s_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tailstep.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch("CREATE TABLE theirs(x);").unwrap();
    drop(connection);
    assert!(matches!(refused(dir.path()).await, LocalError::Foreign { .. }));
    fs::write(&file, "not a database at all, but long enough to be looked at".repeat(20)).unwrap();
    let error = refused(dir.path()).await;
    assert!(matches!(error, LocalError::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn nobody_else_may_look_in() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("a/b");
    let local = open(&dir).await;
    append(&local, &key("s"), 1, Projection::Atomic).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
    // A folder of somebody else's, which we are told to use, keeps its mode.
    let shared = parent.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("theirs.txt"), "x").unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    open(&shared).await;
    assert_eq!(mode(&shared), 0o755);
}

#[tokio::test]
async fn closed_ports_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path()).await;
    append(&local, &key("s"), 1, Projection::Atomic).await;
    local.close();
    let read = local.log.read(&key("s"), 0, 10).await;
    assert!(matches!(read, Err(LogError::Unavailable { .. })), "{read:?}");
    let due_at_ms = Some(1);
    let head = head(&key("s"), 2, SessionStatus::Running, due_at_ms);
    let appended = local.log.append(&key("s"), &entry(2), &head, Projection::Follow).await;
    assert!(matches!(appended, Err(LogError::Unavailable { .. })), "{appended:?}");
}

#[tokio::test]
async fn what_was_acknowledged_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path()).await;
    for seq in 1..=50 {
        append(&local, &key("s"), seq, Projection::Follow).await;
    }
    let before = local.log.head(&key("s")).await.unwrap().unwrap();
    local.close();
    let local = open(dir.path()).await;
    let abandoned = Some(Lease { intent: 0, version: 0, abandoned: true });
    let after = local.log.head(&key("s")).await.unwrap();
    assert_eq!(after, Some(Head { lease: abandoned, ..before }));
    let entries = local.log.read(&key("s"), 0, 100).await.unwrap();
    assert_eq!(entries, (1..=50).map(entry).collect::<Vec<_>>());
}

/// A head that only moves on is shown at once and stored soon, without any further call.
#[tokio::test]
async fn a_head_is_stored_soon() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path()).await;
    for seq in 1..=3 {
        append(&local, &key("s"), seq, Projection::Follow).await;
    }
    assert_eq!(local.log.head(&key("s")).await.unwrap().unwrap().last_seq, 3);
    let other = rusqlite::Connection::open(dir.path().join("tailstep.db")).unwrap();
    let stored = || -> u64 {
        other.query_row("SELECT last_seq FROM sessions", [], |row| row.get(0)).unwrap()
    };
    let start = Instant::now();
    while stored() < 3 {
        assert!(start.elapsed() < Duration::from_secs(30), "stored is {}", stored());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn leases_of_an_earlier_life_are_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let gone = Some(Lease { intent: 0, version: 0, abandoned: true });
    let local = open(dir.path()).await;
    // One that beat, one that was killed before its first beat.
    for session in ["beaten", "silent"] {
        append(&local, &key(session), 1, Projection::Atomic).await;
        append(&local, &key(session), 2, Projection::Lag).await;
        assert_eq!(lease(&local, &key(session)).await, None);
    }
    local.log.beat(&key("beaten"), 2, FAR_MS).await.unwrap();
    local.close();

    let local = open(dir.path()).await;
    for session in ["beaten", "silent"] {
        assert_eq!(lease(&local, &key(session)).await, gone);
        // A message that comes in changes nothing: the holder is as gone as before.
        append(&local, &key(session), 3, Projection::Atomic).await;
        assert_eq!(lease(&local, &key(session)).await, gone);
    }
    // An intent of this life ends it, before its first beat already: its writer is alive.
    append(&local, &key("silent"), 4, Projection::Lag).await;
    assert_eq!(lease(&local, &key("silent")).await, None);
    local.log.beat(&key("silent"), 4, FAR_MS).await.unwrap();
    let alive = Some(Lease { intent: 4, version: 1, abandoned: false });
    assert_eq!(lease(&local, &key("silent")).await, alive);
    // A lost race for an intent does not.
    let late = Entry { nonce: "another".to_owned(), ..entry(3) };
    let head = head(&key("beaten"), 3, SessionStatus::Running, None);
    assert!(local.log.append(&key("beaten"), &late, &head, Projection::Lag).await.is_err());
    assert_eq!(lease(&local, &key("beaten")).await, gone);
    // Sessions that begin in this life have no past.
    append(&local, &key("young"), 1, Projection::Atomic).await;
    assert_eq!(lease(&local, &key("young")).await, None);
}

#[tokio::test]
async fn due_sessions_are_woken_when_it_opens() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path()).await;
    let now_ms = SystemClock.now_ms();
    let sessions = [
        ("idle", SessionStatus::Idle, None),
        ("overdue", SessionStatus::Rescheduling, Some(now_ms - 5)),
        // Its worker died with the process, whatever the lease had left.
        ("moving", SessionStatus::Running, Some(now_ms + FAR_MS)),
        ("sleeping", SessionStatus::Rescheduling, Some(now_ms + FAR_MS)),
        ("dozing", SessionStatus::Rescheduling, Some(now_ms + 1_500)),
        ("retrying", SessionStatus::Rescheduling, Some(now_ms + FAR_MS)),
    ];
    for (session, status, due_at_ms) in sessions {
        let head = head(&key(session), 1, status, due_at_ms);
        local.log.append(&key(session), &entry(1), &head, Projection::Atomic).await.unwrap();
    }
    // The head does not say so yet, but its next try had begun.
    append(&local, &key("retrying"), 2, Projection::Lag).await;
    local.close();

    let local = open(dir.path()).await;
    let mut woken: Vec<String> = Vec::new();
    let start = Instant::now();
    while woken.len() < 4 && start.elapsed() < Duration::from_secs(60) {
        for delivery in local.queue.receive(10, 500).await.unwrap() {
            local.queue.ack(&delivery).await.unwrap();
            woken.push(delivery.wake.key.session);
        }
        if woken.len() < 4 {
            continue;
        }
    }
    assert_eq!(woken.pop().as_deref(), Some("dozing"), "at its time, not before the others");
    assert!(SystemClock.now_ms() >= now_ms + 1_500, "and not early");
    woken.sort();
    assert_eq!(woken, ["moving", "overdue", "retrying"]);
    assert_eq!(local.queue.receive(10, 0).await.unwrap(), [], "and nobody else");
    let due = local.log.due(now_ms + FAR_MS + 60_000, 100).await.unwrap();
    assert_eq!(due.len(), 5, "the sweeper sees them too: {due:?}");
}

#[tokio::test]
async fn a_purged_session_is_not_projected_back_to_life() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path()).await;
    append(&local, &key("s"), 1, Projection::Atomic).await;
    local.log.purge(&key("s")).await.unwrap();
    let late = head(&key("s"), 1, SessionStatus::Running, Some(1));
    local.log.project(&key("s"), &late).await.unwrap();
    assert_eq!(local.log.head(&key("s")).await.unwrap(), None);
    assert_eq!(local.log.due(u64::MAX, 10).await.unwrap(), []);
}
