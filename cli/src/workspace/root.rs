//! One folder, and access to what lies in it without ever following a symbolic link.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// Neither out of the folder nor through any link, not even one that stays inside.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// An open folder. Paths given to its methods are relative to it.
#[derive(Debug)]
pub(crate) struct Root {
    pub(super) path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    /// Opens the folder at `path`, which the user named and which may itself be reached over links.
    ///
    /// # Errors
    /// When there is no such folder, or it may not be read.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// Opens the regular file at `path` for reading.
    pub(super) fn file(&self, path: &Path) -> io::Result<File> {
        // Non-blocking, so that a pipe put there does not stop us; regular files do not care.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), CONFINED)?;
        let file = File::from(fd);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(file)
    }

    /// Opens the folder at `path`; the empty path is the root itself.
    pub(super) fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), CONFINED)?)
    }

    /// Opens the folder at `path`, making what is missing of it.
    pub(super) fn make_folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut made = PathBuf::new();
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(io::Error::other("path is not plain"));
            };
            let parent = self.folder(&made)?;
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => made.push(name),
                Err(error) => return Err(error.into()),
            }
        }
        self.folder(path)
    }

    /// Removes the folder at `path` and its parents as long as they are empty.
    pub(super) fn prune(&self, path: &Path) {
        let mut at = Some(path);
        while let Some(folder) = at.filter(|folder| !folder.as_os_str().is_empty()) {
            let Some(name) = folder.file_name() else { return };
            let parent = folder.parent().unwrap_or(Path::new(""));
            let removed = self
                .folder(parent)
                .and_then(|fd| Ok(rustix::fs::unlinkat(fd, name, AtFlags::REMOVEDIR)?));
            if removed.is_err() {
                return;
            }
            at = folder.parent();
        }
    }

    /// What lies at `path`; `None` when nothing does, or it cannot be reached.
    pub(super) fn kind(&self, path: &Path) -> Option<FileType> {
        let (folder, name) = split(path).ok()?;
        let folder = self.folder(folder).ok()?;
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// Whether files can be made in this folder by this process.
    pub(super) fn is_writable(&self) -> bool {
        rustix::fs::accessat(self.fd.as_fd(), ".", Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }
}

/// The folder part and the name of `path`.
pub(super) fn split(path: &Path) -> io::Result<(&Path, &std::ffi::OsStr)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("path has no name"))?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}
