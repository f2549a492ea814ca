//! The sandbox function: runs one tool call of one session's sandbox. It has no rights and is told
//! nothing but the call and the workspace; what it answers is data.

mod bench;
mod message;
mod store;

use std::path::Path;

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tailstep_sandbox::{Limits, vm};
use tokio::{runtime, sync::Mutex};

use crate::{bench::Bench, message::Order};

/// Where sandboxes' directories are made: the one place of a function that can be written to.
const ROOT: &str = "/tmp";

fn main() -> Result<(), Error> {
    // Before anything else: nothing may run beside it.
    vm::harden(&Limits::default(), &vm::LAMBDA_NAMES)?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve())
}

async fn serve() -> Result<(), Error> {
    let bench = Mutex::new(Bench::new(Path::new(ROOT)));
    let bench = &bench;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Order>| {
        // A command blocks the only thread: an environment has one call at a time and nothing else
        // to do.
        Ok::<_, Error>(bench.lock().await.run(event.payload).await)
    }))
    .await
}
