//! Hands in a Lambda function of their own: each call is one direct invocation. The workspace travels
//! along as an archive: inside the messages while it is small, else as an object in S3 that the
//! function gets and puts by URLs made for this call. The function has an empty role; what it answers
//! is data.
//!
//! **Isolation.** The invocation names the session's sandbox as its tenant, and the function is in
//! tenant isolation mode: no execution environment ever serves two sandboxes. An environment may be
//! reused by its own sandbox, which then finds its shell again; nothing relies on that.
//!
//! **Limits.** An invocation carries 6 MB each way, base64 and JSON included: 4 MB of a packed workspace.
//! In S3 it may have what `tailstep_sandbox::workspace::Caps` allows. Commands get no internet socket.
//!
//! The two message types are the function's contract; `functions/sandbox` reads the same examples.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_lambda::{
    Client,
    error::SdkError,
    operation::invoke::{InvokeError, InvokeOutput},
    primitives::Blob,
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::timeout::TimeoutConfig;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tailstep_core::ids::{BlobRef, SessionKey, sha256_hex};
use tailstep_runtime::ports::{Blobs, BlobsError, Hands, HandsError, ToolOrder, ToolReply};
use tokio::time::sleep;

use crate::{
    blobs::{Place, S3Blobs},
    config::LambdaConfig,
    trouble::{Trouble, sort},
};

/// Largest packed workspace inside an order: with base64 it is 5.3 MB of the 6 MB that an invocation
/// may carry.
const INLINE_BYTES_MAX: u64 = 4_000_000;
/// Largest packed workspace in S3: what the function packs at most. Whatever is longer is not its.
const STORED_BYTES_MAX: u64 = 100 << 20;
/// Format of an order whose workspace is to be fetched. A function of the first version refuses it;
/// all others it reads.
const FORMAT_STORED: u32 = 2;
const FORMAT: u32 = 1;
/// How long URLs outlive the longest wait for the call's answer, for the waits before repeats.
const URLS_SLACK: Duration = Duration::from_secs(60);
/// Requests for one call, the first included: Lambda refuses at its limit of concurrent invocations,
/// and an invocation ends somewhere every few seconds.
const ATTEMPTS_MAX: u32 = 4;
/// Longest wait before a repeat, whatever Lambda asks for: the step's own time runs.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct LambdaHands {
    lambda: Client,
    config: LambdaConfig,
    blobs: Arc<S3Blobs>,
}

impl LambdaHands {
    pub fn new(lambda: Client, config: LambdaConfig, blobs: Arc<S3Blobs>) -> Self {
        Self { lambda, config, blobs }
    }
}

/// What the function is sent.
#[derive(Debug, Serialize)]
struct Order<'a> {
    v: u32,
    /// The session's sandbox; one environment serves one of them.
    sandbox: String,
    call: Call<'a>,
    /// The workspace before the call. Absent for an empty one.
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<Given>,
    /// Where a workspace goes that is too large for the answer.
    put_url: String,
}

/// A gzipped tar archive.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Given {
    /// In base64.
    Inline(String),
    Stored {
        blob: BlobRef,
        get_url: String,
    },
}

#[derive(Debug, Serialize)]
struct Call<'a> {
    call_id: String,
    tool: &'a str,
    /// JSON text.
    input: &'a str,
    timeout_ms: u64,
}

/// What the function answers.
#[derive(Debug, Deserialize)]
struct Answer {
    reply: Reply,
    /// The workspace after the call; absent when it did not change.
    #[serde(default)]
    workspace: Option<Kept>,
}

/// A gzipped tar archive.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Kept {
    /// In base64.
    Inline(String),
    /// Put to the order's `put_url`.
    Stored(BlobRef),
}

#[derive(Debug, Deserialize)]
struct Reply {
    text: String,
    is_error: bool,
}

