//! The laws of the documents.

use std::{any::Any, future::Future, sync::Arc};

use bytes::Bytes;
use tailstep_runtime::{
    memory::DOCUMENT_BYTES_MAX,
    ports::{Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments},
};

use crate::{
    law::{Timing, eventually, laws},
    sample,
};

/// Documents under test. They may be shared by all laws: each uses tenants of its own.
pub struct Subject {
    pub documents: Arc<dyn Documents>,
    pub timing: Timing,
    /// What has to live as long as the adapter, such as a scratch directory.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Runs every law of the documents.
pub async fn all<F>(make: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    laws!(
        "documents",
        make,
        [
            laws::a_document_comes_back_as_it_was,
            laws::only_an_absent_document_is_created,
            laws::only_the_expected_revision_is_replaced,
            laws::one_of_many_creators_wins,
            laws::one_of_many_editors_wins,
            laws::a_deleted_document_is_gone,
            laws::a_changed_document_is_not_deleted,
            laws::tenants_and_kinds_are_apart,
            laws::a_list_is_in_order_and_paged,
            laws::a_list_keeps_to_its_prefix,
            laws::the_largest_body_is_kept_and_a_larger_one_refused,
            laws::keys_live_under_no_tenant,
        ]
    );
}

const KIND: DocumentKind = DocumentKind::Agent;

fn document(tenant: &str, id: &str, revision: u64) -> Document {
    Document {
        tenant: tenant.to_owned(),
        kind: KIND,
        id: id.to_owned(),
        revision,
        created_at_ms: 1_700_000_000_123,
        body: Bytes::from(format!("{{\"revision\":{revision},\"z\":1.00,\"a\":\"é\"}}")),
    }
}

impl Subject {
    async fn create(&self, document: &Document) {
        self.documents.put(document, Expect::Absent).await.unwrap();
    }

    async fn get(&self, document: &Document) -> Option<Document> {
        self.documents.get(&document.tenant, document.kind, &document.id).await.unwrap()
    }

    async fn ids(&self, tenant: &str, prefix: &str) -> Vec<String> {
        let query = ListDocuments {
            prefix: prefix.to_owned(),
            after: None,
            limit: 1_000,
            descending: false,
        };
        let page = self.documents.list(tenant, KIND, &query).await.unwrap();
        page.items.into_iter().map(|document| document.id).collect()
    }

    async fn until_ids(&self, tenant: &str, prefix: &str, want: &[String]) {
        eventually(self.timing, &format!("{prefix}* are {want:?}"), || async {
            self.ids(tenant, prefix).await == want
        })
        .await;
    }
}

#[track_caller]
fn assert_conflict(result: Result<(), DocumentsError>, want: &str) {
    match result {
        Err(DocumentsError::Conflict { id }) => assert_eq!(id, want),
        other => panic!("must be a conflict: {other:?}"),
    }
}

mod laws {
    use super::*;

    pub(super) async fn a_document_comes_back_as_it_was(s: Subject) {
        let one = document(&sample::tenant(), "agent_1", 1);
        assert_eq!(s.get(&one).await, None);
        s.create(&one).await;
        assert_eq!(s.get(&one).await, Some(one.clone()));
        let two = Document { body: Bytes::from("{}"), ..document(&one.tenant, "agent_1", 2) };
        s.documents.put(&two, Expect::Revision(1)).await.unwrap();
        assert_eq!(s.get(&one).await, Some(two));
    }

    pub(super) async fn only_an_absent_document_is_created(s: Subject) {
        let one = document(&sample::tenant(), "agent_1", 1);
        s.create(&one).await;
        let other = Document { body: Bytes::from("{\"other\":1}"), ..one.clone() };
        assert_conflict(s.documents.put(&other, Expect::Absent).await, "agent_1");
        assert_eq!(s.get(&one).await, Some(one));
    }

