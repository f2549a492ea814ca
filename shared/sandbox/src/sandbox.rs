//! The supervisor's side of a `namespaces` sandbox: starts the helper, sends calls, keeps the
//! outer deadline, and ends everything when it is dropped. Needs a tokio runtime.

use std::{
    env, io,
    net::TcpListener as StdListener,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::Interest,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::{Child, Command},
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    call::{Call, Reply},
    error::SandboxError,
    hands::Ending,
    pass,
    spec::{Layers, Network, Spec},
    wire::{self, Job, ORDER_BYTES_MAX, Order, REPORT_BYTES_MAX, Report, Start},
};

/// How long the helper may take to build the sandbox. It needs milliseconds; a machine under full
/// load may need seconds.
const READY_MS_MAX: u64 = 20_000;

/// How much later than a call's own deadline its answer may come.
const GRACE_MS: u64 = 5_000;

/// How long the helper may take to end everything after it was told to.
const END_MS_MAX: u64 = 5_000;

const HELPER: &str = "tailstep-hands";

/// One running sandbox. Dropping it ends everything inside.
pub struct Sandbox {
    layers: Layers,
    guard_pid: Option<u32>,
    listener: Option<StdListener>,
    requests: mpsc::Sender<Request>,
    /// Closed by dropping the sandbox, which ends a running call too.
    _alive: oneshot::Sender<()>,
}

enum Request {
    Execute { call: Call, answer: oneshot::Sender<Result<Reply, SandboxError>> },
    Destroy { done: oneshot::Sender<()> },
}

impl Sandbox {
    /// Starts a sandbox and waits until it is ready for calls.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] when the host cannot give what `spec` asks for; nothing ran then.
    pub async fn provision(spec: &Spec) -> Result<Self, SandboxError> {
        spec.check().map_err(|what| SandboxError::Spec { what })?;
        if !spec.workspace.is_absolute() || !spec.workspace.is_dir() {
            let what = format!(
                "workspace {} must be the absolute path of an existing directory",
                spec.workspace.display()
            );
            return Err(SandboxError::Spec { what });
        }
        let start = Start::of(spec, Job::Tools, Some(spec.workspace.clone()));
        let helper = helper_path(spec.helper_path.as_deref())?;
        let (line, layers, listener) = Line::start(&helper, &spec.helper_args, start).await?;
        let (requests, queue) = mpsc::channel(16);
        let (alive, dropped) = oneshot::channel();
        let guard_pid = line.guard.id();
        let keeper = Keeper { line, call_ms_max: spec.limits.call_ms_max };
        tokio::spawn(keeper.run(queue, dropped));
        Ok(Self { layers, guard_pid, listener, requests, _alive: alive })
    }

    /// Which walls stand, and which are missing and why.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// The listener at [`PROXY`](crate::PROXY) inside, when the specification asked for one; once.
    /// What is accepted from it came from the sandbox.
    pub fn take_listener(&mut self) -> Option<StdListener> {
        self.listener.take()
    }

    /// The helper's process on the host, the parent of everything inside, for logs and metrics.
    pub fn guard_pid(&self) -> Option<u32> {
        self.guard_pid
    }

    /// Runs one call. Calls run one after another; a call whose id this sandbox has seen before
    /// gets its first reply. Dropping the future stops the call.
    ///
    /// # Errors
    /// When the sandbox is gone, or was killed because it did not answer in time. What a tool says
    /// is a reply, failure and time-out included.
    pub async fn execute(&self, call: Call) -> Result<Reply, SandboxError> {
        let (answer, reply) = oneshot::channel();
        let gone = || SandboxError::Gone { why: "it was destroyed".into() };
        self.requests.send(Request::Execute { call, answer }).await.map_err(|_| gone())?;
        reply.await.map_err(|_| gone())?
    }

    /// Ends everything inside and waits until it is gone. Doing it again does nothing.
    pub async fn destroy(&self) {
        let (done, gone) = oneshot::channel();
        if self.requests.send(Request::Destroy { done }).await.is_ok() {
            let _ = gone.await;
        }
    }
}

/// Looks whether this host can isolate, by building a sandbox without a workspace and ending it.
///
/// # Errors
/// One line that says what is missing and what to change.
pub async fn check_host(helper: Option<&Path>) -> Result<Layers, String> {
    let start = Start::of(&Spec::new("/"), Job::Look, None);
    let helper = helper_path(helper).map_err(|why| why.to_string())?;
    let started = Line::start(&helper, &[], start).await;
    let (mut line, layers, _) = started.map_err(|why| why.to_string())?;
    line.end().await;
    Ok(layers)
}

