//! Bodies of any size and content, logs of any length.

use std::sync::Arc;

use bytes::Bytes;
use tailstep_runtime::ports::Projection;

use super::Subject;
use crate::sample;

/// Around the places where adapters change their ways: small, just below the spill to blobs, above
/// it, at a DynamoDB item's limit, one more, and a body that no request can carry in one item.
const SIZES: [usize; 7] = [0, 1, 299_000, 400_000, 409_600, 409_601, 5_000_000];

pub(super) async fn bodies_of_every_size_come_back(s: Subject) {
    let key = sample::key();
    let mut want = Vec::new();
    for (seq, size) in (1..).zip(SIZES) {
        want.push(s.add_body(&key, seq, sample::text(size)).await);
    }
    for (got, want) in s.read(&key, 0).await.iter().zip(&want) {
        assert_eq!((got.seq, &got.nonce), (want.seq, &want.nonce));
        // Not assert_eq: nobody reads five megabytes of difference.
        assert!(got.body == want.body, "{} bytes come back changed", want.body.len());
    }
    let last = s.read(&key, SIZES.len() as u64 - 1).await;
    assert!(last == want[SIZES.len() - 1..], "the last one alone");
}

pub(super) async fn every_byte_comes_back(s: Subject) {
    let key = sample::key();
    let want = s.add_body(&key, 1, sample::every_byte()).await;
    assert_eq!(s.read(&key, 0).await, [want]);
}

pub(super) async fn a_log_of_many_records_is_read_whole(s: Subject) {
    const COUNT: u64 = 1_100;
    let key = sample::key();
    for seq in 1..=COUNT {
        s.append(&key, seq, if seq == 1 { Projection::Atomic } else { Projection::Lag }).await;
    }
    let seqs: Vec<u64> = s.read(&key, 0).await.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, (1..=COUNT).collect::<Vec<_>>());
    assert_eq!(s.log.read(&key, 0, 1_050).await.unwrap().len(), 1_050);
    assert_eq!(s.log.read(&key, 90, 1_005).await.unwrap().len(), 1_005);
    assert_eq!(s.log.read(&key, 1_095, 1_000).await.unwrap().len(), 5);
}

pub(super) async fn a_log_of_many_megabytes_is_read_whole(s: Subject) {
    let (s, key) = (Arc::new(s), sample::key());
    let mut want: Vec<Bytes> = Vec::new();
    for seq in 1..=12 {
        // Bodies of different content, so that an exchange would show.
        let mut body = vec![b'a' + u8::try_from(seq).unwrap(); 1_000];
        body.extend_from_slice(&sample::text(280_000));
        want.push(s.add_body(&key, seq, body.into()).await.body);
    }
    let got: Vec<Bytes> = s.read(&key, 0).await.into_iter().map(|entry| entry.body).collect();
    assert!(got == want, "{} of {} bodies", got.len(), want.len());
    let some = s.log.read(&key, 3, 6).await.unwrap();
    assert!(some.iter().map(|entry| &entry.body).eq(&want[3..9]));
}
