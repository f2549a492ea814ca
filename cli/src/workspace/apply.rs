//! Bringing changes into the user's folder: all of them or none, and only over what is still as it
//! was when the copy was taken.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, bail};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use sha2::{Digest, Sha256};

use super::{
    change::Change,
    root::{Root, split},
    tree::{Leaf, leaf},
};

/// A change that must not be applied, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// Which of `changes` do not fit `target` as it is now. A path that is already as the change wants
/// it does.
pub(crate) fn conflicts(target: &Root, changes: &[Change]) -> Vec<Conflict> {
    let mut found: Vec<Conflict> = changes
        .iter()
        .filter_map(|change| {
            let why = obstacle(target, change, changes)?;
            Some(Conflict { path: change.path.clone(), why })
        })
        .collect();
    if found.is_empty() && !changes.is_empty() && !target.is_writable() {
        found.push(Conflict { path: target.path.clone(), why: "is not writable".to_owned() });
    }
    found
}

fn obstacle(target: &Root, change: &Change, all: &[Change]) -> Option<String> {
    if let Some(Leaf::Link { target: points_to }) = &change.after
        && leads_out(&change.path, points_to)
    {
        return Some("is a link that leads out of the folder".to_owned());
    }
    let why = match leaf(target, &change.path) {
        Ok(now) if now == change.after => return None,
        Ok(now) if now == change.before => return misplaced(target, change, all),
        Ok(Some(_)) if change.before.is_none() => "was made meanwhile",
        Ok(Some(_)) => "was changed meanwhile",
        Ok(None) => "was removed meanwhile",
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            "lies behind a symbolic link"
        }
        Err(error) => return Some(format!("cannot be read: {error}")),
    };
    Some(why.to_owned())
}

/// A folder where a file is to be, or a file where a folder is needed, unless `all` removes it.
fn misplaced(target: &Root, change: &Change, all: &[Change]) -> Option<String> {
    change.after.as_ref()?;
    let removed = |path: &Path| all.iter().any(|c| c.after.is_none() && c.path.starts_with(path));
    let in_the_way = |path: &&Path| match target.kind(path) {
        Some(FileType::Directory) => *path == change.path && !removed(path),
        Some(_) => *path != change.path && !removed(path),
        None => false,
    };
    let ancestors = change.path.ancestors().filter(|path| !path.as_os_str().is_empty());
    let path = ancestors.into_iter().find(in_the_way)?;
    Some(format!("cannot be made, because {} is something else now", path.display()))
}

/// Applies `changes`, whose new contents are in `from`, to `target`.
///
/// # Errors
/// When a path is no longer as [`conflicts`] saw it, a content is no longer the one that was shown,
/// or something cannot be written. What was applied by then stays, and is named.
pub(crate) fn apply(target: &Root, changes: &[Change], from: &Root) -> anyhow::Result<()> {
    // Removals first: a file may have become a folder.
    let (removals, writes): (Vec<&Change>, Vec<&Change>) =
        changes.iter().partition(|change| change.after.is_none());
    for (done, change) in removals.iter().chain(&writes).enumerate() {
        apply_one(target, change, from).with_context(|| {
            format!(
                "cannot apply the change of {} ({done} of {} are applied)",
                change.path.display(),
                changes.len()
            )
        })?;
    }
    Ok(())
}

fn apply_one(target: &Root, change: &Change, from: &Root) -> anyhow::Result<()> {
    let now = leaf(target, &change.path)?;
    if now == change.after {
        return Ok(());
    }
    if now != change.before {
        bail!("it was changed meanwhile");
    }
    let (folder, name) = split(&change.path)?;
    match &change.after {
        None => {
            rustix::fs::unlinkat(target.folder(folder)?, name, AtFlags::empty())?;
            target.prune(folder);
        }
        Some(Leaf::Link { target: points_to }) => {
            let folder = target.make_folder(folder)?;
            let draft = draft_name();
            rustix::fs::symlinkat(points_to, &folder, &draft)?;
            put_in_place(&folder, &draft, name)?;
        }
        Some(Leaf::File { sha256, executable, .. }) => {
            let folder = target.make_folder(folder)?;
            let draft = draft_name();
            let written = write_draft(&folder, &draft, name, *executable, from.file(&change.path)?);
            match written {
                Ok(found) if found == *sha256 => put_in_place(&folder, &draft, name)?,
                Ok(_) => {
                    let _ = rustix::fs::unlinkat(&folder, &draft, AtFlags::empty());
                    bail!("its new content is no longer the one that was shown");
                }
                Err(error) => {
                    let _ = rustix::fs::unlinkat(&folder, &draft, AtFlags::empty());
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

/// Writes the new content beside the file it will replace; answers its hash.
fn write_draft(
    folder: &OwnedFd,
    draft: &str,
    name: &std::ffi::OsStr,
    executable: bool,
    mut source: File,
) -> io::Result<String> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // A new file gets what the user's umask leaves of this.
    let wanted = if executable { 0o777 } else { 0o666 };
    let fd = rustix::fs::openat(folder, draft, flags, Mode::from_raw_mode(wanted))?;
    if let Ok(old) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        let bits = old.st_mode & 0o777;
        let bits = if executable { bits | ((bits & 0o444) >> 2) } else { bits & !0o111 };
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(bits))?;
        // Only root can give a file away; for anybody else it is theirs already or stays so.
        let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        let _ = rustix::fs::fchown(&fd, Some(owner), Some(group));
    }
    let mut file = File::from(fd);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        file.write_all(&buffer[..read])?;
    }
    file.sync_all()?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn put_in_place(folder: &OwnedFd, draft: &str, name: &std::ffi::OsStr) -> io::Result<()> {
    let placed = rustix::fs::renameat(folder.as_fd(), draft, folder.as_fd(), name);
    if placed.is_err() {
        let _ = rustix::fs::unlinkat(folder, draft, AtFlags::empty());
    }
    Ok(placed?)
}

fn draft_name() -> String {
    format!(".{}.draft", tailstep_runtime::ids::nonce())
}

/// Whether a link at `path` to `target` could lead out of the folder. Steps up are allowed only at
/// the beginning, where they are counted against real folders; behind a name, which may be a link
/// itself, `..` could mean anything.
fn leads_out(path: &Path, target: &Path) -> bool {
    let mut height = path.components().count().saturating_sub(1);
    let mut named = false;
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) => named = true,
            Component::ParentDir if named || height == 0 => return true,
            Component::ParentDir => height -= 1,
            Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}
