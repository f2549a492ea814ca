//! A streamed answer of the Messages API, put together again.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;
use serde_json::value::RawValue;
use tailstep_core::{
    model::{Block, ModelAnswer, ModelFailure, Stop, Usage},
    raw::RawJson,
};

use super::{
    DIALECT,
    opaque::{self, Grown},
};
use crate::{
    calls::{self, Output},
    exchange::Assembly,
    failure::{Complaint, Redactor, failure, interrupted},
    sse::Data,
};

/// The answer as far as it has come.
#[derive(Debug)]
pub(super) struct Answer {
    blocks: BTreeMap<u64, Growing>,
    usage: Usage,
    stop: Option<Stop>,
    ended: bool,
    output_tokens_max: u32,
}

#[derive(Debug)]
enum Growing {
    Text { text: String },
    ToolUse { id: String, name: String, given: Option<RawJson>, pieces: String },
    Opaque(Grown),
}

/// Any event of the stream; each has some of these.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    index: u64,
    #[serde(default)]
    message: Option<Start>,
    #[serde(default, borrow)]
    content_block: Option<&'a RawValue>,
    #[serde(default, borrow)]
    delta: Option<&'a RawValue>,
    #[serde(default)]
    usage: Option<Charged>,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    usage: Option<Charged>,
}

/// Counts are cumulative, and each event has those that it knows.
#[derive(Deserialize)]
struct Charged {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

/// A known block at its beginning.
#[derive(Deserialize)]
struct Begun {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    input: Option<RawJson>,
}

/// A known piece of a block.
#[derive(Deserialize)]
struct Delta {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    partial_json: Option<String>,
}

#[derive(Deserialize)]
struct End {
    stop_reason: Option<String>,
    #[serde(default)]
    stop_details: Option<Details>,
}

#[derive(Default, Deserialize)]
struct Details {
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    explanation: Option<String>,
}

impl Answer {
    pub(super) fn new(output_tokens_max: u32) -> Self {
        Self {
            blocks: BTreeMap::new(),
            usage: Usage::default(),
            stop: None,
            ended: false,
            output_tokens_max,
        }
    }

    fn charge(&mut self, charged: Option<Charged>) {
        let Some(charged) = charged else { return };
        let set = |count: &mut u64, new: Option<u64>| *count = new.unwrap_or(*count);
        set(&mut self.usage.input_tokens, charged.input_tokens);
        set(&mut self.usage.output_tokens, charged.output_tokens);
        set(&mut self.usage.cache_read_input_tokens, charged.cache_read_input_tokens);
        set(&mut self.usage.cache_write_input_tokens, charged.cache_creation_input_tokens);
    }

    fn begin(&mut self, index: u64, raw: &RawValue) -> Result<(), serde_json::Error> {
        let begun: Begun = serde_json::from_str(raw.get())?;
        let growing = match begun.kind.as_str() {
            "text" => Growing::Text { text: begun.text.unwrap_or_default() },
            "tool_use" => Growing::ToolUse {
                id: begun.id.unwrap_or_default(),
                name: begun.name.unwrap_or_default(),
                given: begun.input,
                pieces: String::new(),
            },
            _ => Growing::Opaque(Grown::begin(raw)?),
        };
        self.blocks.insert(index, growing);
        Ok(())
    }

