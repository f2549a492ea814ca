//! The walk, and reading one file.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    time::Instant,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, statat},
    io::Errno,
};
use sha2::{Digest, Sha256};
use tailstep_core::{
    files::{FileContent, LeftOut, Manifest, OutputFile},
    ids::UnixMs,
};

use super::{
    CollectError, Collected, Known, Limits, Store,
    known::{Signs, size_bytes},
    names::shown,
};

/// Reads of one file that changes under the reader.
const TRIES: usize = 2;

pub(super) struct Collector<'a, 's> {
    limits: &'a Limits,
    old: &'a Known,
    store: &'a mut Store<'s>,
    now_ms: UnixMs,
    /// `None` when the limit is beyond what the clock can say.
    until: Option<Instant>,
    manifest: Manifest,
    known: Known,
    /// Names that were listed, and so were held: the lists of a directory and of all above it are
    /// there at the same time.
    entries: usize,
    /// A directory had more names than there was room for; it is reported.
    is_cut: bool,
    bytes: u64,
    stored_bytes: u64,
}

/// How one attempt to read a file ended.
enum Attempt {
    Whole(Signs, FileContent),
    Changed,
    LeftOut(String),
}

/// Whether the walk goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    On,
    /// Its time is up, and reported.
    Over,
}

impl<'a, 's> Collector<'a, 's> {
    pub(super) fn new(
        limits: &'a Limits,
        old: &'a Known,
        store: &'a mut Store<'s>,
        now_ms: UnixMs,
        until: Option<Instant>,
    ) -> Self {
        Self {
            limits,
            old,
            store,
            now_ms,
            until,
            manifest: Manifest::empty(),
            known: Known::default(),
            entries: 0,
            is_cut: false,
            bytes: 0,
            stored_bytes: 0,
        }
    }

    pub(super) fn run(mut self, top: OwnedFd) -> Result<Collected, CollectError> {
        self.directory(&top, &[], 0)?;
        self.manifest.files.sort_by(|a, b| a.path.cmp(&b.path));
        let Self { manifest, known, stored_bytes, .. } = self;
        Ok(Collected { manifest, known, stored_bytes })
    }

