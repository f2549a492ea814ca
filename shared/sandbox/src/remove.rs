//! Removing a tree that hostile code has left: of any depth and width, with rights taken away, and
//! with names that no path can say. Nobody may be writing it any more.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, chmodat, openat, renameat, unlinkat},
    io::Errno,
};

/// Removes the directory `path` and everything beneath it; one that is missing is removed already.
/// Links are removed, not followed. Needs two descriptors and little memory, whatever the tree is:
/// directories within directories are moved to the top, one level at a time.
///
/// # Errors
/// The first thing that cannot be removed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open(CWD, path.as_os_str()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(why) => return Err(why.into()),
    };
    let mut moved = 0_u64;
    loop {
        let mut found = 0_u64;
        for name in names(&top)? {
            let name = name?;
            found += 1;
            if removed(&top, &name)? {
                continue;
            }
            let inner = open(&top, &name)?;
            flatten(&inner, &top, &mut moved)?;
            unlinkat(&top, name.as_os_str(), AtFlags::REMOVEDIR)?;
        }
        if found == 0 {
            break;
        }
    }
    unlinkat(CWD, path, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// Empties `inner`: its directories go to `top` under names of our own.
fn flatten(inner: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        let mut found = 0_u64;
        for name in names(inner)? {
            let name = name?;
            found += 1;
            if removed(inner, &name)? {
                continue;
            }
            // A directory that may not be written cannot be moved.
            chmodat(inner, name.as_os_str(), Mode::RWXU, AtFlags::empty())?;
            loop {
                *moved += 1;
                match renameat(inner, name.as_os_str(), top, format!(".removed-{moved}")) {
                    Ok(()) => break,
                    // Somebody has foreseen the name.
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                    Err(why) => return Err(why.into()),
                }
            }
        }
        if found == 0 {
            return Ok(());
        }
    }
}

/// Removes what is no directory, and a directory that is empty; false when it is neither.
fn removed(holder: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match unlinkat(holder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(why) => return Err(why.into()),
    }
    match unlinkat(holder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// Opens a directory, with its rights given back to us first; never through a link.
fn open(holder: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let first = openat(&holder, name, flags, Mode::empty());
    let directory = match first {
        Err(Errno::ACCESS) => {
            chmodat(&holder, name, Mode::RWXU, AtFlags::empty())?;
            openat(&holder, name, flags, Mode::empty())?
        }
        other => other?,
    };
    // What is inside can only be removed with the right to write.
    rustix::fs::fchmod(&directory, Mode::RWXU)?;
    Ok(directory)
}

fn names(directory: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<OsString>> + use<'_>> {
    let entries = Dir::read_from(directory)?;
    Ok(entries.filter_map(|entry| match entry {
        Err(why) => Some(Err(why.into())),
        Ok(entry) => {
            let name = entry.file_name().to_bytes();
            let own = name == b"." || name == b"..";
            (!own).then(|| Ok(OsString::from_vec(name.to_vec())))
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn a_tree_beyond_paths_and_descriptors_goes_and_its_neighbours_stay() {
        let holder = tempfile::tempdir().unwrap();
        let (at, beside) = (holder.path().join("tree"), holder.path().join("beside"));
        fs::create_dir_all(at.join("wide")).unwrap();
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("kept"), "kept").unwrap();
        symlink(&beside, at.join("link")).unwrap();
        symlink(&beside, at.join("wide/link")).unwrap();
        for number in 0..1_000 {
            fs::write(at.join("wide").join(number.to_string()), "").unwrap();
        }
        fs::create_dir(at.join("wide/.removed-1")).unwrap();
        fs::create_dir_all(at.join(".removed-1/full")).unwrap();
        fs::write(at.join(".removed-2"), "in the way").unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut deep = openat(CWD, &at, flags, Mode::empty()).unwrap();
        for _ in 0..1_200 {
            mkdirat(&deep, "x", Mode::RWXU).unwrap();
            deep = openat(&deep, "x", flags, Mode::empty()).unwrap();
        }
        fs::create_dir_all(at.join("closed/inner/innermost")).unwrap();
        fs::set_permissions(at.join("closed/inner"), Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(at.join("closed"), Permissions::from_mode(0o500)).unwrap();
        remove_tree(&at).unwrap();
        assert!(!at.exists());
        assert_eq!(fs::read_to_string(beside.join("kept")).unwrap(), "kept");
        remove_tree(&at).unwrap();
        fs::write(&at, "a file").unwrap();
        assert!(remove_tree(&at).is_err(), "not a directory");
    }
}
