//! What is seen of the host in a sandbox, or of an image: copies of mounts, taken before they are put
//! together.

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, FileType, fstat},
    mount::{OpenTreeFlags, open_tree},
};

use super::sys;
use crate::{
    spec::{Access, Mount, Root, WORKSPACE},
    wire::Start,
};

/// A copy of one of the host's mounts, not yet attached anywhere.
pub(super) struct Tree {
    pub(super) tree: OwnedFd,
    pub(super) target: PathBuf,
    pub(super) directory: bool,
}

/// What a root shows, not yet put together.
pub(super) struct Layout {
    pub(super) trees: Vec<Tree>,
    /// By where they stand in the new root and where they lead.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// It has an `/etc` of its own.
    pub(super) is_image: bool,
}

/// Targets of trees, and whether each is a directory, as PID 1 is told of them.
pub(super) type Plan = Vec<(OsString, bool)>;

/// Directories of programs and libraries. On most hosts all but the first are links into it.
const PROGRAMS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// What programs need of the host's configuration: how libraries are found, what the links in
/// `/usr` point to. No names of people, hosts or services.
const CONFIGURATION: [&str; 9] = [
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "protocols",
    "services",
    "ssl/certs",
];

/// Entries of a whole system that are made here, never taken from it.
const OWN: [&str; 6] = ["dev", "proc", "run", "sys", "tmp", "workspace"];

/// Directories of `/etc` that come with a language, whatever its version.
const LANGUAGES: [&str; 3] = ["java-", "python", "perl"];

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

pub(super) const SAFE: u64 = sys::NO_SUID | sys::NO_DEVICES;

/// Takes copies of what a root shows in which the mounts will be. Done before the user is changed, since
/// the paths may lead through directories closed to it.
pub(super) fn take_root(root: &Root, mounts: &[Mount]) -> Result<Layout, String> {
    let mut trees = match root {
        Root::Host => host_trees()?,
        Root::Directory(root) => image_trees(root, mounts)?,
    };
    for name in DEVICES {
        let path = Path::new("/dev").join(name);
        trees.push(Tree::open(&path, &path, sys::READ_ONLY | sys::NO_SUID | sys::NO_EXEC)?);
    }
    Ok(Layout { trees, links: links(root)?, is_image: *root != Root::Host })
}

/// Takes copies of what one sandbox has alone.
pub(super) fn take_own(start: &Start) -> Result<Vec<Tree>, String> {
    let mut trees = Vec::new();
    for mount in &start.mounts {
        let read_only = if mount.access == Access::ReadOnly { sys::READ_ONLY } else { 0 };
        trees.push(Tree::open(&mount.source, &mount.target, SAFE | read_only)?);
    }
    if let Some(workspace) = &start.workspace {
        trees.push(Tree::open(workspace, Path::new(WORKSPACE), SAFE)?);
    }
    Ok(trees)
}

/// Trees without their descriptors.
pub(super) fn plan(trees: &[Tree]) -> Plan {
    trees.iter().map(|tree| (tree.target.clone().into(), tree.directory)).collect()
}

/// Their descriptors, in order.
pub(super) fn descriptors(trees: &[Tree]) -> impl Iterator<Item = BorrowedFd<'_>> {
    trees.iter().map(|tree| tree.tree.as_fd())
}

