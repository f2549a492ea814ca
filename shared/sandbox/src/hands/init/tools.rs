//! The job of most sandboxes: calls of the toolset, one after another, over the line.

use std::{
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU32, mpsc},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use super::{Inside, environment, home};
use crate::{
    call::{Call, Reply},
    hands::sys,
    toolset::{OomKills, Reach, Stop, Surroundings, Toolset},
    wire::{self, Order, REPORT_BYTES_MAX, Report},
};

/// Reads orders until the line or the guard ends.
pub(super) fn serve(inside: Inside) {
    let Inside { mut line, start, guard_alive, oom_events, .. } = inside;
    let reach = Reach::Namespace { shell: Arc::new(AtomicU32::new(0)) };
    let memory_bytes = start.limits.memory_bytes;
    let surroundings = Surroundings {
        directory: home(&start).into(),
        environment: environment(&start),
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
        Err(_) => false,
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
