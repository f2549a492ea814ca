//! One tool call and its bounded answer, as they travel to and from every kind of hands. It must
//! not know sessions, models or transports.

use serde::{Deserialize, Serialize};

/// One call of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Names the call while the sandbox lives: a call seen before is answered, not run again.
    pub call_id: String,
    /// One of the names in [`tailstep_core::toolset`]; any other is an error reply.
    pub tool: String,
    /// JSON text of the input, as the model wrote it. Anything but a fitting object is an error
    /// reply that names the field.
    pub input: String,
    /// The longest the call may take; 0 leaves it to the tool's default. The sandbox's own
    /// `call_ms_max` holds in any case.
    pub timeout_ms: u64,
}

/// What a call came to. A failed command, a missing file and a time-out are replies, not errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub call_id: String,
    /// What the model is shown; may be empty, when a command printed nothing.
    pub text: String,
    pub is_error: bool,
    /// Bytes of output that `text` leaves out; 0 when it is whole.
    pub truncated_bytes: u64,
    /// The deadline ended the call.
    pub timed_out: bool,
}
