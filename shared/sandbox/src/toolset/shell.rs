//! The persistent shell: one bash that runs command after command, keeping its directory,
//! variables and functions. A command has ended when its foreground part has, whatever still holds
//! the output open. It must not know what a command means.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionbio, ioctl_fionread},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    Surroundings,
    output::{Kept, Output},
    stop::Stop,
};

/// Where bash is looked for; the search path of the caller is not trusted.
const BASH: [&str; 3] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"];

/// Gives the shell its own end-of-command channel (descriptor 9, which commands do not inherit) and a
/// spare of its output (8), joins error output to output, and lets the kernel's out-of-memory killer take commands before
/// PID 1; half of the scale, so that a command can offer itself up before others.
const PROLOGUE: &str = "exec 9>&2 2>&1 8>&1; \
    { builtin echo 500 >/proc/self/oom_score_adj; } 2>/dev/null\n";

/// How long a killed shell may take to vanish before it is left behind.
const EXIT_WAIT: Duration = Duration::from_millis(2_000);

pub(super) struct Shell {
    child: Child,
    /// Readable when the shell has exited.
    exit: OwnedFd,
    script: OwnedFd,
    done: OwnedFd,
    /// What came over `done` and is not a whole line yet.
    partial: Vec<u8>,
    sink: Arc<Sink>,
    /// Dropping it ends the reader.
    _reader_stop: OwnedFd,
    serial: u64,
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited {
        code: i32,
    },
    /// The shell itself ended: `exit`, `exec`, a signal. `None` when its status is not known.
    ShellGone {
        code: Option<i32>,
    },
    Deadline,
    Stopped,
}

