//! The file system that the sandbox sees: a fresh tmpfs with read-only copies of the host's
//! program directories, a few made-up files, private `/tmp`, `/proc` and devices, and the
//! workspace. The host's tree is detached once this stands.

use std::{
    fs,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, statat, symlinkat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
        fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
    },
    process::{chdir, fchdir, pivot_root},
};

use super::{
    host::{self, Layout, SAFE, Tree, clone_tree},
    identity::INNER_ID,
    sys,
};

/// Files that describe the sandbox itself, made here.
const OWN_FILES: [&str; 6] = [
    "etc/passwd",
    "etc/group",
    "etc/hosts",
    "etc/hostname",
    "etc/nsswitch.conf",
    "etc/resolv.conf",
];

/// Files of `/proc` that tell of the host or act on it, hidden behind `/dev/null`.
const HIDDEN_FILES: [&str; 14] = [
    "cmdline",
    "config.gz",
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

/// Entries of a tmpfs: one for every 4 KiB of a size that is usual, so that the two end together.
const INODES_MAX: u64 = 65_536;

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

/// The new root, with what it shows whoever it is for.
pub(super) struct Base {
    tree: OwnedFd,
    layout: Layout,
}

impl Base {
    /// Its files belong to the calling process: the guard, where that may take mounts, else PID 1 as the
    /// inner user.
    pub(super) fn make(layout: Layout) -> Result<Self, String> {
        let tree = tmpfs(4 << 20, 4_096, "755");
        let tree = tree.map_err(|why| format!("cannot make a root: {why}"))?;
        let new = Self { tree, layout };
        new.furnish().map_err(|why| format!("cannot fill the new root: {why}"))?;
        new.place(&new.layout.trees);
        Ok(new)
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.tree.as_fd()).chain(host::descriptors(&self.layout.trees))
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
        for (inner, target) in &self.layout.links {
            self.directory(inner.parent().unwrap_or(Path::new("/")))?;
            symlinkat(target, &self.tree, inner)?;
        }
        Ok(())
    }

    /// Makes this the only root. Called by PID 1 in its own mount namespace.
    pub(super) fn enter(&self, proc: &OwnedFd) -> Result<(), String> {
        sys::make_all_mounts_private().map_err(|why| format!("cannot separate mounts: {why}"))?;
        // What it covers is not seen from here on.
        move_mount(&self.tree, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|why| format!("cannot attach the new root: {why}"))?;
        let covers = if self.layout.is_image { self.covers() } else { Ok(Vec::new()) };
        let covers = covers.map_err(|why| format!("cannot copy /etc: {why}"))?;
        self.attach(&self.layout.trees)?;
        self.cover_files(&covers).map_err(|why| format!("cannot cover files of /etc: {why}"))?;
        self.proc(proc).map_err(|why| format!("cannot cover parts of /proc: {why}"))?;
        fchdir(&self.tree)
            .and_then(|()| pivot_root(".", "."))
            .and_then(|()| unmount(".", UnmountFlags::DETACH))
            .and_then(|()| chdir("/"))
            .map_err(|why| format!("cannot change to the new root: {why}"))
    }

    /// Makes the places for these trees, as whoever the new root belongs to. A place that cannot be made
    /// is missed when something is attached there.
    pub(super) fn place(&self, trees: &[Tree]) {
        for tree in trees {
            let _ = self.target(tree);
        }
    }

    /// Attaches what one sandbox has alone. Called by PID 1 as the inner user.
    pub(super) fn fill(&self, own: &[Tree], tmp_bytes: u64) -> Result<(), String> {
        self.tmpfs("tmp", tmp_bytes)
            .and_then(|()| self.tmpfs("dev/shm", tmp_bytes / 4))
            .map_err(|why| format!("cannot make /tmp and /dev/shm: {why}"))?;
        self.attach(own)?;
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

    fn attach(&self, trees: &[Tree]) -> Result<(), String> {
        trees.iter().try_for_each(|tree| {
            self.target(tree).and_then(|target| mount_at(&tree.tree, &target)).map_err(|why| {
                let at = tree.target.display();
                if why.kind() == io::ErrorKind::ReadOnlyFilesystem {
                    return format!(
                        "cannot mount {at} in the sandbox: there is no such place, and what is above \
                         it is read-only: choose one that is there, or one outside of it"
                    );
                }
                format!("cannot mount {at} in the sandbox: {why}")
            })
        })
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
