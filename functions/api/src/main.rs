//! The API function: the public HTTP API behind a Function URL that streams its answers.

use std::sync::Arc;

use lambda_http::{Error, run_with_streaming_response};
use tailstep_api::{App, HandsFeatures, keys, router};
use tailstep_aws::{Clients, Config, Ports};
use tailstep_core::limits::{Limits, input::BODY_BYTES_MAX};
use tailstep_model::Router;
use tailstep_runtime::{
    Runtime,
    memory::MemorySecrets,
    ports::{Clock, SystemClock},
    prefix::Prefixes,
};

/// Event streams end cleanly one minute before the function's own 15 minutes are over.
const STREAM_MS_MAX: u64 = 840_000;
/// Whom the deployment's first key belongs to.
const TENANT: &str = "default";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tailstep_aws::start_logs();
    tailstep_model::tls::install();
    let config = Config::from_env()?;
    let clients = Clients::from_env().await;
    let ports = Ports::new(&clients, &config);
    if let Some(hash) = config.api_key_sha256() {
        let now_ms = SystemClock.now_ms();
        keys::ensure_key_hash(ports.documents.as_ref(), TENANT, hash, "deployment", now_ms).await?;
    }
    // Models are checked by name here and called elsewhere, so that no key is needed.
    let no_keys = Arc::new(MemorySecrets::default());
    let runtime = Runtime {
        hands: ports.releasing(&clients, &config),
        log: ports.log,
        queue: ports.queue,
        model: Arc::new(Router::new(&tailstep_model::Config::from_env()?, no_keys)?),
        documents: ports.documents.clone(),
        clock: Arc::new(SystemClock),
        limits: Limits::default(),
        prefixes: Arc::new(Prefixes::new(0)),
    };
    // The sandbox function has no place that could hold them; a machine has.
    let machines = config.microvms().is_some();
    let hands = HandsFeatures { files: machines, skills: machines, ..HandsFeatures::default() };
    let documents = ports.documents;
    let app = App {
        runtime,
        documents,
        blobs: ports.blobs,
        upload_bytes_max: BODY_BYTES_MAX as u64,
        hands,
        stream_max_ms: Some(STREAM_MS_MAX),
    };
    run_with_streaming_response(router(app)).await
}
