//! Going through a directory that foreign code has filled and may be filling still. The guard does it
//! outside every limit of the sandbox, so it keeps no names: one open directory a level is all it
//! holds, and both depth and number of entries are bounded.

use std::{
    ffi::CStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat},
    io::Errno,
};
use thiserror::Error;

/// Directories within each other. Build trees have about 30 at most, and each one takes a descriptor.
const NESTED_MAX: usize = 256;

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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, top, flags, Mode::empty()).map_err(io::Error::from)?;
    let mut open = vec![Dir::new(top).map_err(io::Error::from)?];
    let mut seen = 0;
    let mut all = Ok(());
    while let Some(directory) = open.last_mut() {
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
        if let Some(inner) = enter(holder, name)? {
            if open.len() == NESTED_MAX {
                all = Err(Stopped::Nested);
            } else {
                open.push(Dir::new(inner).map_err(io::Error::from)?);
            }
        }
    }
    all
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
}
