//! PID 1 of the sandbox: walls itself in, then runs tools as the supervisor orders, reaps orphans,
//! and ends when its line or its guard does. Its end is the end of everything inside.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU32, mpsc},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Gid, Uid},
    io::Errno,
    process::chdir,
    system::sethostname,
    thread::{UnshareFlags, set_thread_res_gid, set_thread_res_uid},
};

use super::{
    identity::INNER_ID,
    root::{self, Tree},
    sys,
};
use crate::{
    call::{Call, Reply},
    lockdown::{
        close_privileges, drop_capabilities, landlock, limit_resources,
        seccomp::{Filter, Sockets},
    },
    spec::{Layers, Strictness, WORKSPACE},
    toolset::{OomKills, Reach, Stop, Surroundings, Toolset},
    wire::{self, Order, REPORT_BYTES_MAX, Report, Start},
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

/// The guard's two signs to go on.
pub(super) const MAPPED: &[u8] = b"m";
pub(super) const GROUPED: &[u8] = b"g";

/// What PID 1 is given by the guard.
pub(super) struct Inside<'a> {
    pub(super) line: UnixStream,
    pub(super) start: &'a Start,
    /// Copies of the host's mounts, when the guard could take them.
    pub(super) trees: Vec<Tree>,
    pub(super) mounts_outside: bool,
    /// [`MAPPED`] comes when the user is mapped, [`GROUPED`] when the control group is joined.
    pub(super) go: OwnedFd,
    /// Ends with the guard.
    pub(super) guard_alive: OwnedFd,
    pub(super) oom_events: Option<File>,
    pub(super) cgroup: Option<String>,
    pub(super) cgroup_missing: Option<String>,
}

/// Never returns: the rest of the program belongs to the guard.
pub(super) fn run(mut inside: Inside<'_>) -> ! {
    match wall_in(&mut inside) {
        Ok(layers) => {
            let ready = Report::Ready(layers);
            if wire::write(&mut inside.line, &ready, REPORT_BYTES_MAX).is_ok() {
                serve(inside);
            }
        }
        Err(why) => {
            let _ = wire::write(&mut inside.line, &Report::Refused { why }, REPORT_BYTES_MAX);
        }
    }
    sys::exit_now(1)
}

fn wall_in(inside: &mut Inside<'_>) -> Result<Layers, String> {
    wait_for(&inside.go, MAPPED)?;
    let start = inside.start;
    let mut layers = Layers::default();
    let fail = |what: &'static str| move |why: Errno| format!("cannot {what}: {why}");
    let trees = match inside.mounts_outside {
        true => std::mem::take(&mut inside.trees),
        false => root::open_trees(start)?,
    };
    become_inner_user().map_err(fail("become the inner user"))?;
    sethostname(b"sandbox").map_err(fail("set the host name"))?;
    sys::raise_loopback().map_err(|why| format!("cannot raise the loopback interface: {why}"))?;
    root::enter(&trees, &start.limits, start.workspace.is_some())?;
    drop(trees);
    let nothing = root::nothing().map_err(fail("open /dev/null"))?;
    for replace in
        [rustix::stdio::dup2_stdin, rustix::stdio::dup2_stdout, rustix::stdio::dup2_stderr]
    {
        replace(&nothing).map_err(fail("replace the standard streams"))?;
    }
    wait_for(&inside.go, GROUPED)?;
    // Only now, so that the group joined is the top of what is seen inside.
    // SAFETY: this process has one thread, and a control group namespace shares no memory.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
        .map_err(fail("make a control group namespace"))?;
    let home = if start.workspace.is_some() { WORKSPACE } else { "/" };
    chdir(home).map_err(fail("enter the workspace"))?;
    for name in ["user", "mount", "pid", "network", "ipc", "uts", "control group"] {
        layers.active.push(format!("{name} namespace"));
    }
    layers.active.push("fresh root".into());
    lock_down(inside, &mut layers)?;
    Ok(layers)
}

fn wait_for(go: &OwnedFd, step: &[u8]) -> Result<(), String> {
    let mut came = [0; 1];
    match rustix::io::read(go, &mut came) {
        Ok(1) if came == step => Ok(()),
        Ok(_) | Err(_) => Err("the guard ended before the sandbox began".into()),
    }
}