    /// Adds a piece. A piece of a block that never began is an error of the protocol; a kind of piece
    /// that a text or a call cannot have (citations, for example) is left out.
    fn grow(&mut self, index: u64, raw: &RawValue) -> Result<(), String> {
        let fault = |error: serde_json::Error| error.to_string();
        let Some(growing) = self.blocks.get_mut(&index) else {
            return Err(format!("block {index} was continued before it began"));
        };
        match growing {
            Growing::Opaque(grown) => grown.add(raw).map_err(fault),
            Growing::Text { text } => {
                let delta: Delta = serde_json::from_str(raw.get()).map_err(fault)?;
                if delta.kind == "text_delta" {
                    text.push_str(&delta.text.unwrap_or_default());
                }
                Ok(())
            }
            Growing::ToolUse { pieces, .. } => {
                let delta: Delta = serde_json::from_str(raw.get()).map_err(fault)?;
                if delta.kind == "input_json_delta" {
                    pieces.push_str(&delta.partial_json.unwrap_or_default());
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, raw: &RawValue) -> Result<(), serde_json::Error> {
        let end: End = serde_json::from_str(raw.get())?;
        if let Some(reason) = end.stop_reason {
            self.stop = Some(stop(reason, end.stop_details.unwrap_or_default()));
        }
        Ok(())
    }
}

fn stop(reason: String, details: Details) -> Stop {
    match reason.as_str() {
        // We name no stop sequences, so one that is reported is the model's own end.
        "end_turn" | "stop_sequence" => Stop::EndTurn,
        "tool_use" => Stop::ToolUse,
        "max_tokens" => Stop::MaxTokens,
        "refusal" => {
            let Details { category, explanation } = details;
            Stop::Refusal { category, explanation }
        }
        "pause_turn" => Stop::Pause,
        "model_context_window_exceeded" => Stop::ContextExceeded,
        _ => Stop::Other { reason },
    }
}

fn nonsense(what: impl fmt::Display) -> ModelFailure {
    interrupted(format!("anthropic sent an event that makes no sense: {what}"))
}

impl Assembly for Answer {
    fn take(&mut self, data: &Data, secrets: &Redactor) -> Result<(), ModelFailure> {
        let event: Event<'_> = serde_json::from_str(data).map_err(nonsense)?;
        let missing = || nonsense(format!("{} without its content", event.kind));
        match event.kind.as_str() {
            "message_start" => self.charge(event.message.and_then(|start| start.usage)),
            "content_block_start" => {
                self.begin(event.index, event.content_block.ok_or_else(missing)?)
                    .map_err(nonsense)?;
            }
            "content_block_delta" => {
                self.grow(event.index, event.delta.ok_or_else(missing)?).map_err(nonsense)?;
            }
            "message_delta" => {
                self.charge(event.usage);
                self.end(event.delta.ok_or_else(missing)?).map_err(nonsense)?;
            }
            "message_stop" => self.ended = true,
            "error" => {
                let complaint = Complaint::read(data.as_bytes());
                let message = complaint.message("anthropic broke the answer off:", secrets);
                return Err(failure(complaint.by_kind(), message));
            }
            // `ping`, `content_block_stop`, and whatever else is added: the API promises that
            // unknown events can be passed over.
            _ => {}
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.ended
    }

    fn may_end(&self) -> bool {
        false
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn answer(self) -> Result<ModelAnswer, ModelFailure> {
        let stop = self.stop.ok_or_else(|| nonsense("an end without a stop reason"))?;
        let at_limit = self.usage.output_tokens >= u64::from(self.output_tokens_max);
        let last = self.blocks.keys().next_back().copied();
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (index, growing) in self.blocks {
            let is_cut = Some(index) == last
                && (at_limit || matches!(stop, Stop::MaxTokens | Stop::ContextExceeded));
            let output = if is_cut { Output::Cut } else { Output::Whole };
            blocks.extend(growing.block(output)?);
        }
        Ok(ModelAnswer { blocks, stop, usage: self.usage })
    }
}

impl Growing {
    /// The block as it is stored. Reasoning that was cut before its signature is left out: the API
    /// would refuse every later request that holds it.
    fn block(self, output: Output) -> Result<Option<Block>, ModelFailure> {
        Ok(Some(match self {
            Self::Text { text } => Block::Text { text },
            Self::ToolUse { id, name, .. } if id.is_empty() || name.is_empty() => {
                return Err(nonsense("a tool use without id or name"));
            }
            Self::ToolUse { id, name, given, pieces } => match given {
                // Some gateways send the whole input at the beginning.
                Some(input) if pieces.is_empty() && has_fields(&input) => {
                    Block::ToolUse { id, name, input }
                }
                Some(_) | None => calls::block(id, name, pieces, output),
            },
            Self::Opaque(grown) => {
                let raw = grown.raw().map_err(nonsense)?;
                if opaque::is_unsigned(&raw) {
                    return Ok(None);
                }
                Block::Opaque { dialect: DIALECT.to_owned(), raw }
            }
        }))
    }
}

fn has_fields(input: &RawJson) -> bool {
    input.is_object() && input.as_str().contains(':')
}
