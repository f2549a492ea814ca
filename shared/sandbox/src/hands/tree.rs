//! Going through a directory that foreign code has filled and may be filling still. The guard does it
//! outside every limit of the sandbox, so it keeps no names: one open directory a level is all it
//! holds, and both depth and number of entries are bounded.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, openat,
        renameat_with, statat,
    },
    io::Errno,
};
use thiserror::Error;

/// Directories within each other. Build trees have about 30 at most, and each one takes a descriptor.
const NESTED_MAX: usize = 256;

/// What is nested deeper stands at the top under this name and a number, once it is moved there.
const MOVED: &str = "nested-too-deep";

#[derive(Debug, Error)]
pub(super) enum Stopped {
    #[error("directories are nested more than {NESTED_MAX} deep")]
    Nested,
    #[error("there are too many files")]
    Entries,
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Calls `each` with the holder, the name and the state of every entry beneath `top`, parents first.
/// No link is followed. What goes away meanwhile is passed over, and so is a directory that this
/// process may not open. What is too deep is left out, which is an error at the end.
pub(super) fn visit(
    top: &Path,
    entries_max: u64,
    each: &mut dyn FnMut(BorrowedFd<'_>, &CStr, &Stat) -> io::Result<()>,
) -> Result<(), Stopped> {
    let mut all = Ok(());
    walk(open(top)?, NESTED_MAX, entries_max, each, &mut |_, _, _| {
        all = Err(Stopped::Nested);
        Ok(())
    })?;
    all
}

/// Moves what is nested too deep to the top, so that nothing of a directory is out of reach. Nobody may
/// be writing it any more, and this process must own it or be root.
pub(super) fn unnest(top: &Path) -> io::Result<()> {
    let top = open(top)?;
    writable(top.as_fd())?;
    let (mut looked, mut last) = (0_u64, 0_u64);
    let mut from = Some(top.try_clone()?);
    while let Some(directory) = from.take() {
        // One that was moved stands one level below the top.
        let levels = if looked == 0 { NESTED_MAX } else { NESTED_MAX - 1 };
        let moved =
            walk(directory, levels, u64::MAX, &mut |_, _, _| Ok(()), &mut |holder, name, inner| {
                writable(holder)?;
                writable(inner.as_fd())?;
                loop {
                    last += 1;
                    let to = format!("{MOVED}-{last}");
                    match renameat_with(holder, name, &top, to, RenameFlags::NOREPLACE) {
                        Ok(()) => return Ok(()),
                        // Somebody has foreseen the name.
                        Err(Errno::EXIST) => {}
                        Err(why) => return Err(why.into()),
                    }
                }
            });
        match moved {
            Ok(()) => {}
            Err(Stopped::Failed(why)) => return Err(why),
            Err(why) => return Err(io::Error::other(why)),
        }
        while from.is_none() && looked < last {
            looked += 1;
            let name = CString::new(format!("{MOVED}-{looked}"))?;
            from = enter(top.as_fd(), &name)?;
        }
    }
    Ok(())
}

/// A directory whose entries can be moved.
fn writable(directory: BorrowedFd<'_>) -> io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(directory)?.st_mode);
    if mode.contains(Mode::RWXU) {
        return Ok(());
    }
    Ok(fchmod(directory, mode | Mode::RWXU)?)
}

fn open(top: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, top, flags, Mode::empty())?)
}

