//! System calls that no safe crate covers, each behind a safe function.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::process::Pid;

/// `struct clone_args`, up to the field of Linux 5.7.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

pub(super) const READ_ONLY: u64 = 1;
pub(super) const NO_SUID: u64 = 2;
pub(super) const NO_DEVICES: u64 = 4;
pub(super) const NO_EXEC: u64 = 8;

/// The two sides of a new process.
pub(super) enum Forked {
    Child,
    Parent { pid: Pid, exit: OwnedFd },
}

/// Forks this process into new namespaces (flags as in `clone(2)`), with a descriptor that tells
/// of its end.
///
/// Must be called by a process with one thread: the child is a copy with no other thread to hold a
/// lock. This is the case in the helper, which starts threads only inside the child.
pub(super) fn fork_into(namespaces: libc::c_int) -> io::Result<Forked> {
    let mut exit: i32 = -1;
    let args = CloneArgs {
        flags: u64::from((namespaces | libc::CLONE_PIDFD).cast_unsigned()),
        pidfd: (&raw mut exit) as u64,
        exit_signal: libc::SIGCHLD.cast_unsigned().into(),
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM and with no stack given this is a fork. The kernel reads one
    // `CloneArgs` and writes the descriptor to `exit` in the parent; both live through the call.
    // The caller has one thread, so the child's copy of every lock is free.
    let outcome =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match i32::try_from(outcome) {
        Ok(0) => Ok(Forked::Child),
        Ok(pid) if pid > 0 => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
            // SAFETY: the kernel just made this descriptor for us alone.
            Ok(Forked::Parent { pid, exit: unsafe { OwnedFd::from_raw_fd(exit) } })
        }
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Adds attributes to the mount at an open tree; with `recursive` to all beneath it as well.
pub(super) fn set_mount(tree: impl AsFd, attributes: u64, recursive: bool) -> io::Result<()> {
    let depth = if recursive { libc::AT_RECURSIVE } else { 0 };
    mount_setattr(tree.as_fd().as_raw_fd(), "", libc::AT_EMPTY_PATH | depth, attributes, 0)
}

/// Cuts every mount off from the host's: what is mounted later is not seen there.
pub(super) fn make_all_mounts_private() -> io::Result<()> {
    mount_setattr(libc::AT_FDCWD, "/", libc::AT_RECURSIVE, 0, libc::MS_PRIVATE)
}

fn mount_setattr(
    directory: i32,
    path: &str,
    flags: libc::c_int,
    attr_set: u64,
    propagation: u64,
) -> io::Result<()> {
    let path = CString::new(path)?;
    let attributes = MountAttr { attr_set, attr_clr: 0, propagation, userns_fd: 0 };
    // SAFETY: the kernel reads the path and one `MountAttr`; both live through the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor but the standard three: whatever a caller leaked ends here.
pub(super) fn close_leaked_descriptors() -> io::Result<()> {
    // SAFETY: called first thing in a process, before anything in it owns a descriptor above 2.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes everything but the standard three and `kept`, in a process that never returns to whoever
/// owns the rest.
///
/// # Safety
/// No value that owns another descriptor is used or dropped in this process from here on.
pub(super) unsafe fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut first: u32 = 3;
    for kept in kept.into_iter().map(RawFd::cast_unsigned).chain([u32::MAX]) {
        if kept > first {
            // SAFETY: the caller's promise; the call touches no memory.
            let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, kept - 1, 0u32) };
            if outcome != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = kept.saturating_add(1).max(first);
    }
    Ok(())
}

/// What happens when a child ends.
#[derive(Clone, Copy)]
pub(super) enum Children {
    /// It is waited for.
    Awaited,
    /// Nobody waits; the kernel forgets it.
    Forgotten,
}

pub(super) fn handle_children(how: Children) -> io::Result<()> {
    let handler = match how {
        Children::Awaited => libc::SIG_DFL,
        Children::Forgotten => libc::SIG_IGN,
    };
    // SAFETY: both are actions of the kernel's own; no code of this process becomes a handler.
    if unsafe { libc::signal(libc::SIGCHLD, handler) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets no program that is started from here on have a descriptor beyond the standard three.
pub(crate) fn keep_descriptors_here() -> io::Result<()> {
    let (first, last, flags) = (3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: it changes a flag of descriptors and touches no memory.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Overwrites this process's arguments and environment with zeroes, where `/proc/PID/cmdline` and
/// `/proc/PID/environ` show them. The strings that the standard library hands out are empty then.
pub(super) fn forget_command_line() -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The command's name may hold anything; the fields behind its last parenthesis are fixed, and
    // the last ones are arg_start, arg_end, env_start, env_end, exit_code (`proc_pid_stat(5)`).
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .rev()
        .skip(1)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    let [env_end, env_start, arg_end, arg_start] = fields[..] else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat is too short"));
    };
    // The kernel writes here as the process itself could, so this needs no unsafe block.
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem")?;
    for (from, to) in [(arg_start, arg_end), (env_start, env_end)] {
        let length = usize::try_from(to.saturating_sub(from)).map_err(io::Error::other)?;
        std::os::unix::fs::FileExt::write_all_at(&memory, &vec![0; length], from)?;
    }
    Ok(())
}

/// A descriptor that is readable when a child has ended. The signal itself is blocked, here and in
/// threads started later. Whoever started the supervisor may ignore it (`signal(7)`: that is
/// inherited), and then it would never come.
pub(super) fn child_ends() -> io::Result<OwnedFd> {
    handle_children(Children::Awaited)?;
    await_signals(&[libc::SIGCHLD])
}

/// A descriptor that is readable when this process is told to end, which it then has to do itself.
pub(crate) fn asked_to_end() -> io::Result<OwnedFd> {
    await_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT])
}

/// Takes one signal from such a descriptor.
pub(crate) fn signal_of(asked: &OwnedFd) -> Option<i32> {
    let mut came = [0u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(asked, &mut came).ok()?;
    // ssi_signo is the first field.
    let number = came.first_chunk::<4>().filter(|_| read == came.len())?;
    i32::try_from(u32::from_ne_bytes(*number)).ok()
}

fn await_signals(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: `set` is plain memory that sigemptyset initialises before use; the calls read it and
    // keep no pointer. The descriptor is new and owned by nobody else.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Brings the loopback interface of this network namespace up.
pub(super) fn raise_loopback() -> io::Result<()> {
    let socket = unix_socket()?;
    // SAFETY: `request` is plain data, valid as zeroes; the name is shorter than its field and so
    // ends with a NUL. The kernel reads and writes this one structure during the calls.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn unix_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes no memory; a descriptor it returns is new and owned by nobody else.
    unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Ends the process at once, running nothing more.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes no memory and does not return.
    unsafe { libc::_exit(code) }
}