    pub(super) async fn only_the_expected_revision_is_replaced(s: Subject) {
        let tenant = sample::tenant();
        let second = document(&tenant, "agent_1", 2);
        assert_conflict(s.documents.put(&second, Expect::Revision(1)).await, "agent_1");
        assert_eq!(s.get(&second).await, None);
        s.create(&document(&tenant, "agent_1", 1)).await;
        s.documents.put(&second, Expect::Revision(1)).await.unwrap();
        for stale in [1, 3] {
            let late = document(&tenant, "agent_1", stale + 1);
            assert_conflict(s.documents.put(&late, Expect::Revision(stale)).await, "agent_1");
        }
        assert_eq!(s.get(&second).await, Some(second));
    }

    pub(super) async fn one_of_many_creators_wins(s: Subject) {
        race(Arc::new(s), sample::tenant(), 1, Expect::Absent).await;
    }

    pub(super) async fn one_of_many_editors_wins(s: Subject) {
        let (s, tenant) = (Arc::new(s), sample::tenant());
        s.create(&document(&tenant, "agent_1", 1)).await;
        for revision in 1..=3 {
            race(s.clone(), tenant.clone(), revision + 1, Expect::Revision(revision)).await;
        }
    }

    async fn race(s: Arc<Subject>, tenant: String, revision: u64, expect: Expect) {
        let writers: Vec<_> = (0..16)
            .map(|n| {
                let body = Bytes::from(format!("{{\"writer\":{n}}}"));
                let document = Document { body, ..document(&tenant, "agent_1", revision) };
                let s = s.clone();
                tokio::spawn(async move {
                    let result = s.documents.put(&document, expect).await;
                    (document, result)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for writer in writers {
            match writer.await.unwrap() {
                (document, Ok(())) => winners.push(document),
                (_, error) => assert_conflict(error, "agent_1"),
            }
        }
        assert_eq!(winners.len(), 1, "revision {revision} has one writer");
        assert_eq!(s.get(&winners[0]).await.as_ref(), Some(&winners[0]));
    }

    pub(super) async fn a_deleted_document_is_gone(s: Subject) {
        let one = document(&sample::tenant(), "agent_1", 1);
        s.create(&one).await;
        for _ in 0..2 {
            s.documents.delete(&one.tenant, KIND, &one.id).await.unwrap();
            assert_eq!(s.get(&one).await, None);
            s.until_ids(&one.tenant, "", &[]).await;
        }
        s.create(&one).await;
        assert_eq!(s.get(&one).await, Some(one));
    }

    pub(super) async fn a_changed_document_is_not_deleted(s: Subject) {
        let one = document(&sample::tenant(), "agent_1", 1);
        s.create(&one).await;
        let two = document(&one.tenant, "agent_1", 2);
        s.documents.put(&two, Expect::Revision(1)).await.unwrap();
        for revision in [1, 3] {
            let deleted = s.documents.delete_at(&one.tenant, KIND, &one.id, revision).await;
            assert_conflict(deleted, "agent_1");
            assert_eq!(s.get(&one).await.as_ref(), Some(&two));
        }
        for _ in 0..2 {
            s.documents.delete_at(&one.tenant, KIND, &one.id, 2).await.unwrap();
            assert_eq!(s.get(&one).await, None);
        }
        s.create(&one).await;
        assert_eq!(s.get(&one).await, Some(one));
    }

    pub(super) async fn tenants_and_kinds_are_apart(s: Subject) {
        let one = document(&sample::tenant(), "agent_1", 1);
        s.create(&one).await;
        let neighbour = Document { tenant: format!("{}0", one.tenant), ..one.clone() };
        let environment = Document { kind: DocumentKind::Environment, ..one.clone() };
        let version = Document { kind: DocumentKind::AgentVersion, ..one.clone() };
        for other in [&neighbour, &environment, &version] {
            assert_eq!(s.get(other).await, None);
        }
        s.until_ids(&neighbour.tenant, "", &[]).await;
        for other in [&neighbour, &environment, &version] {
            let other = Document { body: Bytes::from("{\"its\":\"own\"}"), ..other.clone() };
            s.create(&other).await;
            assert_eq!(s.get(&other).await, Some(other));
        }
        s.until_ids(&one.tenant, "", std::slice::from_ref(&one.id)).await;
        s.documents.delete(&one.tenant, KIND, &one.id).await.unwrap();
        assert!(s.get(&neighbour).await.is_some() && s.get(&environment).await.is_some());
    }

    pub(super) async fn a_list_is_in_order_and_paged(s: Subject) {
        let tenant = sample::tenant();
        let mut want: Vec<String> = Vec::new();
        for n in [3, 0, 6, 5, 1, 2, 4] {
            let document = document(&tenant, &format!("agent_{n}"), 1);
            s.create(&document).await;
            want.push(document.id);
        }
        want.sort();
        s.until_ids(&tenant, "", &want).await;
        for descending in [false, true] {
            let mut got: Vec<String> = Vec::new();
            loop {
                let after = got.last().cloned();
                let query = ListDocuments { prefix: String::new(), after, limit: 3, descending };
                let page = s.documents.list(&tenant, KIND, &query).await.unwrap();
                assert!(page.items.len() <= 3);
                got.extend(page.items.into_iter().map(|document| document.id));
                if !page.more {
                    break;
                }
                assert!(got.len() <= want.len(), "a list ends");
            }
            if descending {
                got.reverse();
            }
            assert_eq!(got, want, "descending: {descending}");
        }
    }

    /// The versions of one agent, the newest first: the list that the API shows.
    pub(super) async fn a_list_keeps_to_its_prefix(s: Subject) {
        let tenant = sample::tenant();
        let ids =
            ["agent_1", "agent_1#0000000001", "agent_1#0000000002", "agent_10", "agent_1_", "b"];
        for id in ids {
            s.create(&document(&tenant, id, 1)).await;
        }
        let want: Vec<String> = ids[1..3].iter().map(|id| (*id).to_owned()).collect();
        s.until_ids(&tenant, "agent_1#", &want).await;
        let list = async |after: Option<&str>, limit| {
            let query = ListDocuments {
                prefix: "agent_1#".to_owned(),
                after: after.map(str::to_owned),
                limit,
                descending: true,
            };
            let page = s.documents.list(&tenant, KIND, &query).await.unwrap();
            let ids: Vec<String> = page.items.into_iter().map(|document| document.id).collect();
            (ids, page.more)
        };
        assert_eq!(list(None, 1).await, (vec![want[1].clone()], true));
        assert_eq!(list(Some(&want[1]), 5).await, (vec![want[0].clone()], false));
        assert_eq!(list(Some(&want[0]), 5).await, (vec![], false));
        s.until_ids(&tenant, "%", &[]).await;
        s.until_ids(&tenant, "AGENT", &[]).await;
    }

    pub(super) async fn the_largest_body_is_kept_and_a_larger_one_refused(s: Subject) {
        let one = document(&sample::tenant(), "agent_1", 1);
        let body = |count: usize| Bytes::from(format!("\"{}\"", "x".repeat(count - 2)));
        let largest = Document { body: body(DOCUMENT_BYTES_MAX), ..one.clone() };
        s.create(&largest).await;
        assert!(s.get(&one).await == Some(largest), "the largest body comes back");
        let too_large =
            Document { body: body(DOCUMENT_BYTES_MAX + 1), ..document(&one.tenant, "agent_2", 1) };
        let refused = s.documents.put(&too_large, Expect::Absent).await;
        assert!(matches!(refused, Err(DocumentsError::Refused { .. })), "{refused:?}");
    }

    pub(super) async fn keys_live_under_no_tenant(s: Subject) {
        let key = Document {
            tenant: String::new(),
            kind: DocumentKind::ApiKey,
            ..document("", &sample::random(), 1)
        };
        s.create(&key).await;
        assert_eq!(s.get(&key).await, Some(key.clone()));
        s.documents.delete("", DocumentKind::ApiKey, &key.id).await.unwrap();
        assert_eq!(s.get(&key).await, None);
    }
}
