//! Blobs in S3, under `blobs/<tenant>/<sha256>`.

mod lent;

use async_trait::async_trait;
use aws_sdk_s3::{Client, operation::get_object::GetObjectError, primitives::ByteStream};
use bytes::Bytes;
use tailstep_core::ids::BlobRef;
use tailstep_runtime::ports::{Blobs, BlobsError};

pub(crate) use self::lent::Place;
use crate::trouble::{from_trouble, sort};

from_trouble!(BlobsError);

#[derive(Debug, Clone)]
pub struct S3Blobs {
    client: Client,
    bucket: String,
}

impl S3Blobs {
    pub fn new(client: Client, bucket: impl Into<String>) -> Self {
        Self { client, bucket: bucket.into() }
    }
}

#[async_trait]
impl Blobs for S3Blobs {
    async fn put(&self, tenant: &str, content: Bytes) -> Result<BlobRef, BlobsError> {
        let blob = BlobRef::of(&content);
        // Over whatever is there: equal bytes, or damage that this mends.
        self.client
            .put_object()
            .bucket(&self.bucket)
            .key(object_key(tenant, &blob))
            .body(ByteStream::from(content))
            .send()
            .await
            .map_err(|error| sort("write blob", &error))?;
        Ok(blob)
    }

    async fn get(&self, tenant: &str, blob: &BlobRef) -> Result<Bytes, BlobsError> {
        if !is_address(&blob.sha256) {
            return Err(BlobsError::Missing { sha256: blob.sha256.clone() });
        }
        let answer = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(object_key(tenant, blob))
            .send()
            .await
            .map_err(|error| match error.as_service_error() {
                Some(GetObjectError::NoSuchKey(_)) => {
                    BlobsError::Missing { sha256: blob.sha256.clone() }
                }
                _ => sort("read blob", &error).into(),
            })?;
        let content = answer
            .body
            .collect()
            .await
            .map_err(|error| BlobsError::Unavailable { what: format!("read blob: {error}") })?;
        let content = content.into_bytes();
        if BlobRef::of(&content) != *blob {
            return Err(BlobsError::Corrupt { sha256: blob.sha256.clone() });
        }
        Ok(content)
    }
}

/// Anything else could name another object than a blob.
fn is_address(sha256: &str) -> bool {
    sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A tenant's name may hold any character; in a key it is hexadecimal wherever it is not plain, so
/// that it cannot reach into another tenant's folder.
fn object_key(tenant: &str, blob: &BlobRef) -> String {
    let mut folder = String::with_capacity(tenant.len());
    for byte in tenant.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            folder.push(char::from(byte));
        } else {
            folder.push_str(&format!(".{byte:02x}"));
        }
    }
    format!("blobs/{folder}/{}", blob.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_cannot_name_anothers_folder() {
        let blob = BlobRef::of(b"x");
        let keys = ["a", "../a", "a/b", "a.2fb", ""].map(|tenant| object_key(tenant, &blob));
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(key.matches('/').count(), 2, "{key}");
            assert!(!keys[..index].contains(key));
        }
    }
}
