//! A workspace as one archive: gzip over tar, the same bytes for the same tree. Both directions
//! expect hostile content: packing never follows a link out, unpacking writes through none.

mod pack;
mod unpack;

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

pub(crate) use self::unpack::unpack_system;
pub use self::{pack::pack, unpack::unpack};
use crate::toolset::Root;

/// The most that an archive may hold, checked in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Of the archive itself.
    pub packed_bytes_max: u64,
    /// Of all file contents together, with 512 bytes for each entry.
    pub raw_bytes_max: u64,
    pub entries_max: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            // Packing and unpacking hold the archive in memory, in functions of 512 MB.
            packed_bytes_max: 100 << 20,
            // A Lambda function's own storage.
            raw_bytes_max: 512 << 20,
            entries_max: 50_000,
        }
    }
}

/// A packed workspace.
#[derive(Debug)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Entries in the archive.
    pub entries: usize,
    /// Sockets, pipes, devices and what could not be read; the first 100 by name.
    pub left_out: Vec<LeftOut>,
    pub left_out_total: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub path: PathBuf,
    pub why: String,
}

#[derive(Debug, Error)]
pub enum WorkspaceError {
    #[error("cannot use workspace directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("workspace is too large: {what} passes {max}")]
    TooLarge { what: &'static str, max: u64 },
    #[error("cannot pack {path}")]
    Pack { path: PathBuf, source: io::Error },
    /// The archive asks for something that packing never writes.
    #[error("archive entry {entry} is refused: {why}")]
    Hostile { entry: String, why: String },
    #[error("archive cannot be read")]
    Corrupt(#[source] io::Error),
    #[error("cannot unpack {path}")]
    Unpack { path: PathBuf, source: io::Error },
}

/// What an archive holds so far, against its caps.
struct Tally<'a> {
    caps: &'a Caps,
    entries: usize,
    raw_bytes: u64,
}

impl Tally<'_> {
    fn add(&mut self, bytes: u64) -> Result<(), WorkspaceError> {
        self.entries += 1;
        self.raw_bytes = self.raw_bytes.saturating_add(bytes).saturating_add(512);
        if self.entries > self.caps.entries_max {
            return Err(self.caps.too_many_entries());
        }
        if self.raw_bytes > self.caps.raw_bytes_max {
            let max = self.caps.raw_bytes_max;
            return Err(WorkspaceError::TooLarge { what: "the size of its files", max });
        }
        Ok(())
    }
}

impl Caps {
    fn too_many_entries(&self) -> WorkspaceError {
        let max = self.entries_max as u64;
        WorkspaceError::TooLarge { what: "its number of entries", max }
    }

    fn archive_too_large(&self) -> WorkspaceError {
        WorkspaceError::TooLarge { what: "its archive", max: self.packed_bytes_max }
    }
}

fn open(directory: &Path) -> Result<Root, WorkspaceError> {
    Root::open(directory, directory)
        .map_err(|source| WorkspaceError::Directory { path: directory.to_owned(), source })
}

/// The owner must be able to unpack into it and to remove it.
fn directory_mode(mode: u32) -> u32 {
    (mode & 0o777) | 0o700
}

/// The owner must be able to pack it again.
fn file_mode(mode: u32) -> u32 {
    (mode & 0o777) | 0o400
}
