//! The daemon of a microVM: lays out one session's workspace, runs its calls with the same toolset as
//! every other kind of hands, and gives the workspace back. It holds no credential of the deployment;
//! whoever calls it shows the secret that its machine was started with.
//!
//! Usage: `microvm [ADDRESS]`, by default `0.0.0.0:8080`.

mod guest;
mod message;
mod routes;

use std::path::Path;

use tailstep_sandbox::{Limits, vm};
use tokio::{net::TcpListener, runtime};

use crate::guest::Guest;

/// The port that a microVM's endpoint leads to unless it is asked for another.
const ADDRESS: &str = "0.0.0.0:8080";
/// Where the workspace is made.
const ROOT: &str = "/tmp";

fn main() -> anyhow::Result<()> {
    // Before anything else: nothing may run beside it.
    vm::harden(&Limits::default(), &[])?;
    let address = std::env::args().nth(1).unwrap_or_else(|| ADDRESS.to_owned());
    let guest = Guest::start(Path::new(ROOT))?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        axum::serve(TcpListener::bind(address).await?, routes::router(guest)).await?;
        Ok(())
    })
}
