//! Where a worker's sessions put their outputs: nowhere but their own directories, since the protocol has
//! no way to hand files to the server. And where they take their skills from.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::ids::BlobRef;
use tailstep_runtime::ports::{Blobs, BlobsError};

pub(super) struct KeptHere {
    /// What the server has given.
    pub(super) skills: Arc<dyn Blobs>,
}

#[async_trait]
impl Blobs for KeptHere {
    async fn put(&self, _tenant: &str, content: Bytes) -> Result<BlobRef, BlobsError> {
        Ok(BlobRef::of(&content))
    }

    async fn get(&self, tenant: &str, blob: &BlobRef) -> Result<Bytes, BlobsError> {
        self.skills.get(tenant, blob).await
    }
}