#[async_trait]
impl Hands for LambdaHands {
    /// Dropping the future abandons the invocation, which Lambda cannot stop: it ends at its own
    /// limit, and its answer goes nowhere.
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let limit = Duration::from_millis(order.timeout_ms.saturating_add(self.config.overhead_ms));
        let workspace = match self.given(order, limit).await {
            Ok(workspace) => workspace,
            Err(error @ (BlobsError::Missing { .. } | BlobsError::Corrupt { .. })) => {
                tracing::error!(session = %order.key, %error, "workspace is lost");
                let text = "the saved workspace is lost; the call did not run";
                return Ok(failed(text.to_owned()));
            }
            Err(error) => return Err(HandsError::Unavailable { what: error.to_string() }),
        };
        let sandbox = sandbox_name(&order.key);
        let call_id = format!("{}.{}.{}", order.call.seq, order.call.event, order.call.part);
        let place = Place::of(&sandbox, &call_id);
        let put_url = self.blobs.put_url(&place, limit + URLS_SLACK).await;
        let message = Order {
            v: if matches!(workspace, Some(Given::Stored { .. })) { FORMAT_STORED } else { FORMAT },
            sandbox: sandbox.clone(),
            call: Call {
                call_id,
                tool: &order.tool,
                input: order.input.as_str(),
                timeout_ms: order.timeout_ms,
            },
            workspace,
            put_url: put_url
                .map_err(|error| HandsError::Unavailable { what: error.to_string() })?,
        };
        let payload = serde_json::to_vec(&message)
            .map_err(|error| HandsError::Unavailable { what: error.to_string() })?;
        let answer = self.invoke(&sandbox, &payload, limit).await?;
        let workspace = match answer.workspace {
            None => None,
            Some(kept) => Some(self.keep(&order.key, &place, kept).await?),
        };
        Ok(ToolReply {
            text: answer.reply.text,
            is_error: answer.reply.is_error,
            workspace,
            ..ToolReply::default()
        })
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        // Nothing runs between calls, and Lambda takes idle environments away by itself.
        Ok(())
    }
}

impl LambdaHands {
    /// The workspace in the form in which it travels.
    async fn given(&self, order: &ToolOrder, limit: Duration) -> Result<Option<Given>, BlobsError> {
        let (tenant, Some(blob)) = (&order.key.tenant, &order.workspace) else { return Ok(None) };
        Ok(Some(if blob.bytes <= INLINE_BYTES_MAX {
            Given::Inline(STANDARD.encode(self.blobs.get(tenant, blob).await?))
        } else {
            let get_url = self.blobs.get_url(tenant, blob, limit + URLS_SLACK).await?;
            Given::Stored { blob: blob.clone(), get_url }
        }))
    }

    async fn invoke(
        &self,
        sandbox: &str,
        payload: &[u8],
        limit: Duration,
    ) -> Result<Answer, HandsError> {
        for attempt in 1.. {
            let error = match self.send(sandbox, payload, limit).await {
                Ok(output) => return read(&output),
                Err(error) => error,
            };
            // At its limit Lambda refuses before anything runs, so that a repeat is safe.
            match error.as_service_error() {
                Some(InvokeError::TooManyRequestsException(busy)) if attempt < ATTEMPTS_MAX => {
                    let asked = busy.retry_after_seconds().and_then(|text| text.parse().ok());
                    sleep(wait(attempt, asked)).await;
                }
                Some(_) | None => return Err(unanswered(&error)),
            }
        }
        Err(HandsError::Unavailable { what: "invoke sandbox: no attempt was made".to_owned() })
    }

    async fn send(
        &self,
        sandbox: &str,
        payload: &[u8],
        limit: Duration,
    ) -> Result<InvokeOutput, SdkError<InvokeError, HttpResponse>> {
        let timeouts = TimeoutConfig::builder().operation_timeout(limit).build();
        self.lambda
            .invoke()
            .function_name(&self.config.function)
            .tenant_id(sandbox)
            .payload(Blob::new(payload))
            .customize()
            .config_override(aws_sdk_lambda::Config::builder().timeout_config(timeouts))
            .send()
            .await
    }

    async fn keep(
        &self,
        key: &SessionKey,
        place: &Place,
        kept: Kept,
    ) -> Result<BlobRef, HandsError> {
        let lost = |what: String| HandsError::Lost { what };
        let unsaved = |error| lost(format!("workspace could not be saved: {error}"));
        match kept {
            Kept::Inline(text) => {
                let archive = STANDARD
                    .decode(text)
                    .map_err(|error| lost(format!("workspace archive is not base64: {error}")))?;
                self.blobs.put(&key.tenant, Bytes::from(archive)).await.map_err(unsaved)
            }
            Kept::Stored(blob) if blob.bytes > STORED_BYTES_MAX => {
                Err(lost(format!("workspace is said to have {} bytes packed", blob.bytes)))
            }
            Kept::Stored(blob) => {
                self.blobs.take_over(&key.tenant, place, &blob).await.map_err(unsaved)?;
                Ok(blob)
            }
        }
    }
}

