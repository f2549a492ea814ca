//! The ports in memory: what each trait means, in the plainest code that satisfies it. The simulator
//! runs on them, and every adapter has to behave as they do (`tests/wire`).
//!
//! Deterministic: ordered maps only, no randomness, and time only through [`Clock`] and tokio, so
//! that a test with paused time decides when a wake-up comes. Nothing outlives the process.
//!
//! [`Clock`]: crate::ports::Clock

mod blobs;
mod clock;
mod documents;
mod log;
mod queue;
mod secrets;

pub use blobs::MemoryBlobs;
pub use clock::TokioClock;
pub use documents::{DOCUMENT_BYTES_MAX, MemoryDocuments, check_document};
pub use log::{MemoryLog, Watchers};
pub use queue::MemoryQueue;
pub use secrets::MemorySecrets;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic in another task leaves these maps whole (each change is one map operation), so that its
/// poison is no reason to fail here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
