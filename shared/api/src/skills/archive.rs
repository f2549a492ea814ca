//! A skill as a zip archive: the form in which workers fetch skills. They are small, so it is made
//! whole.

use std::io::{Cursor, Write};

use tailstep_core::files::{Manifest, OutputFile};
use zip::{CompressionMethod, DateTime, ZipWriter, result::ZipError, write::SimpleFileOptions};

use super::versions::Version;
use crate::{Api, error::ApiError};

/// All files below the skill's directory. The same skill is the same archive.
pub(super) async fn zip(api: &Api, tenant: &str, version: &Version) -> Result<Vec<u8>, ApiError> {
    let stored = api.app.blobs.get(tenant, &version.manifest).await?;
    let manifest = Manifest::decode(&stored).map_err(|error| {
        tracing::error!(%error, "a skill's manifest cannot be read");
        ApiError::internal()
    })?;
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for OutputFile { path, content, .. } in &manifest.files {
        let mut bytes = Vec::new();
        for chunk in &content.chunks {
            bytes.extend_from_slice(&api.app.blobs.get(tenant, chunk).await?);
        }
        add(&mut archive, &format!("{}/{path}", version.directory), &bytes).map_err(unmade)?;
    }
    Ok(archive.finish().map_err(unmade)?.into_inner())
}

fn add(
    archive: &mut ZipWriter<Cursor<Vec<u8>>>,
    name: &str,
    content: &[u8],
) -> Result<(), ZipError> {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .unix_permissions(if content.starts_with(b"#!") { 0o755 } else { 0o644 });
    archive.start_file(name, options)?;
    Ok(archive.write_all(content)?)
}

/// Uploads have limits far below those of the format.
fn unmade(error: ZipError) -> ApiError {
    tracing::error!(%error, "a skill cannot be archived");
    ApiError::internal()
}
