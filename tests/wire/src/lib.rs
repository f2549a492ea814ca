//! The port conformance suite: what the doc comments of `tailstep_runtime::ports` promise, as laws
//! that every adapter has to pass. One module a port; each has `all(make)`, which runs every law on
//! a fresh subject from `make` and names those that are broken.
//!
//! A subject is the adapter with the few things that a law cannot do through the port: damage what
//! is stored, and know how long the service may take. Nothing here names a service.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "laws say by a panic that they are broken"
)]

pub mod blobs;
pub mod documents;
pub mod hands;
pub mod log;
pub mod queue;
pub mod secrets;

mod law;
mod sample;

pub use law::{Sabotage, Timing};
