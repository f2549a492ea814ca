//! The SDK clients: one HTTPS connection pool, timeouts, and the one layer that tries again.
//!
//! Everything above this module sees a call either succeed or fail for good: no other code of the
//! project repeats a service call in a loop.

use std::time::Duration;

use crate::bounded::Bounded;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::client::{
    http::SharedHttpClient,
    interceptors::context::InterceptorContext,
    retries::classifiers::{ClassifyRetry, RetryAction},
};
use aws_smithy_types::{retry::RetryConfig, timeout::TimeoutConfig};

/// Amazon's own roots, which all AWS endpoints chain to. Reading the machine's whole certificate
/// store instead costs about 5 ms of CPU in every cold start.
pub(crate) const AMAZON_ROOTS: &[u8] = include_bytes!("amazon-roots.pem");
/// Endpoints close a connection after 20 s without a request; ours go first, so that no request is
/// sent into a connection that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(15);
/// A connection inside a region takes a few milliseconds.
const CONNECT: Duration = Duration::from_secs(2);
/// Well above DynamoDB's slowest ordinary answer; a longer silence is a dead connection.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(5);
/// One call with all its attempts. A third of a lease, so that a holder whose store hangs still
/// notices before its lease is gone.
pub(crate) const OPERATION: Duration = Duration::from_secs(15);
/// First try included. Three repeats outlast a partition split or a throttled second.
const ATTEMPTS_MAX: u32 = 4;
/// What Lambda lets a function answer is 6 MB; whatever is longer is not Lambda's.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// For blobs, which may be tens of megabytes.
const BLOB_ATTEMPT: Duration = Duration::from_secs(60);
const BLOB_OPERATION: Duration = Duration::from_secs(180);

/// A client for each service the adapter uses.
#[derive(Debug, Clone)]
pub struct Clients {
    pub dynamodb: aws_sdk_dynamodb::Client,
    pub sqs: aws_sdk_sqs::Client,
    pub s3: aws_sdk_s3::Client,
    pub secrets: aws_sdk_secretsmanager::Client,
    pub scheduler: aws_sdk_scheduler::Client,
    pub lambda: aws_sdk_lambda::Client,
    pub microvms: aws_sdk_lambdamicrovms::Client,
}

impl Clients {
    /// Clients for the region and credentials in the environment. Makes no network call when both
    /// are in the environment, as they are in Lambda.
    pub async fn from_env() -> Self {
        let config = aws_config::defaults(BehaviorVersion::latest())
            .http_client(https())
            .retry_config(retries())
            .timeout_config(timeouts(ATTEMPT, OPERATION))
            .load()
            .await;
        Self::from_sdk_config(&config)
    }

    fn from_sdk_config(config: &SdkConfig) -> Self {
        let dynamodb = with_dynamodb_retries(config.into()).build();
        let s3 = aws_sdk_s3::config::Builder::from(config)
            .timeout_config(timeouts(BLOB_ATTEMPT, BLOB_OPERATION))
            // An emulator and some S3-compatible stores have no host name for each bucket.
            .force_path_style(std::env::var_os("AWS_ENDPOINT_URL").is_some())
            .build();
        let lambda = with_call_settings(config.into()).build();
        Self {
            dynamodb: aws_sdk_dynamodb::Client::from_conf(dynamodb),
            sqs: aws_sdk_sqs::Client::new(config),
            s3: aws_sdk_s3::Client::from_conf(s3),
            secrets: aws_sdk_secretsmanager::Client::new(config),
            scheduler: aws_sdk_scheduler::Client::new(config),
            lambda: aws_sdk_lambda::Client::from_conf(lambda),
            microvms: aws_sdk_lambdamicrovms::Client::new(config),
        }
    }
}

/// The settings of a DynamoDB client that do not come from the environment.
pub fn dynamodb_config() -> aws_sdk_dynamodb::config::Builder {
    with_dynamodb_retries(aws_sdk_dynamodb::Config::builder().retry_config(retries()))
}

/// The settings of the sandbox function's client that do not come from the environment.
pub fn lambda_config() -> aws_sdk_lambda::config::Builder {
    with_call_settings(aws_sdk_lambda::Config::builder())
}

/// A tool call that may have run must not run again by itself, and it takes as long as it takes: the
/// hands set their own deadline, and repeat what was refused.
fn with_call_settings(builder: aws_sdk_lambda::config::Builder) -> aws_sdk_lambda::config::Builder {
    builder
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT).build())
        .interceptor(Bounded { bytes_max: ANSWER_BYTES_MAX })
}

fn with_dynamodb_retries(
    builder: aws_sdk_dynamodb::config::Builder,
) -> aws_sdk_dynamodb::config::Builder {
    builder.retry_classifier(TransactionConflicts)
}

/// The retry settings of every client but Lambda's: exponential waits with jitter from 50 ms.
pub(crate) fn retries() -> RetryConfig {
    RetryConfig::standard()
        .with_max_attempts(ATTEMPTS_MAX)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_secs(2))
}

pub(crate) fn timeouts(attempt: Duration, operation: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .operation_attempt_timeout(attempt)
        .operation_timeout(operation)
        .build()
}

fn https() -> SharedHttpClient {
    // Whoever names roots or an endpoint of their own wants those trusted.
    let own_roots = ["SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_ENDPOINT_URL"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let trust = if own_roots {
        TrustStore::default()
    } else {
        TrustStore::empty().with_pem_certificate(AMAZON_ROOTS)
    };
    let builder = Builder::new()
        .pool_idle_timeout(POOL_IDLE)
        .tls_provider(Provider::Rustls(CryptoMode::Ring));
    match TlsContext::builder().with_trust_store(trust).build() {
        Ok(context) => builder.tls_context(context).build_https(),
        // Only the builder's own validation can fail; the default context then serves.
        Err(_) => builder.build_https(),
    }
}

/// Lets the SDK repeat a transaction that lost against another one on the same item. DynamoDB reports
/// it inside the list of reasons, where the SDK's own classifiers do not look.
#[derive(Debug)]
pub(crate) struct TransactionConflicts;

impl ClassifyRetry for TransactionConflicts {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let Some(Err(error)) = context.output_or_error() else {
            return RetryAction::NoActionIndicated;
        };
        let failed = error
            .as_operation_error()
            .and_then(|error| error.downcast_ref::<TransactWriteItemsError>());
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) = failed else {
            return RetryAction::NoActionIndicated;
        };
        let codes = || cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code());
        let passing = |code: &str| {
            matches!(
                code,
                "TransactionConflict" | "ThrottlingError" | "ProvisionedThroughputExceeded"
            )
        };
        // A condition that failed will fail again, whatever else went wrong beside it.
        if codes().any(passing) && codes().all(|code| code == "None" || passing(code)) {
            RetryAction::transient_error()
        } else {
            RetryAction::NoActionIndicated
        }
    }

    fn name(&self) -> &'static str {
        "transaction conflicts"
    }
}
