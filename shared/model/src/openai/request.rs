//! A neutral request as the body of a chat completion.
//!
//! As with every provider, the body of a session's next step begins with this step's bytes: fields
//! stand in a fixed order, the messages last.

use std::borrow::Cow;

use serde::Serialize;
use tailstep_core::{
    content::{Content, Source},
    model::{Message, ModelFailure, ModelRequest, Part, Role},
    raw::RawJson,
};

use crate::{calls, failure::rejected};

/// Between two blocks of text that become one: OpenAI has no blocks in an answer or a result.
const GAP: &str = "\n\n";
/// Chat completions have no mark for a failed call, so its text says it.
const FAILED: &str = "error: ";
const PICTURES: &str = "(pictures follow in the next message)";
const NOTHING_TO_SHOW: &str = "(an answer without text)";

/// The name of the output limit. OpenAI's own newer models refuse the old name, and many servers do
/// not know the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitField {
    MaxTokens,
    MaxCompletionTokens,
}

impl LimitField {
    pub(super) fn of(host: &str) -> Self {
        let at = |domain: &str| host == domain || host.ends_with(&format!(".{domain}"));
        if at("openai.com") || at("azure.com") {
            Self::MaxCompletionTokens
        } else {
            Self::MaxTokens
        }
    }
}

/// # Errors
/// `Rejected` for content that a chat completion has no place for.
pub(super) fn body(
    name: &str,
    limit: LimitField,
    request: &ModelRequest,
) -> Result<Vec<u8>, ModelFailure> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
        messages.push(Wire::System { role: "system", content: system });
    }
    for message in request.messages.iter() {
        match message.role {
            Role::User => user(message, &mut messages)?,
            Role::Assistant => messages.push(assistant(message)?),
        }
    }
    let limit_of = |field| (limit == field).then_some(request.output_tokens_max);
    let body = Body {
        model: name,
        max_tokens: limit_of(LimitField::MaxTokens),
        max_completion_tokens: limit_of(LimitField::MaxCompletionTokens),
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        reasoning_effort: request.effort.as_deref().map(effort),
        tools: request.tools.iter().map(Tool::of).collect(),
        messages,
    };
    serde_json::to_vec(&body).map_err(|error| {
        tracing::error!(%error, "request not encoded");
        rejected("the request cannot be encoded")
    })
}

/// OpenAI's scale ends at `xhigh`.
fn effort(effort: &str) -> &str {
    if effort == "max" { "xhigh" } else { effort }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Wire<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    parameters: &'a RawJson,
}

impl<'a> Tool<'a> {
    fn of(tool: &'a tailstep_core::model::ToolDefinition) -> Self {
        Self {
            kind: "function",
            function: Function {
                name: &tool.name,
                description: tool.description.trim(),
                parameters: &tool.input_schema,
            },
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Wire<'a> {
    System {
        role: &'static str,
        content: &'a str,
    },
    User {
        role: &'static str,
        content: UserContent<'a>,
    },
    Assistant {
        role: &'static str,
        /// `null` beside calls, when the model said nothing.
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        role: &'static str,
        tool_call_id: Cow<'a, str>,
        content: String,
    },
}

/// A plain string wherever it does: some servers take nothing else.
#[derive(Serialize)]
#[serde(untagged)]
enum UserContent<'a> {
    Text(String),
    Parts(Vec<UserPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum UserPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Serialize)]
struct ImageUrl<'a> {
    url: Cow<'a, str>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: CalledFunction<'a>,
}

#[derive(Serialize)]
struct CalledFunction<'a> {
    name: Cow<'a, str>,
    arguments: &'a str,
}