/// Owns the line to the helper; the only one who reads and writes it, so that a caller that goes
/// away leaves no half-read frame behind.
struct Keeper {
    line: Line,
    call_ms_max: u64,
}

impl Keeper {
    async fn run(mut self, mut queue: mpsc::Receiver<Request>, dropped: oneshot::Receiver<()>) {
        let lost = tokio::select! {
            lost = self.serve(&mut queue) => lost,
            _ = dropped => Lost::Released { done: None },
        };
        let why = match lost {
            Lost::Released { done } => {
                self.line.end().await;
                if let Some(done) = done {
                    let _ = done.send(());
                }
                return;
            }
            Lost::Ended { why } => why,
            Lost::Silent => {
                self.line.kill().await;
                "it was killed because it did not answer".into()
            }
        };
        // Whoever still asks learns what happened.
        while let Some(request) = queue.recv().await {
            match request {
                Request::Execute { answer, .. } => {
                    let _ = answer.send(Err(SandboxError::Gone { why: why.clone() }));
                }
                Request::Destroy { done } => {
                    let _ = done.send(());
                }
            }
        }
    }

    async fn serve(&mut self, queue: &mut mpsc::Receiver<Request>) -> Lost {
        loop {
            match queue.recv().await {
                None => return Lost::Released { done: None },
                Some(Request::Destroy { done }) => return Lost::Released { done: Some(done) },
                Some(Request::Execute { call, answer }) => {
                    if let Err(lost) = self.execute(call, answer).await {
                        return lost;
                    }
                }
            }
        }
    }

    async fn execute(
        &mut self,
        call: Call,
        mut answer: oneshot::Sender<Result<Reply, SandboxError>>,
    ) -> Result<(), Lost> {
        let asked_ms = if call.timeout_ms == 0 { u64::MAX } else { call.timeout_ms };
        let wait_ms = asked_ms.min(self.call_ms_max).saturating_add(GRACE_MS);
        let call_id = call.call_id.clone();
        let frame = match wire::frame(&Order::Call(call), ORDER_BYTES_MAX) {
            Ok(frame) => frame,
            Err(_) => {
                let too_large = SandboxError::CallTooLarge { bytes_max: ORDER_BYTES_MAX };
                let _ = answer.send(Err(too_large));
                return Ok(());
            }
        };
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        let Some(socket) = self.line.socket.as_mut() else {
            return Err(Lost::Ended { why: "it has ended".into() });
        };
        let outcome = tokio::select! {
            outcome = exchange(socket, &frame, &call_id, &mut answer) => Some(outcome),
            () = sleep_until(deadline) => None,
        };
        match outcome {
            Some(Ok(Report::Reply(reply))) => {
                let _ = answer.send(Ok(reply));
                Ok(())
            }
            Some(Ok(Report::Ready(_) | Report::Refused { .. } | Report::Exited(_)) | Err(_)) => {
                let why = self.line.end().await;
                let _ = answer.send(Err(SandboxError::Gone { why: why.clone() }));
                Err(Lost::Ended { why })
            }
            None => {
                let _ = answer.send(Err(SandboxError::Unresponsive { waited_ms: wait_ms }));
                Err(Lost::Silent)
            }
        }
    }
}

/// Why a keeper stops serving.
enum Lost {
    Released {
        done: Option<oneshot::Sender<()>>,
    },
    Ended {
        why: String,
    },
    /// It did not answer in time.
    Silent,
}

/// Sends a call and waits for its report. When nobody waits for the answer any more, the call is
/// stopped, and its report still awaited, so that the next one is not mistaken for it.
async fn exchange(
    socket: &mut Socket,
    frame: &[u8],
    call_id: &str,
    answer: &mut oneshot::Sender<Result<Reply, SandboxError>>,
) -> io::Result<Report> {
    let Socket { reports, orders } = socket;
    wire::write_async(orders, frame).await?;
    let report = wire::read_async(reports, REPORT_BYTES_MAX);
    tokio::pin!(report);
    tokio::select! {
        report = &mut report => return report,
        () = answer.closed() => {}
    }
    let cancel = wire::frame(&Order::Cancel { call_id: call_id.into() }, ORDER_BYTES_MAX)?;
    wire::write_async(orders, &cancel).await?;
    report.await
}

/// The connection to a helper, and the helper's own process, the guard.
struct Line {
    /// `None` once it was closed.
    socket: Option<Socket>,
    guard: Child,
}

