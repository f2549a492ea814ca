//! The heart of Tailstep: what a session is, and what happens to it next.
//!
//! **Architecture invariant:** core is pure and total. It does no I/O, has no clock, no randomness,
//! no environment and no async, and no input makes it panic. Everything that could be wrong without
//! a network is decided here; everything else is somebody else's.

pub mod agent;
pub mod content;
pub mod context;
pub mod decide;
pub mod egress;
pub mod event;
pub mod files;
pub mod ids;
pub mod limits;
pub mod model;
pub mod packages;
pub mod raw;
pub mod record;
pub mod session;
pub mod toolset;
pub mod work;
