//! The file system that the sandbox sees: a fresh tmpfs with read-only copies of the host's
//! program directories, a few made-up files, private `/tmp`, `/proc` and devices, and the
//! workspace. The host's tree is detached once this stands.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2,
        statat, symlinkat,
    },
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
    },
    process::{chdir, fchdir, pivot_root},
};

use serde::{Deserialize, Serialize};

use super::{identity::INNER_ID, sys};
use crate::{
    spec::{Access, Mount, Root, WORKSPACE},
    wire::Start,
};

/// A copy of one of the host's mounts, not yet attached anywhere.
pub(super) struct Tree {
    tree: OwnedFd,
    target: PathBuf,
    directory: bool,
}

/// What the sandbox sees, taken from the host and not yet put together.
#[derive(Default)]
pub(super) struct Layout {
    trees: Vec<Tree>,
    /// By where they stand in the new root and where they lead.
    links: Vec<(PathBuf, PathBuf)>,
}

/// A layout without its descriptors, as it is told to PID 1.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Targets, and whether each is a directory.
    trees: Vec<(OsString, bool)>,
    links: Vec<(OsString, OsString)>,
}

impl Layout {
    pub(super) fn plan(&self) -> Plan {
        let links = self.links.iter().map(|(at, to)| (at.clone().into(), to.clone().into()));
        let trees = self.trees.iter().map(|tree| (tree.target.clone().into(), tree.directory));
        Plan { trees: trees.collect(), links: links.collect() }
    }

    /// Those of the plan's trees, in order.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.trees.iter().map(|tree| tree.tree.as_fd())
    }
}

impl Plan {
    pub(super) fn trees(&self) -> usize {
        self.trees.len()
    }

    /// The layout again; takes its descriptors and leaves what comes behind them.
    pub(super) fn with(self, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Layout {
        let trees = self.trees.into_iter().zip(descriptors);
        let trees = trees.map(|((target, directory), tree)| {
            let target = target.into();
            Tree { tree, target, directory }
        });
        let links = self.links.into_iter().map(|(at, to)| (at.into(), to.into()));
        Layout { trees: trees.collect(), links: links.collect() }
    }
}

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

/// Files that describe the sandbox itself, made here.
const OWN_FILES: [&str; 6] = [
    "etc/passwd",
    "etc/group",
    "etc/hosts",
    "etc/hostname",
    "etc/nsswitch.conf",
    "etc/resolv.conf",
];

/// Entries of a whole system that are made here, never taken from it.
const OWN: [&str; 6] = ["dev", "proc", "run", "sys", "tmp", "workspace"];

/// Directories of `/etc` that come with a language, whatever its version.
const LANGUAGES: [&str; 3] = ["java-", "python", "perl"];

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Files of `/proc` that tell of the host or act on it, hidden behind `/dev/null`.
const HIDDEN_FILES: [&str; 12] = [
    "kcore",
    "kallsyms",
    "keys",
    "key-users",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "sched_debug",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
];

/// Directories there, hidden behind an empty one.
const HIDDEN_DIRECTORIES: [&str; 7] = ["acpi", "asound", "bus", "driver", "fs", "irq", "scsi"];

const SAFE: u64 = sys::NO_SUID | sys::NO_DEVICES;

/// Entries of a tmpfs: one for every 4 KiB of a size that is usual, so that the two end together.
const INODES_MAX: u64 = 65_536;

/// Takes copies of everything of the host that this sandbox is to see. Done before the user is
/// changed, since the paths may lead through directories closed to it.
pub(super) fn take(start: &Start) -> Result<Layout, String> {
    let mut trees = match &start.root {
        Root::Host => host_trees()?,
        Root::Directory(root) => image_trees(root, &start.mounts)?,
    };
    for mount in &start.mounts {
        let read_only = if mount.access == Access::ReadOnly { sys::READ_ONLY } else { 0 };
        trees.push(Tree::open(&mount.source, &mount.target, SAFE | read_only)?);
    }
    if let Some(workspace) = &start.workspace {
        trees.push(Tree::open(workspace, Path::new(WORKSPACE), SAFE)?);
    }
    Ok(Layout { trees, links: links(&start.root)? })
}

/// The devices of every sandbox.
pub(super) fn devices() -> Result<Vec<Tree>, String> {
    let open = |name: &&str| {
        let path = Path::new("/dev").join(name);
        Tree::open(&path, &path, sys::READ_ONLY | sys::NO_SUID | sys::NO_EXEC)
    };
    DEVICES.iter().map(open).collect()
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

fn clone_tree(directory: impl AsFd, path: impl AsRef<Path>) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(directory, path.as_ref(), flags)
}

/// A fresh `/proc` of this process namespace, not yet attached anywhere. The kernel gives none to a
/// process that sees no other one whole.
pub(super) fn proc() -> Result<OwnedFd, String> {
    filesystem("proc", &[], MountAttrFlags::MOUNT_ATTR_NOEXEC).map_err(|why| {
        format!(
            "cannot mount /proc ({why}): the container around this program masks parts of its own \
             /proc; start it with `--security-opt systempaths=unconfined`"
        )
    })
}

/// The new root, with what every sandbox has in it.
pub(super) struct Base {
    tree: OwnedFd,
    devices: Vec<Tree>,
}

impl Base {
    /// Made by the guard where it may, and then its own; else by PID 1 as the inner user.
    pub(super) fn make(devices: Vec<Tree>) -> Result<Self, String> {
        let tree = tmpfs(4 << 20, 4_096, "755");
        let tree = tree.map_err(|why| format!("cannot make a root: {why}"))?;
        let new = Self { tree, devices };
        new.furnish().map_err(|why| format!("cannot fill the new root: {why}"))?;
        Ok(new)
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let devices = self.devices.iter().map(|device| device.tree.as_fd());
        std::iter::once(self.tree.as_fd()).chain(devices)
    }

