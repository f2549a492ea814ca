//! One program in a fresh sandbox, started from this very process, which becomes the sandbox's guard
//! meanwhile. For small programs such as the command line: a large one starts the helper instead
//! ([`crate::Sandbox`]), since forking it would cost too much.

use std::{ffi::OsString, fs, net::TcpListener, os::unix::net::UnixStream, path::PathBuf};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::{
    error::SandboxError,
    hands::{Ending, Watched, launch, sys},
    pass,
    spec::{Layers, Network, Spec, WORKSPACE},
    wire::{self, Job, REPORT_BYTES_MAX, Report, Start},
};

pub use crate::wire::Exited;

const KILLED: i32 = 9;

/// What to run, with this process's standard streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program and its arguments; looked for in the `PATH` of the sandbox.
    pub argv: Vec<OsString>,
    /// Where it begins: `None` for the workspace if there is one, else `/tmp`.
    pub directory: Option<PathBuf>,
    /// Whether `spec.workspace` is there.
    pub workspace: Workspace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workspace {
    /// The specification's directory, given to the sandbox's user.
    Mounted,
    /// None; the private `/tmp` is all that can be written to.
    None,
}

/// How a sandbox for one program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(Exited),
    /// Its time was over (`life_ms_max`).
    TimeOver,
    /// The kernel ended the sandbox for lack of memory (`memory_bytes`).
    OutOfMemory,
    /// It went on writing to its workspace beyond the limit (`disk_bytes`, `disk_entries_max`).
    DiskFull,
    /// This process was told to end, by this signal.
    Told(i32),
    /// Its first process died.
    Died,
}

/// Runs a program in a fresh sandbox and returns when nothing of it is left. `ready` is called once,
/// when the walls stand, with the proxy's listener if the specification asks for one; what the
/// program sends there before somebody accepts is kept by the kernel.
///
/// # Errors
/// When the host cannot give what `spec` asks for, or this process has more than one thread: the
/// fork of one with more would copy locks that nobody releases. Nothing ran then.
pub fn run(
    spec: &Spec,
    program: &Program,
    ready: impl FnOnce(&Layers, Option<TcpListener>),
) -> Result<End, SandboxError> {
    spec.check().map_err(|what| SandboxError::Spec { what })?;
    let refused = |why: String| SandboxError::Refused { why };
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count);
    if !matches!(threads, Ok(1)) {
        return Err(refused("it must be started by a process with one thread".into()));
    }
    sys::keep_descriptors_here()
        .map_err(|why| refused(format!("cannot mark descriptors: {why}")))?;
    let (home, workspace) = match program.workspace {
        Workspace::Mounted => (WORKSPACE, Some(spec.workspace.clone())),
        Workspace::None => ("/tmp", None),
    };
    let directory = program.directory.clone().unwrap_or_else(|| home.into());
    let job = Job::Program { argv: program.argv.clone(), directory };
    let start = Start::of(spec, job, workspace);
    let pair = UnixStream::pair().map_err(|why| refused(format!("cannot make a socket: {why}")))?;
    let (reports, inner_line) = pair;
    let mut seen = Seen { reports, network: spec.network, ready: Some(ready), end: None };
    let ending = launch(&start, inner_line, |watched| seen.watch(watched));
    let ending = ending.map_err(refused)?;
    Ok(match (seen.end, ending) {
        // The kernel kills with the signal that anybody may send.
        (Some(End::Exited(Exited::Signal(KILLED))), Ending::OutOfMemory) => End::OutOfMemory,
        (Some(end), _) => end,
        (None, Ending::LifeOver) => End::TimeOver,
        (None, Ending::OutOfMemory) => End::OutOfMemory,
        (None, Ending::DiskFull) => End::DiskFull,
        (None, Ending::InsideDied | Ending::Released | Ending::Refused) => End::Died,
    })
}

/// What the guard has seen of its sandbox.
struct Seen<F> {
    reports: UnixStream,
    network: Network,
    ready: Option<F>,
    end: Option<End>,
}

impl<F: FnOnce(&Layers, Option<TcpListener>)> Seen<F> {
    /// Waits until PID 1 is gone, the time is over or somebody asks this process to end.
    fn watch(&mut self, watched: &mut Watched<'_>) -> Result<Ending, String> {
        let asked = sys::asked_to_end().map_err(|why| format!("cannot await signals: {why}"))?;
        loop {
            let wait = match watched.limit() {
                Ok(wait) => wait,
                Err(reached) => return Ok(reached),
            };
            let mut fds = [
                PollFd::new(&self.reports, PollFlags::IN),
                PollFd::new(&asked, PollFlags::IN),
                PollFd::new(watched.exit, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&wait)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(why) => return Err(format!("cannot wait for the sandbox: {why}")),
            }
            let [reported, told, ended] = fds.map(|fd| !fd.revents().is_empty());
            if told && let Some(signal) = sys::signal_of(&asked) {
                self.end = Some(End::Told(signal));
                return Ok(Ending::Released);
            }
            // A report may have come together with the end.
            if reported && self.take_report()? {
                continue;
            }
            if ended || reported {
                return Ok(Ending::InsideDied);
            }
        }
    }

    /// True when there was one.
    fn take_report(&mut self) -> Result<bool, String> {
        match wire::read(&mut self.reports, REPORT_BYTES_MAX) {
            Ok(Report::Ready(layers)) => {
                let listener = match self.network {
                    Network::Proxy => {
                        let listener = pass::receive(&self.reports);
                        let listener =
                            listener.map_err(|why| format!("no listener came out: {why}"))?;
                        Some(TcpListener::from(listener))
                    }
                    Network::None => None,
                };
                if let Some(ready) = self.ready.take() {
                    ready(&layers, listener);
                }
                Ok(true)
            }
            Ok(Report::Refused { why }) => Err(why),
            Ok(Report::Exited(exited)) => {
                self.end = Some(End::Exited(exited));
                Ok(true)
            }
            Ok(Report::Reply(_)) | Err(_) => Ok(false),
        }
    }
}
