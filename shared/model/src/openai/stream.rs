//! A streamed chat completion, put together again.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tailstep_core::model::{Block, ModelAnswer, ModelFailure, ModelRequest, Stop, Usage};

use crate::{
    calls::{self, Output},
    exchange::Assembly,
    failure::{Complaint, Redactor, failure, interrupted},
    sse::Data,
};

const DONE: &str = "[DONE]";

/// The answer as far as it has come.
#[derive(Debug)]
pub(super) struct Answer {
    text: String,
    refusal: String,
    calls: Vec<Call>,
    finish: Option<String>,
    usage: Usage,
    done: bool,
    output_tokens_max: u32,
    /// Makes ids for servers that send none.
    answers: usize,
}

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(default, borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<Charged>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(default, borrow)]
    delta: Option<Delta<'a>>,
    #[serde(default)]
    finish_reason: Option<String>,
}

/// Other fields (a server's reasoning text, for example) are left out: chat completions have no
/// place to send them back to.
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default, borrow)]
    function: Option<FunctionDelta<'a>>,
}

#[derive(Deserialize)]
struct FunctionDelta<'a> {
    #[serde(default)]
    name: Option<String>,
    /// A piece of text; from some servers, the arguments themselves.
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Charged {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

impl Charged {
    /// Cached tokens are counted inside the prompt here; they are taken apart.
    fn usage(&self) -> Usage {
        let prompt = self.prompt_tokens.unwrap_or(0);
        let cached = self.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let cached = cached.unwrap_or(0).min(prompt);
        Usage {
            input_tokens: prompt - cached,
            output_tokens: self.completion_tokens.unwrap_or(0),
            cache_read_input_tokens: cached,
            cache_write_input_tokens: 0,
        }
    }
}

fn nonsense(what: impl std::fmt::Display) -> ModelFailure {
    interrupted(format!("the openai-compatible server sent an event that makes no sense: {what}"))
}

impl Answer {
    pub(super) fn new(request: &ModelRequest) -> Self {
        Self {
            text: String::new(),
            refusal: String::new(),
            calls: Vec::new(),
            finish: None,
            usage: Usage::default(),
            done: false,
            output_tokens_max: request.output_tokens_max,
            answers: request.messages.len() / 2,
        }
    }

    fn delta(&mut self, delta: Delta<'_>) -> Result<(), ModelFailure> {
        self.text.push_str(&delta.content.unwrap_or_default());
        self.refusal.push_str(&delta.refusal.unwrap_or_default());
        for piece in delta.tool_calls.into_iter().flatten() {
            let id = piece.id.unwrap_or_default();
            let place = self.place(piece.index, &id);
            let call = &mut self.calls[place];
            if call.id.is_empty() {
                call.id = id;
            }
            let Some(function) = piece.function else { continue };
            if call.name.is_empty() {
                call.name = function.name.unwrap_or_default();
            }
            let Some(raw) = function.arguments else { continue };
            if raw.get().starts_with('"') {
                let text: String = serde_json::from_str(raw.get()).map_err(nonsense)?;
                call.arguments.push_str(&text);
            } else if raw.get() != "null" {
                call.arguments.push_str(raw.get());
            }
        }
        Ok(())
    }

    /// Which call a piece belongs to. The index says it; a new id at a known index is a new call
    /// (some servers number every call 0), and a piece without either goes on with the last call.
    fn place(&mut self, index: Option<u64>, id: &str) -> usize {
        let is_known = |call: &Call| id.is_empty() || call.id.is_empty() || call.id == id;
        let found = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
            None if id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().rposition(|call| call.id == id),
        };
        if let Some(place) = found
            && is_known(&self.calls[place])
        {
            return place;
        }
        self.calls.push(Call {
            index,
            id: String::new(),
            name: String::new(),
            arguments: String::new(),
        });
        self.calls.len() - 1
    }

    fn stop(&self, finish: String) -> Stop {
        if !self.refusal.trim().is_empty() {
            return Stop::Refusal { category: None, explanation: Some(self.refusal.clone()) };
        }
        match finish.as_str() {
            "tool_calls" | "function_call" => Stop::ToolUse,
            // Some servers end every answer so.
            "stop" if !self.calls.is_empty() => Stop::ToolUse,
            "stop" => Stop::EndTurn,
            "length" => Stop::MaxTokens,
            "content_filter" => {
                Stop::Refusal { category: Some("content_filter".to_owned()), explanation: None }
            }
            _ => Stop::Other { reason: finish },
        }
    }
}

impl Assembly for Answer {
    fn take(&mut self, data: &Data, secrets: &Redactor) -> Result<(), ModelFailure> {
        if data.trim() == DONE {
            if self.finish.is_none() {
                return Err(nonsense("an end without a finish reason"));
            }
            self.done = true;
            return Ok(());
        }
        let chunk: Chunk<'_> = serde_json::from_str(data).map_err(nonsense)?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            let complaint = Complaint::of(&error);
            let what = "the openai-compatible server broke the answer off:";
            return Err(failure(complaint.by_kind(), complaint.message(what, secrets)));
        }
        if let Some(charged) = chunk.usage {
            self.usage = charged.usage();
        }
        // Only one choice was asked for.
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta {
                self.delta(delta)?;
            }
            if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
                self.finish = Some(reason);
            }
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.done
    }

    fn may_end(&self) -> bool {
        self.finish.is_some()
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn answer(mut self) -> Result<ModelAnswer, ModelFailure> {
        let finish = self.finish.take();
        let finish = finish.ok_or_else(|| nonsense("an end without a finish reason"))?;
        let stop = self.stop(finish);
        let mut blocks = Vec::with_capacity(self.calls.len() + 1);
        let said = if self.refusal.is_empty() { self.text } else { self.text + &self.refusal };
        if !said.is_empty() {
            blocks.push(Block::Text { text: said });
        }
        // Servers report a call that ran into the limit as an ordinary end, too.
        let at_limit = self.usage.output_tokens >= u64::from(self.output_tokens_max);
        let count = self.calls.len();
        for (place, call) in self.calls.into_iter().enumerate() {
            if call.name.is_empty() {
                return Err(nonsense("a tool call without a name"));
            }
            let id = match call.id {
                id if id.is_empty() => format!("call_{}_{place}", self.answers),
                id => id,
            };
            let is_cut = place + 1 == count && (at_limit || stop == Stop::MaxTokens);
            let output = if is_cut { Output::Cut } else { Output::Whole };
            blocks.push(calls::block(id, call.name, call.arguments, output));
        }
        Ok(ModelAnswer { blocks, stop, usage: self.usage })
    }
}
