//! Files beneath one directory. Every open goes through a handle of that directory and is checked
//! by the kernel while it resolves the name, so that nothing swapped in between a check and its
//! use leads out. Links that stay inside, absolute ones included, work.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, readlinkat},
    io::Errno,
};
use thiserror::Error;

/// As in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// The kernel's own limit of a path (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4_096;

/// A directory and all that lies beneath it.
pub(crate) struct Root {
    directory: OwnedFd,
    /// The name under which the model knows the directory.
    shown: PathBuf,
}

/// A name without links, `.` or `..`, relative to the root: the root itself is empty. It is only a
/// name: every use of it is checked again by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inner(PathBuf);

#[derive(Debug, Error)]
pub(crate) enum PathError {
    #[error("is empty")]
    Empty,
    #[error("holds a NUL character")]
    Nul,
    #[error("is {bytes} bytes long; the limit is {PATH_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("leads out of the workspace {root}: use a path inside it")]
    Outside { root: String },
    #[error("goes through too many links")]
    Links,
    #[error("does not exist")]
    Missing,
    #[error("is a directory")]
    IsDirectory,
    #[error("is not a directory, or goes through one that is not")]
    NotDirectory,
    #[error("is neither a file nor a directory")]
    Special,
    #[error("cannot be used: {0}")]
    Other(io::Error),
}

