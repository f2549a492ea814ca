//! The conformance suite on the DynamoDB adapters, over an engine in the process. `wire.rs` runs the
//! suite on all ports of the adapter over real protocols.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

mod support;

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use support::{CONFIG_TABLE, Engine, LOG_TABLE};
use tailstep_aws::{DynamoDocuments, DynamoLog};
use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::memory::MemoryBlobs;
use tests_wire::{Timing, documents, log};

const TIMING: Timing =
    Timing { visibility_ms: 1_000, step_ms: 1, slack_ms: 0, patience_ms: 60_000 };

#[tokio::test(flavor = "multi_thread")]
async fn dynamo_log() {
    log::all(|| async {
        let engine = Engine::start();
        engine.create_tables().await;
        let client = engine.client();
        let log = DynamoLog::new(client.clone(), LOG_TABLE, Arc::new(MemoryBlobs::default()));
        log::Subject {
            log: Arc::new(log),
            lose: Some(Box::new(move |(key, seq)| Box::pin(lose(client.clone(), key, seq)))),
            timing: TIMING,
            keep: Box::new(engine),
        }
    })
    .await;
}

async fn lose(client: aws_sdk_dynamodb::Client, key: SessionKey, seq: Seq) {
    let place = format!("{}#{}", key.tenant, key.session);
    client
        .delete_item()
        .table_name(LOG_TABLE)
        .key("pk", AttributeValue::S(place))
        .key("sk", AttributeValue::S(format!("R#{seq:012}")))
        .send()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dynamo_documents() {
    documents::all(|| async {
        let engine = Engine::start();
        engine.create_tables().await;
        let documents = DynamoDocuments::new(engine.client(), CONFIG_TABLE);
        documents::Subject {
            documents: Arc::new(documents),
            timing: TIMING,
            keep: Box::new(engine),
        }
    })
    .await;
}
