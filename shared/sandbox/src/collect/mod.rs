//! Collecting what a sandbox left in a directory. The tree is hostile input: whoever wrote it may
//! still be changing it, and wants the collector to follow it out, to hang or to run out of
//! something.
//!
//! Only regular files with one name are read, each through a handle that was opened relative to its
//! directory's handle, with no link, mount or `..` on the way; everything else is reported as left
//! out. Nothing waits for the tree's owner, and every quantity has a limit. What becomes of the bytes
//! is the caller's: they pass through a callback in pieces.
//!
//! Must not know sessions, stores or clients.

mod known;
mod names;
mod walk;

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
};
use tailstep_core::{files::Manifest, ids::BlobRef, limits::files};
use thiserror::Error;

pub use self::known::Known;

/// Stores one piece of a file, at most [`Limits::chunk_bytes`] long, and answers where it is. An
/// error ends the collection.
pub type Store<'a> = dyn FnMut(Vec<u8>) -> io::Result<BlobRef> + 'a;

/// The most that one collection may do. What passes a limit is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Files in the manifest.
    pub files_max: usize,
    /// The logical size of one file; holes count.
    pub file_bytes_max: u64,
    /// All files in the manifest together.
    pub bytes_max: u64,
    /// Bytes given to the store, files that had to be read twice and files that changed meanwhile
    /// included.
    pub stored_bytes_max: u64,
    /// Directory entries listed, and so the most names that are held at one time.
    pub entries_max: usize,
    /// Directories within each other, the collected one not counted.
    pub depth_max: usize,
    /// A path from the collected directory on.
    pub path_bytes_max: usize,
    /// Left-out entries that are named.
    pub left_out_named_max: usize,
    pub chunk_bytes: usize,
    /// The whole collection. A piece that is being stored is waited for.
    pub time_ms_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            files_max: files::FILES_MAX,
            file_bytes_max: files::FILE_BYTES_MAX,
            bytes_max: files::BYTES_MAX,
            stored_bytes_max: files::STORED_BYTES_MAX,
            entries_max: files::WALK_ENTRIES_MAX,
            depth_max: files::DEPTH_MAX,
            path_bytes_max: files::PATH_BYTES_MAX,
            left_out_named_max: files::LEFT_OUT_NAMED_MAX,
            chunk_bytes: files::CHUNK_BYTES,
            // Ten seconds below what a step waits for it (`Limits::collect_ms_max` of the core): for
            // the piece under way and the manifest.
            time_ms_max: 50_000,
        }
    }
}

/// What a collection found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub manifest: Manifest,
    /// For the next collection of the same directory.
    pub known: Known,
    /// Bytes given to the store this time.
    pub stored_bytes: u64,
}

#[derive(Debug, Error)]
pub enum CollectError {
    /// The directory itself is missing, is not a directory, or cannot be read.
    #[error("cannot read the directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    /// The callback refused.
    #[error("cannot store a piece of a file")]
    Store(#[source] io::Error),
}

/// Collects the files beneath `directory`, a host path that the tree's owner cannot change.
///
/// A file that is in `known` and shows no sign of a change is taken over without reading it; one that
/// was written so shortly before the last collection that a later change may not show is read again.
///
/// # Errors
/// [`CollectError`]. Whatever is wrong *within* the directory is no error but left out, with the
/// reason.
pub fn collect(
    directory: &Path,
    limits: &Limits,
    known: &Known,
    store: &mut Store<'_>,
) -> Result<Collected, CollectError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, directory, flags, Mode::empty()).map_err(|why: Errno| {
        CollectError::Directory { path: directory.to_owned(), source: why.into() }
    })?;
    let until = Instant::now().checked_add(Duration::from_millis(limits.time_ms_max));
    walk::Collector::new(limits, known, store, now_ms(), until).run(top)
}

/// The clock that file systems stamp files with.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
