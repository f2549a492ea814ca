//! The daemon of a microVM: lays out one session's workspace, runs its calls with the same toolset as
//! every other kind of hands, and gives the workspace back. It holds no credential of the deployment;
//! whoever calls it shows the secret that its machine was started with.
//!
//! Usage: `microvm [ADDRESS [ROOT]]`, by default `0.0.0.0:8080` and `/`; below ROOT are the places of given
//! files and outputs.

mod given;
mod guest;
mod message;
mod outputs;
mod routes;

use std::path::{Path, PathBuf};

use tailstep_sandbox::{Limits, vm};
use tokio::{net::TcpListener, runtime};

use crate::guest::Guest;

/// The port that a microVM's endpoint leads to unless it is asked for another.
const ADDRESS: &str = "0.0.0.0:8080";
/// Where the workspace is made, and what waits to be fetched.
const SCRATCH: &str = "/tmp";

fn main() -> anyhow::Result<()> {
    // Before anything else: nothing may run beside it.
    vm::harden(&Limits::default(), &[])?;
    let address = std::env::args().nth(1).unwrap_or_else(|| ADDRESS.to_owned());
    let root = std::env::args_os().nth(2).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let guest = Guest::start(Path::new(SCRATCH), &root)?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        axum::serve(TcpListener::bind(address).await?, routes::router(guest)).await?;
        Ok(())
    })
}
