//! A neutral request as the body of a Messages call.
//!
//! The body of a session's next step begins with this step's bytes, but for the cache marks, which
//! move: fields stand in a fixed order, the messages last.

use std::borrow::Cow;

use serde::Serialize;
use tailstep_core::{
    content::{Content, Source},
    model::{Message, ModelFailure, ModelRequest, Part, Role},
    raw::RawJson,
};

use super::DIALECT;
use crate::{calls, failure::rejected};

/// What an assistant's message says whose blocks are all another provider's. Something has to stand
/// between two messages of the user, and nothing blank may.
const NOTHING_TO_SHOW: &str = "(an answer without text)";

/// # Errors
/// `Rejected` for content that the API has no place for.
pub(super) fn body(request: &ModelRequest) -> Result<Vec<u8>, ModelFailure> {
    let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
    let system = system.map(|text| [Text { kind: "text", text, cache_control: Some(MARK) }]);
    let mut tools: Vec<Tool<'_>> = request.tools.iter().map(Tool::of).collect();
    // Tools come before the system prompt in what is cached, so a mark there covers both.
    if system.is_none()
        && let Some(last) = tools.last_mut()
    {
        last.cache_control = Some(MARK);
    }
    let body = Body {
        model: &request.model,
        max_tokens: request.output_tokens_max,
        stream: true,
        output_config: request.effort.as_deref().map(|effort| OutputConfig { effort }),
        tools,
        system,
        messages: messages(&request.messages)?,
    };
    serde_json::to_vec(&body).map_err(|error| {
        tracing::error!(%error, "request not encoded");
        rejected("the request cannot be encoded")
    })
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Text<'a>; 1]>,
    messages: Vec<WireMessage<'a>>,
}

#[derive(Serialize)]
struct OutputConfig<'a> {
    effort: &'a str,
}

/// A cache breakpoint: what comes up to here may be asked for again.
#[derive(Clone, Copy, Serialize)]
struct Mark {
    #[serde(rename = "type")]
    kind: &'static str,
}

const MARK: Mark = Mark { kind: "ephemeral" };

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    input_schema: &'a RawJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

impl<'a> Tool<'a> {
    fn of(tool: &'a tailstep_core::model::ToolDefinition) -> Self {
        Self {
            name: &tool.name,
            description: tool.description.trim(),
            input_schema: &tool.input_schema,
            cache_control: None,
        }
    }
}

#[derive(Serialize)]
struct Text<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

/// Each variant writes its own `type`: an enum told apart by one could not hold raw JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Block<'a> {
    Text(Text<'a>),
    Media(Media<'a>),
    ToolUse {
        #[serde(rename = "type")]
        kind: &'static str,
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: &'a RawJson,
    },
    ToolResult(ToolResult<'a>),
    Opaque(&'a RawJson),
}

#[derive(Serialize)]
struct Media<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    source: &'a Source,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

#[derive(Serialize)]
struct ToolResult<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    tool_use_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    content: Vec<Block<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

/// The messages, with cache breakpoints at the ends of the last two of the user. The last is where
/// the next step will read from; the one before is where this step reads from, named because the API
/// looks back over 20 blocks only, and one answer may make more calls than that.
fn messages(messages: &[Message]) -> Result<Vec<WireMessage<'_>>, ModelFailure> {
    let mut wire = messages.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    let users = wire.iter_mut().rev().filter(|message| message.role == "user");
    for message in users.take(2) {
        mark(&mut message.content);
    }
    Ok(wire)
}

fn message(message: &Message) -> Result<WireMessage<'_>, ModelFailure> {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let mut content = Vec::with_capacity(message.parts.len());
    for part in &message.parts {
        content.extend(block(part)?);
    }
    if content.is_empty() {
        content.push(text(NOTHING_TO_SHOW));
    }
    Ok(WireMessage { role, content })
}

/// The block for `part`, unless it is blank or another provider's.
fn block(part: &Part) -> Result<Option<Block<'_>>, ModelFailure> {
    Ok(Some(match part {
        Part::Content(content) => return self::content(content),
        Part::ToolUse { id, name, input } => {
            Block::ToolUse { kind: "tool_use", id: calls::id(id), name: calls::name(name), input }
        }
        Part::ToolResult { id, content, is_error } => {
            let mut inner = Vec::with_capacity(content.len());
            for block in content {
                inner.extend(self::content(block)?);
            }
            Block::ToolResult(ToolResult {
                kind: "tool_result",
                tool_use_id: calls::id(id),
                content: inner,
                is_error: *is_error,
                cache_control: None,
            })
        }
        Part::Opaque { dialect, raw } if dialect == DIALECT => Block::Opaque(raw),
        Part::Opaque { .. } => return Ok(None),
    }))
}

fn content(content: &Content) -> Result<Option<Block<'_>>, ModelFailure> {
    let media = |kind, source, title, context| {
        Block::Media(Media { kind, source, title, context, cache_control: None })
    };
    Ok(Some(match content {
        Content::Text { .. } if content.is_blank() => return Ok(None),
        Content::Text { text } => self::text(text),
        Content::Image { source: Source::Text { .. } } => {
            return Err(rejected("a picture cannot have a text source"));
        }
        Content::Image { source } => media("image", source, None, None),
        Content::Document { source, title, context } => {
            media("document", source, title.as_deref(), context.as_deref())
        }
    }))
}

fn text(text: &str) -> Block<'_> {
    Block::Text(Text { kind: "text", text, cache_control: None })
}

/// Marks the last block that can carry a mark. Blank blocks cannot, but none are left here.
fn mark(content: &mut [Block<'_>]) {
    for block in content.iter_mut().rev() {
        let place = match block {
            Block::Text(text) => &mut text.cache_control,
            Block::Media(media) => &mut media.cache_control,
            Block::ToolResult(result) => &mut result.cache_control,
            Block::ToolUse { .. } | Block::Opaque(_) => continue,
        };
        *place = Some(MARK);
        return;
    }
}
