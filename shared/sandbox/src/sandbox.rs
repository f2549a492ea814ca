//! The supervisor's side of a `namespaces` sandbox: asks the helper for it, sends calls, keeps the
//! outer deadline, and ends everything when it is dropped. Needs a tokio runtime.

use std::{
    fs, io,
    net::TcpListener as StdListener,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use crate::{
    call::{Call, Reply},
    error::SandboxError,
    helper::Helper,
    line::{Line, Opened, Socket},
    spec::{Layers, Spec},
    wire::{self, Job, ORDER_BYTES_MAX, Order, REPORT_BYTES_MAX, Report, Start},
};

/// How much later than a call's own deadline its answer may come.
const GRACE_MS: u64 = 5_000;

/// One running sandbox. Dropping it ends everything inside.
pub struct Sandbox {
    layers: Layers,
    guard: Option<Arc<OwnedFd>>,
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
        let helper = Helper::find(spec.helper_path.as_deref(), &spec.helper_args)?;
        let Opened { line, layers, listener } = Line::open(&helper, &start, &[]).await?;
        let (requests, queue) = mpsc::channel(16);
        let (alive, dropped) = oneshot::channel();
        let guard = line.guard();
        let keeper = Keeper { line, call_ms_max: spec.limits.call_ms_max };
        tokio::spawn(keeper.run(queue, dropped));
        Ok(Self { layers, guard, listener, requests, _alive: alive })
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

    /// The process on the host that is the parent of everything inside, for logs and metrics; `None`
    /// once it has ended.
    pub fn guard_pid(&self) -> Option<u32> {
        let number = self.guard.as_ref()?.as_raw_fd();
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        // -1 when it has ended (`pidfd_open(2)`).
        told.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
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
    let helper = Helper::find(helper, &[]).map_err(|why| why.to_string())?;
    let opened = Line::open(&helper, &start, &[]).await;
    let Opened { mut line, layers, .. } = opened.map_err(|why| why.to_string())?;
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
        let Some(socket) = self.line.socket() else {
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
