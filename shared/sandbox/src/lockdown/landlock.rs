//! A second wall around the file system, kept by the kernel apart from mounts: reading anywhere in
//! the new root, writing in named places only. From ABI 6 on it also cuts signals and abstract
//! sockets to processes outside. Kernel documentation: `userspace-api/landlock`.

use std::{io, path::Path};

use rustix::fs::{CWD, Mode, OFlags, openat};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

// Rights, by the ABI that brought them.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const ALL_ABI_1: u64 = (1 << 13) - 1;
const REFER_ABI_2: u64 = 1 << 13;
const TRUNCATE_ABI_3: u64 = 1 << 14;
const IOCTL_DEVICE_ABI_5: u64 = 1 << 15;

const SCOPE_SOCKETS_AND_SIGNALS_ABI_6: u64 = 0b11;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// Confines this thread and all it starts: everything under `/` is readable and executable,
/// `writable` directories are writable, devices and `/proc` can be written where they exist.
///
/// Returns the kernel's ABI version.
///
/// # Errors
/// `Unsupported` when the kernel has no landlock.
pub(crate) fn confine(writable: &[&Path]) -> io::Result<u32> {
    let abi = version()?;
    let later = [(2, REFER_ABI_2), (3, TRUNCATE_ABI_3), (5, IOCTL_DEVICE_ABI_5)];
    let known = later.iter().filter(|(since, _)| abi >= *since).map(|(_, right)| right);
    let all = known.fold(ALL_ABI_1, |rights, right| rights | right);
    let scoped = if abi >= 6 { SCOPE_SOCKETS_AND_SIGNALS_ABI_6 } else { 0 };
    let ruleset = create(&Ruleset { files: all, network: 0, scoped })?;
    allow(&ruleset, Path::new("/"), EXECUTE | READ_FILE | READ_DIR)?;
    let write = (WRITE_FILE | TRUNCATE_ABI_3 | IOCTL_DEVICE_ABI_5) & all;
    for special in ["/dev", "/proc"] {
        allow(&ruleset, Path::new(special), write)?;
    }
    for path in writable {
        allow(&ruleset, path, all)?;
    }
    // SAFETY: restrict_self takes a descriptor and no memory.
    let outcome = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, raw(&ruleset), 0) };
    check(outcome)?;
    Ok(abi)
}

fn version() -> io::Result<u32> {
    let (none, flags) = (std::ptr::null::<Ruleset>(), CREATE_RULESET_VERSION);
    // SAFETY: with this flag the kernel reads no attributes; size and pointer must be zero.
    let outcome = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, flags) };
    match u32::try_from(outcome) {
        Ok(abi @ 1..) => Ok(abi),
        Ok(0) | Err(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel has no landlock; it needs 5.13 or later with `landlock` among its LSMs",
        )),
    }
}

fn create(attributes: &Ruleset) -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    let size = size_of::<Ruleset>();
    // SAFETY: the kernel reads `size` bytes of attributes; what an older one does not know is
    // zero, as it asks for.
    let outcome = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::from_ref(attributes), size, 0)
    };
    let descriptor = i32::try_from(check(outcome)?).map_err(io::Error::other)?;
    // SAFETY: the call just made this descriptor, and nothing else owns it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) })
}

fn allow(ruleset: &std::os::fd::OwnedFd, path: &Path, allowed: u64) -> io::Result<()> {
    let parent = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let is_directory = rustix::fs::fstat(&parent)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
    // Rights over directories are refused on a file.
    let on_files = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE_ABI_3 | IOCTL_DEVICE_ABI_5;
    let allowed = if is_directory { allowed } else { allowed & on_files };
    let rule = Beneath { allowed, parent: raw(&parent) };
    // SAFETY: the kernel reads one `Beneath`, which lives through the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            raw(ruleset),
            RULE_PATH_BENEATH,
            &raw const rule,
            0,
        )
    };
    check(outcome).map(drop)
}

fn raw(descriptor: &std::os::fd::OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    descriptor.as_raw_fd()
}

fn check(outcome: libc::c_long) -> io::Result<libc::c_long> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}
