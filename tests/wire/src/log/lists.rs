//! What spans sessions: due times, lists, tenants, removal; and waiting for one to grow.

use std::{sync::Arc, time::Duration};

use tailstep_core::ids::{SessionKey, UnixMs};
use tailstep_runtime::ports::{Head, ListSessions, Page, Projection};
use tokio::time::{Instant, sleep, timeout};

use super::Subject;
use crate::{law::eventually, sample};

impl Subject {
    /// This tenant's due sessions, in the order in which they came.
    async fn due(&self, tenant: &str, until_ms: UnixMs) -> Vec<String> {
        let due = self.log.due(until_ms, 1_000).await.unwrap();
        due.into_iter().filter(|key| key.tenant == tenant).map(|key| key.session).collect()
    }

    async fn until_due(&self, tenant: &str, until_ms: UnixMs, want: &[&str]) {
        eventually(self.timing, &format!("due are {want:?}"), || async {
            self.due(tenant, until_ms).await == want
        })
        .await;
    }

    /// A session whose head says that it is due then.
    async fn due_session(&self, key: &SessionKey, due_at_ms: Option<UnixMs>) {
        let head = Head { due_at_ms, ..sample::head(key, 1) };
        self.add(key, &sample::entry(1, "r"), &head, Projection::Atomic).await;
    }

    async fn list(
        &self,
        tenant: &str,
        after: Option<&str>,
        limit: usize,
        down: bool,
    ) -> Page<Head> {
        let after = after.map(str::to_owned);
        let query = ListSessions { after, limit, descending: down };
        self.log.list(tenant, &query).await.unwrap()
    }

    async fn names(&self, tenant: &str) -> Vec<String> {
        let page = self.list(tenant, None, 1_000, false).await;
        page.items.into_iter().map(|head| head.session).collect()
    }

    async fn until_listed(&self, tenant: &str, want: &[String]) {
        eventually(self.timing, &format!("listed are {want:?}"), || async {
            self.names(tenant).await == want
        })
        .await;
    }
}

pub(super) async fn due_sessions_come_most_overdue_first(s: Subject) {
    let tenant = sample::tenant();
    let key = |name: &str| SessionKey::new(&tenant, name);
    for (name, due_at_ms) in
        [("a", Some(30)), ("b", Some(10)), ("c", None), ("d", Some(20)), ("e", Some(1_000))]
    {
        s.due_session(&key(name), due_at_ms).await;
    }
    s.until_due(&tenant, 100, &["b", "d", "a"]).await;
    s.until_due(&tenant, 20, &["b", "d"]).await;
    s.until_due(&tenant, 9, &[]).await;
    s.until_due(&tenant, 1_000, &["b", "d", "a", "e"]).await;
    assert!(s.log.due(100, 1).await.unwrap().len() <= 1, "no more than were asked for");

    // A beat moves the time, a head takes it away, an intent leaves it.
    s.append(&key("b"), 2, Projection::Lag).await;
    s.until_due(&tenant, 100, &["b", "d", "a"]).await;
    s.log.beat(&key("b"), 2, 25).await.unwrap();
    s.until_due(&tenant, 100, &["d", "b", "a"]).await;
    let idle = Head { due_at_ms: None, ..sample::head(&key("d"), 2) };
    s.add(&key("d"), &sample::entry(2, "r"), &idle, Projection::Follow).await;
    s.until_due(&tenant, 100, &["b", "a"]).await;
    let later = Head { due_at_ms: Some(5), ..sample::head(&key("c"), 2) };
    s.add(&key("c"), &sample::entry(2, "r"), &later, Projection::Atomic).await;
    s.until_due(&tenant, 100, &["c", "b", "a"]).await;
    for name in ["a", "b", "c", "e"] {
        s.log.purge(&key(name)).await.unwrap();
    }
    s.until_due(&tenant, 1_000, &[]).await;
}

