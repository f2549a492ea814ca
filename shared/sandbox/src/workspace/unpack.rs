//! Unpacking: every entry is written through a handle of its directory, which is reached through no
//! link, and onto a name that holds nothing.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Component, Path},
};

use flate2::read::GzDecoder;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fchmod, linkat, mkdirat, openat, symlinkat, unlinkat},
    io::Errno,
};
use tar::{Archive, EntryType};

use super::{Caps, Tally, WorkspaceError, directory_mode, file_mode, open};
use crate::toolset::{Inner, PathError, Root};

/// The largest name or link in an archive (`PATH_MAX`).
const NAME_BYTES_MAX: u64 = 4_096;

/// Unpacks an archive into an existing directory. After an error the directory holds a part of it
/// and is good only to be thrown away.
///
/// # Errors
/// [`WorkspaceError::Hostile`] when an entry is anything but a file, directory or link at a plain
/// relative path, or would be written through a link.
pub fn unpack(bytes: &[u8], directory: &Path, caps: &Caps) -> Result<(), WorkspaceError> {
    if bytes.len() as u64 > caps.packed_bytes_max {
        return Err(caps.archive_too_large());
    }
    let root = open(directory)?;
    // The tar format needs at most this much more than contents and headers: padding of each
    // entry, long names, the end mark.
    let framing = caps.entries_max as u64 * 4 * NAME_BYTES_MAX;
    let content = GzDecoder::new(bytes).take(caps.raw_bytes_max.saturating_add(framing));
    let mut archive = Archive::new(content);
    let mut unpacker = Unpacker::new(root, caps, Kind::Workspace);
    // Raw entries: long names are read here, within a bound, rather than by the library.
    let entries = archive.entries().map_err(WorkspaceError::Corrupt)?.raw(true);
    for entry in entries {
        unpacker.entry(entry.map_err(WorkspaceError::Corrupt)?)?;
    }
    // The checksum stands at the very end: only a whole archive has it.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(WorkspaceError::Corrupt)?;
    Ok(())
}