    fn furnish(&self) -> io::Result<()> {
        for name in ["dev", "dev/shm", "etc", "proc", "run", "tmp"] {
            mkdirat(&self.tree, name, Mode::from_raw_mode(0o755))?;
        }
        for (name, target) in [
            ("dev/fd", "/proc/self/fd"),
            ("dev/stdin", "/proc/self/fd/0"),
            ("dev/stdout", "/proc/self/fd/1"),
            ("dev/stderr", "/proc/self/fd/2"),
        ] {
            symlinkat(target, &self.tree, name)?;
        }
        let passwd = format!(
            "root:x:0:0:root:/:/usr/sbin/nologin\n\
             agent:x:{INNER_ID}:{INNER_ID}:agent:/tmp:/bin/bash\n\
             nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\nagent:x:{INNER_ID}:\nnogroup:x:65534:\n");
        for (name, content) in OWN_FILES.into_iter().zip([
            passwd.as_str(),
            &group,
            "127.0.0.1 localhost sandbox\n::1 localhost\n",
            "sandbox\n",
            "passwd: files\ngroup: files\nhosts: files\n",
            "# Names are resolved by the proxy, where there is one.\n",
        ]) {
            self.file(Path::new(name))?.write_all(content.as_bytes())?;
        }
        Ok(())
    }

    /// Makes this the only root. Called by PID 1 in its own mount namespace.
    pub(super) fn enter(&self, proc: &OwnedFd) -> Result<(), String> {
        sys::make_all_mounts_private().map_err(|why| format!("cannot separate mounts: {why}"))?;
        // What it covers is not seen from here on.
        move_mount(&self.tree, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|why| format!("cannot attach the new root: {why}"))?;
        for device in &self.devices {
            self.attach(device)?;
        }
        self.proc(proc).map_err(|why| format!("cannot cover parts of /proc: {why}"))?;
        fchdir(&self.tree)
            .and_then(|()| pivot_root(".", "."))
            .and_then(|()| unmount(".", UnmountFlags::DETACH))
            .and_then(|()| chdir("/"))
            .map_err(|why| format!("cannot change to the new root: {why}"))
    }

    /// Makes the places for what comes from the layout, as whoever the new root belongs to. A place
    /// that cannot be made is missed when something is attached there.
    pub(super) fn place(&self, layout: &Layout) -> Result<(), String> {
        let links = || -> io::Result<()> {
            for (inner, target) in &layout.links {
                self.directory(inner.parent().unwrap_or(Path::new("/")))?;
                symlinkat(target, &self.tree, inner)?;
            }
            Ok(())
        };
        links().map_err(|why| format!("cannot fill the new root: {why}"))?;
        for tree in &layout.trees {
            let _ = self.target(tree);
        }
        Ok(())
    }

    /// Attaches what this sandbox sees. Called by PID 1 as the inner user.
    pub(super) fn fill(&self, layout: &Layout, start: &Start) -> Result<(), String> {
        let tmp_bytes = start.limits.tmp_bytes;
        self.tmpfs("tmp", tmp_bytes)
            .and_then(|()| self.tmpfs("dev/shm", tmp_bytes / 4))
            .map_err(|why| format!("cannot make /tmp and /dev/shm: {why}"))?;
        let covers = match start.root {
            Root::Host => Vec::new(),
            Root::Directory(_) => {
                self.covers().map_err(|why| format!("cannot copy /etc: {why}"))?
            }
        };
        for tree in &layout.trees {
            self.attach(tree)?;
        }
        self.cover_files(&covers).map_err(|why| format!("cannot cover files of /etc: {why}"))?;
        sys::set_mount(&self.tree, SAFE | sys::READ_ONLY, false)
            .map_err(|why| format!("cannot make the new root read-only: {why}"))
    }

