//! The conformance suite on the in-memory ports, in paused time.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

use std::sync::Arc;

use tailstep_runtime::memory::{
    MemoryBlobs, MemoryDocuments, MemoryLog, MemoryQueue, MemorySecrets, TokioClock,
};
use tests_wire::{Timing, blobs, documents, log, queue, secrets};

/// Paused time makes patience free.
const TIMING: Timing =
    Timing { visibility_ms: 30_000, step_ms: 1, slack_ms: 0, patience_ms: 600_000 };

#[tokio::test(start_paused = true)]
async fn memory_log() {
    log::all(|| async {
        let log = Arc::new(MemoryLog::default());
        let stored = log.clone();
        log::Subject {
            log,
            lose: Some(Box::new(move |(key, seq)| {
                stored.lose(&key, seq);
                Box::pin(async {})
            })),
            timing: TIMING,
            keep: Box::new(()),
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn memory_queue() {
    queue::all(|| async {
        let clock = Arc::new(TokioClock::starting_at(1_700_000_000_000));
        let queue = Arc::new(MemoryQueue::new(clock, TIMING.visibility_ms));
        queue::Subject { queue, timing: TIMING, keep: Box::new(()) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn memory_documents() {
    documents::all(|| async {
        let documents = Arc::new(MemoryDocuments::default());
        documents::Subject { documents, timing: TIMING, keep: Box::new(()) }
    })
    .await;
}

#[tokio::test]
async fn memory_blobs() {
    blobs::all(|| async {
        let blobs = Arc::new(MemoryBlobs::default());
        let stored = blobs.clone();
        blobs::Subject {
            blobs,
            overwrite: Box::new(move |(tenant, blob, content)| {
                stored.corrupt(&tenant, &blob, content);
                Box::pin(async {})
            }),
            keep: Box::new(()),
        }
    })
    .await;
}

#[tokio::test]
async fn memory_secrets() {
    secrets::all(|| async {
        let secrets = MemorySecrets::default();
        secrets.set("one", "value 1");
        secrets.set("two", "value 2");
        secrets::Subject {
            secrets: Arc::new(secrets),
            set: vec![
                ("one".to_owned(), "value 1".to_owned()),
                ("two".to_owned(), "value 2".to_owned()),
            ],
            unset: "three".to_owned(),
            keep: Box::new(()),
        }
    })
    .await;
}
