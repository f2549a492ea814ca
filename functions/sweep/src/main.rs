//! The sweep function: once a minute, wakes the sessions that have been due for long.

use std::sync::Arc;

use aws_lambda_events::eventbridge::EventBridgeEvent;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use tailstep_aws::{Clients, Config, NoHands, NoModel, Ports};
use tailstep_core::limits::Limits;
use tailstep_runtime::{Runtime, ports::SystemClock, prefix::Prefixes, sweep::sweep};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tailstep_aws::start_logs();
    let config = Config::from_env()?;
    let ports = Ports::new(&Clients::from_env().await, &config);
    let runtime = Runtime {
        log: ports.log,
        queue: ports.queue,
        model: Arc::new(NoModel),
        hands: Arc::new(NoHands),
        documents: ports.documents,
        clock: Arc::new(SystemClock),
        limits: Limits::default(),
        prefixes: Arc::new(Prefixes::new(0)),
    };
    let runtime = &runtime;
    lambda_runtime::run(service_fn(async |_: LambdaEvent<EventBridgeEvent>| {
        let woken = sweep(runtime).await?;
        tracing::info!(woken, "sweep");
        Ok::<(), Error>(())
    }))
    .await
}
