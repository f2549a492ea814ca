//! What is in a folder: every file by its hash, every link by its target.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::AsFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode},
    io::Errno,
};
use sha2::{Digest, Sha256};

use super::root::{Root, split};

/// More files than any source tree that an agent can make sense of; a workspace above it is more
/// likely a home folder named by mistake.
pub(crate) const FILES_MAX: usize = 200_000;

/// Twice what a large checkout with its build output takes; each copy of it is read and written whole.
const BYTES_MAX: u64 = 4 << 30;

/// Deeper than any real tree; a walk ends even if somebody keeps making folders under it.
const DEPTH_MAX: usize = 200;

/// Leaves by path, relative to the root. Folders show only by what is in them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(super) leaves: BTreeMap<PathBuf, Leaf>,
    /// Folders with nothing in them.
    pub(super) empty: Vec<PathBuf>,
    /// What was left out, each with its reason.
    pub(crate) left_out: Vec<(PathBuf, &'static str)>,
    /// Bytes of all files, as their sizes say.
    bytes: u64,
}

/// What one path holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leaf {
    File { sha256: String, bytes: u64, executable: bool },
    Link { target: PathBuf },
}

/// Reads the folder, without `.git` folders and without the folder `except`.
///
/// # Errors
/// When a file cannot be read, or there are more than [`FILES_MAX`] of them, or [`BYTES_MAX`] in them.
pub(crate) fn read_tree(root: &Root, except: Option<&Path>) -> anyhow::Result<Tree> {
    let except = except.and_then(identity);
    let mut tree = Tree::default();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let before = tree.leaves.len() + folders.len() + tree.left_out.len();
        read_folder(root, &folder, except, &mut tree, &mut folders)
            .with_context(|| format!("cannot read {}", root.path.join(&folder).display()))?;
        let after = tree.leaves.len() + folders.len() + tree.left_out.len();
        if before == after && !folder.as_os_str().is_empty() {
            tree.empty.push(folder);
        }
        if tree.leaves.len() > FILES_MAX {
            bail!("{} has more than {FILES_MAX} files; name a smaller folder", root.path.display());
        }
    }
    Ok(tree)
}

fn read_folder(
    root: &Root,
    folder: &Path,
    except: Option<(u64, u64)>,
    tree: &mut Tree,
    folders: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let fd = root.folder(folder)?;
    for item in Dir::read_from(&fd)? {
        let item = item?;
        let name = OsStr::from_bytes(item.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let path = folder.join(name);
        let stat = match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if name == ".git" => tree.left_out.push((path, "version control")),
            FileType::Directory if except == Some((stat.st_dev, stat.st_ino)) => {}
            FileType::Directory if path.components().count() > DEPTH_MAX => {
                tree.left_out.push((path, "too deep"));
            }
            FileType::Directory => folders.push(path),
            kind @ (FileType::RegularFile | FileType::Symlink) => {
                if kind == FileType::RegularFile {
                    // Before anything is read: a sparse file may be larger than any disk.
                    tree.count(&path, u64::try_from(stat.st_size).unwrap_or(0))?;
                }
                match leaf(root, &path) {
                    Ok(Some(leaf)) => {
                        tree.leaves.insert(path, leaf);
                    }
                    Ok(None) => {}
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        tree.left_out.push((path, "not readable"));
                    }
                    Err(error) => return Err(error),
                }
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => tree.left_out.push((path, "not a file")),
        }
    }
    Ok(())
}

impl Tree {
    fn count(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= BYTES_MAX {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "with {} ({} MB) it holds more than the {} MB that are copied; name a smaller folder",
            path.display(),
            bytes >> 20,
            BYTES_MAX >> 20
        )))
    }
}

/// What `path` holds now; `None` when it does not exist or is a folder.
///
/// # Errors
/// When it lies behind a symbolic link, or cannot be read.
pub(crate) fn leaf(root: &Root, path: &Path) -> io::Result<Option<Leaf>> {
    let (folder, name) = split(path)?;
    let absent = |error: &io::Error| {
        let kind = error.kind();
        kind == io::ErrorKind::NotFound || kind == io::ErrorKind::NotADirectory
    };
    let fd = match root.folder(folder) {
        Ok(fd) => fd,
        Err(error) if absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let stat = match rustix::fs::statat(fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let (sha256, bytes) = digest(root.file(path)?)?;
            let executable = Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR);
            Ok(Some(Leaf::File { sha256, bytes, executable }))
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(fd.as_fd(), name, Vec::new())?;
            let target = std::ffi::OsString::from_vec(target.into_bytes());
            Ok(Some(Leaf::Link { target: target.into() }))
        }
        FileType::Directory => Ok(None),
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Err(io::Error::other("neither a file nor a folder")),
    }
}

fn digest(mut file: File) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        hash.update(&buffer[..read]);
    }
    let hex = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((hex, bytes))
}

/// Device and inode, by which a folder is recognised under any name.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::stat(path).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
