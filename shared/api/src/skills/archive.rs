//! A skill as a zip archive, not compressed: the form in which official workers fetch skills (APPNOTE
//! 6.3.10 of the format; local headers, bytes, central directory). Skills are small, so it is made
//! whole.

use flate2::Crc;
use tailstep_core::files::{Manifest, OutputFile};

use super::versions::Version;
use crate::{Api, error::ApiError};

/// Version of the format that is needed to read it: directories.
const NEEDS: u16 = 20;

/// Made by Unix, whose modes the directory's entries carry.
const MADE_BY: u16 = (3 << 8) | NEEDS;

/// Names are UTF-8.
const UTF8: u16 = 1 << 11;

/// 1 January 1980, the first day that the format knows: the same skill is the same archive.
const DATE: u16 = 0x0021;

/// All files below the skill's directory.
pub(super) async fn zip(api: &Api, tenant: &str, version: &Version) -> Result<Vec<u8>, ApiError> {
    let stored = api.app.blobs.get(tenant, &version.manifest).await?;
    let manifest = Manifest::decode(&stored).map_err(|error| {
        tracing::error!(%error, "a skill's manifest cannot be read");
        ApiError::internal()
    })?;
    let mut archive = Archive::default();
    for OutputFile { path, content, .. } in &manifest.files {
        let mut bytes = Vec::new();
        for chunk in &content.chunks {
            bytes.extend_from_slice(&api.app.blobs.get(tenant, chunk).await?);
        }
        archive.add(&format!("{}/{path}", version.directory), &bytes)?;
    }
    archive.finish()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    entries: u16,
}

impl Archive {
    fn add(&mut self, name: &str, content: &[u8]) -> Result<(), ApiError> {
        let mut crc = Crc::new();
        crc.update(content);
        let mode: u32 = if content.starts_with(b"#!") { 0o100_755 } else { 0o100_644 };
        let (at, size) = (narrow(self.bytes.len())?, narrow::<u32>(content.len())?);
        // What both headers say: flags, method (none), time, date, sum, sizes, length of the name,
        // length of what else there is.
        let mut common = Vec::new();
        put16(&mut common, &[NEEDS, UTF8, 0, 0, DATE]);
        put32(&mut common, &[crc.sum(), size, size]);
        put16(&mut common, &[narrow(name.len())?, 0]);
        self.bytes.extend_from_slice(b"PK\x03\x04");
        self.bytes.extend_from_slice(&common);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(content);
        self.directory.extend_from_slice(b"PK\x01\x02");
        put16(&mut self.directory, &[MADE_BY]);
        self.directory.extend_from_slice(&common);
        // No comment, first disk, no attributes of the content's own.
        put16(&mut self.directory, &[0, 0, 0]);
        put32(&mut self.directory, &[mode << 16, at]);
        self.directory.extend_from_slice(name.as_bytes());
        self.entries = self.entries.checked_add(1).ok_or_else(ApiError::internal)?;
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>, ApiError> {
        let (at, size) = (narrow(self.bytes.len())?, narrow(self.directory.len())?);
        self.bytes.append(&mut self.directory);
        self.bytes.extend_from_slice(b"PK\x05\x06");
        put16(&mut self.bytes, &[0, 0, self.entries, self.entries]);
        put32(&mut self.bytes, &[size, at]);
        put16(&mut self.bytes, &[0]);
        Ok(self.bytes)
    }
}

/// Uploads have limits far below those of the format.
fn narrow<T: TryFrom<usize>>(number: usize) -> Result<T, ApiError> {
    T::try_from(number).map_err(|_| ApiError::internal())
}

fn put16(to: &mut Vec<u8>, numbers: &[u16]) {
    to.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn put32(to: &mut Vec<u8>, numbers: &[u32]) {
    to.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}
