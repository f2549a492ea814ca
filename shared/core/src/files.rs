//! Files that sessions make and are given: bytes stored in pieces, and the manifest of what a
//! session has put into its outputs directory.
//!
//! Owns their stored forms. Must not know how a directory is walked, nor how files are shown to
//! clients.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::{BlobRef, UnixMs};

/// Format of manifests; a newer one is left for newer code.
pub const MANIFEST_FORMAT: u32 = 1;

/// The bytes of one file, in pieces of at most
/// [`CHUNK_BYTES`](crate::limits::files::CHUNK_BYTES), so that no part of the system holds a whole
/// file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    pub size_bytes: u64,
    /// Of the whole file, as 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// In order; none for an empty file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<BlobRef>,
}

/// Everything in a session's outputs directory at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    #[serde(rename = "v")]
    pub format: u32,
    /// In byte order of their paths, each path once.
    pub files: Vec<OutputFile>,
    /// What is in the directory and not in `files`, in the order in which it was met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Further entries that were left out and are not named.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_more: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Relative to the outputs directory, with `/` between names. A name may hold anything that
    /// UTF-8 can: line breaks and control characters too.
    pub path: String,
    #[serde(flatten)]
    pub content: FileContent,
    /// When a collection first saw these bytes under this path.
    pub collected_at_ms: UnixMs,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// For people: bytes that are not UTF-8, control characters and `\` are escaped, and a long
    /// path is cut. `.` is the outputs directory itself.
    pub path: String,
    pub why: String,
}

#[derive(Debug, Error)]
pub enum ManifestError {
    #[error("manifest has the newer format {format}")]
    Newer { format: u32 },
    #[error("manifest is malformed")]
    Malformed(#[source] serde_json::Error),
}

impl Manifest {
    /// Of an empty directory.
    pub fn empty() -> Self {
        Self { format: MANIFEST_FORMAT, files: Vec::new(), left_out: Vec::new(), left_out_more: 0 }
    }

    /// True when there is nothing to say: no file, and nothing left out.
    pub fn is_empty(&self) -> bool {
        *self == Self::empty()
    }

    /// Entries that were left out, named or not.
    pub fn left_out_count(&self) -> u64 {
        self.left_out_more.saturating_add(self.left_out.len() as u64)
    }

    /// The stored form.
    ///
    /// # Errors
    /// None that is known: every value of this type has a JSON form.
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        serde_json::to_vec(self).map_err(ManifestError::Malformed)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`ManifestError`] when it is of a newer format, or no manifest at all.
    pub fn decode(stored: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Format {
            v: u32,
        }
        let Format { v } = serde_json::from_slice(stored).map_err(ManifestError::Malformed)?;
        if v > MANIFEST_FORMAT {
            return Err(ManifestError::Newer { format: v });
        }
        serde_json::from_slice(stored).map_err(ManifestError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first version wrote; never to be edited.
    const V1: &str = r#"{"v":1,"files":[{"path":"a\nb","size_bytes":3,"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","chunks":[{"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","bytes":3}],"collected_at_ms":7},{"path":"empty","size_bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","collected_at_ms":7}],"left_out":[{"path":"x\\xff","why":"its name is not UTF-8"}],"left_out_more":2}"#;

    #[test]
    fn the_stored_form_is_kept() {
        let manifest = Manifest::decode(V1.as_bytes()).unwrap();
        assert_eq!(manifest.files[0].path, "a\nb");
        assert_eq!(manifest.left_out_count(), 3);
        assert_eq!(String::from_utf8(manifest.encode().unwrap()).unwrap(), V1);
        let empty = br#"{"v":1,"files":[]}"#;
        assert_eq!(Manifest::decode(empty).unwrap(), Manifest::empty());
        assert_eq!(Manifest::empty().encode().unwrap(), empty);
    }

    #[test]
    fn a_newer_format_is_left_alone_and_nonsense_is_refused() {
        let newer = Manifest::decode(br#"{"v":2,"entries":{}}"#).unwrap_err();
        assert!(matches!(newer, ManifestError::Newer { format: 2 }));
        for bad in ["", "{}", "[]", r#"{"v":1}"#, r#"{"v":1,"files":[{}]}"#] {
            let refused = Manifest::decode(bad.as_bytes()).unwrap_err();
            assert!(matches!(refused, ManifestError::Malformed(_)), "{bad}");
        }
    }
}
