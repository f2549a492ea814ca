//! The simulator: the real step, ingress and sweep, over the in-memory ports behind faults, in
//! virtual time. A seed is a run: the same seed gives the same log, byte for byte.
//!
//! Owns the faults, the actors and the checkers. Knows the runtime through its ports only, except for
//! the bugs that no port can play.

pub mod actor;
pub mod brain;
pub mod bug;
pub mod cast;
pub mod check;
pub mod fault;
pub mod hunt;
pub mod notes;
pub mod plan;
pub mod ports;
pub mod request;
pub mod rng;
pub mod run;
pub mod truth;
pub mod world;
