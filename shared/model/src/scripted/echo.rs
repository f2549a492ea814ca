//! `scripted/echo`: a model that does what a few plain sentences ask, and says what it is when asked
//! anything else.
//!
//! It looks at no more of the conversation than its last message and the one that asked for the work
//! in hand, so an answer costs the same in the first step of a session and in the two-thousandth.

use tailstep_core::{
    content::text_of,
    model::{Block, Message, ModelAnswer, ModelRequest, Part, Stop},
    raw::RawJson,
};

use super::{answers, call_id, call_start, last_text, usage};

/// What a user's text asks for.
#[derive(Debug, PartialEq, Eq)]
enum Ask<'a> {
    /// `Reply with exactly this text: X`
    Reply {
        text: &'a str,
    },
    /// `Use the bash tool to run exactly: X`
    Run {
        command: &'a str,
    },
    /// `Take N steps with the bash tool: X`: N calls, one after another.
    Steps {
        count: usize,
        command: &'a str,
    },
    /// `Call the T tool for K V.`
    Call {
        tool: &'a str,
        key: &'a str,
        value: &'a str,
    },
    Other {
        text: &'a str,
    },
    /// Nothing that can be read: pictures alone, for example.
    Nothing,
}

/// The answer to `request`; a pure function of it.
pub(super) fn answer(request: &ModelRequest) -> ModelAnswer {
    let turn = answers(&request.messages);
    let (start, text) = in_hand(&request.messages);
    let done = turn.saturating_sub(start);
    let ask = text.map_or(Ask::Nothing, Ask::parse);
    let block = match ask {
        Ask::Reply { text } => say(text),
        Ask::Run { command } if done == 0 => call(request, start, "bash", &[("command", command)]),
        Ask::Steps { count, command } if done < count => {
            call(request, start, "bash", &[("command", command)])
        }
        Ask::Call { tool, key, value } if done == 0 => call(request, start, tool, &[(key, value)]),
        Ask::Run { .. } | Ask::Call { .. } => say(&quote(request.messages.last())),
        Ask::Steps { count, .. } => say(&format!("done after {count} steps")),
        Ask::Other { text } => {
            say(&format!("This is the scripted model, no real one is behind it. You said: {text}"))
        }
        Ask::Nothing => {
            say("This is the scripted model, no real one is behind it. You sent no text.")
        }
    };
    let stop = match block {
        Block::ToolUse { .. } => Stop::ToolUse,
        Block::Text { .. } | Block::BrokenToolUse { .. } | Block::Opaque { .. } => Stop::EndTurn,
    };
    let blocks = vec![block];
    ModelAnswer { usage: usage(request, &blocks), blocks, stop }
}

/// The work in hand: the answer in which it was taken up, and the text that asked for it.
///
/// New text in the last message is new work. Otherwise the last message holds the result of a call,
/// whose id says where its work began; ids that we did not make are looked behind, message by message.
fn in_hand(messages: &[Message]) -> (usize, Option<&str>) {
    let Some(last) = messages.last() else { return (0, None) };
    if let Some(text) = last_text(last) {
        return (answers(messages), Some(text));
    }
    let start = last.parts.iter().rev().find_map(|part| match part {
        Part::ToolResult { id, .. } => call_start(id),
        Part::Content(_) | Part::ToolUse { .. } | Part::Opaque { .. } => None,
    });
    if let Some(start) = start
        && let Some(asked) = start.checked_mul(2).and_then(|index| messages.get(index))
        && let Some(text) = last_text(asked)
    {
        return (start, Some(text));
    }
    let found = messages.iter().enumerate().rev();
    let found = found.filter_map(|(index, message)| Some((index / 2, last_text(message)?))).next();
    found.map_or((answers(messages), None), |(start, text)| (start, Some(text)))
}

impl<'a> Ask<'a> {
    fn parse(text: &'a str) -> Self {
        let text = text.trim();
        if let Some(text) = after(text, "Reply with exactly this text:") {
            return Self::Reply { text };
        }
        if let Some(command) = after(text, "Use the bash tool to run exactly:") {
            return Self::Run { command };
        }
        Self::steps(text).or_else(|| Self::call(text)).unwrap_or(Self::Other { text })
    }

    fn steps(text: &'a str) -> Option<Self> {
        let (count, rest) = text.strip_prefix("Take ")?.split_once(' ')?;
        let rest = rest.strip_prefix("steps").or_else(|| rest.strip_prefix("step"))?;
        let command = after(rest, " with the bash tool:")?;
        Some(Self::Steps { count: count.parse().ok()?, command })
    }

    fn call(text: &'a str) -> Option<Self> {
        let (tool, rest) = text.strip_prefix("Call the ")?.split_once(" tool for ")?;
        let (key, value) = rest.split_once(' ')?;
        let value = value.trim();
        let value = value.strip_suffix('.').unwrap_or(value);
        let whole = !tool.contains(' ') && !tool.is_empty() && !key.is_empty() && !value.is_empty();
        whole.then_some(Self::Call { tool, key, value })
    }
}

/// What follows `prefix`, if anything does.
fn after<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(prefix)?.trim();
    (!rest.is_empty()).then_some(rest)
}

fn say(text: &str) -> Block {
    Block::Text { text: text.to_owned() }
}

/// A call, if the tool is offered; a model cannot call one that is not.
fn call(request: &ModelRequest, start: usize, tool: &str, input: &[(&str, &str)]) -> Block {
    if !request.tools.iter().any(|offered| offered.name == tool) {
        return say(&format!("I was not given a tool named {tool}."));
    }
    let fields: std::collections::BTreeMap<&str, &str> = input.iter().copied().collect();
    let input = RawJson::encode(&fields).unwrap_or_else(|_| RawJson::empty_object());
    let turn = answers(&request.messages);
    Block::ToolUse { id: call_id(start, turn, 0), name: tool.to_owned(), input }
}

/// The first line of the last result in `message`.
fn quote(message: Option<&Message>) -> String {
    let parts = message.map_or(&[][..], |message| &message.parts);
    let result = parts.iter().rev().find_map(|part| match part {
        Part::ToolResult { content, is_error, .. } => Some((text_of(content), *is_error)),
        Part::Content(_) | Part::ToolUse { .. } | Part::Opaque { .. } => None,
    });
    let Some((text, is_error)) = result else { return "There was no result.".to_owned() };
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("(no text)");
    if is_error { format!("The tool failed: {line}") } else { format!("The tool answered: {line}") }
}
