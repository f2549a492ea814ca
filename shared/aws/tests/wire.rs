//! The conformance suite on every port of the adapter over real protocols: the tables, bucket, queue
//! group and secret of a deployed stack, named by the variables that its functions have.
//!
//! Ignored unless asked for: `tests/wire/rig.py` deploys to an emulator and asks. The queues here are
//! new ones, since the stack's own is read by its step function.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

use std::{collections::BTreeMap, sync::Arc};

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::QueueAttributeName;
use bytes::Bytes;
use tailstep_aws::{Clients, Config, Ports, SecretsManager, SqsQueue};
use tailstep_core::ids::{BlobRef, SessionKey, sha256_hex};
use tailstep_runtime::ports::{Queue, Wake};
use tests_wire::{Timing, blobs, documents, log, queue, secrets};

const TIMING: Timing =
    Timing { visibility_ms: 2_000, step_ms: 1_000, slack_ms: 500, patience_ms: 60_000 };

struct Stack {
    clients: Clients,
    config: Config,
    ports: Ports,
}

async fn stack() -> Stack {
    let endpoint = std::env::var("AWS_ENDPOINT_URL").unwrap_or_default();
    assert!(endpoint.starts_with("http://127.0.0.1:"), "these tests write: emulators only");
    let (clients, config) = (Clients::from_env().await, Config::from_env().unwrap());
    let ports = Ports::new(&clients, &config);
    Stack { clients, config, ports }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed stack"]
async fn wire_log() {
    log::all(|| async {
        let stack = stack().await;
        let (client, table) =
            (stack.clients.dynamodb.clone(), stack.config.store.log_table.clone());
        log::Subject {
            log: stack.ports.log.clone(),
            lose: Some(Box::new(move |(key, seq)| {
                let place = AttributeValue::S(format!("{}#{}", key.tenant, key.session));
                let request = client.delete_item().table_name(&table).key("pk", place);
                let request = request.key("sk", AttributeValue::S(format!("R#{seq:012}")));
                Box::pin(async move {
                    request.send().await.unwrap();
                })
            })),
            timing: TIMING,
            keep: Box::new(()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed stack"]
async fn wire_documents() {
    documents::all(|| async {
        let stack = stack().await;
        let documents = stack.ports.documents.clone();
        documents::Subject { documents, timing: TIMING, keep: Box::new(()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed stack"]
async fn wire_blobs() {
    blobs::all(|| async {
        let stack = stack().await;
        let (client, bucket) = (stack.clients.s3.clone(), stack.config.store.blobs_bucket.clone());
        blobs::Subject {
            blobs: stack.ports.blobs.clone(),
            overwrite: Box::new(move |(tenant, blob, content): (String, BlobRef, Bytes)| {
                let key = format!("blobs/{tenant}/{}", blob.sha256);
                let request = client.put_object().bucket(&bucket).key(key).body(content.into());
                Box::pin(async move {
                    request.send().await.unwrap();
                })
            }),
            keep: Box::new(()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed stack"]
async fn wire_queue() {
    queue::all(|| async {
        let mut stack = stack().await;
        let name = format!("suite-{}", &sha256_hex(&getrandom::u64().unwrap().to_le_bytes())[..16]);
        new_queue(&mut stack, &name).await;
        let queue = SqsQueue::new(&stack.clients, stack.config.wake.clone());
        queue::Subject { queue: Arc::new(queue), timing: TIMING, keep: Box::new(()) }
    })
    .await;
}

/// A queue beside the stack's own, which nobody else reads.
async fn new_queue(stack: &mut Stack, name: &str) {
    let visibility_s = (TIMING.visibility_ms / 1_000).to_string();
    let sqs = &stack.clients.sqs;
    let made = sqs.create_queue().queue_name(name);
    let made = made.attributes(QueueAttributeName::VisibilityTimeout, visibility_s);
    let url = made.send().await.unwrap().queue_url.unwrap();
    let asked = sqs.get_queue_attributes().queue_url(&url);
    let asked = asked.attribute_names(QueueAttributeName::QueueArn).send().await.unwrap();
    stack.config.wake.queue_arn = asked.attributes.unwrap()[&QueueAttributeName::QueueArn].clone();
    stack.config.wake.queue_url = url;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed stack"]
async fn wire_secrets() {
    secrets::all(|| async {
        let stack = stack().await;
        let arn = stack.config.model_keys_arn().unwrap();
        let values = BTreeMap::from([("one", "value 1"), ("two", "value 2"), ("empty", "")]);
        let text = serde_json::to_string(&values).unwrap();
        let put = stack.clients.secrets.put_secret_value();
        put.secret_id(arn).secret_string(text).send().await.unwrap();
        let set = [("one", "value 1"), ("two", "value 2")];
        secrets::Subject {
            secrets: Arc::new(SecretsManager::new(stack.clients.secrets.clone(), arn)),
            set: set.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            unset: "empty".to_owned(),
            keep: Box::new(()),
        }
    })
    .await;
}

/// A delay that SQS cannot keep becomes a schedule, once, and it arrives.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed stack"]
async fn wire_schedules() {
    let mut stack = stack().await;
    let name = format!("later-{}", &sha256_hex(&getrandom::u64().unwrap().to_le_bytes())[..16]);
    new_queue(&mut stack, &name).await;
    let (scheduler, group) = (&stack.clients.scheduler, stack.config.wake.schedule_group.clone());
    let queue = SqsQueue::new(&stack.clients, stack.config.wake.clone());
    let wake = Wake::new(SessionKey::new("t", format!("sesn_{name}")));
    queue.send(&wake, 901_000).await.unwrap();
    let listed = scheduler.list_schedules().group_name(&group).send().await.unwrap();
    let mut mine = Vec::new();
    for schedule in listed.schedules() {
        let found = scheduler.get_schedule().group_name(&group).name(schedule.name().unwrap());
        let found = found.send().await.unwrap();
        if found.target().unwrap().input() == Some(&wake.encode()) {
            mine.push(found);
        }
    }
    assert_eq!(mine.len(), 1, "one schedule holds this wake-up");
    let target = mine[0].target().unwrap();
    assert_eq!(target.arn(), stack.config.wake.queue_arn);
    assert_eq!(target.role_arn(), stack.config.wake.schedule_role_arn);
    assert_eq!(mine[0].action_after_completion().unwrap().as_str(), "DELETE");
    // Brought forward, so that nobody waits a quarter of an hour to see it arrive.
    let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(3);
    let soon = aws_smithy_types::DateTime::from(soon);
    let soon = soon.fmt(aws_smithy_types::date_time::Format::DateTime).unwrap();
    let soon = format!("at({})", soon.split(['.', 'Z']).next().unwrap());
    scheduler
        .update_schedule()
        .group_name(&group)
        .name(mine[0].name().unwrap())
        .schedule_expression(soon)
        .schedule_expression_timezone("UTC")
        .flexible_time_window(mine[0].flexible_time_window().unwrap().clone())
        .action_after_completion(mine[0].action_after_completion().unwrap().clone())
        .target(target.clone())
        .send()
        .await
        .unwrap();
    let mut got = Vec::new();
    for _ in 0..10 {
        got.extend(queue.receive(1, 2_000).await.unwrap());
        if let Some(delivery) = got.first() {
            assert_eq!(delivery.wake, wake);
            queue.ack(delivery).await.unwrap();
            return;
        }
    }
    panic!("the schedule did not deliver");
}
