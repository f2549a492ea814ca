//! What comes in and what goes out, as `shared/aws` writes and reads it.

use serde::{Deserialize, Serialize};
use tailstep_sandbox::{Call, Reply};

/// The format that this version reads.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) v: u32,
    /// Whose call it is.
    pub(crate) sandbox: String,
    pub(crate) call: Call,
    /// The workspace before the call: a gzipped tar archive in base64; absent for an empty one.
    #[serde(default)]
    pub(crate) workspace: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answer {
    pub(crate) v: u32,
    pub(crate) reply: Reply,
    /// The workspace after the call, in the same form; absent when it did not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_ones_the_step_writes_and_reads() {
        let order: Order =
            serde_json::from_str(include_str!("../../../shared/aws/examples/hands-order-v1.json"))
                .unwrap();
        assert_eq!((order.v, order.sandbox.as_str()), (FORMAT, "5b1e"));
        assert_eq!(order.call.input, r#"{"command":"true"}"#);
        let answer = Answer {
            v: FORMAT,
            reply: Reply {
                call_id: order.call.call_id,
                text: "ok\n".into(),
                is_error: false,
                truncated_bytes: 0,
                timed_out: false,
            },
            workspace: order.workspace,
        };
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../shared/aws/examples/hands-answer-v1.json"))
                .unwrap();
        assert_eq!(serde_json::to_value(&answer).unwrap(), golden);
    }
}