/// Goes through `top`, at most `levels` directories within each other; a further one is given to `deep`
/// with its holder and its name.
fn walk(
    top: OwnedFd,
    levels: usize,
    entries_max: u64,
    each: &mut dyn FnMut(BorrowedFd<'_>, &CStr, &Stat) -> io::Result<()>,
    deep: &mut dyn FnMut(BorrowedFd<'_>, &CStr, OwnedFd) -> io::Result<()>,
) -> Result<(), Stopped> {
    let mut open = vec![Dir::new(top).map_err(io::Error::from)?];
    let mut seen = 0;
    loop {
        let full = open.len() == levels;
        let Some(directory) = open.last_mut() else { return Ok(()) };
        let Some(entry) = directory.next() else {
            open.pop();
            continue;
        };
        let entry = entry.map_err(io::Error::from)?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        seen += 1;
        if seen > entries_max {
            return Err(Stopped::Entries);
        }
        let holder = directory.fd().map_err(io::Error::from)?;
        let found = match statat(holder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            found => found.map_err(io::Error::from)?,
        };
        each(holder, name, &found)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            continue;
        }
        let Some(inner) = enter(holder, name)? else { continue };
        if full {
            deep(holder, name, inner)?;
        } else {
            open.push(Dir::new(inner).map_err(io::Error::from)?);
        }
    }
}

fn enter(holder: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(holder, name, flags, Mode::empty()) {
        Ok(inner) => Ok(Some(inner)),
        // Gone, or another kind of thing by now, or closed to us.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn names(top: &Path, entries_max: u64) -> Result<Vec<String>, Stopped> {
        let mut names = Vec::new();
        visit(top, entries_max, &mut |_, name, _| {
            names.push(name.to_str().unwrap().to_owned());
            Ok(())
        })?;
        names.sort();
        Ok(names)
    }

    #[test]
    fn everything_is_seen_once_and_no_link_is_followed() {
        let top = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "").unwrap();
        fs::create_dir_all(top.path().join("a/b")).unwrap();
        fs::write(top.path().join("a/b/file"), "").unwrap();
        symlink(outside.path(), top.path().join("a/link")).unwrap();
        assert_eq!(names(top.path(), 10).unwrap(), ["a", "b", "file", "link"]);
        assert!(matches!(names(top.path(), 3), Err(Stopped::Entries)));
        assert!(matches!(names(&top.path().join("none"), 9), Err(Stopped::Failed(_))));
    }

    #[test]
    fn depth_is_bounded() {
        let top = tempfile::tempdir().unwrap();
        let deepest: std::path::PathBuf = (1..NESTED_MAX).map(|_| "d").collect();
        fs::create_dir_all(top.path().join(&deepest)).unwrap();
        assert_eq!(names(top.path(), 1_000).unwrap().len(), NESTED_MAX - 1);
        fs::create_dir(top.path().join(&deepest).join("d")).unwrap();
        fs::write(top.path().join("beside"), "").unwrap();
        let mut seen = 0;
        let visited = visit(top.path(), 1_000, &mut |_, _, _| {
            seen += 1;
            Ok(())
        });
        assert!(matches!(visited, Err(Stopped::Nested)));
        assert_eq!(seen, NESTED_MAX + 1, "the rest is seen all the same");
    }

    #[test]
    fn what_is_too_deep_is_moved_to_the_top_and_nothing_is_lost() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("nested-too-deep-1")).unwrap();
        fs::write(top.path().join("nested-too-deep-2"), "foreseen").unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut at = openat(CWD, top.path(), flags, Mode::empty()).unwrap();
        for level in 0..3 * NESTED_MAX {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            let inner = openat(&at, "d", flags, Mode::empty()).unwrap();
            if level == NESTED_MAX - 2 {
                fchmod(&at, Mode::RUSR | Mode::XUSR).unwrap();
            }
            at = inner;
        }
        let file = OFlags::CREATE | OFlags::WRONLY;
        openat(&at, "deepest", file, Mode::RUSR).unwrap();
        unnest(top.path()).unwrap();
        let names = names(top.path(), 10_000).unwrap();
        let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
        assert_eq!(count("deepest"), 1);
        let moved = names.iter().filter(|name| name.starts_with(MOVED)).count() - 2;
        assert_eq!((moved, count("d")), (3, 3 * NESTED_MAX - 3));
        assert_eq!(fs::read(top.path().join("nested-too-deep-2")).unwrap(), b"foreseen");
        unnest(top.path()).unwrap();
        assert_eq!(self::names(top.path(), 10_000).unwrap(), names, "once is enough");
    }
}
