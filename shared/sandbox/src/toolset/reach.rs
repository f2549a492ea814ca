//! Which processes belong to the hands, and so end with a deadline, a stop or a restart.

use std::{
    collections::BTreeMap,
    os::unix::process::CommandExt,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::lockdown::seccomp::Filter;

/// A killed process that writes to a slow disk ends when the write does.
const GONE_WAIT: Duration = Duration::from_secs(5);

/// How far the hands reach. The state is the shell's process id, which its owner waits for itself.
#[derive(Clone)]
pub(crate) enum Reach {
    /// This process is PID 1 of its own namespace: everything else in it.
    Namespace { shell: Arc<AtomicU32> },
    /// This process is a child subreaper that starts nothing else: all its descendants.
    Descendants { shell: Arc<AtomicU32>, filter: Option<Arc<Filter>> },
    /// The shell and its process group, for a process that has other children.
    #[cfg(test)]
    Group { shell: Arc<AtomicU32> },
}

impl Reach {
    /// Settings of the shell's command that depend on where it runs.
    pub(super) fn prepare(&self, command: &mut Command) {
        command.process_group(0);
        match self {
            Self::Descendants { filter: Some(filter), .. } => {
                let filter = Arc::clone(filter);
                // SAFETY: between fork and exec the closure makes two system calls on memory that
                // was allocated before; it neither allocates nor locks.
                unsafe { command.pre_exec(move || filter.install()) };
            }
            Self::Descendants { filter: None, .. } | Self::Namespace { .. } => {}
            #[cfg(test)]
            Self::Group { .. } => {}
        }
    }

    /// Names the shell's process.
    pub(super) fn adopt(&self, process_id: u32) {
        self.shell().store(process_id, Ordering::Release);
    }

    /// Kills every process within reach, new sessions and double forks included.
    pub(super) fn kill_all(&self) {
        match self {
            // SAFETY: kill has no memory effects; -1 means every process that this one may signal,
            // which in a PID namespace of its own is the namespace without PID 1.
            Self::Namespace { .. } => drop(unsafe { libc::kill(-1, libc::SIGKILL) }),
            Self::Descendants { .. } => kill_descendants(),
            #[cfg(test)]
            Self::Group { shell } => {
                let group = i32::try_from(shell.load(Ordering::Acquire)).ok();
                if let Some(group) = group.and_then(Pid::from_raw) {
                    let _ = rustix::process::kill_process_group(group, Signal::KILL);
                }
            }
        }
    }

    /// Waits, after [`Self::kill_all`] and after the shell's owner has waited for it, until nothing is
    /// left: a kill is only a request, and what it was sent to may run for a moment longer.
    pub(super) fn wait_until_gone(&self) {
        let until = Instant::now() + GONE_WAIT;
        loop {
            self.reap();
            let gone = match self {
                // SAFETY: as in `kill_all`; without anybody to signal the call fails.
                Self::Namespace { .. } => unsafe { libc::kill(-1, libc::SIGKILL) != 0 },
                Self::Descendants { .. } => descendants().is_empty(),
                #[cfg(test)]
                Self::Group { .. } => true,
            };
            if gone || Instant::now() > until {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Collects ended orphans. The shell is left to its owner.
    pub(crate) fn reap(&self) {
        match self {
            Self::Namespace { shell } | Self::Descendants { shell, .. } => {
                reap_but(shell.load(Ordering::Acquire));
            }
            #[cfg(test)]
            Self::Group { .. } => {}
        }
    }

    fn shell(&self) -> &AtomicU32 {
        match self {
            Self::Namespace { shell } | Self::Descendants { shell, .. } => shell,
            #[cfg(test)]
            Self::Group { shell } => shell,
        }
    }
}

fn reap_but(shell: u32) {
    // The kernel shows zombies one at a time; the shell's hides the rest until its owner takes it,
    // and the owner reaps again after that.
    while let Some(pid) = ended_child() {
        let is_shell = pid.as_raw_nonzero().get().unsigned_abs() == shell;
        if is_shell || waitpid(Some(pid), WaitOptions::NOHANG).is_err() {
            return;
        }
    }
}

/// A child that has ended and is not collected yet.
fn ended_child() -> Option<Pid> {
    let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: siginfo_t is plain data, for which all zeroes is a valid value; waitid writes to it
    // alone, and si_pid reads a field that waitid fills in or that stays zero.
    let pid = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        match libc::waitid(libc::P_ALL, 0, &raw mut info, look) {
            0 => info.si_pid(),
            _ => 0,
        }
    };
    Pid::from_raw(pid)
}

/// Kills descendants until a whole look at the process table finds none alive: a process that
/// forks while it is looked for has a parent that is found.
fn kill_descendants() {
    // Each round kills every process seen, so only one that forks faster than /proc is read
    // survives many of them; the process limit ends that.
    for _ in 0..50 {
        let alive = descendants();
        if alive.is_empty() {
            return;
        }
        for pid in alive {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn descendants() -> Vec<Pid> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The command's name may hold anything; the fields after its last parenthesis are fixed.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let zombie = fields.next() == Some("Z");
        let Some(parent) = fields.next().and_then(|parent| parent.parse::<i32>().ok()) else {
            continue;
        };
        parents.insert(pid, (parent, zombie));
    }
    let own = std::process::id().cast_signed();
    let ours = |pid: i32| {
        let mut at = pid;
        // A table read while it changes may hold a loop; no real chain is as long as the table.
        for _ in 0..parents.len() {
            match parents.get(&at) {
                Some((parent, _)) if *parent == own => return true,
                Some((parent, _)) => at = *parent,
                None => return false,
            }
        }
        false
    };
    let alive = parents.iter().filter(|(pid, (_, zombie))| !zombie && ours(**pid));
    alive.filter_map(|(pid, _)| Pid::from_raw(*pid)).collect()
}
