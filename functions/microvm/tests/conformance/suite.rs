//! The conformance suite of the hands on microVMs: the real daemon as a process, behind a control plane
//! and a proxy of our own that speak the service's protocol, called by the real client over HTTP.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

mod files;
mod machine;
mod service;
mod sweep;

use std::{fs, sync::Arc};

use aws_credential_types::Credentials;
use aws_sdk_lambdamicrovms::config::{BehaviorVersion, Region};
use tailstep_aws::{MicroVmConfig, MicroVmHands, microvm_config};
use tailstep_runtime::{
    memory::{MemoryBlobs, MemoryDocuments},
    ports::Hands,
};
use tests_wire::hands::{self, Again, Ending, Fault, Outside, Provider, Subject, Walls};

use service::{EGRESS, IMAGE, INGRESS, Service};

#[tokio::test(flavor = "multi_thread")]
async fn microvm_hands() {
    hands::all(async || subject().await.0).await;
}

/// Each with the most requests that it may cost. A call costs one in a machine that is there, and three
/// in one that is made for it.
const FAULTS: [Fault; 21] = [
    fault("create throttled", Ending::Answered, 4, Again::Remembered),
    fault("create throttled for long", Ending::Unavailable, 4, Again::Runs),
    fault("create over quota", Ending::Answered, 4, Again::Remembered),
    fault("create without capacity", Ending::Answered, 4, Again::Remembered),
    fault("create reply lost", Ending::Answered, 4, Again::Remembered),
    fault("create internal error", Ending::Answered, 4, Again::Remembered),
    fault("create conflict", Ending::Unavailable, 1, Again::Runs),
    fault("create denied", Ending::Unavailable, 1, Again::Runs),
    fault("token reply lost", Ending::Answered, 4, Again::Remembered),
    fault("token expired", Ending::Answered, 3, Again::Remembered),
    fault("not found", Ending::AnsweredAnew, 7, Again::Remembered),
    fault("asleep", Ending::Answered, 6, Again::Remembered),
    fault("asleep, and the resume's reply lost", Ending::Answered, 7, Again::Remembered),
    fault("empty workspace", Ending::AnsweredAnew, 3, Again::Remembered),
    fault("internal error", Ending::Answered, 3, Again::Remembered),
    fault("reply lost", Ending::Answered, 3, Again::Remembered),
    fault("reset in the middle of the reply", Ending::Answered, 3, Again::Remembered),
    fault("slow reply", Ending::Answered, 1, Again::Remembered),
    fault("stalled reply", Ending::Answered, 3, Again::Remembered),
    fault("oversized reply", Ending::Answered, 3, Again::Remembered),
    fault("empty reply", Ending::Answered, 3, Again::Remembered),
];

const fn fault(name: &'static str, ending: Ending, requests_max: usize, again: Again) -> Fault {
    Fault { name, ending, requests_max, again }
}

async fn subject() -> (Subject, Arc<MicroVmHands>, Arc<Service>) {
    // A stalled reply is waited for as long as the call may take, and this.
    subject_over(Arc::new(MemoryBlobs::default()), 1_000).await
}

async fn subject_over(
    blobs: Arc<MemoryBlobs>,
    overhead_ms: u64,
) -> (Subject, Arc<MicroVmHands>, Arc<Service>) {
    let outside = tempfile::tempdir().unwrap();
    let documents = Arc::new(MemoryDocuments::default());
    let service = Service::start(documents.clone()).await;
    let config = microvm_config()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(service.url())
        .http_client(aws_smithy_http_client::Builder::new().build_http());
    let client = aws_sdk_lambdamicrovms::Client::from_conf(config.build());
    let config = MicroVmConfig {
        overhead_ms,
        ..MicroVmConfig::new(IMAGE, vec![INGRESS.to_owned()], vec![EGRESS.to_owned()])
    };
    let hands = Arc::new(MicroVmHands::new(client, config, blobs, documents));
    let here = fs::canonicalize(outside.path()).unwrap();
    let subject = Subject {
        hands: hands.clone(),
        provider: service.clone(),
        outside: Outside { inside: here.clone(), here },
        walls: Walls::Providers,
        faults: FAULTS.to_vec(),
        keep: Box::new((outside, service.clone())),
    };
    (subject, hands, service)
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_no_session_are_reaped_and_others_are_not() {
    let (s, hands, service) = subject().await;
    // One is at work, one was made by a worker that died before it could write that down.
    assert_eq!(hands::one_call(&s, "echo on").await.text, "on\n");
    service.orphan().await;
    assert_eq!(service.live().await, 2);
    let reaped = hands.reap().await.unwrap();
    assert_eq!((reaped.listed, reaped.ended), (2, 1));
    assert_eq!(service.live().await, 1);
    assert_eq!(hands.reap().await.unwrap().ended, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_machine_that_could_not_be_ended_is_reaped() {
    let (s, hands, service) = subject().await;
    let key = hands::started(&s).await;
    service.inject("end denied");
    assert!(hands.release(&key).await.is_err(), "it was not said that a machine is left");
    assert_eq!(service.live().await, 1);
    hands.release(&key).await.unwrap();
    assert_eq!(hands.reap().await.unwrap().ended, 1);
    assert_eq!(service.live().await, 0);
}
