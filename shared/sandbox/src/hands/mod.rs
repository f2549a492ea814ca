//! The helper process, a [`server`] that forks guards. A guard stays outside of its sandbox: it forks
//! PID 1 ([`init`]) into new namespaces, prepares identity, control group and mounts with whatever
//! privilege it has, and then only watches. When the supervisor's end of the line closes, by a call or
//! by its death, PID 1 is killed, and with it everything inside.

mod blank;
mod cgroup;
mod host;
mod identity;
mod init;
mod root;
mod server;
pub(crate) mod sys;
mod tree;
mod usage;

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Signal,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::blank::Blank;
pub use self::server::main;
use self::{
    blank::Ended,
    cgroup::Cgroup,
    identity::{Identity, Lent},
    usage::Usage,
};
use crate::{
    pass,
    spec::{Access, Strictness},
    wire::{self, Job, ORDER_BYTES_MAX, Start},
};

/// How the guard ended, told to the supervisor as the last byte of its status socket.
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

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::Released,
            Self::LifeOver,
            Self::InsideDied,
            Self::OutOfMemory,
            Self::DiskFull,
            Self::Refused,
        ];
        all.into_iter().find(|ending| ending.code() == code)
    }
}

/// Gives PID 1 what it waits for, lets `watch` wait for its end, and ends it. `line` becomes PID 1's,
/// and so do `streams`, the three standard ones of a program.
///
/// # Errors
/// One line saying why the sandbox does not run, and what to change.
pub(crate) fn launch(
    blank: Blank,
    start: &Start,
    line: UnixStream,
    streams: &[BorrowedFd<'_>],
    watch: impl FnOnce(&mut Watched<'_>) -> Result<Ending, String>,
) -> Result<Ending, String> {
    let life_over = Instant::now() + Duration::from_millis(start.limits.life_ms_max);
    let identity = blank.rights.identity(start.workspace.as_deref())?;
    // A session's directories go to its next sandbox as they are; a user's go back to the user.
    let is_program = matches!(start.job, Job::Program { .. });
    let owned = start.mounts.iter().filter(|mount| mount.access == Access::Owned);
    let directories = start.workspace.iter().chain(owned.map(|mount| &mount.source));
    let lent = directories
        .map(|directory| Lent::look(directory, is_program))
        .collect::<Result<Vec<_>, _>>()?;
    let going = lent
        .iter()
        .try_for_each(|lent| identity.take_over(lent))
        .and_then(|()| set_going(&blank, &identity, start, line, streams));
    let usage = Usage::of(start);
    let mut watched = Watched { exit: &blank.exit, life_over, usage };
    let ending = going.and_then(|()| watch(&mut watched));
    let Ended { signal, killed_for_memory } = blank.end();
    // PID 1 itself, or the program that it was there for.
    let killed = is_program || signal == Some(Signal::KILL.as_raw());
    let returned = match is_program {
        true => lent.iter().map(|lent| identity.give_back(lent)).fold(Ok(()), Result::and),
        false => Ok(()),
    };
    match (ending, returned) {
        (Err(why), _) | (Ok(_), Err(why)) => Err(why),
        (Ok(Ending::InsideDied), Ok(())) if killed && killed_for_memory => Ok(Ending::OutOfMemory),
        (Ok(ending), Ok(())) => Ok(ending),
    }
}

fn set_going(
    blank: &Blank,
    identity: &Identity,
    start: &Start,
    line: UnixStream,
    streams: &[BorrowedFd<'_>],
) -> Result<(), String> {
    let own = if blank.rights.mounts_outside { host::take_own(start)? } else { Vec::new() };
    identity.map_user(blank.pid)?;
    let cgroup = blank.cgroup.as_ref().map_err(String::clone);
    let cgroup = cgroup.and_then(|cgroup| cgroup.limit(&start.limits).map(|()| cgroup));
    let cgroup = match cgroup {
        Err(why) if start.strictness == Strictness::Full => return Err(why),
        cgroup => cgroup,
    };
    let oom_events = cgroup.as_ref().ok().and_then(|cgroup| cgroup.oom_events());
    let grouped = cgroup.map(Cgroup::describe);
    let go = Go { start, own: host::plan(&own), grouped, oom_events: oom_events.is_some() };
    let mut descriptors = vec![line.as_fd()];
    descriptors.extend(host::descriptors(&own));
    descriptors.extend(oom_events.iter().map(AsFd::as_fd));
    descriptors.extend(streams);
    let sent = wire::write(&mut &blank.go, &go, ORDER_BYTES_MAX);
    match sent.and_then(|()| pass::send_all(&blank.go, &descriptors)) {
        // Without a reader PID 1 has ended.
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot start PID 1: {why}"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// What PID 1 waits for. Descriptors follow: its line, those of its own trees, that of `oom_events`, and
/// for a program the three standard streams.
#[derive(Debug, Serialize, Deserialize)]
struct Go<S> {
    start: S,
    /// Empty where PID 1 takes everything that is seen of the host itself.
    own: host::Plan,
    /// The control group, or why there is none.
    grouped: Result<String, String>,
    /// There is a file that counts kills for lack of memory.
    oom_events: bool,
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