    /// Everything in one directory, in byte order of names. The depth of the recursion is limited.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
        depth: usize,
    ) -> Result<Walk, CollectError> {
        let names = match self.names(directory) {
            Ok(names) => names,
            Err(why) => {
                self.leave_out(path, unreadable(why));
                return Ok(Walk::On);
            }
        };
        for name in names {
            if self.is_late() {
                let most = self.limits.time_ms_max;
                self.leave_out(&[], format!("everything not read within {most} ms"));
                return Ok(Walk::Over);
            }
            let mut at = path.to_vec();
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(name.as_bytes());
            if self.entry(directory, &name, &at, depth)? == Walk::Over {
                return Ok(Walk::Over);
            }
        }
        Ok(Walk::On)
    }

    /// As many names as there is room for. They count as soon as they are listed: counted one by one
    /// as they are visited, each level of a deep tree could hold the whole limit once more.
    fn names(&mut self, directory: &OwnedFd) -> rustix::io::Result<Vec<OsString>> {
        let most = self.limits.entries_max;
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if self.entries >= most {
                if !self.is_cut {
                    self.is_cut = true;
                    self.leave_out(&[], format!("everything behind the first {most} entries"));
                }
                break;
            }
            self.entries += 1;
            names.push(OsString::from_vec(name.to_vec()));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn entry(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        at: &[u8],
        depth: usize,
    ) -> Result<Walk, CollectError> {
        let Ok(path) = std::str::from_utf8(at) else {
            self.leave_out(at, "its name is not UTF-8");
            return Ok(Walk::On);
        };
        if at.len() > self.limits.path_bytes_max {
            let most = self.limits.path_bytes_max;
            self.leave_out(at, format!("its path is longer than {most} bytes"));
            return Ok(Walk::On);
        }
        // The name is looked at before it is opened, so that no device and no pipe is touched while
        // the tree holds still; if it does not, the opened file is looked at again.
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Walk::On),
            Err(why) => {
                self.leave_out(at, unreadable(why));
                return Ok(Walk::On);
            }
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                self.file(directory, name, path, &stat)?;
                Ok(Walk::On)
            }
            FileType::Directory if depth >= self.limits.depth_max => {
                let most = self.limits.depth_max;
                self.leave_out(at, format!("it lies deeper than {most} directories"));
                Ok(Walk::On)
            }
            FileType::Directory => match open(directory, name, OFlags::DIRECTORY) {
                Ok(inner) => self.directory(&inner, at, depth + 1),
                Err(why) => {
                    self.leave_out(at, unreadable(why));
                    Ok(Walk::On)
                }
            },
            other @ (FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown) => {
                self.leave_out(at, not_a_file(other));
                Ok(Walk::On)
            }
        }
    }

    fn file(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        path: &str,
        stat: &Stat,
    ) -> Result<(), CollectError> {
        if let Some(why) = self.unwanted(stat) {
            self.leave_out(path.as_bytes(), why);
            return Ok(());
        }
        let signs = Signs::of(stat);
        if let Some(content) = self.old.unchanged(path, &signs) {
            self.take(path, signs, content.clone());
            return Ok(());
        }
        for _ in 0..TRIES {
            match self.read(directory, name)? {
                Attempt::Whole(signs, content) => {
                    self.take(path, signs, content);
                    return Ok(());
                }
                Attempt::LeftOut(why) => {
                    self.leave_out(path.as_bytes(), why);
                    return Ok(());
                }
                Attempt::Changed => {}
            }
        }
        self.leave_out(path.as_bytes(), "it changes while it is read");
        Ok(())
    }

    /// Why a regular file is not collected.
    fn unwanted(&self, stat: &Stat) -> Option<String> {
        let limits = self.limits;
        let size = size_bytes(stat);
        if stat.st_nlink > 1 {
            return Some(format!("it has {} names (hard links)", stat.st_nlink));
        }
        if self.manifest.files.len() >= limits.files_max {
            return Some(format!("there are more than {} files", limits.files_max));
        }
        if size > limits.file_bytes_max {
            let most = limits.file_bytes_max;
            return Some(format!("it has {size} bytes, more than the {most} of one file"));
        }
        if size > limits.bytes_max.saturating_sub(self.bytes) {
            let most = limits.bytes_max;
            return Some(format!("all files together have more than {most} bytes"));
        }
        None
    }

    /// Opens and reads one file, once.
    fn read(&mut self, directory: &OwnedFd, name: &OsStr) -> Result<Attempt, CollectError> {
        let file = match open(directory, name, OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(file) => file,
            // Moved or replaced by a link since it was looked at.
            Err(Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {
                return Ok(Attempt::Changed);
            }
            Err(why) => return Ok(Attempt::LeftOut(unreadable(why))),
        };
        let before = match fstat(&file) {
            Ok(before) => before,
            Err(why) => return Ok(Attempt::LeftOut(unreadable(why))),
        };
        let kind = FileType::from_raw_mode(before.st_mode);
        if kind != FileType::RegularFile {
            return Ok(Attempt::LeftOut(not_a_file(kind).to_owned()));
        }
        if let Some(why) = self.unwanted(&before) {
            return Ok(Attempt::LeftOut(why));
        }
        let size = size_bytes(&before);
        if size > self.limits.stored_bytes_max.saturating_sub(self.stored_bytes) {
            let why = "earlier outputs have used up what may be stored".to_owned();
            return Ok(Attempt::LeftOut(why));
        }
        let mut file = File::from(file);
        let content = match self.pieces(&mut file, size)? {
            Ok(Some(content)) => content,
            Ok(None) => return Ok(Attempt::Changed),
            Err(why) => return Ok(Attempt::LeftOut(why)),
        };
        let signs = Signs::of(&before);
        match fstat(file.as_fd()) {
            Ok(after) if Signs::of(&after) == signs && after.st_nlink == 1 => {
                Ok(Attempt::Whole(signs, content))
            }
            Ok(_) | Err(_) => Ok(Attempt::Changed),
        }
    }

    /// Stores exactly `size` bytes; `None` when the file ends before or goes on behind them.
    fn pieces(
        &mut self,
        file: &mut File,
        size: u64,
    ) -> Result<Result<Option<FileContent>, String>, CollectError> {
        let mut whole = Sha256::new();
        let mut chunks = Vec::new();
        let mut left = size;
        while left > 0 {
            if self.is_late() {
                let most = self.limits.time_ms_max;
                return Ok(Err(format!("it was not read within {most} ms")));
            }
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(self.limits.chunk_bytes);
            let mut piece = vec![0; length];
            match file.read_exact(&mut piece) {
                Ok(()) => {}
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(Ok(None)),
                Err(why) => return Ok(Err(format!("it cannot be read: {why}"))),
            }
            whole.update(&piece);
            left -= length as u64;
            self.stored_bytes = self.stored_bytes.saturating_add(length as u64);
            chunks.push((self.store)(piece).map_err(CollectError::Store)?);
        }
        match file.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return Ok(Ok(None)),
            Err(why) => return Ok(Err(format!("it cannot be read: {why}"))),
        }
        Ok(Ok(Some(FileContent { size_bytes: size, sha256: hex(&whole.finalize()), chunks })))
    }

    fn take(&mut self, path: &str, signs: Signs, content: FileContent) {
        let seen = self.old.first_seen_ms(path, &content);
        let collected_at_ms = seen.unwrap_or(self.now_ms);
        self.bytes = self.bytes.saturating_add(content.size_bytes);
        self.known.note(self.old, path, signs, &content, (self.now_ms, collected_at_ms));
        self.manifest.files.push(OutputFile { path: path.to_owned(), content, collected_at_ms });
    }

    fn leave_out(&mut self, path: &[u8], why: impl Into<String>) {
        if self.manifest.left_out.len() >= self.limits.left_out_named_max {
            self.manifest.left_out_more = self.manifest.left_out_more.saturating_add(1);
            return;
        }
        let path = if path.is_empty() { ".".to_owned() } else { shown(path) };
        self.manifest.left_out.push(LeftOut { path, why: why.into() });
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Opens one name of a directory for reading: never through a link, never onto another mount, and
/// without waiting for anybody.
fn open(directory: &OwnedFd, name: &OsStr, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_XDEV
        | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, name, flags, Mode::empty(), resolve)
}

fn unreadable(why: Errno) -> String {
    format!("it cannot be read: {}", io::Error::from(why))
}

fn not_a_file(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "it is a link",
        FileType::Fifo => "it is a pipe",
        FileType::Socket => "it is a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "it is a device",
        FileType::RegularFile | FileType::Directory | FileType::Unknown => {
            "its kind changed or is not known"
        }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
