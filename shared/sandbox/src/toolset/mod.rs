//! The tools, implemented once for every kind of hands: a child process in namespaces, a function
//! that is its own virtual machine, a worker over HTTP. It owns the working directory and the
//! shell, and bounds whatever comes back. It must not know sessions, models, transports or
//! credentials.

mod beneath;
mod files;
mod input;
mod lines;
mod output;
pub(crate) mod reach;
mod receipts;
mod search;
mod shell;
mod stop;
mod walk;

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::stop::Stop;
pub(crate) use self::{
    beneath::{Inner, PathError, Root},
    reach::Reach,
    walk::{Step, Walked, walk},
};
use self::{
    input::Fields,
    receipts::Receipts,
    shell::{End, Shell},
};
use crate::call::{Call, Reply};

/// A command's time when nobody says otherwise (API reference §9).
const BASH_MS_DEFAULT: u64 = 120_000;

/// The six tools over one directory. Calls run one after another.
pub struct Toolset {
    surroundings: Surroundings,
    root: Root,
    shell: Option<Shell>,
    receipts: Receipts,
    stop: Arc<Stop>,
}

/// Where a toolset works and within which limits.
pub(crate) struct Surroundings {
    /// The working directory, absolute.
    pub(crate) directory: PathBuf,
    /// The whole environment of commands.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) reach: Reach,
    pub(crate) output_bytes_max: u64,
    pub(crate) call_ms_max: u64,
    /// Counts processes that the kernel ended for lack of memory.
    pub(crate) oom_kills: Option<OomKills>,
}

/// A control group's file with a line `oom_kill N`, and the limit it tells of.
pub(crate) struct OomKills {
    pub(crate) file: File,
    pub(crate) memory_bytes: u64,
}

/// One call while it runs, as the tools see it.
pub(crate) struct Run<'a> {
    root: &'a Root,
    shown: &'a Path,
    deadline: Instant,
    stop: &'a Stop,
    output_bytes_max: u64,
}

/// A tool's answer before it becomes a reply.
pub(crate) struct Answer {
    text: String,
    is_error: bool,
    truncated_bytes: u64,
    timed_out: bool,
}

impl Answer {
    fn whole(text: String) -> Self {
        Self { text, is_error: false, truncated_bytes: 0, timed_out: false }
    }

    fn error(text: String) -> Self {
        Self { is_error: true, ..Self::whole(text) }
    }
}

impl Toolset {
    pub(crate) fn open(surroundings: Surroundings) -> io::Result<Self> {
        let root = Root::open(&surroundings.directory, &surroundings.directory)?;
        let stop = Arc::new(Stop::new()?);
        Ok(Self { surroundings, root, shell: None, receipts: Receipts::default(), stop })
    }

