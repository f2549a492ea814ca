//! A workspace as one archive: gzip over tar, the same bytes for the same tree. Both directions
//! expect hostile content: packing never follows a link out, unpacking writes through none.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::PermissionsExt,
    },
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, readlinkat, symlinkat, unlinkat},
    io::Errno,
};
use tar::{Archive, Builder, EntryType, Header};
use thiserror::Error;

use crate::toolset::{Inner, PathError, Root, Step, Walked, walk};

/// The largest name or link in an archive (`PATH_MAX`).
const NAME_BYTES_MAX: u64 = 4_096;

/// Left-out entries that are named one by one.
const LEFT_OUT_NAMED_MAX: usize = 100;

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

/// Packs everything beneath `directory`: files, directories and links, with their permissions but
/// no owners or times.
///
/// # Errors
/// [`WorkspaceError::TooLarge`] when a cap is passed; nothing is returned then.
pub fn pack(directory: &Path, caps: &Caps) -> Result<Packed, WorkspaceError> {
    let root = open(directory)?;
    let sink = Bounded { bytes: Vec::new(), bytes_max: caps.packed_bytes_max };
    let mut packer = Packer {
        root: &root,
        archive: Builder::new(GzEncoder::new(sink, Compression::fast())),
        raw_bytes: 0,
        caps,
        entries: 0,
        left_out: Vec::new(),
        left_out_total: 0,
    };
    let mut failed = None;
    let mut unreadable = Vec::new();
    let walked = walk(
        &root,
        &Inner::top(),
        caps.entries_max,
        &mut |path, kind| match packer.entry(path, kind) {
            Ok(()) => Step::On,
            Err(why) => {
                failed = Some(why);
                Step::Stop
            }
        },
        &mut |path, why| unreadable.push((path.clone(), why)),
    );
    if let Some(why) = failed {
        return Err(why);
    }
    if walked == Walked::Bounded {
        return Err(WorkspaceError::TooLarge {
            what: "its number of entries",
            max: caps.entries_max as u64,
        });
    }
    for (path, why) in unreadable {
        packer.leave_out(&path, why.to_string());
    }
    packer.finish()
}

struct Packer<'a> {
    root: &'a Root,
    archive: Builder<GzEncoder<Bounded>>,
    raw_bytes: u64,
    caps: &'a Caps,
    entries: usize,
    left_out: Vec<LeftOut>,
    left_out_total: usize,
}