pub(super) async fn a_list_is_in_order_and_paged(s: Subject) {
    let tenant = sample::tenant();
    let mut want: Vec<String> = Vec::new();
    // Made in another order than they are listed in.
    for n in [4, 0, 6, 2, 1, 5, 3] {
        let key = SessionKey::new(&tenant, format!("sesn_{n}"));
        s.append(&key, 1, Projection::Atomic).await;
        want.push(key.session);
    }
    want.sort();
    s.until_listed(&tenant, &want).await;
    let whole = s.list(&tenant, None, 7, false).await;
    assert_eq!(whole.items[2], sample::head(&SessionKey::new(&tenant, "sesn_2"), 1));
    for down in [false, true] {
        let mut got: Vec<String> = Vec::new();
        loop {
            let page = s.list(&tenant, got.last().map(String::as_str), 3, down).await;
            assert!(page.items.len() <= 3);
            got.extend(page.items.into_iter().map(|head| head.session));
            if !page.more {
                break;
            }
            assert!(got.len() <= 7, "a list ends");
        }
        if down {
            got.reverse();
        }
        assert_eq!(got, want, "descending: {down}");
    }
    // A place between two, which may have been removed meanwhile, is as good as one of them.
    let behind = s.list(&tenant, Some("sesn_4x"), 10, false).await;
    assert_eq!(behind.items.len(), 2);
    assert_eq!(s.list(&tenant, Some("sesn_0"), 10, true).await.items, []);
}

pub(super) async fn tenants_do_not_see_each_other(s: Subject) {
    let one = sample::tenant();
    // One name begins with the other.
    let (ours, theirs) =
        (SessionKey::new(&one, "sesn_1"), SessionKey::new(format!("{one}0"), "sesn_1"));
    let mine = s.append(&ours, 1, Projection::Atomic).await;
    assert_eq!(s.head(&theirs).await, None);
    assert_eq!(s.read(&theirs, 0).await, []);
    let other = s.append(&theirs, 1, Projection::Atomic).await;
    s.append(&theirs, 2, Projection::Follow).await;
    assert_eq!(s.read(&ours, 0).await, [mine]);
    assert_eq!(s.head(&ours).await, Some(sample::head(&ours, 1)));
    for key in [&ours, &theirs] {
        s.until_listed(&key.tenant, &["sesn_1".to_owned()]).await;
    }
    s.log.purge(&ours).await.unwrap();
    assert_eq!(s.read(&theirs, 0).await[0], other);
    assert_eq!(s.head(&theirs).await, Some(sample::head(&theirs, 2)));
}

pub(super) async fn a_purged_session_is_gone(s: Subject) {
    let key = SessionKey::new(sample::tenant(), "sesn_1");
    let stays = SessionKey::new(&key.tenant, "sesn_2");
    s.append(&stays, 1, Projection::Atomic).await;
    for seq in 1..=60 {
        s.append(&key, seq, Projection::Follow).await;
    }
    s.add_body(&key, 61, sample::text(400_000)).await;
    s.log.beat(&key, 61, sample::FAR_MS).await.unwrap();
    for _ in 0..2 {
        s.log.purge(&key).await.unwrap();
        assert_eq!(s.head(&key).await, None);
        assert_eq!(s.read(&key, 0).await, []);
        s.until_listed(&key.tenant, std::slice::from_ref(&stays.session)).await;
        s.until_due(&key.tenant, sample::FAR_MS + 1_000, &["sesn_2"]).await;
    }
    s.log.purge(&sample::key()).await.unwrap();
}

pub(super) async fn a_purged_session_may_begin_anew(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    s.append(&key, 2, Projection::Lag).await;
    s.log.beat(&key, 2, sample::FAR_MS).await.unwrap();
    s.log.purge(&key).await.unwrap();
    let first = s.append(&key, 1, Projection::Atomic).await;
    assert_eq!(s.read(&key, 0).await, [first]);
    assert_eq!(s.head(&key).await, Some(sample::head(&key, 1)), "without a lease");
}

pub(super) async fn a_waiter_is_told_of_an_append(s: Subject) {
    let (s, key) = (Arc::new(s), sample::key());
    s.append(&key, 1, Projection::Atomic).await;
    let waiter = {
        let (s, key) = (s.clone(), key.clone());
        tokio::spawn(async move {
            while s.read(&key, 1).await.is_empty() {
                s.log.changed(&key, 1, 10 * s.timing.patience_ms).await.unwrap();
            }
        })
    };
    sleep(Duration::from_millis(50)).await;
    assert!(!waiter.is_finished());
    s.append(&key, 2, Projection::Follow).await;
    timeout(s.timing.patience(), waiter).await.expect("told in time").unwrap();
}

pub(super) async fn a_waiter_does_not_wait_for_what_is_there(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    let told = timeout(s.timing.patience(), s.log.changed(&key, 0, 3_600_000)).await;
    told.expect("the record is there").unwrap();
}

pub(super) async fn a_waiter_gives_up_in_time(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    let start = Instant::now();
    s.log.changed(&key, 1, 200).await.unwrap();
    s.log.changed(&sample::key(), 0, 200).await.unwrap();
    let most = s.timing.patience() + Duration::from_millis(400);
    assert!(start.elapsed() < most, "waited {:?}", start.elapsed());
}
