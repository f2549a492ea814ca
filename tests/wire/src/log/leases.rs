//! Beats: who is alive, without a clock.

use std::sync::Arc;

use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::ports::{Head, Lease, Projection};

use super::Subject;
use crate::sample;

fn lease(intent: Seq, version: u64) -> Option<Lease> {
    Some(Lease { intent, version, abandoned: false })
}

/// A session whose record 2 is an intent.
async fn begun(s: &Subject) -> SessionKey {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    s.append(&key, 2, Projection::Lag).await;
    key
}

pub(super) async fn beats_count_within_an_intent(s: Subject) {
    let key = begun(&s).await;
    assert_eq!(s.head(&key).await.unwrap().lease, None);
    for version in 1..=3 {
        let due_ms = sample::FAR_MS + 1_000 + version;
        assert_eq!(s.log.beat(&key, 2, due_ms).await.unwrap(), 1, "the head covers record 1");
        let head = s.head(&key).await.unwrap();
        assert_eq!(head.lease, lease(2, version));
        assert_eq!(head.due_at_ms, Some(due_ms));
        let want = Head { lease: None, due_at_ms: head.due_at_ms, ..sample::head(&key, 1) };
        assert_eq!(Head { lease: None, ..head }, want, "nothing else has moved");
    }
    s.append(&key, 3, Projection::Follow).await;
    s.append(&key, 4, Projection::Lag).await;
    assert_eq!(s.log.beat(&key, 4, sample::FAR_MS).await.unwrap(), 3);
    assert_eq!(s.head(&key).await.unwrap().lease, lease(4, 1), "a new intent begins at 1");
}

pub(super) async fn a_projection_keeps_the_lease(s: Subject) {
    let key = begun(&s).await;
    s.log.beat(&key, 2, sample::FAR_MS).await.unwrap();
    s.log.beat(&key, 2, sample::FAR_MS).await.unwrap();
    // What a writer puts into `lease` means nothing.
    let claims = [None, lease(9, 9), Some(Lease { intent: 2, version: 2, abandoned: true })];
    for (seq, claim) in (3..).zip(claims) {
        let head = Head { lease: claim, ..sample::head(&key, seq) };
        let entry = sample::entry(seq, "r");
        let projection = if seq == 3 { Projection::Follow } else { Projection::Atomic };
        s.add(&key, &entry, &head, projection).await;
        let want = Head { lease: lease(2, 2), ..sample::head(&key, seq) };
        assert_eq!(s.head(&key).await, Some(want));
    }
    s.append(&key, 6, Projection::Lag).await;
    s.log.project(&key, &sample::head(&key, 6)).await.unwrap();
    assert_eq!(s.head(&key).await, Some(Head { lease: lease(2, 2), ..sample::head(&key, 6) }));
}

pub(super) async fn no_beat_is_lost(s: Subject) {
    let s = Arc::new(s);
    let key = begun(&s).await;
    let beats: Vec<_> = (0..16)
        .map(|n| {
            let (s, key) = (s.clone(), key.clone());
            tokio::spawn(async move { s.log.beat(&key, 2, sample::FAR_MS + n).await.unwrap() })
        })
        .collect();
    for beat in beats {
        beat.await.unwrap();
    }
    assert_eq!(s.head(&key).await.unwrap().lease, lease(2, 16));
}

pub(super) async fn a_fenced_beat_does_not_take_the_lease(s: Subject) {
    let key = begun(&s).await;
    s.log.beat(&key, 2, sample::FAR_MS).await.unwrap();
    s.append(&key, 3, Projection::Lag).await;
    s.log.beat(&key, 3, sample::FAR_MS).await.unwrap();
    // An answer or an error, as the adapter likes; but the successor's lease stands.
    let _ = s.log.beat(&key, 2, sample::FAR_MS).await;
    assert_eq!(s.head(&key).await.unwrap().lease, lease(3, 1));
    s.log.beat(&key, 3, sample::FAR_MS).await.unwrap();
    assert_eq!(s.head(&key).await.unwrap().lease, lease(3, 2));
}

pub(super) async fn a_beat_does_not_make_a_session(s: Subject) {
    let key = sample::key();
    assert!(s.log.beat(&key, 1, 5).await.is_err(), "there is nothing to hold");
    assert_eq!(s.head(&key).await, None);
    assert!(!s.log.due(10, 1_000).await.unwrap().contains(&key));
}

/// A late beat of an attempt that has lost its session, which has come to rest: the sweeper would wake
/// it for ever.
pub(super) async fn a_beat_does_not_make_an_idle_session_due(s: Subject) {
    let key = begun(&s).await;
    s.log.beat(&key, 2, 5).await.unwrap();
    let idle = Head { due_at_ms: None, ..sample::head(&key, 3) };
    s.add(&key, &sample::entry(3, "r"), &idle, Projection::Follow).await;
    for intent in [2, 4] {
        assert!(s.log.beat(&key, intent, 5).await.is_err(), "intent {intent}");
        assert_eq!(s.head(&key).await.unwrap().due_at_ms, None);
    }
    // The next message makes it due, and the next attempt may beat.
    s.append(&key, 4, Projection::Atomic).await;
    s.append(&key, 5, Projection::Lag).await;
    s.log.beat(&key, 5, 5).await.unwrap();
    assert_eq!(s.head(&key).await.unwrap().lease, lease(5, 1));
}