/// The trees again.
pub(super) fn trees(plan: Plan, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Vec<Tree> {
    let tree = |((target, directory), tree): ((OsString, bool), OwnedFd)| {
        let target = target.into();
        Tree { tree, target, directory }
    };
    plan.into_iter().zip(descriptors).map(tree).collect()
}

/// How the host's directories looked at a time, as far as a root shows them. What changes within them
/// is seen in a root that was taken before; what is put in the place of another, or mounted, is not.
pub(super) struct Look {
    mounts: fs::File,
    directories: Vec<Option<Directory>>,
}

/// Entries that are put in it, or in place of others, change its time.
#[derive(PartialEq, Eq)]
struct Directory {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Look {
    pub(super) fn take() -> io::Result<Self> {
        let mounts = fs::File::open("/proc/self/mountinfo")?;
        Ok(Self { mounts, directories: Directory::all() })
    }

    /// Whether a root taken after it shows what one would that is taken now.
    pub(super) fn is_current(&self) -> bool {
        // The kernel reports every change of the mount table since the file was opened
        // (`proc_pid_mounts(5)`).
        let mut changed = [PollFd::new(&self.mounts, PollFlags::PRI)];
        poll(&mut changed, Some(&Timespec::default())).is_ok_and(|changes| changes == 0)
            && self.directories == Directory::all()
    }
}

impl Directory {
    /// Those that hold what a root shows of the host.
    fn all() -> Vec<Option<Self>> {
        ["/", "/etc", "/etc/ssl"].map(|path| Self::of(Path::new(path)).ok()).into()
    }

    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        let changed = (found.ctime(), found.ctime_nsec());
        Ok(Self { device: found.dev(), inode: found.ino(), changed })
    }
}

fn host_trees() -> Result<Vec<Tree>, String> {
    let mut trees = Vec::new();
    for name in PROGRAMS {
        let path = Path::new("/").join(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            trees.push(Tree::open(&path, &path, SAFE | sys::READ_ONLY)?);
        }
    }
    for path in configuration() {
        trees.push(Tree::open(&path, &path, SAFE | sys::READ_ONLY | sys::NO_EXEC)?);
    }
    Ok(trees)
}

/// Everything at the top of a system's tree that is not made here. Links are made anew, and an
/// empty directory that mounts go into is too, since nothing can be made in a read-only one.
fn image_trees(root: &Path, mounts: &[Mount]) -> Result<Vec<Tree>, String> {
    let mut trees = Vec::new();
    for name in entries(root)? {
        let (path, target) = (root.join(&name), Path::new("/").join(&name));
        let holds_mounts = mounts.iter().any(|mount| mount.target.starts_with(&target));
        let empty = || fs::read_dir(&path).is_ok_and(|mut found| found.next().is_none());
        let kind = fs::symlink_metadata(&path).map(|found| found.file_type());
        let taken = kind.is_ok_and(|kind| kind.is_dir() || kind.is_file());
        if taken && !(holds_mounts && empty()) {
            trees.push(Tree::open(&path, &target, SAFE | sys::READ_ONLY)?);
        }
    }
    Ok(trees)
}

/// The links of the new root, by where they stand in it and where they lead.
fn links(root: &Root) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let mut links = Vec::new();
    let mut copy = |path: PathBuf, inner: PathBuf| {
        if let Ok(target) = fs::read_link(path) {
            links.push((inner, target));
        }
    };
    match root {
        Root::Host => {
            let (top, etc) = (Path::new("/"), Path::new("etc"));
            PROGRAMS.iter().for_each(|name| copy(top.join(name), name.into()));
            CONFIGURATION.iter().for_each(|name| copy(top.join(etc).join(name), etc.join(name)));
            for (inner, target) in
                [("etc/mtab", "/proc/self/mounts"), ("var/tmp", "/tmp"), ("var/run", "/run")]
            {
                links.push((inner.into(), target.into()));
            }
        }
        Root::Directory(root) => {
            for name in entries(root)? {
                copy(root.join(&name), name.into());
            }
        }
    }
    Ok(links)
}

/// The names at the top of a system's tree, but for those made here.
fn entries(root: &Path) -> Result<Vec<OsString>, String> {
    let failed = |why| format!("cannot read the root directory {}: {why}", root.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !OWN.iter().any(|own| name == *own) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn configuration() -> Vec<PathBuf> {
    let etc = Path::new("/etc");
    let mut paths: Vec<PathBuf> = CONFIGURATION.iter().map(|name| etc.join(name)).collect();
    for entry in fs::read_dir(etc).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if LANGUAGES.iter().any(|language| name.to_string_lossy().starts_with(language)) {
            paths.push(entry.path());
        }
    }
    // Links lead into /usr, which is there anyway, and are made anew.
    paths.retain(|path| fs::symlink_metadata(path).is_ok_and(|found| !found.is_symlink()));
    paths.sort();
    paths
}

impl Tree {
    fn open(source: &Path, target: &Path, attributes: u64) -> Result<Self, String> {
        let failed = |why: &dyn std::fmt::Display| {
            format!("cannot mount {} in the sandbox: {why}", source.display())
        };
        let tree = clone_tree(CWD, source).map_err(|why| failed(&why))?;
        let mode = fstat(&tree).map_err(|why| failed(&why))?.st_mode;
        let directory = FileType::from_raw_mode(mode) == FileType::Directory;
        sys::set_mount(&tree, attributes, true).map_err(|why| failed(&why))?;
        Ok(Self { tree, target: target.to_owned(), directory })
    }
}

pub(super) fn clone_tree(
    directory: impl AsFd,
    path: impl AsRef<Path>,
) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(directory, path.as_ref(), flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_tells_when_an_entry_takes_the_place_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        fs::write(&old, "1").unwrap();
        fs::write(&new, "2").unwrap();
        let before = Directory::of(directory.path()).unwrap();
        fs::write(&old, "written over").unwrap();
        assert!(before == Directory::of(directory.path()).unwrap(), "that shows through");
        // Times are as coarse as the kernel's clock tick.
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::rename(&new, &old).unwrap();
        assert!(before != Directory::of(directory.path()).unwrap());
        assert!(Look::take().unwrap().is_current());
    }
}