fn assistant(message: &Message) -> Result<Wire<'_>, ModelFailure> {
    let mut texts: Vec<&str> = Vec::new();
    let mut tool_calls = Vec::new();
    for part in &message.parts {
        match part {
            Part::Content(content) if content.is_blank() => {}
            Part::Content(Content::Text { text }) => texts.push(text),
            Part::Content(Content::Image { .. } | Content::Document { .. }) => {
                return Err(rejected("an answer cannot hold pictures or documents"));
            }
            Part::ToolUse { id, name, input } => tool_calls.push(ToolCall {
                id: calls::id(id),
                kind: "function",
                function: CalledFunction { name: calls::name(name), arguments: input.as_str() },
            }),
            Part::ToolResult { .. } => return Err(rejected("an answer cannot hold tool results")),
            // Another provider's block, reasoning mostly.
            Part::Opaque { .. } => {}
        }
    }
    if texts.is_empty() && tool_calls.is_empty() {
        texts.push(NOTHING_TO_SHOW);
    }
    let content = (!texts.is_empty()).then(|| texts.join(GAP));
    Ok(Wire::Assistant { role: "assistant", content, tool_calls })
}

/// Results become messages of their own, before what the user says. They hold text only, so their
/// pictures follow as if the user had sent them.
fn user<'a>(message: &'a Message, out: &mut Vec<Wire<'a>>) -> Result<(), ModelFailure> {
    let mut parts: Vec<UserPart<'a>> = Vec::new();
    let mut said: Vec<UserPart<'a>> = Vec::new();
    for part in &message.parts {
        match part {
            Part::Content(content) => said.extend(user_part(content)?),
            Part::ToolResult { id, content, is_error } => {
                let pictures = parts.len();
                let mut texts: Vec<Cow<'a, str>> = Vec::new();
                for block in content {
                    match user_part(block)? {
                        Some(UserPart::Text { text }) => texts.push(text),
                        Some(picture @ UserPart::ImageUrl { .. }) => parts.push(picture),
                        None => {}
                    }
                }
                if parts.len() > pictures {
                    texts.push(PICTURES.into());
                }
                let mut content = texts.join(GAP);
                if *is_error {
                    content.insert_str(0, FAILED);
                }
                out.push(Wire::Tool { role: "tool", tool_call_id: calls::id(id), content });
            }
            Part::ToolUse { .. } => return Err(rejected("a user's message cannot hold calls")),
            Part::Opaque { .. } => {}
        }
    }
    parts.extend(said);
    if !parts.is_empty() {
        out.push(Wire::User { role: "user", content: UserContent::of(parts) });
    }
    Ok(())
}

impl<'a> UserContent<'a> {
    fn of(parts: Vec<UserPart<'a>>) -> Self {
        let texts = parts.iter().map(|part| match part {
            UserPart::Text { text } => Some(text.as_ref()),
            UserPart::ImageUrl { .. } => None,
        });
        match texts.collect::<Option<Vec<_>>>() {
            Some(texts) => Self::Text(texts.join(GAP)),
            None => Self::Parts(parts),
        }
    }
}

fn user_part(content: &Content) -> Result<Option<UserPart<'_>>, ModelFailure> {
    Ok(Some(match content {
        Content::Text { .. } if content.is_blank() => return Ok(None),
        Content::Text { text } => UserPart::Text { text: text.as_str().into() },
        Content::Image { source } => {
            let url = match source {
                Source::Base64 { media_type, data } => {
                    format!("data:{media_type};base64,{data}").into()
                }
                Source::Url { url } => url.as_str().into(),
                Source::Text { .. } => return Err(rejected("a picture cannot have a text source")),
            };
            UserPart::ImageUrl { image_url: ImageUrl { url } }
        }
        Content::Document { source: Source::Text { data, .. }, title, context } => {
            let head =
                [title.as_deref().map(|title| format!("Document: {title}")), context.clone()];
            let mut texts: Vec<String> = head.into_iter().flatten().collect();
            texts.push(data.clone());
            UserPart::Text { text: texts.join(GAP).into() }
        }
        Content::Document { source: Source::Base64 { .. } | Source::Url { .. }, .. } => {
            return Err(rejected(
                "an openai-compatible server takes documents as plain text only; send the text, or \
                 use an anthropic model",
            ));
        }
    }))
}
