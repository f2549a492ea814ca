//! What comes in and what goes out, as `shared/aws` writes and reads it.

use serde::{Deserialize, Serialize};
use tailstep_core::ids::BlobRef;
use tailstep_sandbox::{Call, Reply};

/// The newest format that this version reads. An order says the oldest one that can carry it: 1, or 2
/// when its workspace is to be fetched.
pub(crate) const FORMAT: u32 = 2;

#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) v: u32,
    /// Whose call it is.
    pub(crate) sandbox: String,
    pub(crate) call: Call,
    /// The workspace before the call; absent for an empty one.
    #[serde(default)]
    pub(crate) workspace: Option<Given>,
    /// Where a workspace goes that is too large for the answer: a presigned URL, for this call only.
    #[serde(default)]
    pub(crate) put_url: Option<String>,
}

/// A gzipped tar archive.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Given {
    /// In base64.
    Inline(String),
    /// Behind a presigned URL.
    Stored { blob: BlobRef, get_url: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    /// As in an order.
    pub(crate) v: u32,
    pub(crate) reply: Reply,
    /// The workspace after the call; absent when it did not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<Kept>,
}

impl Answer {
    pub(crate) fn new(reply: Reply, workspace: Option<Kept>) -> Self {
        let v = if matches!(workspace, Some(Kept::Stored(_))) { 2 } else { 1 };
        Self { v, reply, workspace }
    }
}

/// A gzipped tar archive.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Kept {
    /// In base64; no characters for an empty workspace.
    Inline(String),
    /// Put to the order's `put_url`.
    Stored(BlobRef),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Order {
        serde_json::from_str(text).unwrap()
    }

    fn answer(call_id: String, workspace: Option<Kept>) -> serde_json::Value {
        let text = "ok\n".into();
        let reply = Reply { call_id, text, is_error: false, truncated_bytes: 0, timed_out: false };
        serde_json::to_value(Answer::new(reply, workspace)).unwrap()
    }

    fn golden(text: &str) -> serde_json::Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn messages_are_the_ones_the_step_writes_and_reads() {
        let small = order(include_str!("../../../shared/aws/examples/hands-order-v1.json"));
        assert_eq!((small.v, small.sandbox.as_str(), small.put_url), (1, "5b1e", None));
        assert_eq!(small.call.input, r#"{"command":"true"}"#);
        let Some(Given::Inline(archive)) = small.workspace else { panic!("not inline") };
        assert_eq!(
            answer(small.call.call_id, Some(Kept::Inline(archive))),
            golden(include_str!("../../../shared/aws/examples/hands-answer-v1.json"))
        );
        let large = order(include_str!("../../../shared/aws/examples/hands-order-v2.json"));
        assert_eq!((large.v, large.put_url.as_deref()), (2, Some("https://s3.example/put")));
        let Some(Given::Stored { blob, get_url }) = large.workspace else { panic!("not stored") };
        assert_eq!((blob.bytes, get_url.as_str()), (5_000_000, "https://s3.example/get"));
        assert_eq!(
            answer(large.call.call_id, Some(Kept::Stored(blob))),
            golden(include_str!("../../../shared/aws/examples/hands-answer-v2.json"))
        );
    }
}
