//! PID 1 of the sandbox: waits for what it is for, walls itself in, then does its job (calls of the toolset as the supervisor
//! orders them, or one program), reaps orphans, and ends when its line or its guard does. Its end is
//! the end of everything inside.

mod program;
mod tools;

use std::{
    collections::BTreeMap,
    fs::File,
    io,
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
    Go,
    host::{self, Tree},
    identity::INNER_ID,
    root::{self, Base},
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

/// What PID 1 keeps for as long as it lives.
pub(super) struct Inside {
    line: UnixStream,
    start: Start,
    /// Ends with the guard.
    guard_alive: OwnedFd,
    oom_events: Option<File>,
    /// Made here, for the supervisor.
    listener: Option<TcpListener>,
    /// The standard streams of the program, when there is one.
    streams: Option<[OwnedFd; 3]>,
}

/// Waits at `go` for what to be, and is it. `entered` tells whether this process is in its control group. Never returns: the rest of the program belongs to the
/// guard.
pub(super) fn run(
    mut go: UnixStream,
    guard_alive: OwnedFd,
    base: Option<Base>,
    entered: Result<(), String>,
) -> ! {
    let prepared = prepare(base);
    // Without a guard there is nobody to tell of a failure.
    let Ok((mut inside, mut given)) = take(&mut go, guard_alive) else { sys::exit_now(1) };
    drop(go);
    given.grouped = entered.and(given.grouped);
    match prepared.and_then(|base| wall_in(&mut inside, given, base)) {
        Ok(layers) => {
            if report_ready(&mut inside, layers).is_ok() {
                match inside.start.job.clone() {
                    Job::Look => {}
                    Job::Tools => tools::serve(inside),
                    Job::Program { argv, directory } => program::run(inside, &argv, &directory),
                }
            }
        }
        Err(why) => {
            let _ = wire::write(&mut inside.line, &Report::Refused { why }, REPORT_BYTES_MAX);
        }
    }
    sys::exit_now(1)
}

/// What the guard gives that is used up by the start.
struct Given {
    own: Vec<Tree>,
    grouped: Result<String, String>,
}

fn take(go: &mut UnixStream, guard_alive: OwnedFd) -> io::Result<(Inside, Given)> {
    let Go { start, own, grouped, oom_events } =
        wire::read::<Go<Start>>(go, wire::ORDER_BYTES_MAX)?;
    let is_program = matches!(start.job, Job::Program { .. });
    let streams = if is_program { 3 } else { 0 };
    let count = 1 + own.len() + usize::from(oom_events) + streams;
    let mut descriptors = pass::receive_all(&*go, count)?.into_iter();
    let line = descriptors.next().ok_or(io::ErrorKind::InvalidData)?.into();
    let own = host::trees(own, &mut descriptors);
    let oom_events = if oom_events { descriptors.next().map(File::from) } else { None };
    let streams = <[OwnedFd; 3]>::try_from(descriptors.collect::<Vec<_>>()).ok();
    let inside = Inside { line, start, guard_alive, oom_events, listener: None, streams };
    Ok((inside, Given { own, grouped }))
}

/// Does what is the same for every sandbox. With a new root it is entered at once, so that waiting
/// keeps nothing of the host busy.
fn prepare(base: Option<Base>) -> Result<Option<Base>, String> {
    // What this process was started with would be seen inside.
    sys::forget_command_line().map_err(|why| format!("cannot forget the command line: {why}"))?;
    sethostname(b"sandbox").map_err(|why| format!("cannot set the host name: {why}"))?;
    sys::raise_loopback().map_err(|why| format!("cannot raise the loopback interface: {why}"))?;
    // SAFETY: this process has one thread, and a control group namespace shares no memory.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .map_err(|why| format!("cannot make a control group namespace: {why}"))?;
    if let Some(base) = &base {
        base.enter(&root::proc()?)?;
    }
    Ok(base)
}

/// Also hands out the listener, through which the supervisor can be reached from now on.
fn report_ready(inside: &mut Inside, layers: Layers) -> io::Result<()> {
    wire::write(&mut inside.line, &Report::Ready(layers), REPORT_BYTES_MAX)?;
    match inside.listener.take() {
        Some(listener) => pass::send(&inside.line, listener.as_fd()),
        None => Ok(()),
    }
}

fn wall_in(inside: &mut Inside, given: Given, base: Option<Base>) -> Result<Layers, String> {
    let start = &inside.start;
    let mut layers = Layers::default();
    let fail = |what: &'static str| move |why: Errno| format!("cannot {what}: {why}");
    let become_inner_user = || become_inner_user().map_err(fail("become the inner user"));
    let (base, own) = match base {
        Some(base) => {
            base.place(&given.own);
            become_inner_user()?;
            (base, given.own)
        }
        None => {
            let layout = host::take_root(&start.root, &start.mounts)?;
            let (own, proc) = (host::take_own(start)?, root::proc()?);
            become_inner_user()?;
            let base = Base::make(layout)?;
            base.enter(&proc)?;
            base.place(&own);
            (base, own)
        }
    };
    base.fill(&own, start.limits.tmp_bytes)?;
    drop((base, own));
    if start.network == Network::Proxy {
        let listener = TcpListener::bind(PROXY);
        let listener = listener.map_err(|why| format!("cannot listen at {PROXY}: {why}"))?;
        inside.listener = Some(listener);
    }
    let nothing = root::nothing().map_err(fail("open /dev/null"))?;
    for replace in
        [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr]
    {
        replace(&nothing).map_err(fail("replace the standard streams"))?;
    }
    chdir(home(start)).map_err(fail("enter the workspace"))?;
    for name in ["user", "mount", "pid", "network", "ipc", "uts", "control group"] {
        layers.active.push(format!("{name} namespace"));
    }
    layers.active.push("fresh root".into());
    lock_down(start, given.grouped, &mut layers)?;
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
    start: &Start,
    grouped: Result<String, String>,
    layers: &mut Layers,
) -> Result<(), String> {
    let Start { limits, strictness, mounts, workspace, .. } = start;
    let memory_each = grouped.is_err();
    match grouped {
        Ok(described) => layers.active.push(described),
        Err(why) if *strictness == Strictness::Full => return Err(why),
        Err(why) => layers.missing.push(why),
    }
    // Landlock comes before the filter and after everything that opens or mounts.
    let mut writable: Vec<&Path> = vec![Path::new("/tmp"), Path::new("/dev/shm")];
    writable.extend(workspace.as_ref().map(|_| Path::new(WORKSPACE)));
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
