//! The execution layer: runs one tool call in the session's sandbox.

use async_trait::async_trait;
use tailstep_core::{
    agent::EnvironmentSpec,
    event::HandsReport,
    files::Given,
    ids::{BlobRef, Position, SessionKey},
    raw::RawJson,
};
use thiserror::Error;

#[async_trait]
pub trait Hands: Send + Sync {
    /// Runs one call, in a sandbox that is made when the first call needs it. What the tool says,
    /// failure and time-out included, is a reply. Dropping the future stops the call.
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError>;

    /// Destroys the session's sandbox and workspace, if there are any. Idempotent.
    async fn release(&self, key: &SessionKey) -> Result<(), HandsError>;
}

#[derive(Debug, Clone)]
pub struct ToolOrder {
    pub key: SessionKey,
    /// Names the call within the session: the same place is the same call.
    pub call: Position,
    pub tool: String,
    /// A JSON object.
    pub input: RawJson,
    pub timeout_ms: u64,
    pub environment: EnvironmentSpec,
    /// What the session's sandboxes are given.
    pub given: Given,
    /// The workspace before the call, where the hands carry it as a blob.
    pub workspace: Option<BlobRef>,
    /// The manifest of the outputs before the call, as the log knows it.
    pub outputs: Option<BlobRef>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolReply {
    /// Bounded by the hands.
    pub text: String,
    pub is_error: bool,
    /// The workspace after the call, where the hands carry it as a blob.
    pub workspace: Option<BlobRef>,
    /// What the hands saw beside the reply.
    pub report: HandsReport,
}

#[derive(Debug, Error)]
pub enum HandsError {
    /// The sandbox died during the call, which may have run in part.
    #[error("sandbox was lost: {what}")]
    Lost { what: String },
    /// The session's sandbox cannot be prepared as its environment says; nothing ran. `told` is for
    /// the model.
    #[error("sandbox cannot be prepared: {told}")]
    Unprepared { told: String },
    /// No sandbox can be had at the moment; nothing ran.
    #[error("no sandbox is available: {what}")]
    Unavailable { what: String },
}
