//! The helper process. Its first half, the guard, stays outside: it prepares identity, control
//! group and mounts with whatever privilege it has, forks the second half ([`init`], PID 1 of the
//! sandbox) into new namespaces, and then only watches. When the supervisor's end of the line
//! closes, by a call or by its death, PID 1 is killed, and with it everything inside.

mod cgroup;
mod identity;
mod init;
mod root;
pub(crate) mod sys;
mod tree;
mod usage;

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, pidfd_send_signal, setsid, umask, waitpid},
};

use serde::{Deserialize, Serialize};

use self::{
    cgroup::Cgroup,
    identity::Identity,
    init::Inside,
    root::Layout,
    sys::{Forked, fork_into},
    usage::Usage,
};
use crate::{
    pass,
    spec::{Access, Strictness},
    wire::{self, Job, Order, REPORT_BYTES_MAX, Report, Start},
};

/// How the guard ended, told to the supervisor by its exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The supervisor closed the line.
    Released,
    LifeOver,
    /// PID 1 ended by itself, which it does only when it cannot go on.
    InsideDied,
    /// The kernel killed PID 1 for lack of memory.
    OutOfMemory,
    /// It went on writing beyond what its directories may hold.
    DiskFull,
    /// Nothing was started; the reason went over the line.
    Refused,
}

impl Ending {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Released => 0,
            Self::LifeOver => 10,
            Self::InsideDied => 11,
            Self::OutOfMemory => 12,
            Self::Refused => 13,
            Self::DiskFull => 14,
        }
    }

    pub(crate) fn from_code(code: i32) -> Option<Self> {
        let all = [
            Self::Released,
            Self::LifeOver,
            Self::InsideDied,
            Self::OutOfMemory,
            Self::DiskFull,
            Self::Refused,
        ];
        all.into_iter().find(|ending| i32::from(ending.code()) == code)
    }
}

/// The helper's main function: serves the sandbox described by the first frame on standard input.
///
/// A program that carries the helper within itself calls this before it starts any thread and
/// before it opens anything.
pub fn main() -> ExitCode {
    let ending = match open_line() {
        Ok((mut line, start)) => guard(&mut line, &start).unwrap_or_else(|why| {
            // When nobody listens any more there is nobody to tell.
            let _ = wire::write(&mut line, &Report::Refused { why }, REPORT_BYTES_MAX);
            Ending::Refused
        }),
        Err(_) => Ending::Refused,
    };
    ExitCode::from(ending.code())
}

