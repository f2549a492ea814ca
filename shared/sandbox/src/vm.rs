//! The hands where the machine itself is the wall: a function that is its own virtual machine, with
//! an empty role. No namespaces there; instead this process closes itself against what it starts,
//! and what it starts gets no environment, no new privileges, a system call filter and limits.

use std::{
    collections::BTreeSet,
    env,
    ffi::{CStr, OsStr},
    fs, io,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU32},
};

use rustix::{
    fs::Mode,
    process::{getpid, set_child_subreaper, umask},
    thread::capabilities,
};

use crate::{
    call::{Call, Reply},
    lockdown::{
        close_privileges, drop_capabilities, limit_resources,
        seccomp::{Filter, Sockets},
    },
    spec::Limits,
    toolset::{Reach, Stop, Surroundings, Toolset},
};

/// What the Lambda runtime client reads when it starts (AWS Lambda developer guide, "Using
/// environment variables"). None of them is a credential.
pub const LAMBDA_NAMES: [&str; 9] = [
    "AWS_LAMBDA_RUNTIME_API",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_LOG_GROUP_NAME",
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_MAX_CONCURRENCY",
    "AWS_REGION",
];

/// Said before the reply of the first call in a sandbox that was made for a session with a saved
/// workspace.
pub const NEW_SANDBOX: &str = "[This call ran in a new sandbox: the files of the workspace are as \
    they were saved after the last call, but processes and shell variables of earlier calls, and \
    files outside the workspace, are gone.]\n";

/// Kept besides, because they say nothing.
const HARMLESS_NAMES: [&str; 4] = ["PATH", "LANG", "TZ", "RUST_BACKTRACE"];

/// The whole environment of commands.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/bin"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];

/// Closes this process for good: every environment variable but the harmless ones and those in
/// `keep` is removed, its value erased from memory; no other process of the same user can look
/// into this one; no privilege can be gained; resources are limited; processes left behind by
/// commands come to this one, so that they can be ended.
///
/// Call it first in `main`.
///
/// # Errors
/// When threads are running already: one of them could read the environment while it is changed.
pub fn harden(limits: &Limits, keep: &[&str]) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("harden must be called before any thread is started"));
    }
    scrub_environment(keep);
    umask(Mode::from_raw_mode(0o022));
    limit_resources(limits, false)?;
    if !capabilities(None)?.permitted.is_empty() {
        drop_capabilities()?;
    }
    close_privileges()?;
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Removes variables and erases their values: what a process was started with stays readable in
/// its memory otherwise.
fn scrub_environment(keep: &[&str]) {
    let kept: BTreeSet<&[u8]> =
        HARMLESS_NAMES.iter().chain(keep).map(|name| name.as_bytes()).collect();
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    // SAFETY: the caller made sure that this is the only thread, so nobody else reads or changes
    // the environment. `environ` is a null-terminated list of NUL-terminated strings in writable
    // memory, and overwriting a value with zeroes keeps each of them one.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            let name = entry.iter().position(|byte| *byte == b'=').unwrap_or(entry.len());
            if !kept.contains(&entry[..name]) && name < entry.len() {
                let length = entry.len() - name - 1;
                std::ptr::write_bytes((*at).add(name + 1), 0, length);
            }
            at = at.add(1);
        }
    }
    let names: Vec<_> = env::vars_os().map(|(name, _)| name).collect();
    for name in names.iter().filter(|name| !kept.contains(OsStr::as_bytes(name))) {
        // SAFETY: as above, this is the only thread.
        unsafe { env::remove_var(name) };
    }
}

/// The toolset in this process, over one directory. The process must be hardened, and must start
/// no other children: all its descendants end with a deadline.
pub struct Hands {
    toolset: Toolset,
}

impl Hands {
    /// `sockets` says what commands may open: on a machine whose only network leads to its own
    /// control interface (Lambda's runtime API), local ones only.
    pub fn open(directory: PathBuf, limits: &Limits, sockets: Sockets) -> io::Result<Self> {
        let filter = Some(Arc::new(Filter::new(sockets)));
        let surroundings = Surroundings {
            directory,
            environment: ENVIRONMENT.map(|(name, value)| (name.into(), value.into())).to_vec(),
            reach: Reach::Descendants { shell: Arc::new(AtomicU32::new(0)), filter },
            output_bytes_max: limits.output_bytes_max,
            call_ms_max: limits.call_ms_max,
            oom_kills: None,
        };
        Ok(Self { toolset: Toolset::open(surroundings)? })
    }

    /// Ends a running call from another thread.
    pub fn stop(&self) -> Arc<Stop> {
        self.toolset.stop()
    }

    /// Runs one call to its end; blocks the calling thread until then.
    pub fn run(&mut self, call: &Call) -> Reply {
        self.toolset.run(call)
    }

    /// Ends the shell and everything it started. The next command starts in a new shell.
    pub fn end_all(&mut self) {
        self.toolset.kill_all();
    }
}
