//! The other job: one program, with standard streams from outside.

use std::{
    ffi::OsString,
    io,
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, WaitOptions, WaitStatus, wait},
};

use super::{Inside, environment};
use crate::{
    hands::sys,
    wire::{self, Exited, REPORT_BYTES_MAX, Report},
};

/// Runs the program to its end and reports how it ended.
pub(super) fn run(mut inside: Inside, argv: &[OsString], directory: &Path) {
    let exited = match start(&mut inside, argv, directory) {
        Ok(Some(child)) => match wait_for(&inside, &child) {
            Some(exited) => exited,
            None => return,
        },
        Ok(None) => return,
        Err(why) => why,
    };
    let _ = wire::write(&mut inside.line, &Report::Exited(exited), REPORT_BYTES_MAX);
}

fn start(
    inside: &mut Inside,
    argv: &[OsString],
    directory: &Path,
) -> Result<Option<Child>, Exited> {
    let (Some([input, output, errors]), Some((name, arguments))) =
        (inside.streams.take(), argv.split_first())
    else {
        return Ok(None);
    };
    let mut command = Command::new(name);
    command.args(arguments).env_clear().envs(environment(&inside.start)).current_dir(directory);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
    command.spawn().map(Some).map_err(|why| {
        let missing = why.kind() == io::ErrorKind::NotFound;
        let why = format!("cannot run {}: {why}", name.display());
        if missing { Exited::Missing { why } } else { Exited::NotExecutable { why } }
    })
}

/// Waits for the program, and collects whatever else ends; `None` when the guard is gone.
fn wait_for(inside: &Inside, child: &Child) -> Option<Exited> {
    let program = Pid::from_raw(child.id().cast_signed())?;
    let ends = sys::child_ends().ok()?;
    loop {
        // Looked at first, since an end before the signal was awaited makes no descriptor ready.
        while let Ok(Some((ended, status))) = wait(WaitOptions::NOHANG) {
            if ended == program {
                return Some(exited(status));
            }
        }
        let mut ready =
            [PollFd::new(&inside.guard_alive, PollFlags::IN), PollFd::new(&ends, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let [guard_ended, child_ended] = ready.map(|fd| !fd.revents().is_empty());
        if guard_ended {
            return None;
        }
        if child_ended {
            let _ = rustix::io::read(&ends, &mut [0u8; 1_024]);
        }
    }
}

fn exited(status: WaitStatus) -> Exited {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exited::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => Exited::Signal(signal),
        (None, None) => Exited::Code(u8::MAX),
    }
}
