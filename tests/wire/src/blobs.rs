//! The laws of the blobs.

use std::{any::Any, future::Future, sync::Arc};

use bytes::Bytes;
use tailstep_core::ids::BlobRef;
use tailstep_runtime::ports::{Blobs, BlobsError};

use crate::{
    law::{Sabotage, laws},
    sample,
};

/// Blobs under test. They may be shared by all laws: each uses tenants of its own.
pub struct Subject {
    pub blobs: Arc<dyn Blobs>,
    /// Puts other bytes where a tenant's blob is stored, behind the adapter's back.
    pub overwrite: Sabotage<(String, BlobRef, Bytes)>,
    /// What has to live as long as the adapter, such as a scratch directory.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Runs every law of the blobs.
pub async fn all<F>(make: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    laws!(
        "blobs",
        make,
        [
            laws::content_of_every_kind_comes_back,
            laws::storing_twice_is_storing_once,
            laws::many_may_store_the_same_at_once,
            laws::what_is_not_there_is_missing,
            laws::what_is_no_address_is_missing,
            laws::damage_is_noticed,
            laws::damage_is_healed_by_storing_again,
            laws::tenants_do_not_see_each_other,
        ]
    );
}

#[track_caller]
fn assert_missing(result: Result<Bytes, BlobsError>, blob: &BlobRef) {
    match result {
        Err(BlobsError::Missing { sha256 }) => assert_eq!(sha256, blob.sha256),
        other => panic!("must be missing: {other:?}"),
    }
}

mod laws {
    use super::*;

    pub(super) async fn content_of_every_kind_comes_back(s: Subject) {
        let tenant = sample::tenant();
        let contents = [
            Bytes::new(),
            Bytes::from_static(b"\0"),
            sample::every_byte(),
            sample::text(409_601),
            sample::text(5_000_000),
        ];
        for content in contents {
            let blob = s.blobs.put(&tenant, content.clone()).await.unwrap();
            assert_eq!(blob, BlobRef::of(&content));
            let got = s.blobs.get(&tenant, &blob).await.unwrap();
            assert!(got == content, "{} bytes come back changed", content.len());
        }
    }

    pub(super) async fn storing_twice_is_storing_once(s: Subject) {
        let (tenant, content) = (sample::tenant(), sample::every_byte());
        let blob = s.blobs.put(&tenant, content.clone()).await.unwrap();
        assert_eq!(s.blobs.put(&tenant, content.clone()).await.unwrap(), blob);
        assert_eq!(s.blobs.get(&tenant, &blob).await.unwrap(), content);
    }

    pub(super) async fn many_may_store_the_same_at_once(s: Subject) {
        let (s, tenant, content) = (Arc::new(s), sample::tenant(), sample::text(100_000));
        let writers: Vec<_> = (0..16)
            .map(|_| {
                let (s, tenant, content) = (s.clone(), tenant.clone(), content.clone());
                tokio::spawn(async move {
                    let blob = s.blobs.put(&tenant, content.clone()).await.unwrap();
                    assert!(s.blobs.get(&tenant, &blob).await.unwrap() == content);
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    }

    pub(super) async fn what_is_not_there_is_missing(s: Subject) {
        let blob = BlobRef::of(sample::random().as_bytes());
        assert_missing(s.blobs.get(&sample::tenant(), &blob).await, &blob);
    }

    pub(super) async fn what_is_no_address_is_missing(s: Subject) {
        let tenant = sample::tenant();
        s.blobs.put(&tenant, Bytes::from_static(b"x")).await.unwrap();
        for sha256 in ["", "..", "../../secrets.json", "é", &"g".repeat(64)] {
            let blob = BlobRef { sha256: sha256.to_owned(), bytes: 1 };
            assert_missing(s.blobs.get(&tenant, &blob).await, &blob);
        }
    }

    pub(super) async fn damage_is_noticed(s: Subject) {
        let tenant = sample::tenant();
        let content = Bytes::from_static(b"what was stored");
        let blob = s.blobs.put(&tenant, content).await.unwrap();
        for damage in ["what was stOred", "what was", ""] {
            (s.overwrite)((tenant.clone(), blob.clone(), Bytes::from(damage))).await;
            match s.blobs.get(&tenant, &blob).await {
                Err(BlobsError::Corrupt { sha256 }) => assert_eq!(sha256, blob.sha256),
                other => panic!("{damage:?} is not what was stored: {other:?}"),
            }
        }
    }

    pub(super) async fn damage_is_healed_by_storing_again(s: Subject) {
        let tenant = sample::tenant();
        let content = Bytes::from_static(b"what was stored");
        let blob = s.blobs.put(&tenant, content.clone()).await.unwrap();
        (s.overwrite)((tenant.clone(), blob.clone(), Bytes::from_static(b"damage"))).await;
        s.blobs.put(&tenant, content.clone()).await.unwrap();
        assert_eq!(s.blobs.get(&tenant, &blob).await.unwrap(), content);
    }

    pub(super) async fn tenants_do_not_see_each_other(s: Subject) {
        let tenant = sample::tenant();
        let blob = s.blobs.put(&tenant, Bytes::from_static(b"mine")).await.unwrap();
        for other in [format!("{tenant}0"), String::new(), format!("x/../{tenant}")] {
            assert_missing(s.blobs.get(&other, &blob).await, &blob);
        }
    }
}