struct Socket {
    reports: OwnedReadHalf,
    orders: OwnedWriteHalf,
}

impl Line {
    async fn start(
        helper: &Path,
        args: &[String],
        start: Start,
    ) -> Result<(Self, Layers, Option<StdListener>), SandboxError> {
        let failed = |source| SandboxError::Start { path: helper.to_owned(), source };
        let (ours, theirs) = StdStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let (reports, orders) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        // Without hooks between fork and exec the standard library uses posix_spawn, whose cost
        // does not grow with the memory of this process.
        let guard = Command::new(helper)
            // Seen inside as the name of PID 1: a path would tell of the host.
            .arg0(HELPER)
            .args(args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let mut line = Self { socket: Some(Socket { reports, orders }), guard };
        let limit = Duration::from_millis(READY_MS_MAX);
        match timeout(limit, line.hello(start)).await {
            Ok(Ok((Report::Ready(layers), listener))) => Ok((line, layers, listener)),
            Ok(Ok((Report::Refused { why }, _))) => {
                line.end().await;
                Err(SandboxError::Refused { why })
            }
            Ok(Ok((Report::Reply(_) | Report::Exited(_), _)) | Err(_)) => {
                let why = line.end().await;
                Err(SandboxError::Refused { why: format!("the helper gave no answer: {why}") })
            }
            Err(_) => {
                line.kill().await;
                Err(SandboxError::Unresponsive { waited_ms: READY_MS_MAX })
            }
        }
    }

    async fn hello(&mut self, start: Start) -> io::Result<(Report, Option<StdListener>)> {
        let socket = self.socket.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let network = start.network;
        let frame = wire::frame(&Order::Start(start), ORDER_BYTES_MAX)?;
        wire::write_async(&mut socket.orders, &frame).await?;
        let report = wire::read_async(&mut socket.reports, REPORT_BYTES_MAX).await?;
        let listener = match (&report, network) {
            (Report::Ready(_), Network::Proxy) => {
                let line: &UnixStream = socket.reports.as_ref();
                let listener = line.async_io(Interest::READABLE, || pass::receive(line)).await?;
                Some(StdListener::from(listener))
            }
            (Report::Ready(_), Network::None)
            | (Report::Refused { .. } | Report::Reply(_) | Report::Exited(_), _) => None,
        };
        Ok((report, listener))
    }

    /// Closes the line, which ends everything inside, and says how the guard saw it end.
    async fn end(&mut self) -> String {
        self.socket = None;
        match timeout(Duration::from_millis(END_MS_MAX), self.guard.wait()).await {
            Ok(Ok(status)) => describe(status.code()),
            Ok(Err(_)) | Err(_) => {
                self.kill().await;
                "its guard did not end and was killed".into()
            }
        }
    }

    /// Kills the guard. PID 1 sees that and ends as well.
    async fn kill(&mut self) {
        self.socket = None;
        // Fails only when the guard has ended already.
        let _ = self.guard.kill().await;
    }
}

fn describe(code: Option<i32>) -> String {
    match code.and_then(Ending::from_code) {
        Some(Ending::Released) => "it was ended".into(),
        Some(Ending::LifeOver) => "its time was over (life_ms_max)".into(),
        Some(Ending::InsideDied) => "its first process died".into(),
        Some(Ending::OutOfMemory) => {
            "it used more memory than its limit, and the kernel ended it (memory_bytes)".into()
        }
        Some(Ending::DiskFull) => {
            "it went on writing to its workspace or outputs beyond the limit \
             (disk_bytes, disk_entries_max)"
                .into()
        }
        Some(Ending::Refused) => "it could not be started".into(),
        None => match code {
            Some(code) => format!("its guard exited with code {code}"),
            None => "its guard was killed".into(),
        },
    }
}

fn helper_path(explicit: Option<&Path>) -> Result<PathBuf, SandboxError> {
    if let Some(path) = explicit {
        return match path.is_file() {
            true => Ok(path.to_owned()),
            false => Err(SandboxError::NoHelper { looked_in: path.display().to_string() }),
        };
    }
    let program = env::current_exe().unwrap_or_default();
    // Test programs lie one directory below the others.
    let beside: Vec<&Path> = program.ancestors().skip(1).take(2).collect();
    let found = beside.iter().map(|directory| directory.join(HELPER)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let looked_in: Vec<String> = beside.iter().map(|path| path.display().to_string()).collect();
        SandboxError::NoHelper { looked_in: looked_in.join(" and ") }
    })
}