    /// The own files as mounts, which can cover an image's.
    fn covers(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        let mut covers = Vec::new();
        for name in OWN_FILES {
            let file = clone_tree(&self.tree, name)?;
            sys::set_mount(&file, SAFE | sys::READ_ONLY | sys::NO_EXEC, false)?;
            covers.push((name, file));
        }
        Ok(covers)
    }

    fn cover_files(&self, covers: &[(&'static str, OwnedFd)]) -> io::Result<()> {
        for (name, file) in covers {
            match self.put(file, Path::new(name)) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn tmpfs(&self, name: &str, bytes: u64) -> io::Result<()> {
        let made = tmpfs(bytes.max(1 << 20), INODES_MAX, "1777")?;
        self.put(&made, Path::new(name))
    }

    /// Attaches `/proc` and covers what tells of the host.
    fn proc(&self, proc: &OwnedFd) -> io::Result<()> {
        self.put(proc, Path::new("proc"))?;
        for name in HIDDEN_FILES {
            if is_open(proc, name) {
                self.cover(&clone_tree(&self.tree, "dev/null")?, name)?;
            }
        }
        for name in HIDDEN_DIRECTORIES {
            if is_open(proc, name) {
                let empty = clone_tree(&self.tree, "run")?;
                sys::set_mount(&empty, SAFE | sys::READ_ONLY, false)?;
                self.cover(&empty, name)?;
            }
        }
        // /proc/sys needs no cover: its files belong to the host's root, who is nobody here.
        Ok(())
    }

    /// Covers an entry of `/proc`, where the kernel has it.
    fn cover(&self, with: &OwnedFd, name: &str) -> io::Result<()> {
        match self.put(with, &Path::new("proc").join(name)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    fn attach(&self, tree: &Tree) -> Result<(), String> {
        self.target(tree)
            .and_then(|target| mount_at(&tree.tree, &target))
            .map_err(|why| format!("cannot mount {} in the sandbox: {why}", tree.target.display()))
    }

    /// Where a tree goes; made if it is not there.
    fn target(&self, tree: &Tree) -> io::Result<OwnedFd> {
        if tree.directory {
            return self.directory(&tree.target);
        }
        match self.open(&tree.target, OFlags::PATH, Mode::empty()) {
            Err(Errno::NOENT) => {
                self.directory(tree.target.parent().unwrap_or(Path::new("/")))?;
                Ok(self.file(&tree.target)?.into())
            }
            found => Ok(found?),
        }
    }

    fn put(&self, tree: &OwnedFd, target: &Path) -> io::Result<()> {
        mount_at(tree, &self.open(target, OFlags::PATH, Mode::empty())?)
    }

    /// A directory, which is made if it is not there, and those above it too.
    fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        let found = self.open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let (Err(Errno::NOENT), Some(above), Some(name)) =
            (&found, path.parent(), path.file_name())
        else {
            return Ok(found?);
        };
        match mkdirat(self.directory(above)?, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(why) => return Err(why.into()),
        }
        Ok(self.open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)
    }

    fn file(&self, path: &Path) -> io::Result<fs::File> {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        Ok(self.open(path, flags, Mode::from_raw_mode(0o644))?.into())
    }

    /// Opens within the new root only: absolute links lead to its own top.
    fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
        openat2(&self.tree, path, flags | OFlags::CLOEXEC, mode, resolve)
    }
}

fn mount_at(tree: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", target, "", flags)?)
}

/// Whether everybody may look into an entry of `/proc`. What only the host's root may see needs no
/// cover: nobody is that inside.
fn is_open(proc: &OwnedFd, name: &str) -> bool {
    statat(proc, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| found.st_mode & 0o007 != 0)
}

fn tmpfs(bytes: u64, inodes: u64, mode: &str) -> rustix::io::Result<OwnedFd> {
    let (bytes, inodes) = (bytes.to_string(), inodes.to_string());
    let options = [("size", bytes.as_str()), ("nr_inodes", &inodes), ("mode", mode)];
    filesystem("tmpfs", &options, MountAttrFlags::empty())
}

fn filesystem(
    kind: &str,
    options: &[(&str, &str)],
    more: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let new = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(&new, *name, *value)?;
    }
    fsconfig_create(&new)?;
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, safe | more)
}

/// Opens `/dev/null` of the new root for the standard streams of PID 1.
pub(super) fn nothing() -> rustix::io::Result<OwnedFd> {
    openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
