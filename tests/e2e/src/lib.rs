//! Drives the built programs from the outside, as a user does: processes, exit codes, sockets and
//! files. It must not use any of the project's crates.

pub mod built;
pub mod dev;
pub mod http;
pub mod transcript;

pub use built::{Built, run};
pub use dev::Dev;
