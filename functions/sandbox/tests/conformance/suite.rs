//! The conformance suite of the hands on the sandbox function: the real bootstrap, one process a
//! tenant under a Runtime API of our own, called by the real client over HTTP.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

mod bucket;
mod environment;
mod service;
mod workspaces;

use std::{fs, sync::Arc};

use aws_credential_types::Credentials;
use aws_sdk_lambda::config::{BehaviorVersion, Region};
use tailstep_aws::{LambdaConfig, LambdaHands, S3Blobs, lambda_config};
use tests_wire::hands::{self, Again, Ending, Fault, Outside, Subject, Walls};

use bucket::Bucket;
use service::{FUNCTION, Service};

#[tokio::test(flavor = "multi_thread")]
async fn lambda_hands() {
    hands::all(subject).await;
}

/// What a command could do with the Runtime API: answer for the function, or take another sandbox's
/// call. No command can open a socket that leads anywhere but into its own machine.
#[tokio::test(flavor = "multi_thread")]
async fn commands_cannot_reach_the_runtime_api() {
    let s = subject().await;
    let works = hands::one_call(&s, "true").await;
    assert!(!works.is_error);
    for way in [
        "exec 3<>/dev/tcp/127.0.0.1/9001",
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9001))'",
        "curl -s --max-time 2 http://169.254.169.254/",
        "head -c 1 /proc/$PPID/mem",
        "unshare -U true",
    ] {
        let reply = hands::one_call(&s, way).await;
        assert!(reply.is_error, "{way}: {}", reply.text);
    }
}

/// Each with the most requests that it may cost; a call without a fault costs one.
const FAULTS: [Fault; 12] = [
    fault("throttled", Ending::Answered, 2, Again::Remembered),
    fault("throttled for long", Ending::Unavailable, 4, Again::Runs),
    fault("reply lost", Ending::Lost, 1, Again::Remembered),
    fault("reset in the middle of the reply", Ending::Lost, 1, Again::Remembered),
    fault("slow reply", Ending::Answered, 1, Again::Remembered),
    fault("stalled reply", Ending::Lost, 1, Again::Remembered),
    fault("oversized reply", Ending::Lost, 1, Again::Remembered),
    fault("empty reply", Ending::Lost, 1, Again::Remembered),
    fault("credentials expired", Ending::Unavailable, 1, Again::Runs),
    fault("not found", Ending::Unavailable, 1, Again::Runs),
    fault("conflict", Ending::Unavailable, 1, Again::Runs),
    fault("internal error", Ending::Lost, 1, Again::Runs),
];

const fn fault(name: &'static str, ending: Ending, requests_max: usize, again: Again) -> Fault {
    Fault { name, ending, requests_max, again }
}

async fn subject() -> Subject {
    // A stalled reply is waited for as long as the call may take, and this.
    subject_with(&Bucket::start().await, 1_000).await
}

async fn subject_with(bucket: &Bucket, overhead_ms: u64) -> Subject {
    let outside = tempfile::tempdir().unwrap();
    let service = Service::start().await;
    let http = aws_smithy_http_client::Builder::new().build_http();
    let credentials = Credentials::new("test", "test", None, None, "test");
    let lambda = lambda_config()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials.clone())
        .endpoint_url(service.url())
        .http_client(http.clone());
    let s3 = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials)
        .endpoint_url(bucket.url())
        .force_path_style(true)
        .http_client(http);
    let config = LambdaConfig { overhead_ms, ..LambdaConfig::new(FUNCTION) };
    let blobs = S3Blobs::new(aws_sdk_s3::Client::from_conf(s3.build()), "blobs");
    let client = aws_sdk_lambda::Client::from_conf(lambda.build());
    let hands = LambdaHands::new(client, config, Arc::new(blobs));
    let here = fs::canonicalize(outside.path()).unwrap();
    Subject {
        hands: Arc::new(hands),
        provider: service.clone(),
        outside: Outside { inside: here.clone(), here },
        walls: Walls::Providers,
        faults: FAULTS.to_vec(),
        keep: Box::new((outside, service)),
    }
}
