//! Blobs that a sandbox fetches and puts by itself, with presigned URLs: each the right to one object
//! for a limited time. What it puts lands in a place of its own, `staged/…`, and becomes a blob only
//! once it has been read and found to be what was announced.

use std::time::Duration;

use aws_sdk_s3::{
    operation::get_object::GetObjectError,
    presigning::{PresignedRequest, PresigningConfig},
};
use sha2::{Digest, Sha256};
use tailstep_core::ids::{BlobRef, hex};
use tailstep_runtime::ports::BlobsError;

use super::{S3Blobs, is_address, object_key};
use crate::trouble::{Trouble, sort};

/// Longest life of a URL: a function's longest invocation and then some.
const VALID_MAX: Duration = Duration::from_secs(3_600);

impl S3Blobs {
    /// A URL to get `blob` from.
    ///
    /// # Errors
    /// [`BlobsError`], when there are no credentials to sign with. Nothing is looked up.
    pub(crate) async fn get_url(
        &self,
        tenant: &str,
        blob: &BlobRef,
        valid: Duration,
    ) -> Result<String, BlobsError> {
        if !is_address(&blob.sha256) {
            return Err(BlobsError::Missing { sha256: blob.sha256.clone() });
        }
        let request = self.client.get_object().bucket(&self.bucket).key(object_key(tenant, blob));
        let signed = request.presigned(lifetime(valid)?).await;
        url(&signed.map_err(|error| sort("sign for reading a blob", &error))?)
    }

    /// A URL to put one object to that [`Self::take_over`] can then make a blob of.
    ///
    /// # Errors
    /// As [`Self::get_url`].
    pub(crate) async fn put_url(
        &self,
        place: &Place,
        valid: Duration,
    ) -> Result<String, BlobsError> {
        let request = self.client.put_object().bucket(&self.bucket).key(&place.0);
        let signed = request.presigned(lifetime(valid)?).await;
        url(&signed.map_err(|error| sort("sign for writing a blob", &error))?)
    }

    /// Makes what was put to `place` the blob that it is said to be.
    ///
    /// # Errors
    /// [`BlobsError::Missing`] when nothing was put there, [`BlobsError::Corrupt`] when it is
    /// something else, or changes meanwhile.
    pub(crate) async fn take_over(
        &self,
        tenant: &str,
        place: &Place,
        blob: &BlobRef,
    ) -> Result<(), BlobsError> {
        let corrupt = || BlobsError::Corrupt { sha256: blob.sha256.clone() };
        let staged = self.client.get_object().bucket(&self.bucket).key(&place.0).send().await;
        let staged = staged.map_err(|error| match error.as_service_error() {
            Some(GetObjectError::NoSuchKey(_)) => {
                BlobsError::Missing { sha256: blob.sha256.clone() }
            }
            _ => sort("read what a sandbox stored", &error).into(),
        })?;
        let etag = staged.e_tag.ok_or_else(corrupt)?;
        let (mut body, mut bytes, mut hash) = (staged.body, 0, Sha256::new());
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| BlobsError::Unavailable {
                what: format!("read what a sandbox stored: {error}"),
            })?;
            bytes += piece.len() as u64;
            if bytes > blob.bytes {
                return Err(corrupt());
            }
            hash.update(&piece);
        }
        if bytes != blob.bytes || hex(&hash.finalize()) != blob.sha256 {
            return Err(corrupt());
        }
        // The very object that was read: whoever holds the URL may put another one meanwhile.
        self.client
            .copy_object()
            .bucket(&self.bucket)
            .key(object_key(tenant, blob))
            .copy_source(format!("{}/{}", self.bucket, place.0))
            .copy_source_if_match(etag)
            .send()
            .await
            .map_err(|error| {
                match error.raw_response().map(|response| response.status().as_u16()) {
                    Some(412) => corrupt(),
                    _ => sort("keep what a sandbox stored", &error).into(),
                }
            })?;
        let gone = self.client.delete_object().bucket(&self.bucket).key(&place.0).send().await;
        if let Err(error) = gone {
            // The bucket's own rule removes it within days.
            tracing::warn!(error = ?sort("remove", &error), "a staged object is left behind");
        }
        Ok(())
    }
}

/// Where one call of one sandbox may put an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place(String);

impl Place {
    /// `sandbox` and `call` are names of ours: hexadecimal digits and numbers with dots.
    pub(crate) fn of(sandbox: &str, call: &str) -> Self {
        Self(format!("staged/{sandbox}/{call}"))
    }
}

fn lifetime(valid: Duration) -> Result<PresigningConfig, BlobsError> {
    PresigningConfig::expires_in(valid.min(VALID_MAX))
        .map_err(|error| Trouble::Refused(format!("sign: {error}")).into())
}

/// What is signed must be the URL alone: its user sends no headers.
fn url(signed: &PresignedRequest) -> Result<String, BlobsError> {
    match signed.headers().next() {
        None => Ok(signed.uri().to_owned()),
        Some((name, _)) => {
            Err(Trouble::Refused(format!("sign: header {name} would have to be sent")).into())
        }
    }
}
