//! Files that sessions make and are given: bytes stored in pieces, and the manifest of what a
//! session has put into its outputs directory.
//!
//! Owns their stored forms. Must not know how a directory is walked, nor how files are shown to
//! clients.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    agent::SkillSpec,
    ids::{BlobRef, UnixMs},
    limits::files::{
        BYTES_MAX, CHUNK_BYTES, FILE_BYTES_MAX, FILES_MAX, LEFT_OUT_NAMED_MAX, PATH_BYTES_MAX,
    },
};

/// Format of manifests; a newer one is left for newer code.
pub const MANIFEST_FORMAT: u32 = 1;

/// Where sandboxes see skills, each in a directory of its name.
pub const SKILLS_DIRECTORY: &str = "/skills";

/// Where sandboxes leave files for people: the API reference's own place.
pub const OUTPUTS_DIRECTORY: &str = "/mnt/session/outputs";

/// Where sandboxes see the files that sessions are given, unless a session says another place.
pub const UPLOADS_DIRECTORY: &str = "/mnt/session/uploads";

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

/// A file that a session was given when it was created. Its bytes are its own: the upload may be
/// deleted or expire meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileResource {
    pub id: String,
    pub file_id: String,
    pub filename: String,
    /// Absolute and plain; the sandbox sees the file there, read-only.
    pub mount_path: String,
    pub content: FileContent,
    pub added_at_ms: UnixMs,
}

/// Directories that belong to the sandbox; nothing that a session is given may cover or enter them.
const TAKEN: [&str; 20] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/mnt/session/outputs",
    "/opt/tailstep",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/skills",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/workspace",
];

/// Says what is wrong with a place for a given file, if anything is.
///
/// # Errors
/// One sentence without its subject, for people.
pub fn check_mount_path(path: &str) -> Result<(), String> {
    if path.len() > PATH_BYTES_MAX {
        return Err(format!("must have at most {PATH_BYTES_MAX} bytes"));
    }
    let plain = |name: &str| {
        !name.is_empty() && name != "." && name != ".." && name.len() <= NAME_BYTES_MAX
    };
    let names = path.strip_prefix('/').map(|rest| rest.split('/').all(plain));
    if names != Some(true) || path.chars().any(char::is_control) {
        return Err("must be an absolute path without `.`, `..`, empty or overlong names and \
                    control characters"
            .to_owned());
    }
    let taken = TAKEN.iter().find(|taken| is_within(path, taken) || is_within(taken, path));
    match taken {
        Some(taken) => Err(format!(
            "must not lie in or above {taken}, which is the sandbox's own; {UPLOADS_DIRECTORY} is \
             the usual place"
        )),
        None => Ok(()),
    }
}

/// Whether `path` is `directory` or beneath it.
pub fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What file systems take.
const NAME_BYTES_MAX: usize = 255;

/// What a session's sandboxes are given before their first call, read-only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    pub files: Vec<FileResource>,
    pub skills: Vec<SkillSpec>,
}

