//! A new file of a folder, under a name of its own until it is whole.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, RenameFlags},
    io::Errno,
};
use tailstep_runtime::ids::nonce;

use super::root::{Root, split};

/// Dropped before [`Self::finish`] it leaves nothing.
pub(crate) struct Saving {
    folder: OwnedFd,
    name: OsString,
    unfinished: OsString,
    file: File,
}

impl Saving {
    /// Begins the file at `path`, whose folders are made.
    ///
    /// # Errors
    /// When the path is not plain, leads through a link, or nothing can be written there.
    pub(crate) fn begin(root: &Root, path: &Path) -> io::Result<Self> {
        let (folder, name) = split(path)?;
        let folder = root.make_folder(folder)?;
        let unfinished = OsString::from(format!(".{}.unfinished", nonce()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&folder, &unfinished, flags, Mode::from_raw_mode(0o666))?.into();
        Ok(Self { folder, name: name.to_owned(), unfinished, file })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// `false` when something is there by now, which stays.
    ///
    /// # Errors
    /// When it cannot be given its name.
    pub(crate) fn finish(self) -> io::Result<bool> {
        let (folder, flags) = (self.folder.as_fd(), RenameFlags::NOREPLACE);
        match rustix::fs::renameat_with(folder, &self.unfinished, folder, &self.name, flags) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        // Gone already once it has its name.
        let _ = rustix::fs::unlinkat(&self.folder, &self.unfinished, AtFlags::empty());
    }
}
