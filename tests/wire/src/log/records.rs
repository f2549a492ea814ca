//! Records: dense, immutable, one writer a place.

use std::sync::Arc;

use tailstep_runtime::ports::{Appended, LogError, Projection};

use super::{Subject, assert_conflict};
use crate::sample;

pub(super) async fn an_unknown_session_is_empty(s: Subject) {
    let key = sample::key();
    assert_eq!(s.head(&key).await, None);
    assert_eq!(s.read(&key, 0).await, []);
    assert_eq!(s.read(&key, 7).await, []);
}

pub(super) async fn records_come_back_in_order(s: Subject) {
    let key = sample::key();
    let mut want = Vec::new();
    for seq in 1..=12 {
        want.push(s.append(&key, seq, Projection::Follow).await);
    }
    assert_eq!(s.read(&key, 0).await, want);
    assert_eq!(s.read(&key, 9).await, want[9..]);
    assert_eq!(s.read(&key, 12).await, []);
    assert_eq!(s.read(&key, 13).await, []);
    assert_eq!(s.log.read(&key, 0, 5).await.unwrap(), want[..5]);
    assert_eq!(s.log.read(&key, 4, 1).await.unwrap(), want[4..5]);
}

pub(super) async fn a_taken_place_is_a_conflict(s: Subject) {
    let key = sample::key();
    let mut want = Vec::new();
    for seq in 1..=3 {
        want.push(s.append(&key, seq, Projection::Follow).await);
    }
    for seq in 1..=3 {
        for projection in [Projection::Lag, Projection::Follow, Projection::Atomic] {
            let late = sample::entry(seq, "late");
            let result = s.log.append(&key, &late, &sample::head(&key, seq), projection).await;
            assert_conflict(result, seq);
        }
    }
    assert_eq!(s.read(&key, 0).await, want);
}

pub(super) async fn the_same_nonce_twice_is_one_record(s: Subject) {
    let key = sample::key();
    let mut want = Vec::new();
    for (seq, projection) in (1..).zip([Projection::Atomic, Projection::Lag, Projection::Follow]) {
        let entry = s.append(&key, seq, projection).await;
        let again = s.log.append(&key, &entry, &sample::head(&key, seq), projection).await;
        assert_eq!(again.unwrap(), Appended::AlreadyMine, "{projection:?}");
        want.push(entry);
    }
    // Also when others have written behind it since.
    let again = s.log.append(&key, &want[0], &sample::head(&key, 1), Projection::Follow).await;
    assert_eq!(again.unwrap(), Appended::AlreadyMine);
    assert_eq!(s.read(&key, 0).await, want);
    assert_eq!(s.head(&key).await.unwrap().last_seq, 3);
}