impl Given {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.skills.is_empty()
    }
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

    /// One line for the model about what is missing.
    pub fn notice(&self) -> Option<String> {
        /// Entries that it is told one by one.
        const TOLD_MAX: usize = 3;
        let count = self.left_out_count();
        if count == 0 {
            return None;
        }
        let told = self.left_out.iter().take(TOLD_MAX);
        let mut told: Vec<String> =
            told.map(|LeftOut { path, why }| format!("{path} ({why})")).collect();
        if count > told.len() as u64 {
            told.push("…".to_owned());
        }
        let noun = if count == 1 { "entry" } else { "entries" };
        let told = told.join(", ");
        Some(format!("[outputs: {count} {noun} of {OUTPUTS_DIRECTORY} left out: {told}]"))
    }

    /// Says what is wrong with a manifest that came from a sandbox, if anything is: each is within the
    /// limits of a collection, and its paths are plain, in order and named once.
    ///
    /// # Errors
    /// One sentence for a log.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.files.len() > FILES_MAX {
            return Err("it names too many files");
        }
        if self.left_out.len() > LEFT_OUT_NAMED_MAX {
            return Err("it names too much that was left out");
        }
        // Escaped, a path of odd bytes grows.
        let long = |left: &LeftOut| left.path.len() > 8 * PATH_BYTES_MAX || left.why.len() > 1_024;
        if self.left_out.iter().any(long) {
            return Err("what was left out has too long a name or reason");
        }
        if !self.files.windows(2).all(|pair| pair[0].path < pair[1].path) {
            return Err("its paths are not in order, or one is named twice");
        }
        let mut bytes = 0_u64;
        for OutputFile { path, content, .. } in &self.files {
            let plain = |name: &str| {
                !name.is_empty() && name != "." && name != ".." && !name.contains('\0')
            };
            if path.len() > PATH_BYTES_MAX || !path.split('/').all(plain) {
                return Err("a path is not plain");
            }
            let pieces = content.chunks.iter().map(|chunk| chunk.bytes);
            let whole = pieces.clone().try_fold(0_u64, u64::checked_add);
            let count = content.size_bytes.div_ceil(CHUNK_BYTES as u64);
            if whole != Some(content.size_bytes)
                || pieces.max() > Some(CHUNK_BYTES as u64)
                || content.chunks.len() as u64 != count
            {
                return Err("a file's pieces do not make up its size");
            }
            bytes = bytes.saturating_add(content.size_bytes);
            if content.size_bytes > FILE_BYTES_MAX || bytes > BYTES_MAX {
                return Err("its files are too large");
            }
        }
        Ok(())
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
    fn a_manifest_from_a_sandbox_is_checked() {
        let sound = Manifest::decode(V1.as_bytes()).unwrap();
        assert_eq!(sound.check(), Ok(()));
        type Spoil = fn(&mut Manifest);
        let wrong: [(&str, Spoil); 8] = [
            ("twice", |m| m.files.push(m.files[1].clone())),
            ("order", |m| m.files.swap(0, 1)),
            ("up", |m| m.files[0].path = "../a".into()),
            ("absolute", |m| m.files[0].path = "/a".into()),
            ("size", |m| m.files[0].content.size_bytes += 1),
            ("overflow", |m| m.files[0].content.chunks[0].bytes = u64::MAX),
            ("large", |m| {
                let content = &mut m.files[0].content;
                content.chunks = vec![content.chunks[0].clone(); 65];
                content.chunks.iter_mut().for_each(|chunk| chunk.bytes = CHUNK_BYTES as u64);
                content.size_bytes = 65 * CHUNK_BYTES as u64;
            }),
            ("left out", |m| m.left_out[0].why = "x".repeat(5_000)),
        ];
        for (what, spoil) in wrong {
            let mut manifest = sound.clone();
            spoil(&mut manifest);
            assert!(manifest.check().is_err(), "{what}");
        }
    }

    #[test]
    fn given_files_stay_out_of_the_sandboxes_own_places() {
        for good in ["/mnt/session/uploads/file_1", "/data/a b.csv", "/opt/x", "/home/x", "/usrx"] {
            assert_eq!(check_mount_path(good), Ok(()), "{good}");
        }
        let long = format!("/{}", "n".repeat(256));
        for bad in [
            "",
            "/",
            "data",
            "/data/",
            "//data",
            "/a/../b",
            "/a/./b",
            "/a\nb",
            &long,
            "/usr",
            "/usr/bin/env",
            "/workspace/x",
            "/mnt",
            "/mnt/session",
            "/mnt/session/outputs/x",
            "/opt/tailstep/packages",
            "/opt",
            "/etc/passwd",
            "/skills/x",
        ] {
            assert!(check_mount_path(bad).is_err(), "{bad}");
        }
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