impl Root {
    pub(crate) fn open(directory: &Path, shown: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty())?;
        Ok(Self { directory, shown: shown.to_owned() })
    }

    /// Turns a name that a model or a link gave into a name beneath the root.
    pub(crate) fn resolve(&self, path: &str) -> Result<Inner, PathError> {
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        if path.contains('\0') {
            return Err(PathError::Nul);
        }
        if path.len() >= PATH_BYTES_MAX {
            return Err(PathError::TooLong { bytes: path.len() });
        }
        self.expand(Path::new(path))
    }

    /// Follows links by name only. A link changed meanwhile makes the later open fail, no more.
    fn expand(&self, path: &Path) -> Result<Inner, PathError> {
        let mut done = PathBuf::new();
        let mut todo = self.steps(path)?;
        let mut links = 0;
        while let Some(step) = todo.pop_front() {
            if step.as_bytes() == b".." {
                // Above the root there is nothing.
                if !done.pop() {
                    return Err(self.outside());
                }
                continue;
            }
            let next = done.join(&step);
            let Some(target) = self.link(&next)? else {
                done = next;
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(PathError::Links);
            }
            if target.is_absolute() {
                done.clear();
            }
            for step in self.steps(&target)?.into_iter().rev() {
                todo.push_front(step);
            }
        }
        Ok(Inner(done))
    }

    /// The names of a path, one by one; an absolute one must start with the root.
    fn steps(&self, path: &Path) -> Result<VecDeque<OsString>, PathError> {
        let inner = match path.is_absolute() {
            true => path.strip_prefix(&self.shown).map_err(|_| self.outside())?,
            false => path,
        };
        let steps = inner.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        });
        Ok(steps.collect())
    }

    fn link(&self, path: &Path) -> Result<Option<PathBuf>, PathError> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or(OsStr::new("."));
        let parent = match self.open_raw(parent, OFlags::PATH, Mode::empty()) {
            Ok(parent) => parent,
            // What does not exist is no link; whoever opens it learns that it is missing.
            Err(Errno::NOENT) => return Ok(None),
            Err(why) => return Err(self.error(why)),
        };
        match readlinkat(&parent, name, Vec::new()) {
            Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
            Err(Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(why) => Err(self.error(why)),
        }
    }

    fn open_raw(&self, path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        loop {
            match openat2(&self.directory, path, flags | OFlags::CLOEXEC, mode, resolve) {
                // The kernel asks to try again when a rename runs at the same time.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    }

    /// Opens a regular file for reading; never waits, whatever the name turns out to be.
    pub(crate) fn read(&self, path: &Inner) -> Result<File, PathError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.file(self.open_raw(&path.0, flags, Mode::empty()))
    }

    /// Opens a regular file for writing, made if it is missing, together with its directories.
    pub(crate) fn create(&self, path: &Inner) -> Result<File, PathError> {
        self.make_parents(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.file(self.open_raw(&path.0, flags, Mode::from_raw_mode(0o644)))
    }

    /// Opens a directory to be listed.
    pub(crate) fn directory(&self, path: &Inner) -> Result<OwnedFd, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.open_raw(&path.0, flags, Mode::empty()).map_err(|why| self.error(why))
    }

    fn file(&self, opened: rustix::io::Result<OwnedFd>) -> Result<File, PathError> {
        let file = File::from(opened.map_err(|why| self.error(why))?);
        let kind = file.metadata().map_err(PathError::Other)?.file_type();
        match (kind.is_file(), kind.is_dir()) {
            (true, _) => Ok(file),
            (false, true) => Err(PathError::IsDirectory),
            (false, false) => Err(PathError::Special),
        }
    }

    pub(crate) fn make_parents(&self, path: &Inner) -> Result<(), PathError> {
        let Some(parent) = path.0.parent() else { return Ok(()) };
        let mut at = PathBuf::new();
        for name in parent.components() {
            let holder = self
                .open_raw(&at, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
                .map_err(|why| self.error(why))?;
            match mkdirat(&holder, name.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(why) => return Err(self.error(why)),
            }
            at.push(name);
        }
        Ok(())
    }

    /// A handle of the directory that holds `path`, which must exist.
    pub(crate) fn parent(&self, path: &Inner) -> Result<OwnedFd, PathError> {
        let parent = path.0.parent().unwrap_or(Path::new(""));
        self.open_raw(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
            .map_err(|why| self.error(why))
    }

    fn error(&self, why: Errno) -> PathError {
        match why {
            Errno::NOENT => PathError::Missing,
            Errno::ISDIR => PathError::IsDirectory,
            Errno::NOTDIR => PathError::NotDirectory,
            // A pipe without a reader, a socket.
            Errno::NXIO => PathError::Special,
            // The name changed into a link after it was resolved, or leads above the root.
            Errno::LOOP | Errno::XDEV => self.outside(),
            other => PathError::Other(other.into()),
        }
    }

    fn outside(&self) -> PathError {
        PathError::Outside { root: self.shown.display().to_string() }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Inner {
    pub(crate) fn top() -> Self {
        Self(PathBuf::new())
    }

    /// A name read from a directory listing or an archive, which must be plain.
    pub(crate) fn plain(path: &Path) -> Option<Self> {
        let mut plain = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => plain.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        Some(Self(plain))
    }

    pub(crate) fn join(&self, name: &OsStr) -> Self {
        Self(self.0.join(name))
    }

    pub(crate) fn as_path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    struct Tree {
        _holder: tempfile::TempDir,
        root: Root,
        at: PathBuf,
    }

    fn tree() -> Tree {
        let holder = tempfile::tempdir().unwrap();
        let at = holder.path().join("ws");
        fs::create_dir_all(at.join("dir/deep")).unwrap();
        fs::write(at.join("dir/file"), "inside").unwrap();
        fs::write(holder.path().join("secret"), "outside").unwrap();
        let root = Root::open(&at, &at).unwrap();
        Tree { _holder: holder, root, at }
    }

    #[track_caller]
    fn reads(tree: &Tree, path: &str) {
        let inner = tree.root.resolve(path).unwrap();
        let text = io::read_to_string(tree.root.read(&inner).unwrap()).unwrap();
        assert_eq!(text, "inside", "{path}");
    }

    #[track_caller]
    fn refused(tree: &Tree, path: &str, why: &str) {
        let outcome = tree.root.resolve(path).and_then(|inner| tree.root.read(&inner));
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains(why), "{path}: {message}");
    }

    #[test]
    fn names_inside_work_links_included() {
        let tree = tree();
        symlink("dir", tree.at.join("relative")).unwrap();
        symlink(tree.at.join("dir"), tree.at.join("absolute")).unwrap();
        symlink("../dir/./deep/../file", tree.at.join("dir/zigzag")).unwrap();
        symlink("zigzag", tree.at.join("dir/chain")).unwrap();
        for path in ["dir/file", "./dir//deep/../file", "relative/file", "absolute/file"] {
            reads(&tree, path);
        }
        reads(&tree, "dir/chain");
        reads(&tree, tree.at.join("relative/file").to_str().unwrap());
    }

    #[test]
    fn names_outside_are_refused() {
        let tree = tree();
        symlink("/", tree.at.join("rootlink")).unwrap();
        symlink("..", tree.at.join("up")).unwrap();
        symlink("../secret", tree.at.join("out")).unwrap();
        symlink("dir/deep", tree.at.join("link")).unwrap();
        for path in [
            "rootlink/etc/passwd",
            "up/secret",
            "out",
            "../secret",
            "dir/../../secret",
            "/etc/passwd",
            "link/../../../secret",
        ] {
            refused(&tree, path, "leads out of the workspace");
        }
        let beside = format!("{}-other/file", tree.at.display());
        refused(&tree, &beside, "leads out of the workspace");
        let back = format!("{}/../secret", tree.at.display());
        refused(&tree, &back, "leads out of the workspace");
    }

    #[test]
    fn odd_names_are_refused_plainly() {
        let tree = tree();
        symlink("loop", tree.at.join("loop")).unwrap();
        refused(&tree, "", "is empty");
        refused(&tree, "a\0b", "NUL");
        refused(&tree, &"x".repeat(5_000), "5000 bytes long");
        refused(&tree, &"x".repeat(300), "cannot be used");
        refused(&tree, "loop", "too many links");
        refused(&tree, "%2e%2e/secret", "does not exist");
        refused(&tree, "line\nbreak", "does not exist");
        refused(&tree, "dir", "is a directory");
        refused(&tree, "dir/file/x", "not a directory");
        let fifo = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(&tree.root, "fifo", rustix::fs::FileType::Fifo, fifo, 0).unwrap();
        refused(&tree, "fifo", "neither a file nor a directory");
    }

    #[test]
    fn a_link_swapped_in_after_the_name_was_resolved_is_refused() {
        let tree = tree();
        let inner = tree.root.resolve("dir/file").unwrap();
        fs::rename(tree.at.join("dir"), tree.at.join("moved")).unwrap();
        fs::rename(tree.at.parent().unwrap().join("secret"), tree.at.join("../file")).unwrap();
        symlink("..", tree.at.join("dir")).unwrap();
        assert!(matches!(tree.root.read(&inner), Err(PathError::Outside { .. })));
        assert!(matches!(tree.root.create(&inner), Err(PathError::Outside { .. })));
        assert_eq!(fs::read_to_string(tree.at.join("../file")).unwrap(), "outside");
    }

    #[test]
    fn files_are_made_inside_only() {
        let tree = tree();
        symlink("dir/made-by-link", tree.at.join("dangling")).unwrap();
        symlink("../made-outside", tree.at.join("escape")).unwrap();
        let new = tree.root.resolve("a/b/c").unwrap();
        tree.root.create(&new).unwrap();
        assert!(tree.at.join("a/b/c").is_file());
        let linked = tree.root.resolve("dangling").unwrap();
        tree.root.create(&linked).unwrap();
        assert!(tree.at.join("dir/made-by-link").is_file());
        assert!(matches!(tree.root.resolve("escape"), Err(PathError::Outside { .. })));
        assert!(!tree.at.join("../made-outside").exists());
    }
}
