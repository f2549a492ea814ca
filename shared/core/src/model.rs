//! Talking to a model, in neutral terms: what is asked, what comes back, what it cost.
//!
//! Must not know any provider's wire format; the `model` crate translates.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{content::Content, raw::RawJson};

/// One request: everything that the model is shown. Equal logs give equal requests, and a later
/// step's request begins with the earlier one's messages unchanged (prompt caches need that).
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// Model id as the agent names it, prefix included (`openai/…`, `scripted/…`, or bare).
    pub model: String,
    /// `low`, `medium`, `high`, `xhigh` or `max`, when the agent sets it.
    pub effort: Option<String>,
    pub system: Option<String>,
    /// In a fixed order.
    pub tools: Vec<ToolDefinition>,
    /// Alternating roles, the first from the user and the last too (after a pause, the assistant's);
    /// never an empty message, never a blank text block, each tool use answered exactly once in the
    /// next user message.
    /// Shared, so that asking again does not copy the conversation.
    pub messages: Arc<Vec<Message>>,
    pub output_tokens_max: u32,
}

/// A tool as the model sees it. The schema is a JSON Schema object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    pub input_schema: RawJson,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub role: Role,
    pub parts: Vec<Part>,
}

/// One block of a message in a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// From the user, or the model's own text.
    Content(Content),
    /// A call that the model made. `input` is always a JSON object.
    ToolUse { id: String, name: String, input: RawJson },
    /// The answer to one call. Never blank: an empty result is replaced by a marker.
    ToolResult { id: String, content: Vec<Content>, is_error: bool },
    /// A block of one provider (signed reasoning, for example): sent back to a provider of the same
    /// dialect exactly as it came, left out for any other.
    Opaque { dialect: String, raw: RawJson },
}

/// One block of an answer, as it is stored. Tagged from outside, so that raw JSON survives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: RawJson,
    },
    /// A call whose arguments are not a JSON object. It is never run; the model is told why.
    BrokenToolUse {
        id: String,
        name: String,
        /// What the model wrote, for the log.
        raw: String,
        reason: Broken,
    },
    Opaque {
        dialect: String,
        raw: RawJson,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Broken {
    /// The output limit ended the answer in the middle of the arguments.
    Cut,
    /// The arguments are complete but not a JSON object.
    Malformed,
}

/// Why the model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Stop {
    EndTurn,
    ToolUse,
    /// The output limit was reached.
    MaxTokens,
    /// The provider or model declined; `category` and `explanation` as it gave them.
    Refusal {
        category: Option<String>,
        explanation: Option<String>,
    },
    /// The provider paused a long turn of its own; ask again with the answer so far.
    Pause,
    /// The request was longer than the model's window.
    ContextExceeded,
    /// A reason this version does not know, kept as it came.
    Other {
        reason: String,
    },
}

/// Tokens of one call, in four classes that never overlap (some providers count cached tokens inside
/// the input; the `model` crate takes them apart).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(default)]
    pub cache_read_input_tokens: u64,
    #[serde(default)]
    pub cache_write_input_tokens: u64,
}

impl Usage {
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_input_tokens =
            self.cache_read_input_tokens.saturating_add(other.cache_read_input_tokens);
        self.cache_write_input_tokens =
            self.cache_write_input_tokens.saturating_add(other.cache_write_input_tokens);
    }
}

/// A whole answer: the provider's protocol said that it is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAnswer {
    pub blocks: Vec<Block>,
    pub stop: Stop,
    pub usage: Usage,
}

/// A call that gave no whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFailure {
    pub kind: FailureKind,
    /// One line for the user: lower case, no secret, no internals.
    pub message: String,
    /// How long the provider asked us to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What the provider said it charged before it failed.
    #[serde(default)]
    pub usage: Usage,
}

/// What the caller must do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Try again after a while.
    Overloaded,
    /// Try again after the time the provider gave.
    RateLimited,
    /// Try again: the connection broke, the stream was cut, or our own deadline passed.
    Interrupted,
    /// Never succeeds unchanged: the provider refused the request itself.
    Rejected,
    /// Never succeeds until the key is mended: missing, wrong, or without credit.
    Credentials,
}

impl FailureKind {
    /// Whether the same request may succeed later.
    pub fn is_transient(self) -> bool {
        match self {
            Self::Overloaded | Self::RateLimited | Self::Interrupted => true,
            Self::Rejected | Self::Credentials => false,
        }
    }
}
