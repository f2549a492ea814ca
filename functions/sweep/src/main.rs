//! The sweep function: once a minute, wakes the sessions that have been due for long, and ends the
//! machines of sessions that are gone.

use std::sync::Arc;

use aws_lambda_events::eventbridge::EventBridgeEvent;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use tailstep_aws::{Clients, Config, NoHands, NoModel, Ports, sweep_all};
use tailstep_core::limits::Limits;
use tailstep_runtime::{Runtime, ports::SystemClock, prefix::Prefixes};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tailstep_aws::start_logs();
    let config = Config::from_env()?;
    let clients = Clients::from_env().await;
    let ports = Ports::new(&clients, &config);
    let machines = ports.machines(&clients, &config);
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
    let (runtime, machines) = (&runtime, machines.as_ref());
    lambda_runtime::run(service_fn(async |_: LambdaEvent<EventBridgeEvent>| {
        Ok::<(), Error>(sweep_all(runtime, machines).await?)
    }))
    .await
}