fn become_inner_user() -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(INNER_ID), Gid::from_raw(INNER_ID));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn lock_down(inside: &Inside<'_>, layers: &mut Layers) -> Result<(), String> {
    let Start { limits, strictness, mounts, .. } = inside.start;
    match (&inside.cgroup, &inside.cgroup_missing) {
        (Some(described), _) => layers.active.push(described.clone()),
        (None, why) => layers.missing.push(why.clone().unwrap_or_default()),
    }
    let memory_each = inside.cgroup.is_none();
    // Landlock comes before the filter and after everything that opens or mounts.
    let mut writable: Vec<&Path> = vec![Path::new("/tmp"), Path::new("/dev/shm")];
    writable.extend(inside.start.workspace.as_ref().map(|_| Path::new(WORKSPACE)));
    let own = mounts.iter().filter(|mount| !mount.read_only);
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

/// The fixed set, and what the specification adds or replaces.
fn environment(start: &Start) -> Vec<(String, String)> {
    let given = |name: &str| start.environment.iter().any(|(other, _)| other == name);
    let fixed = ENVIRONMENT.iter().filter(|(name, _)| !given(name));
    let fixed = fixed.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    fixed.chain(start.environment.iter().cloned()).collect()
}

/// Reads orders until the line or the guard ends.
fn serve(inside: Inside<'_>) {
    let Inside { mut line, start, guard_alive, oom_events, .. } = inside;
    if start.workspace.is_none() {
        return;
    }
    let reach = Reach::Namespace { shell: Arc::new(AtomicU32::new(0)) };
    let memory_bytes = start.limits.memory_bytes;
    let surroundings = Surroundings {
        directory: PathBuf::from(WORKSPACE),
        environment: environment(start),
        reach: reach.clone(),
        output_bytes_max: start.limits.output_bytes_max,
        call_ms_max: start.limits.call_ms_max,
        oom_kills: oom_events.map(|file| OomKills { file, memory_bytes }),
    };
    let Ok(ends) = sys::child_ends() else { return };
    let Ok(toolset) = Toolset::open(surroundings) else { return };
    let Ok(answers) = line.try_clone() else { return };
    let stop = toolset.stop();
    let (calls, queue) = mpsc::channel();
    let worker = thread::Builder::new().name("tools".into());
    if worker.spawn(move || work(toolset, &queue, &Mutex::new(answers))).is_err() {
        return;
    }
    loop {
        let mut ready = [
            PollFd::new(&line, PollFlags::IN),
            PollFd::new(&guard_alive, PollFlags::IN),
            PollFd::new(&ends, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [line_ready, guard_ended, child_ended] = ready.map(|fd| !fd.revents().is_empty());
        if guard_ended {
            return;
        }
        if child_ended {
            let _ = rustix::io::read(&ends, &mut [0u8; 1_024]);
            reach.reap();
        }
        if line_ready && !obey(&mut line, &calls, &stop) {
            return;
        }
    }
}

/// Takes one order; false when no more will come.
fn obey(line: &mut UnixStream, calls: &mpsc::Sender<Call>, stop: &Stop) -> bool {
    match wire::read(line, wire::ORDER_BYTES_MAX) {
        Ok(Order::Call(call)) => calls.send(call).is_ok(),
        Ok(Order::Cancel { call_id }) => {
            stop.call(&call_id);
            true
        }
        Ok(Order::Start(_)) | Err(_) => false,
    }
}

/// Runs the calls one after another.
fn work(mut toolset: Toolset, queue: &mpsc::Receiver<Call>, answers: &Mutex<UnixStream>) {
    while let Ok(call) = queue.recv() {
        // A fault of our own costs one call, not the sandbox.
        let outcome = catch_unwind(AssertUnwindSafe(|| toolset.run(&call)));
        let reply = outcome.unwrap_or_else(|_| Reply {
            call_id: call.call_id.clone(),
            text: "the tool failed inside; this is a fault of the sandbox".into(),
            is_error: true,
            truncated_bytes: 0,
            timed_out: false,
        });
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        if wire::write(&mut *answers, &Report::Reply(reply), REPORT_BYTES_MAX).is_err() {
            sys::exit_now(1);
        }
    }
}
