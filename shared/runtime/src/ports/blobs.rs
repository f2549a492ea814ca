//! Large immutable bytes, addressed by their SHA-256.

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::ids::BlobRef;
use thiserror::Error;

#[async_trait]
pub trait Blobs: Send + Sync {
    /// Stores `content` under its hash within `tenant`; durable when it returns. Idempotent.
    async fn put(&self, tenant: &str, content: Bytes) -> Result<BlobRef, BlobsError>;

    /// The bytes, checked against the hash.
    async fn get(&self, tenant: &str, blob: &BlobRef) -> Result<Bytes, BlobsError>;
}

#[derive(Debug, Error)]
pub enum BlobsError {
    #[error("blob {sha256} is missing")]
    Missing { sha256: String },
    #[error("blob {sha256} does not match its hash")]
    Corrupt { sha256: String },
    #[error("blob store is unavailable: {what}")]
    Unavailable { what: String },
    #[error("blob store refuses: {what}")]
    Refused { what: String },
}
