//! Visits the files beneath a directory in a fixed order, within a bound, following no link.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use rustix::fs::{AtFlags, Dir, FileType, statat};

use super::beneath::{Inner, PathError, Root};

/// Entries that one search looks at (API reference §9).
pub(crate) const ENTRIES_MAX: usize = 50_000;

/// What a visitor wants next.
pub(crate) enum Step {
    On,
    /// Do not enter this directory.
    Skip,
    Stop,
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walked {
    Whole,
    Stopped,
    /// There are more than the bound.
    Bounded,
}

/// Calls `visit` for every entry beneath `start`, parents first, names in byte order. What cannot
/// be listed is given to `unreadable` and passed over.
pub(crate) fn walk(
    root: &Root,
    start: &Inner,
    entries_max: usize,
    visit: &mut dyn FnMut(&Inner, FileType) -> Step,
    unreadable: &mut dyn FnMut(&Inner, PathError),
) -> Walked {
    let mut seen = 0;
    // Entries still to visit, the next one last.
    let mut todo = match list(root, start, entries_max) {
        Ok(entries) => entries,
        Err(why) => {
            unreadable(start, why);
            return Walked::Whole;
        }
    };
    while let Some((path, kind)) = todo.pop() {
        seen += 1;
        if seen > entries_max {
            return Walked::Bounded;
        }
        match visit(&path, kind) {
            Step::On => {}
            Step::Skip => continue,
            Step::Stop => return Walked::Stopped,
        }
        if kind == FileType::Directory {
            match list(root, &path, entries_max) {
                Ok(entries) => todo.extend(entries),
                Err(why) => unreadable(&path, why),
            }
        }
    }
    Walked::Whole
}

/// The entries of one directory, in falling order. One more than the bound is enough to know that
/// there are too many.
fn list(root: &Root, at: &Inner, entries_max: usize) -> Result<Vec<(Inner, FileType)>, PathError> {
    let directory = root.directory(at)?;
    let entries = Dir::read_from(&directory).map_err(|why| PathError::Other(why.into()))?;
    let mut names: Vec<(OsString, FileType)> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|why| PathError::Other(why.into()))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() > entries_max {
            break;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            // Some file systems do not say in the listing.
            let stat = statat(&directory, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
            kind = stat.map_or(kind, |stat| FileType::from_raw_mode(stat.st_mode));
        }
        names.push((OsString::from_vec(name.to_vec()), kind));
    }
    names.sort_unstable_by(|a, b| b.0.cmp(&a.0));
    Ok(names.into_iter().map(|(name, kind)| (at.join(&name), kind)).collect())
}