/// Takes the line from standard input, so that nothing inherits it by accident, and reads what to
/// start.
fn open_line() -> io::Result<(UnixStream, Start)> {
    sys::close_leaked_descriptors()?;
    let line = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    drop(nothing);
    let mut line = UnixStream::from(line);
    // A supervisor that started the helper has its first frame ready.
    line.set_read_timeout(Some(Duration::from_secs(10)))?;
    match wire::read(&mut line, wire::ORDER_BYTES_MAX)? {
        Order::Start(start) => {
            line.set_read_timeout(None)?;
            Ok((line, start))
        }
        Order::Call(_) | Order::Cancel { .. } => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Starts the sandbox and watches it to its end.
///
/// # Errors
/// One line saying why it does not run, and what to change.
fn guard(line: &mut UnixStream, start: &Start) -> Result<Ending, String> {
    // Away from the supervisor's terminal and its signals. Fails only for a group leader, which
    // the supervisor does not make of it.
    let _ = setsid();
    let inner_line = line.try_clone().map_err(|why| format!("cannot keep the line: {why}"))?;
    launch(start, inner_line, |watched| Ok(watch(line, watched)))
}

/// Builds what belongs to the outside, forks PID 1, lets `watch` wait for its end, and ends it.
/// `line` becomes PID 1's.
pub(crate) fn launch(
    start: &Start,
    line: UnixStream,
    watch: impl FnOnce(&mut Watched<'_>) -> Result<Ending, String>,
) -> Result<Ending, String> {
    let born = Instant::now();
    umask(Mode::from_raw_mode(0o022));
    let identity = Identity::choose(start.workspace.as_deref())?;
    let owned = start.mounts.iter().filter(|mount| mount.access == Access::Owned);
    let mut lent = Vec::new();
    for directory in start.workspace.iter().chain(owned.map(|mount| &mount.source)) {
        lent.push(identity.take_over(directory)?);
    }
    identity.drop_groups()?;
    let layout = if identity.mounts_outside { root::take(start)? } else { Layout::default() };
    let life_over = born + Duration::from_millis(start.limits.life_ms_max);
    let outside = Outside { start, identity, life_over };
    let ending = outside.run(line, layout, watch);
    // A session's directories go to its next sandbox as they are; a user's go back to the user.
    if let Job::Program { .. } = start.job {
        for directory in &lent {
            outside.identity.give_back(directory)?;
        }
    }
    ending
}

/// What stays with the guard.
struct Outside<'a> {
    start: &'a Start,
    identity: Identity,
    life_over: Instant,
}

impl Outside<'_> {
    fn run(
        &self,
        line: UnixStream,
        layout: Layout,
        watch: impl FnOnce(&mut Watched<'_>) -> Result<Ending, String>,
    ) -> Result<Ending, String> {
        let pair = UnixStream::pair().map_err(|why| format!("cannot make a socket: {why}"))?;
        let (mut go_in, go) = pair;
        let alive = pipe_with(PipeFlags::CLOEXEC);
        let (guard_alive, guard_alive_in) =
            alive.map_err(|why| format!("cannot make a pipe: {why}"))?;
        let namespaces = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        let forked = fork_into(namespaces).map_err(|why| identity::explain(&why))?;
        let (pid, exit) = match forked {
            Forked::Child => {
                // The guard's ends must not stay open here, or its death would go unseen.
                drop((go_in, guard_alive_in));
                let mounts_outside = self.identity.mounts_outside;
                init::run(Inside::new(line, self.start, layout, mounts_outside, go, guard_alive))
            }
            Forked::Parent { pid, exit } => (pid, exit),
        };
        drop((go, guard_alive, layout, line));
        let mut cgroup = None;
        let usage = Usage::of(self.start);
        let mut watched = Watched { exit: &exit, life_over: self.life_over, usage };
        let going = self.set_going(pid, &mut go_in, &mut cgroup);
        let ending = going.and_then(|()| watch(&mut watched));
        let killed_for_memory = cgroup.as_ref().is_some_and(Cgroup::killed_any);
        let status = end(pid, &exit);
        drop(guard_alive_in);
        if let Some(cgroup) = cgroup {
            cgroup.remove();
        }
        // PID 1 itself, or the program that it was there for.
        let killed =
            status == Some(Signal::KILL.as_raw()) || matches!(self.start.job, Job::Program { .. });
        match ending {
            Ok(Ending::InsideDied) if killed && killed_for_memory => Ok(Ending::OutOfMemory),
            ending => ending,
        }
    }

    /// Making and joining a control group takes time (joining may wait for the whole machine once):
    /// PID 1 builds its root meanwhile.
    fn set_going(
        &self,
        pid: Pid,
        go: &mut UnixStream,
        cgroup: &mut Option<Cgroup>,
    ) -> Result<(), String> {
        self.identity.map_user(pid)?;
        told(go.write_all(init::MAPPED))?;
        let grouped = match Cgroup::create(&self.start.limits) {
            Ok(made) => {
                let made = cgroup.insert(made);
                made.add(pid)?;
                Ok(made.describe())
            }
            Err(why) if self.start.strictness == Strictness::Full => return Err(why),
            Err(why) => Err(why),
        };
        let oom_events = cgroup.as_ref().and_then(Cgroup::oom_events);
        let grouped = Grouped { grouped, oom_events: oom_events.is_some() };
        told(wire::write(go, &grouped, REPORT_BYTES_MAX))?;
        oom_events.map_or(Ok(()), |file| told(pass::send(&*go, file.as_fd())))
    }
}

/// What PID 1 is told once it is in its control group.
#[derive(Debug, Serialize, Deserialize)]
struct Grouped {
    /// The group, or why there is none.
    grouped: Result<String, String>,
    /// A descriptor of the file that counts kills for lack of memory follows.
    oom_events: bool,
}

fn told(sent: io::Result<()>) -> Result<(), String> {
    match sent {
        // Without a reader PID 1 has ended, and has said why.
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot start PID 1: {why}"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A running sandbox, as its guard sees it.
pub(crate) struct Watched<'a> {
    /// Readable when PID 1 has ended.
    pub(crate) exit: &'a OwnedFd,
    life_over: Instant,
    usage: Usage<'a>,
}

impl Watched<'_> {
    /// Whether a limit that only the guard keeps is reached; else how long it may wait before it asks
    /// again.
    pub(crate) fn limit(&mut self) -> Result<Timespec, Ending> {
        if self.usage.is_passed() {
            return Err(Ending::DiskFull);
        }
        let now = Instant::now();
        let left = self.life_over.checked_duration_since(now).ok_or(Ending::LifeOver)?;
        let next = self.usage.next().map(|next| next.saturating_duration_since(now));
        // The kernel takes no wait of centuries.
        let left = left.min(next.unwrap_or(left)).min(Duration::from_secs(1 << 30));
        Timespec::try_from(left).map_err(|_| Ending::LifeOver)
    }
}

/// Waits until the supervisor is gone, PID 1 is gone or a limit is reached.
fn watch(line: &UnixStream, watched: &mut Watched<'_>) -> Ending {
    loop {
        let wait = match watched.limit() {
            Ok(wait) => wait,
            Err(reached) => return reached,
        };
        // What comes over the line is PID 1's to read; here only its end matters.
        let mut ready =
            [PollFd::new(line, PollFlags::RDHUP), PollFd::new(watched.exit, PollFlags::IN)];
        match poll(&mut ready, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) if !ready[0].revents().is_empty() => return Ending::Released,
            Ok(_) | Err(_) => return Ending::InsideDied,
        }
    }
}

/// Kills PID 1 and waits until the kernel has ended everything inside. Returns the signal that
/// ended it, if one did.
fn end(pid: Pid, exit: &OwnedFd) -> Option<i32> {
    // PID 1 may have ended already; then there is nothing to signal.
    let _ = pidfd_send_signal(exit, Signal::KILL);
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return status.terminating_signal(),
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
