//! `scripted/FILE`: a JSON list of turns, played in order.
//!
//! Which turn is played is read off the request: as many turns have been played as the conversation
//! holds answers. A turn that leaves nothing in the conversation (blank text, a refusal, a failure)
//! is therefore played again when the model is asked again. A `pause` turn and the turn after it make
//! one message of the conversation; they are told apart by the blocks in it.

use serde::Deserialize;
use tailstep_core::{
    content::{Content, text_of},
    model::{
        Block, Broken, FailureKind, Message, ModelAnswer, ModelFailure, ModelRequest, Part, Role,
        Stop, Usage,
    },
    raw::RawJson,
};

use super::{answers, call_id, usage};
use crate::failure::{failure, rejected};

#[derive(Debug)]
pub(super) struct Script {
    turns: Vec<Turn>,
}

/// One answer, or one failure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    /// For the script's reader; not used.
    #[serde(default, rename = "note")]
    _note: Option<String>,
    /// Text that the last message must hold, in a user's words or in a tool's result.
    #[serde(default)]
    expect: Option<String>,
    #[serde(default)]
    pub(super) delay_ms: u64,
    #[serde(default)]
    blocks: Vec<WrittenBlock>,
    /// `end_turn`, `tool_use`, `max_tokens`, `refusal`, `pause`, `context_exceeded`, or any other
    /// word for a reason that is not known. Without it, what the blocks suggest.
    #[serde(default)]
    stop: Option<String>,
    /// Instead of an answer.
    #[serde(default)]
    failure: Option<WrittenFailure>,
    #[serde(default)]
    usage: Option<Usage>,
}

