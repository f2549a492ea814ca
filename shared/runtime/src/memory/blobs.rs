//! [`Blobs`] in memory.

use std::{collections::BTreeMap, sync::Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::ids::BlobRef;

use super::lock;
use crate::ports::{Blobs, BlobsError};

#[derive(Debug, Default)]
pub struct MemoryBlobs {
    /// By tenant and hash.
    stored: Mutex<BTreeMap<(String, String), Bytes>>,
}

impl MemoryBlobs {
    /// Puts other bytes where `blob` is stored, as a failing disk would.
    pub fn corrupt(&self, tenant: &str, blob: &BlobRef, content: Bytes) {
        lock(&self.stored).insert(place(tenant, blob), content);
    }

    /// Loses `blob`.
    pub fn lose(&self, tenant: &str, blob: &BlobRef) {
        lock(&self.stored).remove(&place(tenant, blob));
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn put(&self, tenant: &str, content: Bytes) -> Result<BlobRef, BlobsError> {
        let blob = BlobRef::of(&content);
        lock(&self.stored).insert(place(tenant, &blob), content);
        Ok(blob)
    }

    async fn get(&self, tenant: &str, blob: &BlobRef) -> Result<Bytes, BlobsError> {
        let found = lock(&self.stored).get(&place(tenant, blob)).cloned();
        let content = found.ok_or_else(|| BlobsError::Missing { sha256: blob.sha256.clone() })?;
        if BlobRef::of(&content) != *blob {
            return Err(BlobsError::Corrupt { sha256: blob.sha256.clone() });
        }
        Ok(content)
    }
}

fn place(tenant: &str, blob: &BlobRef) -> (String, String) {
    (tenant.to_owned(), blob.sha256.clone())
}
