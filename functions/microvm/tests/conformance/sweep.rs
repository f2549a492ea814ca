//! The sweep function's two halves: neither keeps the other from its work.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_aws::{NoHands, NoModel, sweep_all};
use tailstep_core::{ids::SessionKey, limits::Limits, model::Usage};
use tailstep_runtime::{
    Runtime,
    memory::{MemoryDocuments, MemoryLog, MemoryQueue},
    ports::{
        Delivery, Entry, Head, Log, Projection, Queue, QueueError, SessionStatus, SystemClock, Wake,
    },
    prefix::Prefixes,
};
use tests_wire::hands::Provider;

use crate::subject;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_woken_and_machines_of_none_ended() {
    let (_s, hands, service) = subject().await;
    service.orphan().await;
    let queue = queue();
    sweep_all(&runtime(queue.clone()).await, Some(&hands)).await.unwrap();
    assert_eq!((queue.len(), service.live().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_woken_though_machines_cannot_be_listed() {
    let (_s, hands, service) = subject().await;
    service.orphan().await;
    service.inject("list denied");
    let queue = queue();
    let ended = sweep_all(&runtime(queue.clone()).await, Some(&hands)).await;
    assert!(ended.is_err(), "the invocation has to fail, so that somebody sees it");
    assert_eq!((queue.len(), service.live().await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_no_session_are_ended_though_nobody_can_be_woken() {
    let (_s, hands, service) = subject().await;
    service.orphan().await;
    let ended = sweep_all(&runtime(Arc::new(Deaf)).await, Some(&hands)).await;
    assert!(ended.is_err(), "the invocation has to fail, so that somebody sees it");
    assert_eq!(service.live().await, 0);
}

fn queue() -> Arc<MemoryQueue> {
    Arc::new(MemoryQueue::new(Arc::new(SystemClock), 1_000))
}

/// With one session that has been due since 1970.
async fn runtime(queue: Arc<dyn Queue>) -> Runtime {
    let log = Arc::new(MemoryLog::default());
    let key = SessionKey::new("t", "sesn_01");
    let head = Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq: 1,
        status: SessionStatus::Running,
        agent_id: "agent_1".to_owned(),
        agent_version: 1,
        environment_id: "env_1".to_owned(),
        title: None,
        created_at_ms: 1,
        updated_at_ms: 1,
        archived_at_ms: None,
        due_at_ms: Some(1),
        usage: Usage::default(),
        snapshot: Bytes::new(),
        lease: None,
    };
    let entry = Entry { seq: 1, nonce: "n".to_owned(), body: Bytes::new() };
    log.append(&key, &entry, &head, Projection::Atomic).await.unwrap();
    Runtime {
        log,
        queue,
        model: Arc::new(NoModel),
        hands: Arc::new(NoHands),
        documents: Arc::new(MemoryDocuments::default()),
        clock: Arc::new(SystemClock),
        limits: Limits::default(),
        prefixes: Arc::new(Prefixes::new(0)),
    }
}

/// A queue that takes no message.
struct Deaf;

#[async_trait]
impl Queue for Deaf {
    async fn send(&self, _wake: &Wake, _delay_ms: u64) -> Result<(), QueueError> {
        Err(QueueError::Unavailable { what: "deaf".to_owned() })
    }

    async fn receive(&self, _max: usize, _wait_ms: u64) -> Result<Vec<Delivery>, QueueError> {
        Ok(Vec::new())
    }

    async fn ack(&self, _delivery: &Delivery) -> Result<(), QueueError> {
        Ok(())
    }

    async fn hide(&self, _delivery: &Delivery, _hidden_ms: u64) -> Result<(), QueueError> {
        Ok(())
    }
}