/// Unpacks a plain tar archive of a whole system, made by any program, into an existing directory.
///
/// # Errors
/// As for [`unpack`]; but paths may begin at the root, files may have several names, and devices and
/// pipes are passed over.
pub(crate) fn unpack_system(
    content: impl Read,
    directory: &Path,
    caps: &Caps,
) -> Result<(), WorkspaceError> {
    let mut unpacker = Unpacker::new(open(directory)?, caps, Kind::System);
    let mut archive = Archive::new(content.take(caps.raw_bytes_max));
    for entry in archive.entries().map_err(WorkspaceError::Corrupt)? {
        unpacker.entry(entry.map_err(WorkspaceError::Corrupt)?)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What packing writes.
    Workspace,
    /// What other programs make of a system's tree.
    System,
}

struct Unpacker<'a> {
    kind: Kind,
    root: Root,
    tally: Tally<'a>,
    /// Of the next entry, when it did not fit a header.
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

impl<'a> Unpacker<'a> {
    fn new(root: Root, caps: &'a Caps, kind: Kind) -> Self {
        let tally = Tally { caps, entries: 0, raw_bytes: 0 };
        Self { kind, root, tally, name: None, target: None }
    }

    /// A name as a path within the directory; `None` when it is not plain. Empty for the top itself.
    fn inner(&self, name: &[u8]) -> Option<Inner> {
        let path = Path::new(OsStr::from_bytes(name));
        let path = match self.kind {
            Kind::Workspace => path.to_owned(),
            Kind::System => {
                let rooted =
                    |part: &Component<'_>| matches!(part, Component::RootDir | Component::CurDir);
                path.components().filter(|part| !rooted(part)).collect()
            }
        };
        Inner::plain(&path).filter(|_| !name.contains(&0))
    }

    fn entry(&mut self, mut entry: tar::Entry<'_, impl Read>) -> Result<(), WorkspaceError> {
        let kind = entry.header().entry_type();
        if kind == EntryType::GNULongName || kind == EntryType::GNULongLink {
            let long = long_name(&mut entry)?;
            match kind == EntryType::GNULongName {
                true => self.name = Some(long),
                false => self.target = Some(long),
            }
            return Ok(());
        }
        let name = self.name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
        let target = self.target.take();
        let shown = String::from_utf8_lossy(&name[..name.len().min(200)]).into_owned();
        let hostile = |why: &str| WorkspaceError::Hostile { entry: shown.clone(), why: why.into() };
        let top = |path: &Inner| path.as_path().as_os_str().is_empty();
        let path = match self.inner(&name) {
            Some(path) if !top(&path) => path,
            // Archives of a whole directory begin with the directory.
            Some(_) if self.kind == Kind::System && kind.is_dir() => return Ok(()),
            Some(_) | None => return Err(hostile("its path is not plain and relative")),
        };
        let size = entry.header().entry_size().map_err(WorkspaceError::Corrupt)?;
        self.tally.add(size)?;
        let mode = entry.header().mode().map_err(WorkspaceError::Corrupt)?;
        let failed = |why: PathError| {
            if matches!(why, PathError::Outside { .. } | PathError::NotDirectory) {
                return hostile("it would be written through a link or a file");
            }
            let source = io::Error::other(why);
            WorkspaceError::Unpack { path: path.as_path().to_owned(), source }
        };
        self.root.make_parents(&path).map_err(failed)?;
        let holder = self.root.parent(&path).map_err(failed)?;
        let outcome = if kind.is_dir() {
            directory(&holder, &path, mode)
        } else if kind.is_file() {
            file(&holder, &path, mode, size, &mut entry)
        } else if kind.is_symlink() {
            let target = target.or_else(|| entry.link_name_bytes().map(|name| name.into_owned()));
            link(&holder, &path, &target.unwrap_or_default())
        } else if self.kind == Kind::Workspace {
            return Err(hostile("it is no file, directory or symbolic link"));
        } else if kind.is_hard_link() {
            let target = entry.link_name_bytes().unwrap_or_default();
            let first = self.inner(&target).ok_or_else(|| hostile("it links out of the image"))?;
            self.root
                .parent(&first)
                .map_err(failed)
                .map(|from| another_name(&from, &first, &holder, &path))?
        } else {
            // Devices and pipes: those that a sandbox needs are made there.
            Ok(())
        };
        outcome.map_err(|source| {
            // A file that ends before its announced size.
            if source.kind() == io::ErrorKind::UnexpectedEof {
                return WorkspaceError::Corrupt(source);
            }
            WorkspaceError::Unpack { path: path.as_path().to_owned(), source }
        })
    }
}

fn long_name(entry: &mut impl Read) -> Result<Vec<u8>, WorkspaceError> {
    let mut name = Vec::new();
    let read = entry.take(NAME_BYTES_MAX + 1).read_to_end(&mut name);
    read.map_err(WorkspaceError::Corrupt)?;
    if name.len() as u64 > NAME_BYTES_MAX {
        let entry = String::from_utf8_lossy(&name[..200]).into_owned();
        let why = "its name is too long".into();
        return Err(WorkspaceError::Hostile { entry, why });
    }
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

fn directory(holder: &impl AsFd, path: &Inner, mode: u32) -> io::Result<()> {
    let name = path.as_path().file_name().unwrap_or_default();
    match mkdirat(holder, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(why) => return Err(why.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(holder, name, flags, Mode::empty())?;
    Ok(fchmod(made, Mode::from_raw_mode(directory_mode(mode)))?)
}

fn file(
    holder: &impl AsFd,
    path: &Inner,
    mode: u32,
    size: u64,
    content: &mut impl Read,
) -> io::Result<()> {
    let name = path.as_path().file_name().unwrap_or_default();
    clear(holder, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(holder, name, flags, Mode::from_raw_mode(0o600))?;
    let mut made = File::from(made);
    if io::copy(content, &mut made)? != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(fchmod(made, Mode::from_raw_mode(file_mode(mode)))?)
}

fn link(holder: &impl AsFd, path: &Inner, target: &[u8]) -> io::Result<()> {
    let name = path.as_path().file_name().unwrap_or_default();
    clear(holder, name)?;
    Ok(symlinkat(OsStr::from_bytes(target), holder, name)?)
}

fn another_name(
    from: &impl AsFd,
    first: &Inner,
    holder: &impl AsFd,
    path: &Inner,
) -> io::Result<()> {
    let name = path.as_path().file_name().unwrap_or_default();
    clear(holder, name)?;
    let first = first.as_path().file_name().unwrap_or_default();
    Ok(linkat(from, first, holder, name, AtFlags::empty())?)
}

/// Removes what an earlier entry or the directory holds at a name, so that nothing is written
/// through it.
fn clear(holder: &impl AsFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(holder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(why) => Err(why.into()),
    }
}
