//! The conformance suite on the local ports, and what is particular to them.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use tailstep_local::{Config, Local};
use tests_wire::{Timing, blobs, documents, log, queue, secrets};

const TIMING: Timing = Timing { visibility_ms: 400, step_ms: 50, slack_ms: 5, patience_ms: 60_000 };

async fn open() -> (Local, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (reopen(dir.path()).await, dir)
}

async fn reopen(dir: &Path) -> Local {
    let config = Config { visibility_ms: TIMING.visibility_ms, ..Config::new(dir) };
    Local::open(&config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn local_log() {
    // Nothing is lost from memory: the next test has that law.
    log::all(async || log::Subject { lose: None, ..log_subject(usize::MAX / 2).await }).await;
}

/// Everything that is forgotten has to come back from the database.
#[tokio::test(flavor = "multi_thread")]
async fn local_log_without_a_cache() {
    log::all(|| log_subject(0)).await;
}

async fn log_subject(cache_bytes: usize) -> log::Subject {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { cache_bytes, ..Config::new(dir.path()) };
    let local = Local::open(&config).await.unwrap();
    let database = dir.path().join("tailstep.db");
    log::Subject {
        log: local.log.clone(),
        lose: Some(Box::new(move |(key, seq)| {
            lose(&database, &key.session, seq);
            Box::pin(async {})
        })),
        timing: TIMING,
        keep: Box::new((local, dir)),
    }
}

fn lose(database: &Path, session: &str, seq: u64) {
    let connection = rusqlite::Connection::open(database).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    let sql = "DELETE FROM records WHERE seq = ?2
               AND session = (SELECT no FROM sessions WHERE session = ?1 ORDER BY no DESC)";
    let lost = connection.execute(sql, rusqlite::params![session, seq]).unwrap();
    assert_eq!(lost, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_queue() {
    queue::all(|| async {
        let (local, dir) = open().await;
        queue::Subject { queue: local.queue.clone(), timing: TIMING, keep: Box::new((local, dir)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_documents() {
    documents::all(|| async {
        let (local, dir) = open().await;
        documents::Subject {
            documents: local.documents.clone(),
            timing: TIMING,
            keep: Box::new((local, dir)),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_blobs() {
    blobs::all(|| async {
        let (local, dir) = open().await;
        let root = dir.path().join("blobs");
        blobs::Subject {
            blobs: local.blobs.clone(),
            overwrite: Box::new(move |(tenant, blob, content)| {
                let path = root.join(tenant).join(&blob.sha256[..2]).join(&blob.sha256);
                assert!(path.exists(), "the blob is where the documentation says");
                fs::write(path, content).unwrap();
                Box::pin(async {})
            }),
            keep: Box::new((local, dir)),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_secrets() {
    secrets::all(|| async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secrets.json");
        fs::write(&file, r#"{"tests_wire_one": "value 1"}"#).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let local = reopen(dir.path()).await;
        secrets::Subject {
            secrets: local.secrets.clone(),
            set: vec![("tests_wire_one".to_owned(), "value 1".to_owned())],
            unset: "tests_wire_two".to_owned(),
            keep: Box::new((local, dir)),
        }
    })
    .await;
}
