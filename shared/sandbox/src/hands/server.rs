//! The helper process as the supervisor starts it, once: a fork server. Every sandbox gets a guard of
//! its own, forked from this small process, which is much cheaper than starting the program again; and
//! one guard is always forked ahead, with a PID 1 that waits. Nothing of one sandbox is ever in the
//! next: what a guard has when it is forked is what the helper had when it began.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::ExitCode,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    net::{SocketType, sockopt::socket_type},
    pipe::{PipeFlags, pipe_with},
    process::{PidfdFlags, getpid, pidfd_open, setsid},
};

use super::{
    Ending,
    blank::Blank,
    launch,
    sys::{self, Children, Forked, fork_into, handle_children},
    watch,
};
use crate::{
    pass,
    wire::{self, ORDER_BYTES_MAX, REPORT_BYTES_MAX, Report, Start},
};

/// How long the server rests when a guard could not be made, or died before it was wanted.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A supervisor that asks for a sandbox has its first frame ready.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The helper's main function: serves the supervisor at the other end of standard input until that
/// closes. Each request is one message with descriptors: a line, the status socket of the guard, and
/// for a program its three standard streams.
///
/// A program that carries the helper within itself calls this before it starts any thread and
/// before it opens anything.
pub fn main() -> ExitCode {
    if socket_type(io::stdin()) != Ok(SocketType::STREAM) {
        eprintln!("this program is started by a supervisor of sandboxes, not by hand");
        return ExitCode::FAILURE;
    }
    match take_control().and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes the supervisor's end from standard input, so that nothing inherits it by accident.
fn take_control() -> io::Result<UnixStream> {
    sys::close_leaked_descriptors()?;
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    // Away from the supervisor's terminal and its signals. Fails only for a group leader, which
    // the supervisor does not make of it.
    let _ = setsid();
    Ok(UnixStream::from(control))
}

fn serve(control: UnixStream) -> io::Result<()> {
    handle_children(Children::Forgotten)?;
    loop {
        let (taken, taken_in) = pipe_with(PipeFlags::CLOEXEC)?;
        match fork_into(0) {
            Ok(Forked::Child) => {
                drop(taken);
                guard(control, taken_in);
                sys::exit_now(0);
            }
            Ok(Forked::Parent { .. }) => {
                drop(taken_in);
                if !await_taken(&control, taken)? {
                    return Ok(());
                }
            }
            Err(why) => {
                if let Ok(Request { line, .. }) = Request::take(&control) {
                    refuse(line, format!("cannot fork a guard: {why}"));
                }
                if !rest(&control)? {
                    return Ok(());
                }
            }
        }
    }
}

/// Waits until the spare guard has a request or has died; false when the supervisor is gone.
fn await_taken(control: &UnixStream, taken: OwnedFd) -> io::Result<bool> {
    loop {
        let mut ready =
            [PollFd::new(control, PollFlags::RDHUP), PollFd::new(&taken, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) if !ready[0].revents().is_empty() => return Ok(false),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    match rustix::io::read(&taken, &mut [0u8]) {
        Ok(1) => Ok(true),
        Ok(_) | Err(_) => rest(control),
    }
}

/// False when the supervisor is gone.
fn rest(control: &UnixStream) -> io::Result<bool> {
    let mut gone = [PollFd::new(control, PollFlags::RDHUP)];
    match poll(&mut gone, Some(&REST)) {
        Ok(0) | Err(Errno::INTR) => Ok(true),
        Ok(_) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// What the supervisor sends for one sandbox.
struct Request {
    line: UnixStream,
    /// Gets a descriptor of the guard, and at last one byte, [`Ending::code`].
    status: UnixStream,
    streams: Vec<OwnedFd>,
}

impl Request {
    fn take(control: &UnixStream) -> io::Result<Self> {
        let mut came = pass::receive_message(control)?.into_iter();
        let (Some(line), Some(status)) = (came.next(), came.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(Self { line: line.into(), status: status.into(), streams: came.collect() })
    }
}

/// Becomes the guard of the next sandbox that is asked for.
fn guard(control: UnixStream, taken: OwnedFd) {
    if handle_children(Children::Awaited).is_err() {
        return;
    }
    let mut asked = [PollFd::new(&control, PollFlags::IN)];
    let at_once = poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    let ahead = if at_once { None } else { Blank::ahead() };
    let Ok(request) = Request::take(&control) else { return };
    // If the server dies, its supervisor must see nobody at the other end.
    drop(control);
    let taken = Taken(taken);
    let Request { line, mut status, streams } = request;
    let told = pidfd_open(getpid(), PidfdFlags::empty())
        .map_err(io::Error::from)
        .and_then(|own| pass::send(&status, own.as_fd()));
    if told.is_err() {
        return;
    }
    // While others wait, the next guard is made at once; else while PID 1 builds its walls.
    let taken = if at_once {
        drop(taken);
        None
    } else {
        Some(taken)
    };
    let ending = serve_one(&line, ahead, &streams, taken).unwrap_or_else(|why| {
        refuse(line, why);
        Ending::Refused
    });
    // When nobody listens any more there is nobody to tell.
    let _ = status.write_all(&[ending.code()]);
}

fn serve_one(
    mut line: &UnixStream,
    ahead: Option<Blank>,
    streams: &[OwnedFd],
    taken: Option<Taken>,
) -> Result<Ending, String> {
    let keep = |why| format!("cannot keep the line: {why}");
    line.set_read_timeout(Some(START_LIMIT)).map_err(keep)?;
    let Ok(start) = wire::read::<Start>(&mut line, ORDER_BYTES_MAX) else {
        return Err("the supervisor did not say what to start".into());
    };
    line.set_read_timeout(None).map_err(keep)?;
    let inner_line = line.try_clone().map_err(keep)?;
    let blank = match ahead {
        Some(blank) if blank.fits(&start) => blank,
        Some(_) | None => Blank::prepare(&start.root, &start.mounts)?,
    };
    let streams: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
    launch(blank, &start, inner_line, &streams, |watched| {
        drop(taken);
        Ok(watch(line, watched))
    })
}

/// Tells the server, when it is dropped, to fork the next guard.
struct Taken(OwnedFd);

impl Drop for Taken {
    fn drop(&mut self) {
        // A server that is gone forks no other.
        let _ = rustix::io::write(&self.0, b"t");
    }
}

fn refuse(mut line: UnixStream, why: String) {
    let _ = wire::write(&mut line, &Report::Refused { why }, REPORT_BYTES_MAX);
}
