//! The supervisor's connection to one sandbox: a socket to PID 1, and word from the guard above it.
//! Needs a tokio runtime.

use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    sync::Arc,
    time::Duration,
};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::{
    error::SandboxError,
    hands::Ending,
    helper::{Helper, Server},
    pass,
    spec::{Layers, Network},
    wire::{self, ORDER_BYTES_MAX, REPORT_BYTES_MAX, Report, Start},
};

/// How long the helper may take to build the sandbox. It needs milliseconds; a machine under full
/// load may need seconds.
const READY_MS_MAX: u64 = 20_000;

/// How long the guard may take to end everything after it was told to.
const END_MS_MAX: u64 = 5_000;

/// Dropping it ends everything inside.
pub(crate) struct Line {
    /// `None` once it was closed.
    socket: Option<Socket>,
    /// What the guard says of itself; ends with it.
    status: StdStream,
    /// The guard, once it has told.
    guard: Option<Arc<OwnedFd>>,
}

pub(crate) struct Socket {
    pub(crate) reports: OwnedReadHalf,
    pub(crate) orders: OwnedWriteHalf,
}

/// A sandbox whose walls stand.
pub(crate) struct Opened {
    pub(crate) line: Line,
    pub(crate) layers: Layers,
    /// The proxy's listener, when there is one.
    pub(crate) listener: Option<TcpListener>,
}

impl Line {
    /// Starts a sandbox, and waits until its walls stand. `streams` are a program's three.
    pub(crate) async fn open(
        helper: &Helper,
        start: &Start,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Opened, SandboxError> {
        let frame = wire::frame(start, ORDER_BYTES_MAX)
            .map_err(|why| SandboxError::Spec { what: format!("it cannot be sent: {why}") })?;
        // A helper that was killed in between is found out by its silence.
        for _ in 0..2 {
            let server = helper.server()?;
            match Self::ask(&server, &frame, start.network, streams).await {
                Ok(Some(opened)) => return Ok(opened),
                Ok(None) => helper.forget(&server),
                Err(why) => {
                    if let SandboxError::Unresponsive { .. } = why {
                        helper.forget(&server);
                    }
                    return Err(why);
                }
            }
        }
        let why = "the helper gave no answer: it ended before it began".into();
        Err(SandboxError::Refused { why })
    }

    /// `None` when the helper died before it took the request.
    async fn ask(
        server: &Server,
        frame: &[u8],
        network: Network,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Option<Opened>, SandboxError> {
        let failed = |why: io::Error| SandboxError::Refused {
            why: format!("cannot reach the helper: {why}"),
        };
        let (mut line, theirs) = Self::pair().map_err(failed)?;
        let limit = Duration::from_millis(READY_MS_MAX);
        let hello = async {
            let ends = [theirs.0.as_fd(), theirs.1.as_fd()];
            server.request(&[&ends, streams].concat()).await?;
            // Ours must not be the last ends of these, or the guard's death would go unseen.
            drop(theirs);
            line.hello(frame, network).await
        };
        let outcome = timeout(limit, hello).await;
        line.meet_guard();
        match outcome {
            Ok(Ok((Report::Ready(layers), listener))) => {
                Ok(Some(Opened { line, layers, listener }))
            }
            Ok(Ok((Report::Refused { why }, _))) => {
                line.end().await;
                Err(SandboxError::Refused { why })
            }
            Ok(_) if line.guard.is_none() => Ok(None),
            Ok(_) => {
                let why = line.end().await;
                Err(SandboxError::Refused { why: format!("the helper gave no answer: {why}") })
            }
            Err(_) => {
                line.kill().await;
                Err(SandboxError::Unresponsive { waited_ms: READY_MS_MAX })
            }
        }
    }

    /// A line and the helper's ends of it: that of the socket and that of the status.
    fn pair() -> io::Result<(Self, (StdStream, StdStream))> {
        let (socket, their_socket) = StdStream::pair()?;
        let (status, their_status) = StdStream::pair()?;
        socket.set_nonblocking(true)?;
        status.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(socket)?.into_split();
        let line = Self { socket: Some(Socket { reports, orders }), status, guard: None };
        Ok((line, (their_socket, their_status)))
    }

    async fn hello(
        &mut self,
        frame: &[u8],
        network: Network,
    ) -> io::Result<(Report, Option<TcpListener>)> {
        let socket = self.socket.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        wire::write_async(&mut socket.orders, frame).await?;
        let report = wire::read_async(&mut socket.reports, REPORT_BYTES_MAX).await?;
        let listener = match (&report, network) {
            (Report::Ready(_), Network::Proxy) => {
                let line: &UnixStream = socket.reports.as_ref();
                let listener = line.async_io(Interest::READABLE, || pass::receive(line)).await?;
                Some(TcpListener::from(listener))
            }
            (Report::Ready(_), Network::None)
            | (Report::Refused { .. } | Report::Reply(_) | Report::Exited(_), _) => None,
        };
        Ok((report, listener))
    }

    /// Takes the guard's descriptor, which it sends before anything else.
    fn meet_guard(&mut self) {
        if self.guard.is_none() {
            self.guard = pass::receive(&self.status).ok().map(Arc::new);
        }
    }

    pub(crate) fn guard(&self) -> Option<Arc<OwnedFd>> {
        self.guard.clone()
    }

    /// `None` once it was closed.
    pub(crate) fn socket(&mut self) -> Option<&mut Socket> {
        self.socket.as_mut()
    }

    /// Closes the line, which ends everything inside, and says how the guard saw it end.
    pub(crate) async fn end(&mut self) -> String {
        self.close().await.map_or_else(|why| why, describe)
    }

    async fn close(&mut self) -> Result<Ending, String> {
        self.socket = None;
        self.ended().await
    }

    /// Waits for an end that has begun, until nothing is left.
    pub(crate) async fn ended(&mut self) -> Result<Ending, String> {
        match self.last_word().await {
            Some(Ok(code)) => {
                Ending::from_code(code).ok_or_else(|| "its guard did not say how".into())
            }
            Some(Err(_)) => Err("its guard was killed".into()),
            None => {
                self.kill().await;
                Err("its guard did not end and was killed".into())
            }
        }
    }

    /// Kills the guard. PID 1 sees that and ends as well.
    pub(crate) async fn kill(&mut self) {
        self.socket = None;
        let Some(guard) = &self.guard else { return };
        // Fails only when the guard has ended already.
        let _ = pidfd_send_signal(guard, Signal::KILL);
        self.last_word().await;
    }

    /// Waits for the byte that the guard says at its end; not for ever.
    async fn last_word(&self) -> Option<io::Result<u8>> {
        let word = async { UnixStream::from_std(self.status.try_clone()?)?.read_u8().await };
        timeout(Duration::from_millis(END_MS_MAX), word).await.ok()
    }
}

fn describe(ending: Ending) -> String {
    match ending {
        Ending::Released => "it was ended".into(),
        Ending::LifeOver => "its time was over (life_ms_max)".into(),
        Ending::InsideDied => "its first process died".into(),
        Ending::OutOfMemory => {
            "it used more memory than its limit, and the kernel ended it (memory_bytes)".into()
        }
        Ending::DiskFull => "it went on writing to its workspace or outputs beyond the limit \
             (disk_bytes, disk_entries_max), or nested directories more than 256 deep"
            .into(),
        Ending::Refused => "it could not be started".into(),
    }
}
