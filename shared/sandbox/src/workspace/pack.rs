//! Packing: a walk in a fixed order, through handles that no link leads out of.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use rustix::fs::{FileType, readlinkat};
use tar::{Builder, EntryType, Header};

use super::{Caps, LeftOut, Packed, Tally, WorkspaceError, directory_mode, file_mode, open};
use crate::toolset::{Inner, Root, Step, Walked, walk};

/// Left-out entries that are named one by one.
const LEFT_OUT_NAMED_MAX: usize = 100;

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
        tally: Tally { caps, entries: 0, raw_bytes: 0 },
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
        return Err(caps.too_many_entries());
    }
    for (path, why) in unreadable {
        packer.leave_out(&path, why.to_string());
    }
    packer.finish()
}

struct Packer<'a> {
    root: &'a Root,
    archive: Builder<GzEncoder<Bounded>>,
    tally: Tally<'a>,
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
        self.tally.add(0)?;
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
        self.tally.add(header.size().unwrap_or(0))?;
        self.archive
            .append_data(header, path.as_path(), content)
            .map_err(|source| self.write_error(path, source))
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
            .map_err(|source| bounded_or(self.tally.caps, Path::new("."), source))?;
        Ok(Packed {
            bytes: sink.bytes,
            entries: self.tally.entries,
            left_out: self.left_out,
            left_out_total: self.left_out_total,
        })
    }

    fn write_error(&self, path: &Inner, source: io::Error) -> WorkspaceError {
        bounded_or(self.tally.caps, path.as_path(), source)
    }
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
    if source.kind() == io::ErrorKind::StorageFull {
        return caps.archive_too_large();
    }
    WorkspaceError::Pack { path: path.to_owned(), source }
}
