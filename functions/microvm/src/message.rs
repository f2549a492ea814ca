//! What comes in and what goes out, as `shared/aws` writes and reads it.

use serde::{Deserialize, Serialize};
use tailstep_core::ids::BlobRef;
use tailstep_sandbox::{Call, Reply};

/// The newest format that this version reads. An order says the oldest one that can carry it: 1, or 2
/// when something is given.
pub(crate) const FORMAT: u32 = 2;

/// What the provider posts when the machine starts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    /// A [`Start`], as text.
    pub(crate) run_hook_payload: Option<String>,
}

/// What the machine is started with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Start {
    pub(crate) v: u32,
    /// The sandbox that this machine is.
    pub(crate) sandbox: String,
    /// From 1: the machines that the session has had, this one included.
    pub(crate) generation: u64,
    /// SHA-256, in hexadecimal, of the secret that callers show.
    pub(crate) secret_sha256: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) v: u32,
    pub(crate) call: Call,
    /// The workspace before the call; absent for an empty one.
    #[serde(default)]
    pub(crate) workspace: Option<BlobRef>,
    /// Names what the session is given; absent when that is nothing.
    #[serde(default)]
    pub(crate) given: Option<String>,
    /// The manifest of the outputs before the call.
    #[serde(default)]
    pub(crate) outputs: Option<BlobRef>,
    /// The call may have been sent before, and its answer lost.
    #[serde(default)]
    pub(crate) repeated: bool,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answer {
    pub(crate) v: u32,
    pub(crate) reply: Reply,
    /// The workspace after the call, to be fetched; absent for an empty one.
    pub(crate) workspace: Option<BlobRef>,
    /// The manifest of the outputs after the call, when it is another one. It and its pieces are to be
    /// fetched before the next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<BlobRef>,
    /// It could not be packed: what `workspace` names is the one before the call.
    pub(crate) kept: bool,
}

/// Files that are about to come.
#[derive(Debug, Deserialize)]
pub(crate) struct Coming {
    /// As orders name them.
    pub(crate) given: Option<String>,
    /// The manifest that the outputs among them are of.
    pub(crate) outputs: Option<BlobRef>,
    pub(crate) files: Vec<ComingFile>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ComingFile {
    /// Absolute.
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: String,
    pub(crate) writable: bool,
}
