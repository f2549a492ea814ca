//! The step function: each wake-up of an SQS batch becomes one step. Lambda deletes the messages that
//! are not named as failed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lambda_events::sqs::SqsEvent;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use tailstep_aws::{Clients, Config, Ports, SecretsManager, handle_batch};
use tailstep_core::limits::Limits;
use tailstep_model::Router;
use tailstep_runtime::{
    Runtime,
    ports::{Clock, SystemClock},
    prefix::Prefixes,
    step::step,
};

/// Conversations kept by a warm worker. A worker serves one session at a time, and a session comes
/// back to it only by chance.
const PREFIXES_MAX: usize = 16;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tailstep_aws::start_logs();
    tailstep_model::tls::install();
    let config = Config::from_env()?;
    let clients = Clients::from_env().await;
    let ports = Ports::new(&clients, &config);
    let secrets = Arc::new(SecretsManager::new(clients.secrets.clone(), config.model_keys_arn()?));
    let runtime = Runtime {
        hands: ports.hands(&clients, &config)?,
        log: ports.log,
        queue: ports.queue,
        model: Arc::new(Router::new(&tailstep_model::Config::from_env()?, secrets)?),
        documents: ports.documents,
        clock: Arc::new(SystemClock),
        limits: Limits::default(),
        prefixes: Arc::new(Prefixes::new(PREFIXES_MAX)),
    };
    let runtime = &runtime;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<SqsEvent>| {
        let left_ms = event.context.deadline.saturating_sub(SystemClock.now_ms());
        let deadline = Instant::now() + Duration::from_millis(left_ms);
        let response = handle_batch(runtime.queue.as_ref(), &event.payload, async |delivery| {
            let report = step(runtime, delivery, Some(deadline)).await?;
            tracing::info!(session = %report.key, seq = report.seq, action = ?report.action,
                attempt = report.attempt, outcome = ?report.outcome, effect_ms = report.effect_ms,
                request = %event.context.request_id, "step");
            Ok::<(), tailstep_runtime::error::RuntimeError>(())
        });
        Ok::<_, Error>(response.await)
    }))
    .await
}
