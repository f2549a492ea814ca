//! The broker over real sockets: clients, origins and names are the tests' own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod caps;
mod origin;
mod plain;
mod read;
mod refusals;
mod secrets;
mod tunnels;
mod world;
