//! What the session leaves for people: collected after each call, and kept in pieces until the caller
//! has said that it has them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use tailstep_core::{files::OUTPUTS_DIRECTORY, ids::BlobRef, limits::files::STORED_BYTES_MAX};
use tailstep_sandbox::collect::{Collected, Known, Limits, collect};

use crate::given;

/// A collection ends well before its caller gives the call up.
const TIME_MS_MAX: u64 = 10_000;

pub(crate) struct Outputs {
    pub(crate) directory: PathBuf,
    /// Pieces and manifests, by hash.
    pieces: PathBuf,
    known: Known,
    stored_bytes: u64,
    /// The manifest after the last collection; `None` for nothing at all.
    manifest: Option<BlobRef>,
}

impl Outputs {
    /// Below `root`, with pieces in `pieces`.
    pub(crate) fn open(root: &Path, pieces: PathBuf) -> io::Result<Self> {
        let directory = root.join(OUTPUTS_DIRECTORY.trim_start_matches('/'));
        // Where an image's user may not make it, there are no outputs.
        let _ = fs::create_dir_all(&directory);
        given::empty(&pieces)?;
        Ok(Self { directory, pieces, known: Known::default(), stored_bytes: 0, manifest: None })
    }

    /// Collects. The caller knows the manifest `before`: if that is the last one it has all pieces of
    /// it, else it gets every piece anew.
    ///
    /// # Errors
    /// When the directory itself cannot be read, or nothing can be kept.
    pub(crate) fn collect(&mut self, before: Option<&BlobRef>) -> io::Result<Changed> {
        given::empty(&self.pieces)?;
        if before.is_none() && !self.directory.exists() {
            return Ok(Changed { manifest: None, notice: None });
        }
        let known = std::mem::take(&mut self.known);
        let known = if before == self.manifest.as_ref() { known } else { Known::default() };
        let limits = Limits {
            stored_bytes_max: STORED_BYTES_MAX.saturating_sub(self.stored_bytes),
            time_ms_max: TIME_MS_MAX,
            ..Limits::default()
        };
        let pieces = &self.pieces;
        let mut put = |content: Vec<u8>| {
            let blob = BlobRef::of(&content);
            fs::write(pieces.join(&blob.sha256), content)?;
            Ok(blob)
        };
        let collected = collect(&self.directory, &limits, &known, &mut put);
        let Collected { manifest, known, stored_bytes } = collected.map_err(io::Error::other)?;
        self.stored_bytes = self.stored_bytes.saturating_add(stored_bytes);
        self.known = known;
        self.manifest = if manifest.is_empty() && before.is_none() {
            None
        } else {
            Some(put(manifest.encode().map_err(io::Error::other)?)?)
        };
        let changed = self.manifest.as_ref() != before;
        let notice = manifest.notice().filter(|_| changed);
        Ok(Changed { manifest: self.manifest.clone().filter(|_| changed), notice })
    }

    /// A piece, while it is kept.
    pub(crate) fn piece(&self, sha256: &str) -> Option<Bytes> {
        let plain = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| fs::read(self.pieces.join(sha256)).ok()).flatten().map(Bytes::from)
    }
}

/// What a call has changed.
pub(crate) struct Changed {
    /// Absent when it is the one before.
    pub(crate) manifest: Option<BlobRef>,
    pub(crate) notice: Option<String>,
}
