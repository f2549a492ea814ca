//! The DynamoDB log against an engine in the process, with the faults that a service has.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use support::{Engine, Fault, LOG_TABLE};
use tailstep_aws::DynamoLog;
use tailstep_core::{ids::SessionKey, model::Usage};
use tailstep_runtime::{
    memory::MemoryBlobs,
    ports::{Appended, Entry, Head, ListSessions, Log, LogError, Projection, SessionStatus},
};

struct Setup {
    engine: Engine,
    log: DynamoLog,
    blobs: Arc<MemoryBlobs>,
    key: SessionKey,
}

async fn setup() -> Setup {
    let engine = Engine::start();
    engine.create_tables().await;
    let blobs = Arc::new(MemoryBlobs::default());
    let log = DynamoLog::new(engine.client(), LOG_TABLE, blobs.clone());
    Setup { engine, log, blobs, key: SessionKey::new("t", "sesn_1") }
}

fn entry(seq: u64, nonce: &str) -> Entry {
    Entry { seq, nonce: nonce.into(), body: Bytes::from(format!("{{\"seq\":{seq}}}")) }
}

fn head_of(key: &SessionKey, last_seq: u64) -> Head {
    Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq,
        status: SessionStatus::Running,
        agent_id: "agent_1".into(),
        agent_version: 1,
        environment_id: "env_1".into(),
        title: Some("title".into()),
        created_at_ms: 5,
        updated_at_ms: last_seq * 10,
        archived_at_ms: None,
        due_at_ms: Some(1_000),
        usage: Usage { input_tokens: 3, ..Usage::default() },
        snapshot: Bytes::from_static(b"snapshot"),
        lease: None,
    }
}

impl Setup {
    fn head(&self, last_seq: u64) -> Head {
        head_of(&self.key, last_seq)
    }

    async fn append(&self, seq: u64, nonce: &str, how: Projection) -> Result<Appended, LogError> {
        self.log.append(&self.key, &entry(seq, nonce), &self.head(seq), how).await
    }

    async fn stored(&self) -> Option<Head> {
        self.log.head(&self.key).await.unwrap()
    }
}

#[tokio::test]
async fn a_lost_answer_is_recognised_as_our_own_write() {
    for (how, operation) in [
        (Projection::Lag, "PutItem"),
        (Projection::Follow, "PutItem"),
        (Projection::Atomic, "TransactWriteItems"),
    ] {
        let s = setup().await;
        s.engine.inject(operation, Fault::LoseAnswer);
        let appended = s.append(1, "a", how).await.unwrap();
        assert_eq!(s.engine.faults_left(), 0);
        assert_eq!(s.engine.calls().iter().filter(|call| *call == operation).count(), 2, "{how:?}");
        // The engine honours a transaction's own token and then answers as it did the first time.
        if how != Projection::Atomic {
            assert_eq!(appended, Appended::AlreadyMine, "{how:?}");
        }
        assert_eq!(s.log.read(&s.key, 0, 10).await.unwrap(), [entry(1, "a")]);
        assert!(matches!(s.append(1, "b", how).await, Err(LogError::Conflict { seq: 1, .. })));
        assert_eq!(s.append(1, "a", how).await.unwrap(), Appended::AlreadyMine);
        assert_eq!(s.stored().await.is_some(), how != Projection::Lag);
    }
}

#[tokio::test]
async fn throttling_and_lost_transactions_are_tried_again() {
    let s = setup().await;
    s.engine.inject("TransactWriteItems", Fault::TransactionConflict);
    s.engine.inject("TransactWriteItems", Fault::Throttle);
    assert_eq!(s.append(1, "a", Projection::Atomic).await.unwrap(), Appended::Now);
    for operation in ["PutItem", "UpdateItem", "UpdateItem"] {
        s.engine.inject(operation, Fault::Throttle);
    }
    assert_eq!(s.append(2, "b", Projection::Follow).await.unwrap(), Appended::Now);
    s.engine.inject("Query", Fault::Throttle);
    assert_eq!(s.log.read(&s.key, 0, 10).await.unwrap().len(), 2);
    assert_eq!(s.engine.faults_left(), 0);
    assert_eq!(s.stored().await.unwrap().last_seq, 2);
}

#[tokio::test]
async fn endless_throttling_is_unavailable_and_missing_rights_are_refused() {
    let s = setup().await;
    for _ in 0..4 {
        s.engine.inject("PutItem", Fault::Throttle);
    }
    let error = s.append(1, "a", Projection::Lag).await.unwrap_err();
    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("write record 1: ThrottlingException"), "{error}");
    s.engine.inject("PutItem", Fault::Deny);
    let error = s.append(1, "a", Projection::Lag).await.unwrap_err();
    assert!(matches!(error, LogError::Refused { .. }), "{error}");
    assert_eq!(s.engine.calls().len(), 5, "a refusal is not tried again");
}

