//! The local form: the runtime's ports in one process over one directory, with SQLite for the log
//! and the documents, files for blobs, memory over a durable due time for wake-ups, and sandboxes of
//! this machine as hands.
//!
//! Owns the data directory: its lock, format, files and modes. Must not know what an event means,
//! HTTP, or any cloud service.

mod blobs;
mod documents;
mod error;
mod files;
mod hands;
mod log;
mod open;
mod queue;
mod secrets;
mod store;
mod workers;

pub use blobs::LocalBlobs;
pub use error::LocalError;
pub use hands::{HandsConfig, LocalHands, PackageSource, workspace_dir};
pub use open::{Config, Local};
pub use secrets::LocalSecrets;
pub use workers::run_workers;
