//! Heads: a projection that moves forward only, when it is told to.

use std::sync::Arc;

use bytes::Bytes;
use tailstep_core::model::Usage;
use tailstep_runtime::ports::{Head, Lease, Projection, SessionStatus};

use super::{Subject, assert_conflict};
use crate::sample;

pub(super) async fn a_head_comes_back_as_it_was(s: Subject) {
    let statuses = [
        SessionStatus::Idle,
        SessionStatus::Running,
        SessionStatus::Rescheduling,
        SessionStatus::Terminated,
        SessionStatus::Deleted,
    ];
    let key = sample::key();
    for (seq, status) in (1..).zip(statuses) {
        // 2^53 + 1: a number that a detour through floating point would change.
        let large = (1 << 53) + 1;
        let bare = Head {
            status,
            title: None,
            due_at_ms: None,
            snapshot: Bytes::new(),
            ..sample::head(&key, seq)
        };
        let full = Head {
            agent_version: large,
            title: Some("“𝄞”\n\"'; --".to_owned()),
            archived_at_ms: Some(large),
            due_at_ms: Some(sample::FAR_MS * 2),
            usage: Usage {
                input_tokens: large,
                output_tokens: large,
                cache_read_input_tokens: 3,
                cache_write_input_tokens: 4,
            },
            snapshot: sample::every_byte(),
            ..bare.clone()
        };
        let head = if seq % 2 == 0 { bare } else { full };
        s.add(&key, &sample::entry(seq, "r"), &head, Projection::Atomic).await;
        assert_eq!(s.head(&key).await, Some(head));
    }
}

pub(super) async fn a_lagging_append_leaves_the_head(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    s.append(&key, 2, Projection::Lag).await;
    assert_eq!(s.head(&key).await, Some(sample::head(&key, 1)));
    assert_eq!(s.read(&key, 1).await.len(), 1, "the record itself is there");
    s.append(&key, 3, Projection::Follow).await;
    assert_eq!(s.head(&key).await, Some(sample::head(&key, 3)));
}

pub(super) async fn a_following_append_moves_the_head(s: Subject) {
    let key = sample::key();
    for seq in 1..=3 {
        s.append(&key, seq, Projection::Follow).await;
        assert_eq!(s.head(&key).await, Some(sample::head(&key, seq)));
    }
}

pub(super) async fn an_atomic_append_moves_the_head(s: Subject) {
    let key = sample::key();
    for seq in 1..=3 {
        s.append(&key, seq, Projection::Atomic).await;
        assert_eq!(s.head(&key).await, Some(sample::head(&key, seq)));
    }
}

pub(super) async fn a_refused_append_leaves_the_head(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    s.append(&key, 2, Projection::Lag).await;
    for projection in [Projection::Follow, Projection::Atomic] {
        let late = sample::entry(2, "late");
        let result = s.log.append(&key, &late, &sample::head(&key, 2), projection).await;
        assert_conflict(result, 2);
        assert_eq!(s.head(&key).await, Some(sample::head(&key, 1)), "{projection:?}");
    }
}

pub(super) async fn a_projection_never_goes_back(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    for seq in 2..=4 {
        s.append(&key, seq, Projection::Lag).await;
    }
    s.log.project(&key, &sample::head(&key, 3)).await.unwrap();
    assert_eq!(s.head(&key).await, Some(sample::head(&key, 3)));
    let changed = |last_seq| Head { title: None, ..sample::head(&key, last_seq) };
    for stale in [changed(1), changed(2), changed(3)] {
        s.log.project(&key, &stale).await.unwrap();
        assert_eq!(s.head(&key).await, Some(sample::head(&key, 3)), "after {}", stale.last_seq);
    }
    s.log.project(&key, &changed(4)).await.unwrap();
    assert_eq!(s.head(&key).await, Some(changed(4)));
}

pub(super) async fn racing_projections_leave_the_newest(s: Subject) {
    let (s, key) = (Arc::new(s), sample::key());
    s.append(&key, 1, Projection::Atomic).await;
    for seq in 2..=17 {
        s.append(&key, seq, Projection::Lag).await;
    }
    let writers: Vec<_> = (2..=17)
        .map(|seq| {
            let (s, key) = (s.clone(), key.clone());
            let lease = Some(Lease { intent: 1, version: 1, abandoned: true });
            let head = Head { lease, ..sample::head(&key, seq) };
            tokio::spawn(async move { s.log.project(&key, &head).await.unwrap() })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(s.head(&key).await, Some(sample::head(&key, 17)));
}