#[tokio::test]
async fn a_head_that_cannot_follow_does_not_undo_the_append() {
    let s = setup().await;
    s.append(1, "a", Projection::Atomic).await.unwrap();
    s.engine.inject("UpdateItem", Fault::Deny);
    assert_eq!(s.append(2, "b", Projection::Follow).await.unwrap(), Appended::Now);
    assert_eq!(s.stored().await.unwrap().last_seq, 1);
    s.log.project(&s.key, &s.head(2)).await.unwrap();
    assert_eq!(s.stored().await.unwrap().last_seq, 2);
}

#[tokio::test]
async fn a_lost_head_follows_again_when_the_log_is_still_there() {
    let s = setup().await;
    s.append(1, "a", Projection::Lag).await.unwrap();
    s.append(2, "b", Projection::Follow).await.unwrap();
    assert_eq!(s.stored().await, Some(s.head(2)));
}

#[tokio::test]
async fn a_head_never_goes_backwards_and_keeps_its_lease() {
    let s = setup().await;
    s.append(1, "a", Projection::Atomic).await.unwrap();
    s.append(2, "b", Projection::Follow).await.unwrap();
    assert_eq!(s.log.beat(&s.key, 2, 9_000).await.unwrap(), 2);
    assert_eq!(s.log.beat(&s.key, 2, 9_500).await.unwrap(), 2);
    s.log.project(&s.key, &s.head(1)).await.unwrap();
    let head = s.stored().await.unwrap();
    assert_eq!((head.last_seq, head.due_at_ms), (2, Some(9_500)));
    let idle = Head { due_at_ms: None, title: None, ..s.head(3) };
    s.log.append(&s.key, &entry(3, "c"), &idle, Projection::Follow).await.unwrap();
    let head = s.stored().await.unwrap();
    let lease = head.lease.unwrap();
    assert_eq!((lease.intent, lease.version, lease.abandoned), (2, 2, false));
    assert_eq!((head.due_at_ms, head.title), (None, None));
    assert!(s.log.due(u64::MAX >> 12, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_later_attempt_takes_the_lease_and_an_earlier_one_cannot_take_it_back() {
    let s = setup().await;
    assert!(matches!(s.log.beat(&s.key, 1, 1).await, Err(LogError::Conflict { .. })));
    s.append(1, "a", Projection::Atomic).await.unwrap();
    s.log.beat(&s.key, 5, 1).await.unwrap();
    s.log.beat(&s.key, 7, 1).await.unwrap();
    let refused = s.log.beat(&s.key, 5, 99).await;
    assert!(matches!(refused, Err(LogError::Conflict { seq: 7, .. })), "{refused:?}");
    let head = s.stored().await.unwrap();
    assert_eq!((head.lease.unwrap().intent, head.due_at_ms), (7, Some(1)));
}

#[tokio::test]
async fn large_records_go_through_blobs_and_pages_are_read_through() {
    let s = setup().await;
    let blob_body = Bytes::from(vec![b'x'; 300_001]);
    let item_body = Bytes::from(vec![b'y'; 300_000]);
    for seq in 1..=6 {
        let body = if seq == 3 { blob_body.clone() } else { item_body.clone() };
        let large = Entry { body, ..entry(seq, "n") };
        s.log.append(&s.key, &large, &s.head(seq), Projection::Follow).await.unwrap();
    }
    s.engine.calls();
    let read = s.log.read(&s.key, 0, 100).await.unwrap();
    assert_eq!(read.len(), 6);
    assert_eq!((read[2].body.clone(), read[5].body.clone()), (blob_body.clone(), item_body));
    assert!(s.engine.calls().len() >= 2, "five items of 300 KB do not fit one page of 1 MB");
    // A limit is kept across pages, and the tail starts where it was asked to.
    let tail = s.log.read(&s.key, 2, 3).await.unwrap();
    assert_eq!(tail.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [3, 4, 5]);
    s.blobs.lose("t", &tailstep_core::ids::BlobRef::of(&blob_body));
    let lost = s.log.read(&s.key, 0, 100).await;
    assert!(matches!(lost, Err(LogError::Corrupt { seq: 3, .. })), "{lost:?}");
}

#[tokio::test]
async fn a_hole_in_the_log_is_never_read_over() {
    let s = setup().await;
    for seq in 1..=4 {
        s.append(seq, "n", Projection::Follow).await.unwrap();
    }
    let client = s.engine.client();
    let key = |name: &str| aws_sdk_dynamodb::types::AttributeValue::S(name.to_owned());
    client
        .delete_item()
        .table_name(LOG_TABLE)
        .key("pk", key("t#sesn_1"))
        .key("sk", key("R#000000000003"))
        .send()
        .await
        .unwrap();
    for after in [0, 1, 2] {
        let read = s.log.read(&s.key, after, 100).await;
        assert!(matches!(read, Err(LogError::Corrupt { seq: 3, .. })), "after {after}: {read:?}");
    }
    assert_eq!(s.log.read(&s.key, 3, 100).await.unwrap().len(), 1);
}

#[tokio::test]
async fn due_sessions_come_most_overdue_first_from_all_shards() {
    let s = setup().await;
    for n in 0..40_u64 {
        let key = SessionKey::new("t", format!("sesn_{n}"));
        let head = Head { due_at_ms: Some(1_000 - n * 10), ..head_of(&key, 1) };
        s.log.append(&key, &entry(1, "n"), &head, Projection::Atomic).await.unwrap();
    }
    let names = |keys: Vec<SessionKey>| keys.into_iter().map(|key| key.session).collect::<Vec<_>>();
    assert_eq!(names(s.log.due(5_000, 3).await.unwrap()), ["sesn_39", "sesn_38", "sesn_37"]);
    assert_eq!(s.log.due(1_000, 100).await.unwrap().len(), 40);
    assert_eq!(names(s.log.due(610, 100).await.unwrap()), ["sesn_39"]);
    let calls = s.engine.calls();
    assert!(calls.iter().filter(|call| *call == "Query").count() >= 24, "eight shards each time");
}

#[tokio::test]
async fn lists_are_paged_by_session_within_one_tenant() {
    let s = setup().await;
    for (tenant, n) in [("t", 1), ("t", 2), ("t", 3), ("t#sesn_9", 4), ("", 5)] {
        let key = SessionKey::new(tenant, format!("sesn_{n}"));
        s.log.append(&key, &entry(1, "n"), &head_of(&key, 1), Projection::Atomic).await.unwrap();
    }
    let query = |after: Option<&str>, limit, descending| ListSessions {
        after: after.map(str::to_owned),
        limit,
        descending,
    };
    let list = async |tenant: &str, query: ListSessions| {
        let page = s.log.list(tenant, &query).await.unwrap();
        (page.items.into_iter().map(|head| head.session).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(
        list("t", query(None, 2, false)).await,
        (vec!["sesn_1".into(), "sesn_2".into()], true)
    );
    assert_eq!(list("t", query(Some("sesn_2"), 2, false)).await, (vec!["sesn_3".into()], false));
    assert_eq!(list("t", query(None, 1, true)).await, (vec!["sesn_3".into()], true));
    assert_eq!(list("t", query(Some("sesn_2"), 5, true)).await, (vec!["sesn_1".into()], false));
    assert_eq!(list("", query(None, 5, false)).await, (vec!["sesn_5".into()], false));
    assert_eq!(list("nobody", query(None, 5, false)).await, (vec![], false));
}

#[tokio::test]
async fn a_removed_session_stays_removed() {
    let s = setup().await;
    for seq in 1..=60 {
        s.append(seq, "n", Projection::Follow).await.unwrap();
    }
    s.engine.inject("BatchWriteItem", Fault::Throttle);
    s.log.purge(&s.key).await.unwrap();
    s.log.purge(&s.key).await.unwrap();
    assert!(s.stored().await.is_none());
    assert!(s.log.read(&s.key, 0, 100).await.unwrap().is_empty());
    // A worker that was still busy with it brings nothing back.
    let late = s.append(61, "late", Projection::Follow).await;
    assert!(matches!(late, Err(LogError::Corrupt { seq: 60, .. })), "{late:?}");
    s.log.project(&s.key, &s.head(60)).await.unwrap();
    assert!(s.stored().await.is_none());
    assert!(s.append(62, "late", Projection::Atomic).await.is_err());
    assert!(s.log.read(&s.key, 0, 100).await.unwrap().is_empty());
    assert!(s.log.due(5_000, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_lost_head_is_made_again_from_records() {
    let s = setup().await;
    s.append(1, "a", Projection::Lag).await.unwrap();
    assert!(s.stored().await.is_none());
    s.log.project(&s.key, &s.head(1)).await.unwrap();
    assert_eq!(s.stored().await, Some(s.head(1)));
}

#[tokio::test]
async fn one_of_many_writers_wins_each_place() {
    let s = Arc::new(setup().await);
    s.append(1, "a", Projection::Atomic).await.unwrap();
    for seq in 2..=11 {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let s = s.clone();
                let how = if writer % 2 == 0 { Projection::Atomic } else { Projection::Follow };
                tokio::spawn(async move { s.append(seq, &format!("w{writer}"), how).await })
            })
            .collect();
        let mut won = 0;
        for writer in writers {
            match writer.await.unwrap() {
                Ok(appended) => {
                    assert_eq!(appended, Appended::Now);
                    won += 1;
                }
                Err(error) => assert!(matches!(error, LogError::Conflict { .. }), "{error}"),
            }
        }
        assert_eq!(won, 1, "record {seq}");
    }
    assert_eq!(s.log.read(&s.key, 0, 100).await.unwrap().len(), 11);
    assert_eq!(s.stored().await.unwrap().last_seq, 11);
}

#[tokio::test]
async fn waiting_for_a_change_ends_when_a_record_comes() {
    let s = Arc::new(setup().await);
    s.append(1, "a", Projection::Atomic).await.unwrap();
    let started = std::time::Instant::now();
    s.log.changed(&s.key, 0, 60_000).await.unwrap();
    s.log.changed(&s.key, 1, 50).await.unwrap();
    assert!(started.elapsed().as_millis() >= 50 && started.elapsed().as_secs() < 30);
    let waiting = tokio::spawn({
        let s = s.clone();
        async move { s.log.changed(&s.key, 1, 60_000).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    // A record whose head lags counts too.
    s.append(2, "b", Projection::Lag).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(started.elapsed().as_secs() < 30);
}
