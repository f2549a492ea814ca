//! The documents against an engine in the process.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

mod support;

use bytes::Bytes;
use support::{CONFIG_TABLE, Engine, Fault};
use tailstep_aws::DynamoDocuments;
use tailstep_runtime::ports::{
    Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments,
};

async fn setup() -> (Engine, DynamoDocuments) {
    let engine = Engine::start();
    engine.create_tables().await;
    let documents = DynamoDocuments::new(engine.client(), CONFIG_TABLE);
    (engine, documents)
}

fn agent(id: &str, revision: u64) -> Document {
    Document {
        tenant: "t".into(),
        kind: DocumentKind::Agent,
        id: id.into(),
        revision,
        created_at_ms: 7,
        body: Bytes::from(format!("{{\"revision\":{revision}}}")),
    }
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_not_a_conflict_with_itself() {
    let (engine, documents) = setup().await;
    engine.inject("PutItem", Fault::LoseAnswer);
    documents.put(&agent("a", 1), Expect::Absent).await.unwrap();
    engine.inject("PutItem", Fault::LoseAnswer);
    documents.put(&agent("a", 2), Expect::Revision(1)).await.unwrap();
    assert_eq!(engine.faults_left(), 0);
    // The same content from another call is a conflict all the same.
    for (document, expect) in
        [(agent("a", 1), Expect::Absent), (agent("a", 2), Expect::Revision(1))]
    {
        let again = documents.put(&document, expect).await;
        assert!(matches!(again, Err(DocumentsError::Conflict { .. })), "{again:?}");
    }
    assert_eq!(documents.get("t", DocumentKind::Agent, "a").await.unwrap(), Some(agent("a", 2)));
}

#[tokio::test]
async fn kinds_and_tenants_are_apart_and_deletion_is_idempotent() {
    let (_engine, documents) = setup().await;
    documents.put(&agent("a", 1), Expect::Absent).await.unwrap();
    assert!(documents.get("t", DocumentKind::Environment, "a").await.unwrap().is_none());
    assert!(documents.get("u", DocumentKind::Agent, "a").await.unwrap().is_none());
    let key = Document { tenant: String::new(), kind: DocumentKind::ApiKey, ..agent("k", 1) };
    documents.put(&key, Expect::Absent).await.unwrap();
    assert_eq!(documents.get("", DocumentKind::ApiKey, "k").await.unwrap(), Some(key));
    documents.delete("t", DocumentKind::Agent, "a").await.unwrap();
    documents.delete("t", DocumentKind::Agent, "a").await.unwrap();
    assert!(documents.get("t", DocumentKind::Agent, "a").await.unwrap().is_none());
}

#[tokio::test]
async fn lists_page_in_both_orders_within_a_prefix() {
    let (_engine, documents) = setup().await;
    for id in ["a#1", "a#2", "a#3", "b#1"] {
        documents.put(&agent(id, 1), Expect::Absent).await.unwrap();
    }
    let list = async |prefix: &str, after: Option<&str>, limit, descending| {
        let query = ListDocuments {
            prefix: prefix.into(),
            after: after.map(str::to_owned),
            limit,
            descending,
        };
        let page = documents.list("t", DocumentKind::Agent, &query).await.unwrap();
        (page.items.into_iter().map(|document| document.id).collect::<Vec<_>>(), page.more)
    };
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    assert_eq!(list("", None, 3, false).await, (ids(&["a#1", "a#2", "a#3"]), true));
    assert_eq!(list("", Some("a#3"), 3, false).await, (ids(&["b#1"]), false));
    assert_eq!(list("a#", None, 2, true).await, (ids(&["a#3", "a#2"]), true));
    assert_eq!(list("a#", Some("a#2"), 2, true).await, (ids(&["a#1"]), false));
    // A place that no document has.
    assert_eq!(list("a#", Some("a#11"), 9, false).await, (ids(&["a#2", "a#3"]), false));
    assert_eq!(list("c", None, 9, false).await, (ids(&[]), false));
}
