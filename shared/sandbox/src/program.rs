//! One program in a fresh sandbox. The command line becomes the sandbox's guard itself meanwhile
//! ([`run`]); a runtime, which has threads and much memory, asks the helper for one ([`supervise`]).

use std::{
    ffi::OsString,
    fs, io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::{
    error::SandboxError,
    hands::{Blank, Ending, Watched, launch, sys},
    helper::Helper,
    line::{Line, Opened},
    pass,
    spec::{Layers, Network, Spec, WORKSPACE},
    wire::{self, Job, REPORT_BYTES_MAX, Report, Start},
};

pub use crate::wire::Exited;

const KILLED: i32 = 9;

/// What to run.
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

/// Runs a program with this process's standard streams in a fresh sandbox, and returns when nothing of it is left. `ready` is called once,
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
    let start = start(spec, program);
    let pair = UnixStream::pair().map_err(|why| refused(format!("cannot make a socket: {why}")))?;
    let (reports, inner_line) = pair;
    let mut seen = Seen { reports, network: spec.network, ready: Some(ready), end: None };
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let ending = Blank::prepare(&start.root, &start.mounts)
        .and_then(|blank| launch(blank, &start, inner_line, &streams, |w| seen.watch(w)))
        .map_err(refused)?;
    Ok(end(seen.end, ending))
}

/// The same by the helper, with `streams` as the program's standard input, output and errors. Dropping
/// the future ends everything inside. Needs a tokio runtime.
///
/// # Errors
/// When the host cannot give what `spec` asks for, and nothing ran; or the sandbox was lost.
pub async fn supervise(
    spec: &Spec,
    program: &Program,
    streams: [OwnedFd; 3],
    ready: impl FnOnce(&Layers, Option<TcpListener>),
) -> Result<End, SandboxError> {
    spec.check().map_err(|what| SandboxError::Spec { what })?;
    let helper = Helper::find(spec.helper_path.as_deref(), &spec.helper_args)?;
    let given = streams.each_ref().map(AsFd::as_fd);
    let Opened { mut line, layers, listener } =
        Line::open(&helper, &start(spec, program), &given).await?;
    drop(streams);
    ready(&layers, listener);
    let report = match line.socket() {
        Some(socket) => wire::read_async(&mut socket.reports, REPORT_BYTES_MAX).await.ok(),
        None => None,
    };
    let seen = match report {
        Some(Report::Exited(exited)) => Some(End::Exited(exited)),
        Some(Report::Ready(_) | Report::Refused { .. } | Report::Reply(_)) | None => None,
    };
    let ending = line.ended().await.map_err(|why| SandboxError::Gone { why })?;
    Ok(end(seen, ending))
}

fn start(spec: &Spec, program: &Program) -> Start {
    let (home, workspace) = match program.workspace {
        Workspace::Mounted => (WORKSPACE, Some(spec.workspace.clone())),
        Workspace::None => ("/tmp", None),
    };
    let directory = program.directory.clone().unwrap_or_else(|| home.into());
    Start::of(spec, Job::Program { argv: program.argv.clone(), directory }, workspace)
}

/// How it ended, by what was seen of the program and what the guard found.
fn end(seen: Option<End>, ending: Ending) -> End {
    match (seen, ending) {
        // The kernel kills with the signal that anybody may send.
        (Some(End::Exited(Exited::Signal(KILLED))), Ending::OutOfMemory) => End::OutOfMemory,
        (Some(end), _) => end,
        (None, Ending::LifeOver) => End::TimeOver,
        (None, Ending::OutOfMemory) => End::OutOfMemory,
        (None, Ending::DiskFull) => End::DiskFull,
        (None, Ending::InsideDied | Ending::Released | Ending::Refused) => End::Died,
    }
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
