//! PID 1 of a sandbox before anybody knows what for: in its namespaces and its control group, and
//! waiting. Making these is most of what a start costs, so it may be done ahead of time.

use std::{
    fs::File,
    os::{
        fd::{AsRawFd, IntoRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    fs::Mode,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, pidfd_send_signal, umask, waitpid},
};

use super::{
    cgroup::{Cgroup, Doors},
    host::{Look, take_root},
    identity::{Rights, explain},
    init,
    root::Base,
    sys::{self, Forked, fork_into},
};
use crate::{
    spec::{Mount, Root},
    wire::Start,
};

const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Dropping it ends everything inside.
pub(crate) struct Blank {
    pub(super) rights: Rights,
    pub(super) pid: Pid,
    /// Readable when PID 1 has ended.
    pub(super) exit: OwnedFd,
    /// PID 1 waits for a [`Go`](super::Go) at its other end.
    pub(super) go: UnixStream,
    /// The group that PID 1 is in, which has no limits yet, or why there is none.
    pub(super) cgroup: Result<Cgroup, String>,
    /// The mount namespace. While somebody holds it, the end of PID 1 does not wait for the kernel to take
    /// it apart, which needs a grace period: as long as milliseconds on a busy machine.
    mounts: Option<File>,
    /// The host before the root was taken from it.
    look: Look,
    /// Closed by the end of this process, however that comes, and PID 1 sees it.
    _alive: OwnedFd,
}

/// How PID 1 ended.
pub(super) struct Ended {
    /// By this signal.
    pub(super) signal: Option<i32>,
    /// The kernel killed something inside for lack of memory.
    pub(super) killed_for_memory: bool,
}

impl Blank {
    /// One for most of what will come, where it may be made long before it is used. Without the right to
    /// take mounts from outside, PID 1 takes them from the copy that it got when it was made, and that
    /// would age.
    pub(super) fn ahead() -> Option<Self> {
        if !Rights::look().is_ok_and(|rights| rights.mounts_outside) {
            return None;
        }
        // What fails now is tried again, and told, when there is somebody to tell.
        Self::prepare(&Root::Host, &[]).ok()
    }

    /// Whether one made ahead is what would be made now.
    pub(super) fn fits(&self, start: &Start) -> bool {
        start.root == Root::Host && self.look.is_current()
    }

    /// Forks PID 1 for a sandbox with this root, in which the mounts will be. The calling process has
    /// one thread, and becomes the guard.
    ///
    /// # Errors
    /// One line saying what the host does not give, and what to change.
    pub(crate) fn prepare(root: &Root, mounts: &[Mount]) -> Result<Self, String> {
        umask(Mode::from_raw_mode(0o022));
        let rights = Rights::look()?;
        rights.drop_groups()?;
        let (go, inner_go) =
            UnixStream::pair().map_err(|why| format!("cannot make a socket: {why}"))?;
        let (inner_alive, alive) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|why| format!("cannot make a pipe: {why}"))?;
        let look = Look::take().map_err(|why| format!("cannot read the mount table: {why}"))?;
        let base = match rights.mounts_outside {
            true => Some(Base::make(take_root(root, mounts)?)?),
            false => None,
        };
        let (cgroup, doors) = match Cgroup::create() {
            Ok((cgroup, doors)) => (Ok(cgroup), Ok(doors)),
            Err(why) => (Err(why.clone()), Err(why)),
        };
        let (pid, exit) = match fork_into(NAMESPACES).map_err(|why| explain(&why))? {
            Forked::Child => {
                let entered = doors.and_then(Doors::enter);
                // The guard's ends must not stay open here, or its death would go unseen.
                let mut kept = vec![inner_go.as_raw_fd(), inner_alive.as_raw_fd()];
                kept.extend(base.iter().flat_map(Base::descriptors).map(|fd| fd.as_raw_fd()));
                // SAFETY: what comes next never returns, and owns just the descriptors that are kept.
                if unsafe { sys::close_all_but(&kept) }.is_err() {
                    sys::exit_now(1);
                }
                init::run(inner_go, inner_alive, base, entered)
            }
            Forked::Parent { pid, exit } => (pid, exit),
        };
        let mounts = File::open(format!("/proc/{}/ns/mnt", pid.as_raw_nonzero())).ok();
        Ok(Self { rights, pid, exit, go, cgroup, look, mounts, _alive: alive })
    }

    /// Kills PID 1, and waits until the kernel has ended everything inside.
    pub(super) fn end(mut self) -> Ended {
        if let Some(mounts) = self.mounts.take() {
            // Held to the end of this process, which nobody waits for.
            let _ = mounts.into_raw_fd();
        }
        let killed_for_memory = self.cgroup.as_ref().is_ok_and(Cgroup::killed_any);
        Ended { signal: self.kill(), killed_for_memory }
    }

    fn kill(&self) -> Option<i32> {
        // PID 1 may have ended already; then there is nothing to signal.
        let _ = pidfd_send_signal(&self.exit, Signal::KILL);
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return status.terminating_signal(),
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Blank {
    fn drop(&mut self) {
        self.kill();
    }
}