impl Packer<'_> {
    fn entry(&mut self, path: &Inner, kind: FileType) -> Result<(), WorkspaceError> {
        match kind {
            FileType::Directory => self.directory(path),
            FileType::RegularFile => match self.root.read(path) {
                Ok(file) => self.file(path, file),
                Err(why) => {
                    self.leave_out(path, why.to_string());
                    Ok(())
                }
            },
            FileType::Symlink => self.link(path),
            FileType::Fifo => self.skip(path, "it is a pipe"),
            FileType::Socket => self.skip(path, "it is a socket"),
            FileType::CharacterDevice | FileType::BlockDevice => self.skip(path, "it is a device"),
            FileType::Unknown => self.skip(path, "its kind is not known"),
        }
    }

    fn directory(&mut self, path: &Inner) -> Result<(), WorkspaceError> {
        let mode = self
            .root
            .directory(path)
            .map_err(io::Error::other)
            .and_then(|directory| Ok(File::from(directory).metadata()?.permissions().mode()));
        // One that cannot be opened is reported by the walk, which tries next.
        let mode = mode.unwrap_or(0o755);
        let mut header = header(EntryType::Directory, directory_mode(mode), 0);
        self.append(path, &mut header, io::empty())
    }

    fn file(&mut self, path: &Inner, file: File) -> Result<(), WorkspaceError> {
        let found = file.metadata().map_err(|source| pack_error(path, source))?;
        let mode = file_mode(found.permissions().mode());
        let mut header = header(EntryType::Regular, mode, found.len());
        // A file that changes its size while it is read still fills exactly the announced room.
        let content = file.chain(io::repeat(0)).take(found.len());
        self.append(path, &mut header, content)
    }

    fn link(&mut self, path: &Inner) -> Result<(), WorkspaceError> {
        let name = path.as_path().file_name().unwrap_or_default();
        let target = self.root.parent(path).map_err(io::Error::other).and_then(|holder| {
            Ok(OsString::from_vec(readlinkat(holder, name, Vec::new())?.into_bytes()))
        });
        let target = match target {
            Ok(target) => target,
            Err(why) => return self.skip(path, &why.to_string()),
        };
        self.count(0)?;
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.archive
            .append_link(&mut header, path.as_path(), Path::new(&target))
            .map_err(|source| self.write_error(path, source))
    }

    fn append(
        &mut self,
        path: &Inner,
        header: &mut Header,
        content: impl Read,
    ) -> Result<(), WorkspaceError> {
        self.count(header.size().unwrap_or(0))?;
        self.archive
            .append_data(header, path.as_path(), content)
            .map_err(|source| self.write_error(path, source))
    }

    fn count(&mut self, bytes: u64) -> Result<(), WorkspaceError> {
        self.entries += 1;
        self.raw_bytes = self.raw_bytes.saturating_add(bytes).saturating_add(512);
        match self.raw_bytes > self.caps.raw_bytes_max {
            true => Err(WorkspaceError::TooLarge {
                what: "the size of its files",
                max: self.caps.raw_bytes_max,
            }),
            false => Ok(()),
        }
    }

    fn skip(&mut self, path: &Inner, why: &str) -> Result<(), WorkspaceError> {
        self.leave_out(path, why.into());
        Ok(())
    }

    fn leave_out(&mut self, path: &Inner, why: String) {
        self.left_out_total += 1;
        if self.left_out.len() < LEFT_OUT_NAMED_MAX {
            self.left_out.push(LeftOut { path: path.as_path().to_owned(), why });
        }
    }

    fn finish(self) -> Result<Packed, WorkspaceError> {
        let sink = self
            .archive
            .into_inner()
            .and_then(GzEncoder::finish)
            .map_err(|source| bounded_or(self.caps, Path::new("."), source))?;
        Ok(Packed {
            bytes: sink.bytes,
            entries: self.entries,
            left_out: self.left_out,
            left_out_total: self.left_out_total,
        })
    }

    fn write_error(&self, path: &Inner, source: io::Error) -> WorkspaceError {
        bounded_or(self.caps, path.as_path(), source)
    }
}

/// Unpacks an archive into an existing directory. After an error the directory holds a part of it
/// and is good only to be thrown away.
///
/// # Errors
/// [`WorkspaceError::Hostile`] when an entry is anything but a file, directory or link at a plain
/// relative path, or would be written through a link.
pub fn unpack(bytes: &[u8], directory: &Path, caps: &Caps) -> Result<(), WorkspaceError> {
    if bytes.len() as u64 > caps.packed_bytes_max {
        return Err(WorkspaceError::TooLarge { what: "its archive", max: caps.packed_bytes_max });
    }
    let root = open(directory)?;
    // The tar format needs at most this much more than contents and headers: padding of each
    // entry, long names, the end mark.
    let framing = caps.entries_max as u64 * 4 * NAME_BYTES_MAX;
    let content = GzDecoder::new(bytes).take(caps.raw_bytes_max.saturating_add(framing));
    let mut archive = Archive::new(content);
    let mut unpacker = Unpacker { root, raw_bytes: 0, entries: 0, caps, name: None, target: None };
    // Raw entries: long names are read here, within a bound, rather than by the library.
    let entries = archive.entries().map_err(WorkspaceError::Corrupt)?.raw(true);
    for entry in entries {
        unpacker.entry(entry.map_err(WorkspaceError::Corrupt)?)?;
    }
    // The checksum stands at the very end: only a whole archive has it.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(WorkspaceError::Corrupt)?;
    Ok(())
}

