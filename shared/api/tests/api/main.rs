//! The API in process: the router over the ports in memory, a scripted model, and steps run by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod agents;
mod bench;
mod environments;
mod errors;
mod failing;
mod files;
mod history;
mod keys;
mod networks;
mod outside;
mod paging;
mod repeats;
mod resources;
mod results;
mod routes;
mod sessions;
mod skills;
mod streams;
mod tenants;
mod work;
mod worker_keys;