/// A block as a script has it. One flat shape, because raw JSON cannot be read from inside an enum
/// that is told apart by a field of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBlock {
    #[serde(rename = "type")]
    kind: BlockKind,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    input: Option<RawJson>,
    #[serde(default)]
    arguments: Option<String>,
    #[serde(default)]
    reason: Option<Broken>,
    #[serde(default)]
    dialect: Option<String>,
    #[serde(default)]
    raw: Option<RawJson>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlockKind {
    /// `text`
    Text,
    /// `name` and `input`, an object (`{}` when absent)
    ToolUse,
    /// `name`, `arguments` as the model wrote them, `reason`
    BrokenToolUse,
    /// `dialect` and `raw`
    Opaque,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFailure {
    kind: FailureKind,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

impl Script {
    /// Reads and checks a script.
    ///
    /// # Errors
    /// The first fault, with its turn.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let turns: Vec<Turn> = serde_json::from_str(text)
            .map_err(|fault| format!("not a JSON list of turns: {fault}"))?;
        for (index, turn) in turns.iter().enumerate() {
            for block in &turn.blocks {
                block
                    .block(String::new())
                    .map_err(|fault| format!("turn {}: {fault}", index + 1))?;
            }
            if turn.failure.is_some() && !turn.blocks.is_empty() {
                return Err(format!("turn {}: has both blocks and a failure", index + 1));
            }
        }
        Ok(Self { turns })
    }

    /// The turn that answers `request`.
    ///
    /// # Errors
    /// `Rejected` when the script is at its end, or the turn expects something else.
    pub(super) fn turn(&self, name: &str, request: &ModelRequest) -> Result<&Turn, ModelFailure> {
        let index = self.next(&request.messages);
        let Some(turn) = self.turns.get(index) else {
            let count = self.turns.len();
            return Err(rejected(format!("script `{name}` is at its end: it has {count} turns")));
        };
        match &turn.expect {
            Some(expected) if !holds(request.messages.last(), expected) => Err(rejected(format!(
                "script `{name}`, turn {}: expected `{expected}` in the last message",
                index + 1
            ))),
            Some(_) | None => Ok(turn),
        }
    }

    /// The index of the first turn that the conversation does not hold yet.
    fn next(&self, messages: &[Message]) -> usize {
        let mut whole = answers(messages);
        // Behind a pause the last message is the answer so far, and its turn goes on.
        let open = match messages.last() {
            Some(last) if last.role == Role::Assistant => {
                whole = whole.saturating_sub(1);
                Some(last.parts.len())
            }
            Some(_) | None => None,
        };
        let mut index = 0;
        for _ in 0..whole {
            while self.turns.get(index).is_some_and(Turn::pauses) {
                index += 1;
            }
            index += 1;
        }
        let mut left = open.unwrap_or(0);
        while let Some(turn) = self.turns.get(index)
            && left > 0
            && turn.pauses()
        {
            left = left.saturating_sub(turn.visible());
            index += 1;
        }
        index
    }
}

impl Turn {
    fn pauses(&self) -> bool {
        self.stop.as_deref() == Some("pause")
    }

    /// How many of the blocks the conversation keeps.
    fn visible(&self) -> usize {
        let blank = |block: &&WrittenBlock| {
            block.kind == BlockKind::Text
                && block.text.as_deref().unwrap_or_default().trim().is_empty()
        };
        self.blocks.len() - self.blocks.iter().filter(blank).count()
    }

    /// # Errors
    /// The turn's own failure.
    pub(super) fn play(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        if let Some(written) = &self.failure {
            let message = written.message.as_deref().unwrap_or("the script plays a failure");
            let mut failed = failure(written.kind, message);
            failed.retry_after_ms = written.retry_after_ms;
            return Err(failed);
        }
        let turn = answers(&request.messages);
        let shown = shown_already(&request.messages);
        let blocks = self.blocks.iter().enumerate();
        let blocks: Vec<Block> = blocks
            .map(|(index, block)| block.block(call_id(turn, turn, shown + index)))
            .collect::<Result<_, _>>()
            .map_err(rejected)?;
        let usage = self.usage.unwrap_or_else(|| usage(request, &blocks));
        Ok(ModelAnswer { stop: self.stop(&blocks), usage, blocks })
    }

    fn stop(&self, blocks: &[Block]) -> Stop {
        let calls = blocks
            .iter()
            .any(|block| matches!(block, Block::ToolUse { .. } | Block::BrokenToolUse { .. }));
        match self.stop.as_deref() {
            None if calls => Stop::ToolUse,
            None | Some("end_turn") => Stop::EndTurn,
            Some("tool_use") => Stop::ToolUse,
            Some("max_tokens") => Stop::MaxTokens,
            Some("refusal") => {
                Stop::Refusal { category: None, explanation: Some("the script declines".into()) }
            }
            Some("pause") => Stop::Pause,
            Some("context_exceeded") => Stop::ContextExceeded,
            Some(reason) => Stop::Other { reason: reason.to_owned() },
        }
    }
}

/// The parts of an answer that is being continued, so that ids stay unique within it.
fn shown_already(messages: &[Message]) -> usize {
    match messages.last() {
        Some(last) if last.role == Role::Assistant => last.parts.len(),
        Some(_) | None => 0,
    }
}

impl WrittenBlock {
    fn block(&self, id: String) -> Result<Block, String> {
        let name = || self.name.clone().ok_or("a tool use needs a `name`");
        Ok(match self.kind {
            BlockKind::Text => {
                Block::Text { text: self.text.clone().ok_or("a text block needs a `text`")? }
            }
            BlockKind::ToolUse => {
                let input = self.input.clone().unwrap_or_else(RawJson::empty_object);
                if !input.is_object() {
                    return Err("the `input` of a tool use must be an object".to_owned());
                }
                Block::ToolUse { id, name: name()?, input }
            }
            BlockKind::BrokenToolUse => Block::BrokenToolUse {
                id,
                name: name()?,
                raw: self.arguments.clone().ok_or("a broken tool use needs `arguments`")?,
                reason: self
                    .reason
                    .ok_or("a broken tool use needs a `reason`: cut or malformed")?,
            },
            BlockKind::Opaque => Block::Opaque {
                dialect: self.dialect.clone().ok_or("an opaque block needs a `dialect`")?,
                raw: self.raw.clone().ok_or("an opaque block needs a `raw`")?,
            },
        })
    }
}

/// Whether a text or a result in `message` contains `expected`.
fn holds(message: Option<&Message>, expected: &str) -> bool {
    let parts = message.map_or(&[][..], |message| &message.parts);
    parts.iter().any(|part| match part {
        Part::Content(Content::Text { text }) => text.contains(expected),
        Part::ToolResult { content, .. } => text_of(content).contains(expected),
        Part::Content(_) | Part::ToolUse { .. } | Part::Opaque { .. } => false,
    })
}
