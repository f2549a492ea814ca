//! A request to end the running call, which may come from another thread at any time.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::event::{EventfdFlags, eventfd};

/// Stops one call at a time, named by its id, so that a late request cannot hit the next call.
pub struct Stop {
    running: Mutex<Option<String>>,
    asked: AtomicBool,
    /// Readable while `asked` is set, for waits in `poll`.
    event: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            running: Mutex::new(None),
            asked: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Ends the call `call_id` if it is running; else does nothing.
    pub fn call(&self, call_id: &str) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_deref() == Some(call_id) {
            self.asked.store(true, Ordering::Release);
            // Writing fails only when the counter is at its maximum, and then it is readable.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn begin(&self, call_id: &str) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(call_id.to_owned());
    }

    pub(crate) fn end(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = None;
        self.asked.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