pub(super) async fn one_of_many_writers_wins(s: Subject) {
    let (s, key) = (Arc::new(s), sample::key());
    let modes = [Projection::Atomic, Projection::Lag, Projection::Follow, Projection::Atomic];
    for (seq, projection) in (1..).zip(modes) {
        let writers: Vec<_> = (0..16)
            .map(|n| {
                let (s, key) = (s.clone(), key.clone());
                tokio::spawn(async move {
                    let entry = sample::entry(seq, format!("writer {n}"));
                    let head = sample::head(&key, seq);
                    let result = s.log.append(&key, &entry, &head, projection).await;
                    (entry, result)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for writer in writers {
            let (entry, result) = writer.await.unwrap();
            match result {
                Ok(Appended::Now) => winners.push(entry),
                other => assert_conflict(other, seq),
            }
        }
        assert_eq!(winners.len(), 1, "record {seq} has one writer");
        assert_eq!(s.read(&key, seq - 1).await, winners, "and it is the winner's");
    }
}

/// The answer to the winner is lost, and its second try races with the others' first.
pub(super) async fn the_winner_may_ask_again(s: Subject) {
    let (s, key) = (Arc::new(s), sample::key());
    s.append(&key, 1, Projection::Atomic).await;
    let mine = sample::entry(2, "mine");
    let tries: Vec<_> = (0..16)
        .map(|n| {
            let (s, key) = (s.clone(), key.clone());
            let entry = if n % 2 == 0 { mine.clone() } else { sample::entry(2, "other") };
            tokio::spawn(async move {
                let head = sample::head(&key, 2);
                let result = s.log.append(&key, &entry, &head, Projection::Follow).await;
                (entry, result)
            })
        })
        .collect();
    let mut results = Vec::new();
    for one in tries {
        results.push(one.await.unwrap());
    }
    let stored = s.read(&key, 1).await;
    assert_eq!(stored.len(), 1);
    let mut firsts = 0;
    for (entry, result) in results {
        match result {
            Ok(Appended::Now) => {
                firsts += 1;
                assert_eq!(entry, stored[0]);
            }
            Ok(Appended::AlreadyMine) => assert_eq!(entry, stored[0]),
            Err(error) => {
                assert!(matches!(error, LogError::Conflict { seq: 2, .. }), "{error:?}");
                assert_ne!(entry.nonce, stored[0].nonce, "the winner is not told of a conflict");
            }
        }
    }
    assert_eq!(firsts, 1);
}

pub(super) async fn sessions_do_not_hinder_each_other(s: Subject) {
    let s = Arc::new(s);
    let writers: Vec<_> = (0..16)
        .map(|_| {
            let (s, key) = (s.clone(), sample::key());
            tokio::spawn(async move {
                let mut want = Vec::new();
                for seq in 1..=10 {
                    want.push(s.append(&key, seq, Projection::Follow).await);
                    // A conflict of one session's is no trouble for the others.
                    let head = sample::head(&key, seq);
                    let late = sample::entry(seq, "late");
                    assert_conflict(s.log.append(&key, &late, &head, Projection::Lag).await, seq);
                }
                (key, want)
            })
        })
        .collect();
    for writer in writers {
        let (key, want) = writer.await.unwrap();
        assert_eq!(s.read(&key, 0).await, want);
    }
}

pub(super) async fn a_lost_record_is_noticed(s: Subject) {
    let Some(lose) = &s.lose else { return };
    for lost in 1..=2 {
        let key = sample::key();
        for seq in 1..=3 {
            s.append(&key, seq, Projection::Follow).await;
        }
        lose((key.clone(), lost)).await;
        match s.log.read(&key, 0, 100).await {
            Err(LogError::Corrupt { seq, .. }) => assert_eq!(seq, lost),
            other => panic!("record {lost} is lost, and this was read: {other:?}"),
        }
        assert_eq!(s.read(&key, lost).await.len(), usize::try_from(3 - lost).unwrap());
    }
}

pub(super) async fn a_skipped_place_is_never_read_over(s: Subject) {
    let key = sample::key();
    s.append(&key, 1, Projection::Atomic).await;
    let skipping = sample::entry(3, "skipping");
    let result = s.log.append(&key, &skipping, &sample::head(&key, 3), Projection::Lag).await;
    let read = s.log.read(&key, 0, 100).await;
    match (result, read) {
        (Err(_), Ok(entries)) => assert_eq!(entries.len(), 1),
        (Ok(_), Err(LogError::Corrupt { seq, .. })) => assert_eq!(seq, 2),
        other => panic!("the gap must show: {other:?}"),
    }
}

/// Many appends and reads at once: what one task was told is there is there for every other.
pub(super) async fn a_reader_sees_what_was_acknowledged(s: Subject) {
    let (s, key) = (Arc::new(s), sample::key());
    let (told, mut hears) = tokio::sync::watch::channel(0);
    let writer = {
        let (s, key) = (s.clone(), key.clone());
        tokio::spawn(async move {
            for seq in 1..=40 {
                s.append(&key, seq, Projection::Follow).await;
                told.send(seq).unwrap();
            }
        })
    };
    while hears.changed().await.is_ok() {
        let seq = *hears.borrow_and_update();
        assert!(s.read(&key, 0).await.len() as u64 >= seq);
        assert!(s.head(&key).await.unwrap().last_seq >= seq);
    }
    writer.await.unwrap();
}