/// How long to wait before the next attempt: what the service asks for if it does, else doubling from
/// half a second; with up to a half on top, so that those refused together do not return together.
pub(crate) fn wait(attempt: u32, asked_s: Option<u64>) -> Duration {
    let wanted = match asked_s {
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::from_millis(250 << attempt.min(8)),
    };
    let mut salt = [0];
    // Without randomness they do return together, which costs time only.
    let _ = getrandom::fill(&mut salt);
    let wait = wanted.min(WAIT_MAX);
    wait + wait * u32::from(salt[0]) / 512
}

pub(crate) fn failed(text: String) -> ToolReply {
    ToolReply { text, is_error: true, ..ToolReply::default() }
}

/// The sandbox of a session, by the name that providers know it by; to Lambda, a tenant: no character of a name can be refused, and no two
/// sessions share it.
pub fn sandbox_name(key: &SessionKey) -> String {
    sha256_hex(crate::item::join_key(&[&key.tenant, &key.session]).as_bytes())
}

fn read(output: &InvokeOutput) -> Result<Answer, HandsError> {
    let payload = output.payload().map(Blob::as_ref).unwrap_or_default();
    if let Some(kind) = output.function_error() {
        // Such a payload is Lambda's own: an error type and one line of text.
        let text = String::from_utf8_lossy(&payload[..payload.len().min(500)]).into_owned();
        return Err(HandsError::Lost { what: format!("{kind}: {text}") });
    }
    serde_json::from_slice(payload)
        .map_err(|error| HandsError::Lost { what: format!("answer cannot be read: {error}") })
}

/// An invocation without an answer. Lambda refuses before anything runs; behind its internal errors,
/// a lost connection or our own deadline, the call may have run.
fn unanswered<R: std::fmt::Debug>(error: &SdkError<InvokeError, R>) -> HandsError {
    let (Trouble::Unavailable(what) | Trouble::Refused(what)) = sort("invoke sandbox", error);
    let refused = match error.as_service_error() {
        Some(service) => !matches!(service, InvokeError::ServiceException(_)),
        None => matches!(error, SdkError::ConstructionFailure(_)),
    };
    if refused { HandsError::Unavailable { what } } else { HandsError::Lost { what } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call<'static> {
        let input = r#"{"command":"true"}"#;
        Call { call_id: "7.0.2".into(), tool: "bash", input, timeout_ms: 150_000 }
    }

    #[test]
    fn messages_are_the_ones_the_function_reads() {
        let blob = BlobRef::of(b"large").sha256;
        let blob = BlobRef { sha256: blob, bytes: 5_000_000 };
        let get_url = "https://s3.example/get".to_owned();
        let order = Order {
            v: FORMAT_STORED,
            sandbox: "5b1e".into(),
            call: call(),
            workspace: Some(Given::Stored { blob: blob.clone(), get_url }),
            put_url: "https://s3.example/put".into(),
        };
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../examples/hands-order-v2.json")).unwrap();
        assert_eq!(serde_json::to_value(&order).unwrap(), golden);
        let answer: Answer =
            serde_json::from_str(include_str!("../examples/hands-answer-v2.json")).unwrap();
        assert_eq!(answer.workspace, Some(Kept::Stored(blob)));
    }

    /// A function of the first version reads an order with a small workspace, and is answered by it.
    #[test]
    fn small_workspaces_travel_as_they_always_did() {
        let order = Order {
            v: FORMAT,
            sandbox: "5b1e".into(),
            call: call(),
            workspace: Some(Given::Inline("H4sIAAAA".into())),
            put_url: "https://s3.example/put".into(),
        };
        let mut written = serde_json::to_value(&order).unwrap();
        written.as_object_mut().unwrap().remove("put_url");
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../examples/hands-order-v1.json")).unwrap();
        assert_eq!(written, golden);
        let answer: Answer =
            serde_json::from_str(include_str!("../examples/hands-answer-v1.json")).unwrap();
        assert_eq!((answer.reply.text.as_str(), answer.reply.is_error), ("ok\n", false));
        assert_eq!(answer.workspace, Some(Kept::Inline("H4sIAAAA".into())));
    }

    #[test]
    fn sandboxes_of_different_sessions_differ() {
        let a = sandbox_name(&SessionKey::new("a#b", "c"));
        assert_ne!(a, sandbox_name(&SessionKey::new("a", "b#c")));
        assert_eq!(a.len(), 64);
    }
}
