//! The job of most sandboxes: calls of the toolset, one after another, over the line.
//!
//! Two threads take turns: one listens, and when a call comes runs it itself, while the other one
//! listens for word to stop it. Handing the call over instead would cost each call a wake-up.

use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU32},
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

/// Serves until the line or the guard ends.
pub(super) fn serve(inside: Inside) {
    let Inside { line, start, guard_alive, oom_events, .. } = inside;
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
    let worker = Worker { toolset, answers, stop: stop.clone() };
    let listener = Listener { line, guard_alive, ends, reach, stop };
    let shared = Arc::new((Mutex::new(listener), Mutex::new(worker)));
    let other = Arc::clone(&shared);
    let second = thread::Builder::new().name("tools".into());
    if second.spawn(move || take_turns(&other.0, &other.1)).is_ok() {
        take_turns(&shared.0, &shared.1);
    }
}

/// Never returns: the end of either thread is the end of the sandbox.
fn take_turns(listener: &Mutex<Listener>, worker: &Mutex<Worker>) -> ! {
    loop {
        let Some(call) = lock(listener).next_call() else { sys::exit_now(1) };
        // The other thread listens from here on.
        lock(worker).run(&call);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Listener {
    line: UnixStream,
    guard_alive: OwnedFd,
    /// Readable when a child has ended.
    ends: OwnedFd,
    reach: Reach,
    stop: Arc<Stop>,
}

impl Listener {
    /// Reaps and cancels until a call comes; `None` when no more will.
    fn next_call(&mut self) -> Option<Call> {
        loop {
            let mut ready = [
                PollFd::new(&self.line, PollFlags::IN),
                PollFd::new(&self.guard_alive, PollFlags::IN),
                PollFd::new(&self.ends, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
            let [line_ready, guard_ended, child_ended] = ready.map(|fd| !fd.revents().is_empty());
            if guard_ended {
                return None;
            }
            if child_ended {
                let _ = rustix::io::read(&self.ends, &mut [0u8; 1_024]);
                self.reach.reap();
            }
            if line_ready {
                match wire::read(&mut self.line, wire::ORDER_BYTES_MAX) {
                    Ok(Order::Call(call)) => {
                        // Before anybody else listens: word to stop it may be right behind.
                        self.stop.begin(&call.call_id);
                        return Some(call);
                    }
                    Ok(Order::Cancel { call_id }) => self.stop.call(&call_id),
                    Err(_) => return None,
                }
            }
        }
    }
}

struct Worker {
    toolset: Toolset,
    answers: UnixStream,
    stop: Arc<Stop>,
}

impl Worker {
    fn run(&mut self, call: &Call) {
        // A fault of our own costs one call, not the sandbox.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.toolset.run(call)));
        let reply = outcome.unwrap_or_else(|_| Reply {
            call_id: call.call_id.clone(),
            text: "the tool failed inside; this is a fault of the sandbox".into(),
            is_error: true,
            truncated_bytes: 0,
            timed_out: false,
        });
        // Before the answer, behind which the next call may be.
        self.stop.end();
        if wire::write(&mut self.answers, &Report::Reply(reply), REPORT_BYTES_MAX).is_err() {
            sys::exit_now(1);
        }
    }
}