    /// Ends the running call from another thread.
    pub fn stop(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    /// Runs one call to its end, which comes at its deadline at the latest. A call whose id was
    /// seen before gets its first reply again.
    pub fn run(&mut self, call: &Call) -> Reply {
        if let Some(reply) = self.receipts.answer(call) {
            return reply;
        }
        self.stop.begin(&call.call_id);
        let answer = self.dispatch(call).unwrap_or_else(Answer::error);
        self.stop.end();
        let Answer { text, is_error, truncated_bytes, timed_out } = answer;
        let reply =
            Reply { call_id: call.call_id.clone(), text, is_error, truncated_bytes, timed_out };
        self.receipts.keep(call, &reply);
        reply
    }

    /// Ends the shell and every process that was started with it.
    pub(crate) fn kill_all(&mut self) {
        self.surroundings.reach.kill_all();
        if let Some(shell) = self.shell.take() {
            shell.bury();
        }
        self.surroundings.reach.wait_until_gone();
    }

    fn dispatch(&mut self, call: &Call) -> Result<Answer, String> {
        let start = Instant::now();
        let call_ms = self.call_ms(call.timeout_ms);
        let run = Run {
            root: &self.root,
            shown: &self.surroundings.directory,
            deadline: start + Duration::from_millis(call_ms),
            stop: &self.stop,
            output_bytes_max: self.surroundings.output_bytes_max,
        };
        match call.tool.as_str() {
            "bash" => self.bash(call, start),
            "read" => files::read(&run, Fields::parse("read", &call.input)?),
            "write" => files::write(&run, Fields::parse("write", &call.input)?),
            "edit" => files::edit(&run, Fields::parse("edit", &call.input)?),
            "glob" => search::glob(&run, Fields::parse("glob", &call.input)?),
            "grep" => search::grep(&run, Fields::parse("grep", &call.input)?),
            other => {
                let other: String = other.chars().take(100).collect();
                let known: Vec<&str> = tailstep_core::toolset::names().collect();
                Err(format!("there is no tool `{other}`; the tools are {}", known.join(", ")))
            }
        }
    }

    /// The time of a call for which `asked_ms` was asked; 0 asks for nothing.
    fn call_ms(&self, asked_ms: u64) -> u64 {
        let asked_ms = if asked_ms == 0 { u64::MAX } else { asked_ms };
        asked_ms.min(self.surroundings.call_ms_max)
    }

    fn bash(&mut self, call: &Call, start: Instant) -> Result<Answer, String> {
        let mut fields = Fields::parse("bash", &call.input)?;
        let command = fields.optional_string("command")?;
        let restart = fields.flag("restart")?;
        let own_ms = fields.positive("timeout_ms")?;
        fields.finish()?;
        if restart {
            self.kill_all();
        }
        let Some(command) = command else {
            return match restart {
                true => Ok(Answer::whole("the shell was restarted".into())),
                false => Err("input of bash: field `command` is missing".into()),
            };
        };
        if command.contains('\0') {
            return Err("input of bash: field `command` holds a NUL character".into());
        }
        let ms = self.call_ms(call.timeout_ms).min(own_ms.unwrap_or(BASH_MS_DEFAULT));
        let oom_before = self.oom_kills();
        let (end, kept) = self.shell_run(&command, start + Duration::from_millis(ms))?;
        let mut note = self.note(&end, ms);
        if self.oom_kills() > oom_before
            && let Some(oom) = &self.surroundings.oom_kills
        {
            let mib = oom.memory_bytes >> 20;
            note.push_str(&format!(
                "\n[the memory limit of {mib} MiB was reached and a process was killed]"
            ));
        }
        let mut text = kept.text;
        if !note.is_empty() && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(note.trim_start_matches('\n'));
        Ok(Answer {
            text,
            is_error: !matches!(end, End::Exited { code: 0 } | End::ShellGone { code: Some(0) }),
            truncated_bytes: kept.dropped_bytes,
            timed_out: end == End::Deadline,
        })
    }

    fn shell_run(
        &mut self,
        command: &str,
        deadline: Instant,
    ) -> Result<(End, output::Kept), String> {
        let mut shell = match self.shell.take() {
            Some(shell) => shell,
            None => Shell::start(&self.surroundings, &self.surroundings.directory)
                .map_err(|why| format!("the shell could not be started: {why}"))?,
        };
        let ended = shell.run(command, deadline, &self.stop, self.surroundings.output_bytes_max);
        let end = match ended {
            Ok(end) => end,
            Err(why) => {
                self.shell = Some(shell);
                self.kill_all();
                return Err(format!("the shell failed: {why}"));
            }
        };
        let kept = match &end {
            End::Exited { .. } => {
                let kept = shell.take_output();
                self.shell = Some(shell);
                kept
            }
            End::ShellGone { .. } => shell.take_output(),
            End::Deadline | End::Stopped => {
                // Killed first: what is in the pipe then is all that there will be.
                self.surroundings.reach.kill_all();
                let kept = shell.take_output();
                self.shell = Some(shell);
                self.kill_all();
                kept
            }
        };
        self.surroundings.reach.reap();
        Ok((end, kept))
    }

    fn note(&self, end: &End, ms: u64) -> String {
        const FRESH: &str = "the next command starts in a new shell in the workspace";
        match end {
            End::Exited { code: 0 } => String::new(),
            End::Exited { code } => format!("[exit code {code}]"),
            End::ShellGone { code: Some(code) } => {
                format!("[the shell exited with code {code}; {FRESH}]")
            }
            End::ShellGone { code: None } => format!("[the shell ended; {FRESH}]"),
            End::Deadline => format!(
                "[timed out after {ms} ms; everything that ran in the sandbox was killed, and \
                 {FRESH}]"
            ),
            End::Stopped => format!(
                "[stopped on request; everything that ran in the sandbox was killed, and {FRESH}]"
            ),
        }
    }

    fn oom_kills(&self) -> u64 {
        let Some(oom) = &self.surroundings.oom_kills else { return 0 };
        let mut buffer = [0; 512];
        let count = oom.file.read_at(&mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..count]);
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Toolset {
    fn drop(&mut self) {
        self.kill_all();
    }
}

#[cfg(test)]
mod tests;
