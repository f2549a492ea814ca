//! PID 1 of the sandbox: walls itself in, then does its job (calls of the toolset as the supervisor
//! orders them, or one program), reaps orphans, and ends when its line or its guard does. Its end is
//! the end of everything inside.

mod program;
mod tools;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    process::chdir,
    system::sethostname,
    thread::{UnshareFlags, set_thread_res_gid, set_thread_res_uid},
};

use super::{
    Grouped,
    identity::INNER_ID,
    root::{self, Layout},
    sys,
};
use crate::{
    lockdown::{
        close_privileges, drop_capabilities, landlock, limit_resources,
        seccomp::{Filter, Sockets},
    },
    pass,
    spec::{Access, Layers, Network, PROXY, Strictness, WORKSPACE},
    wire::{self, Job, REPORT_BYTES_MAX, Report, Start},
};

/// The whole environment of what runs inside.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("USER", "agent"),
    ("LOGNAME", "agent"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];

/// The guard's first sign to go on.
pub(super) const MAPPED: &[u8; 1] = b"m";

const NO_GUARD: &str = "the guard ended before the sandbox began";

/// What PID 1 is given by the guard.
pub(super) struct Inside<'a> {
    line: UnixStream,
    start: &'a Start,
    /// What is seen of the host, when the guard could take it; empty otherwise.
    layout: Layout,
    mounts_outside: bool,
    /// [`MAPPED`] comes when the user is mapped, [`Grouped`] when the control group is joined.
    go: UnixStream,
    /// Ends with the guard.
    guard_alive: OwnedFd,
    oom_events: Option<File>,
    /// Made here, for the supervisor.
    listener: Option<TcpListener>,
    /// Kept here, for the program.
    streams: Option<program::Streams>,
}

impl<'a> Inside<'a> {
    pub(super) fn new(
        line: UnixStream,
        start: &'a Start,
        layout: Layout,
        mounts_outside: bool,
        go: UnixStream,
        guard_alive: OwnedFd,
    ) -> Self {
        Self {
            line,
            start,
            layout,
            mounts_outside,
            go,
            guard_alive,
            oom_events: None,
            listener: None,
            streams: None,
        }
    }
}

/// Never returns: the rest of the program belongs to the guard.
pub(super) fn run(mut inside: Inside<'_>) -> ! {
    match wall_in(&mut inside) {
        Ok(layers) => {
            if report_ready(&mut inside, layers).is_ok() {
                match &inside.start.job {
                    Job::Look => {}
                    Job::Tools => tools::serve(inside),
                    Job::Program { argv, directory } => program::run(inside, argv, directory),
                }
            }
        }
        Err(why) => {
            let _ = wire::write(&mut inside.line, &Report::Refused { why }, REPORT_BYTES_MAX);
        }
    }
    sys::exit_now(1)
}

/// Also hands out the listener, through which the supervisor can be reached from now on.
fn report_ready(inside: &mut Inside<'_>, layers: Layers) -> io::Result<()> {
    wire::write(&mut inside.line, &Report::Ready(layers), REPORT_BYTES_MAX)?;
    match inside.listener.take() {
        Some(listener) => pass::send(&inside.line, listener.as_fd()),
        None => Ok(()),
    }
}