struct Unpacker<'a> {
    root: Root,
    raw_bytes: u64,
    entries: usize,
    caps: &'a Caps,
    /// Of the next entry, when it did not fit a header.
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

impl Unpacker<'_> {
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
        let path = Path::new(OsStr::from_bytes(&name));
        let path = Inner::plain(path)
            .filter(|path| !name.contains(&0) && !path.as_path().as_os_str().is_empty())
            .ok_or_else(|| hostile("its path is not plain and relative"))?;
        let size = entry.header().entry_size().map_err(WorkspaceError::Corrupt)?;
        self.count(size)?;
        let mode = entry.header().mode().map_err(WorkspaceError::Corrupt)?;
        let failed = |why: PathError| match why {
            PathError::Outside { .. } | PathError::NotDirectory => {
                hostile("it would be written through a link or a file")
            }
            other => WorkspaceError::Unpack {
                path: path.as_path().to_owned(),
                source: io::Error::other(other),
            },
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
        } else {
            return Err(hostile("it is no file, directory or symbolic link"));
        };
        outcome.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => WorkspaceError::Corrupt(source),
            _ => WorkspaceError::Unpack { path: path.as_path().to_owned(), source },
        })
    }

    fn count(&mut self, bytes: u64) -> Result<(), WorkspaceError> {
        self.entries += 1;
        self.raw_bytes = self.raw_bytes.saturating_add(bytes).saturating_add(512);
        if self.entries > self.caps.entries_max {
            let max = self.caps.entries_max as u64;
            return Err(WorkspaceError::TooLarge { what: "its number of entries", max });
        }
        if self.raw_bytes > self.caps.raw_bytes_max {
            let max = self.caps.raw_bytes_max;
            return Err(WorkspaceError::TooLarge { what: "the size of its files", max });
        }
        Ok(())
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

fn directory(holder: &impl std::os::fd::AsFd, path: &Inner, mode: u32) -> io::Result<()> {
    let name = path.as_path().file_name().unwrap_or_default();
    match mkdirat(holder, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(why) => return Err(why.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(holder, name, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(directory_mode(mode)))?)
}

fn file(
    holder: &impl std::os::fd::AsFd,
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
    Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(file_mode(mode)))?)
}

fn link(holder: &impl std::os::fd::AsFd, path: &Inner, target: &[u8]) -> io::Result<()> {
    let name = path.as_path().file_name().unwrap_or_default();
    clear(holder, name)?;
    Ok(symlinkat(OsStr::from_bytes(target), holder, name)?)
}

/// Removes what an earlier entry or the directory holds at a name, so that nothing is written
/// through it.
fn clear(holder: &impl std::os::fd::AsFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(holder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

fn open(directory: &Path) -> Result<Root, WorkspaceError> {
    Root::open(directory, directory)
        .map_err(|source| WorkspaceError::Directory { path: directory.to_owned(), source })
}

/// Times, owners and special bits are the same for every entry.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// The owner must be able to unpack into it and to remove it.
fn directory_mode(mode: u32) -> u32 {
    (mode & 0o777) | 0o700
}

/// The owner must be able to pack it again.
fn file_mode(mode: u32) -> u32 {
    (mode & 0o777) | 0o400
}

fn pack_error(path: &Inner, source: io::Error) -> WorkspaceError {
    WorkspaceError::Pack { path: path.as_path().to_owned(), source }
}

/// The archive while it grows.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: u64,
}

impl Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + more.len()) as u64 > self.bytes_max {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn bounded_or(caps: &Caps, path: &Path, source: io::Error) -> WorkspaceError {
    match source.kind() {
        io::ErrorKind::StorageFull => {
            WorkspaceError::TooLarge { what: "its archive", max: caps.packed_bytes_max }
        }
        _ => WorkspaceError::Pack { path: path.to_owned(), source },
    }
}