impl Shell {
    pub(super) fn start(surroundings: &Surroundings, directory: &Path) -> io::Result<Self> {
        let bash = BASH.iter().find(|path| Path::new(path).exists()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no bash at {}", BASH.join(", ")))
        })?;
        let (script_in, script) = pipe_with(PipeFlags::CLOEXEC)?;
        let (output, output_in) = pipe_with(PipeFlags::CLOEXEC)?;
        let (done, done_in) = pipe_with(PipeFlags::CLOEXEC)?;
        let (reader_wake, reader_stop) = pipe_with(PipeFlags::CLOEXEC)?;
        for ours in [&script, &output, &done] {
            ioctl_fionbio(ours, true)?;
        }
        let mut command = Command::new(bash);
        // The name stands in front of every message of the shell.
        command
            .arg0("bash")
            .args(["--noprofile", "--norc", "-s"])
            .current_dir(directory)
            .env_clear();
        command.envs(surroundings.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::from(script_in)).stdout(Stdio::from(output_in));
        command.stderr(Stdio::from(done_in));
        surroundings.reach.prepare(&mut command);
        let mut child = command.spawn()?;
        let exit = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(exit) => exit,
            Err(why) => {
                // Without a way to see its end the shell is of no use.
                let _ = child.kill();
                let _ = child.wait();
                return Err(why.into());
            }
        };
        surroundings.reach.adopt(child.id());
        let sink = Arc::new(Sink { output, current: Mutex::new(None) });
        let reader = Arc::clone(&sink);
        thread::Builder::new()
            .name("shell-output".into())
            .spawn(move || reader.run(reader_wake))?;
        let mut shell = Self {
            child,
            exit,
            script,
            done,
            partial: Vec::new(),
            sink,
            _reader_stop: reader_stop,
            serial: 0,
        };
        shell.send_all(PROLOGUE.as_bytes(), Instant::now() + EXIT_WAIT)?;
        Ok(shell)
    }

    /// Runs one command, which holds no NUL, and waits for its end. After any end but
    /// [`End::Exited`] the shell is of no further use; after a deadline or stop it still runs.
    pub(super) fn run(
        &mut self,
        command: &str,
        deadline: Instant,
        stop: &Stop,
        output_bytes_max: u64,
    ) -> io::Result<End> {
        self.serial += 1;
        let serial = self.serial;
        let quoted = command.replace('\'', r"'\''");
        // An earlier command may have closed or diverted the output for good: each gets it anew. The
        // command sees neither the script nor the channel; the group keeps bash from running on into
        // the next line when the command reads its input.
        let script = format!(
            "{{ builtin eval '{quoted}'; }} </dev/null >&8 2>&8 8>&- 9>&-\n\
             builtin printf '%s %s\\n' {serial} \"$?\" >&9\n"
        );
        self.sink.begin(output_bytes_max);
        self.converse(script.as_bytes(), serial, deadline, stop)
    }

    /// Everything the command has written so far; what comes later is dropped.
    pub(super) fn take_output(&self) -> Kept {
        self.sink.take().finish()
    }

    /// Waits for the killed shell, so that no zombie stays.
    pub(super) fn bury(mut self) {
        let wait = Timespec::try_from(EXIT_WAIT).ok();
        let mut ready = [PollFd::new(&self.exit, PollFlags::IN)];
        if poll(&mut ready, wait.as_ref()).is_ok_and(|count| count > 0) {
            let _ = self.child.wait();
        }
    }

    fn converse(
        &mut self,
        script: &[u8],
        serial: u64,
        deadline: Instant,
        stop: &Stop,
    ) -> io::Result<End> {
        let mut unsent = script;
        loop {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Ok(End::Deadline);
            };
            if stop.asked() {
                return Ok(End::Stopped);
            }
            let script_flags = if unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            let mut ready = [
                PollFd::new(&self.done, PollFlags::IN),
                PollFd::new(&self.exit, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.event(), PollFlags::IN),
                PollFd::new(&self.script, script_flags),
            ];
            let seen = if unsent.is_empty() { &mut ready[..3] } else { &mut ready[..] };
            match poll(seen, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
            let exited = !ready[1].revents().is_empty();
            if let Some(code) = self.hear(serial)? {
                return Ok(End::Exited { code });
            }
            if exited {
                return Ok(End::ShellGone { code: self.status() });
            }
            unsent = self.send(unsent)?;
        }
    }

    /// Reads the end-of-command channel; `Some` when it tells the end of command `serial`.
    fn hear(&mut self, serial: u64) -> io::Result<Option<i32>> {
        let mut buffer = [0; 512];
        let count = match rustix::io::read(&self.done, &mut buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        let mut found = None;
        for byte in &buffer[..count] {
            if *byte != b'\n' {
                // Anything a command writes here by way of /proc is noise; it must not pile up.
                if self.partial.len() < 64 {
                    self.partial.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.partial);
            if let Some(code) = line.strip_prefix(&format!("{serial} ")) {
                found = code.parse().ok().or(found);
            }
            self.partial.clear();
        }
        Ok(found)
    }

    fn send<'a>(&self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match rustix::io::write(&self.script, bytes) {
            Ok(count) => Ok(&bytes[count..]),
            // The shell is gone or about to be: its exit is what ends the wait.
            Err(Errno::AGAIN | Errno::INTR | Errno::PIPE) => Ok(bytes),
            Err(why) => Err(why.into()),
        }
    }

    fn send_all(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = self.send(bytes)?;
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn status(&mut self) -> Option<i32> {
        let status = self.child.wait().ok()?;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }
}

/// Reads the output pipe all the time, so that background jobs never block on it; keeps what
/// arrives while a command runs.
struct Sink {
    output: OwnedFd,
    /// Reads happen with this lock held: whoever holds it knows that nothing is in between.
    current: Mutex<Option<Output>>,
}

impl Sink {
    fn begin(&self, bytes_max: u64) {
        let mut current = self.lock();
        // What background jobs wrote since the last command belongs to no command.
        self.drain(&mut None);
        *current = Some(Output::new(bytes_max));
    }

    fn take(&self) -> Output {
        let mut current = self.lock();
        self.drain(&mut current);
        current.take().unwrap_or_else(|| Output::new(0))
    }

    /// Reads what the pipe holds now. A background writer that never pauses cannot keep this
    /// going, since the amount is fixed at the start.
    fn drain(&self, current: &mut Option<Output>) {
        let mut left = ioctl_fionread(&self.output).unwrap_or(0);
        let mut buffer = vec![0; 64 << 10];
        while left > 0 {
            let Ok(count @ 1..) = rustix::io::read(&self.output, &mut buffer) else { return };
            left = left.saturating_sub(count as u64);
            if let Some(output) = current {
                output.push(&buffer[..count]);
            }
        }
    }

    fn run(&self, wake: OwnedFd) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let mut ready =
                [PollFd::new(&self.output, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            let mut current = self.lock();
            match rustix::io::read(self.output.as_fd(), &mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if let Some(output) = current.as_mut() {
                        output.push(&buffer[..count]);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Output>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