fn wall_in(inside: &mut Inside<'_>) -> Result<Layers, String> {
    // What this process was started with would be seen inside.
    sys::forget_command_line().map_err(|why| format!("cannot forget the command line: {why}"))?;
    let mut came = [0];
    match inside.go.read_exact(&mut came) {
        Ok(()) if came == *MAPPED => {}
        Ok(()) | Err(_) => return Err(NO_GUARD.into()),
    }
    let start = inside.start;
    let mut layers = Layers::default();
    let fail = |what: &'static str| move |why: Errno| format!("cannot {what}: {why}");
    let layout = match inside.mounts_outside {
        true => std::mem::take(&mut inside.layout),
        false => root::take(start)?,
    };
    become_inner_user().map_err(fail("become the inner user"))?;
    sethostname(b"sandbox").map_err(fail("set the host name"))?;
    sys::raise_loopback().map_err(|why| format!("cannot raise the loopback interface: {why}"))?;
    if start.network == Network::Proxy {
        let listener = TcpListener::bind(PROXY);
        let listener = listener.map_err(|why| format!("cannot listen at {PROXY}: {why}"))?;
        inside.listener = Some(listener);
    }
    root::enter(&layout, start)?;
    drop(layout);
    if let Job::Program { .. } = start.job {
        inside.streams = Some(program::Streams::take().map_err(fail("keep the standard streams"))?);
    }
    let nothing = root::nothing().map_err(fail("open /dev/null"))?;
    for replace in
        [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr]
    {
        replace(&nothing).map_err(fail("replace the standard streams"))?;
    }
    let Grouped { grouped, oom_events } =
        wire::read(&mut inside.go, REPORT_BYTES_MAX).map_err(|_| NO_GUARD)?;
    if oom_events {
        let file = pass::receive(&inside.go).map_err(|_| NO_GUARD)?;
        inside.oom_events = Some(File::from(file));
    }
    // Only now, so that the group joined is the top of what is seen inside.
    // SAFETY: this process has one thread, and a control group namespace shares no memory.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .map_err(fail("make a control group namespace"))?;
    chdir(home(start)).map_err(fail("enter the workspace"))?;
    for name in ["user", "mount", "pid", "network", "ipc", "uts", "control group"] {
        layers.active.push(format!("{name} namespace"));
    }
    layers.active.push("fresh root".into());
    lock_down(inside, grouped, &mut layers)?;
    Ok(layers)
}

/// Where work begins.
fn home(start: &Start) -> &'static str {
    if start.workspace.is_some() { WORKSPACE } else { "/tmp" }
}

/// The environment of what runs inside.
fn environment(start: &Start) -> Vec<(String, String)> {
    let fixed = ENVIRONMENT.iter().map(|(name, value)| (*name, *value));
    let given = start.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: BTreeMap<&str, &str> = fixed.chain(given).collect();
    all.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn become_inner_user() -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(INNER_ID), Gid::from_raw(INNER_ID));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn lock_down(
    inside: &Inside<'_>,
    grouped: Result<String, String>,
    layers: &mut Layers,
) -> Result<(), String> {
    let Start { limits, strictness, mounts, .. } = inside.start;
    let memory_each = grouped.is_err();
    match grouped {
        Ok(described) => layers.active.push(described),
        Err(why) => layers.missing.push(why),
    }
    // Landlock comes before the filter and after everything that opens or mounts.
    let mut writable: Vec<&Path> = vec![Path::new("/tmp"), Path::new("/dev/shm")];
    writable.extend(inside.start.workspace.as_ref().map(|_| Path::new(WORKSPACE)));
    let own = mounts.iter().filter(|mount| mount.access != Access::ReadOnly);
    writable.extend(own.map(|mount| mount.target.as_path()));
    let required = *strictness != Strictness::BestEffort;
    let everything = *strictness == Strictness::Full;
    let steps: [(&str, bool, io::Result<()>); 5] = [
        ("resource limits", required, limit_resources(limits, memory_each)),
        ("no capabilities", true, drop_capabilities()),
        ("no new privileges", true, close_privileges()),
        ("landlock", everything, landlock::confine(&writable).map(drop)),
        ("system call filter", required, Filter::new(Sockets::Internet).install()),
    ];
    for (name, required, outcome) in steps {
        match outcome {
            Ok(()) => layers.active.push(name.into()),
            Err(why) if required => return Err(format!("{name}: {why}")),
            Err(why) => layers.missing.push(format!("{name}: {why}")),
        }
    }
    Ok(())
}
