//! The check of a Messages body, and of the reasoning that this server signed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Fault, Ledger, at};
use crate::calls;

/// Every field that the API knows, as listed by its public Python client, version 2.14.
const FIELDS: [&str; 20] = [
    "model",
    "max_tokens",
    "messages",
    "cache_control",
    "container",
    "diagnostics",
    "inference_geo",
    "metadata",
    "output_config",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];
const MARKS_MAX: usize = 4;

/// Signed blocks given out, so that they are known when they come back.
#[derive(Debug, Default)]
pub(super) struct Signed {
    blocks: Vec<Value>,
    /// Which of them stood in the answer that made a call: they must stand beside it for ever.
    beside: BTreeMap<String, Vec<Value>>,
}

impl Signed {
    /// Remembers an answer's blocks as they went out.
    pub(super) fn give_out(&mut self, blocks: &[Value]) {
        let signed: Vec<Value> = blocks.iter().filter(|block| is_signed(block)).cloned().collect();
        for id in blocks.iter().filter(|block| kind(block) == "tool_use").filter_map(id) {
            self.beside.insert(id.to_owned(), signed.clone());
        }
        self.blocks.extend(signed);
    }

    /// Whether the signed blocks of an assistant's message are as they were given out.
    fn check(&self, content: &[Value]) -> Result<(), Fault> {
        for block in content.iter().filter(|block| is_signed(block)) {
            if !self.blocks.contains(block) {
                return Err("a signed block is not as it was given out".to_owned());
            }
        }
        for id in content.iter().filter(|block| kind(block) == "tool_use").filter_map(id) {
            for block in self.beside.get(id).into_iter().flatten() {
                if !content.contains(block) {
                    return Err(format!("the signed reasoning of tool use `{id}` is missing"));
                }
            }
        }
        Ok(())
    }
}

fn is_signed(block: &Value) -> bool {
    matches!(kind(block), "thinking" | "redacted_thinking")
}

fn kind(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn id(block: &Value) -> Option<&str> {
    block.get("id")?.as_str()
}

/// # Errors
/// The first fault, with its place.
pub(super) fn check(body: &Value, signed: &Signed) -> Result<(), Fault> {
    let body = body.as_object().ok_or("the body is not an object")?;
    if let Some(unknown) = body.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("{unknown}: extra inputs are not permitted"));
    }
    if body.get("model").and_then(Value::as_str).unwrap_or_default().is_empty() {
        return Err("model: field required".to_owned());
    }
    if body.get("max_tokens").and_then(Value::as_u64).unwrap_or(0) == 0 {
        return Err("max_tokens: must be above 0".to_owned());
    }
    if let Some(config) = body.get("output_config") {
        let effort = config.get("effort").and_then(Value::as_str);
        if !matches!(effort, Some("low" | "medium" | "high" | "xhigh" | "max")) {
            return Err("output_config.effort: not one of the five".to_owned());
        }
    }
    let mut marks = 0;
    at(|| "tools".to_owned(), tools(body, &mut marks))?;
    at(|| "system".to_owned(), system(body, &mut marks))?;
    messages(body, signed, &mut marks)?;
    if marks > MARKS_MAX {
        return Err(format!("cache_control: {marks} marks, at most {MARKS_MAX} are allowed"));
    }
    Ok(())
}

fn tools(body: &Map<String, Value>, marks: &mut usize) -> Result<(), Fault> {
    let Some(tools) = body.get("tools") else { return Ok(()) };
    let tools = tools.as_array().ok_or("not a list")?;
    let mut names = BTreeSet::new();
    for tool in tools {
        let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
        if !calls::is_name(name) {
            return Err(format!("`{name}` is no tool name"));
        }
        if !names.insert(name) {
            return Err(format!("`{name}` is defined twice"));
        }
        if tool.pointer("/input_schema/type").and_then(Value::as_str) != Some("object") {
            return Err(format!("the input schema of `{name}` is not of type object"));
        }
        if tool.get("description").is_some_and(is_blank) {
            return Err(format!("the description of `{name}` is blank"));
        }
        mark(tool, marks)?;
    }
    Ok(())
}

fn system(body: &Map<String, Value>, marks: &mut usize) -> Result<(), Fault> {
    match body.get("system") {
        None | Some(Value::String(_)) => Ok(()),
        Some(Value::Array(blocks)) => blocks.iter().try_for_each(|block| text(block, marks)),
        Some(_) => Err("neither text nor a list".to_owned()),
    }
}

fn messages(body: &Map<String, Value>, signed: &Signed, marks: &mut usize) -> Result<(), Fault> {
    let messages = body.get("messages").and_then(Value::as_array);
    let messages = messages.filter(|list| !list.is_empty()).ok_or("messages: at least one")?;
    let mut ledger = Ledger::default();
    for (index, message) in messages.iter().enumerate() {
        let expected = if index % 2 == 0 { "user" } else { "assistant" };
        if message.get("role").and_then(Value::as_str) != Some(expected) {
            return Err(format!("messages.{index}: roles do not alternate from the user on"));
        }
        let place = || format!("messages.{index}");
        at(place, self::message(message, expected, signed, &mut ledger, marks))?;
    }
    at(|| "messages".to_owned(), ledger.close())
}

fn message(
    message: &Value,
    role: &str,
    signed: &Signed,
    ledger: &mut Ledger,
    marks: &mut usize,
) -> Result<(), Fault> {
    let content = match message.get("content") {
        Some(Value::Array(blocks)) if !blocks.is_empty() => blocks,
        Some(Value::String(text)) if !text.trim().is_empty() => return Ok(()),
        _ => return Err("empty content".to_owned()),
    };
    let mut spoken = false;
    for (index, block) in content.iter().enumerate() {
        let place = || format!("content.{index}");
        at(place, self::block(block, role, &mut spoken, ledger, marks))?;
    }
    if role == "user" { ledger.close() } else { signed.check(content) }
}

fn block(
    block: &Value,
    role: &str,
    spoken: &mut bool,
    ledger: &mut Ledger,
    marks: &mut usize,
) -> Result<(), Fault> {
    match (kind(block), role) {
        ("text", _) => {
            *spoken = true;
            text(block, marks)
        }
        ("image" | "document", "user") => {
            *spoken = true;
            media(block, marks)
        }
        ("tool_use", "assistant") => {
            let name = block.get("name").and_then(Value::as_str).unwrap_or_default();
            if !calls::is_name(name) {
                return Err(format!("`{name}` is no tool name"));
            }
            if !block.get("input").is_some_and(Value::is_object) {
                return Err("the input is not an object".to_owned());
            }
            mark(block, marks)?;
            let id = id(block).unwrap_or_default();
            if !id.chars().all(calls::is_plain) {
                return Err(format!("`{id}` is no tool use id"));
            }
            ledger.call(id)
        }
        ("tool_result", "user") => {
            if *spoken {
                return Err("a tool result behind other content".to_owned());
            }
            for inner in block.get("content").and_then(Value::as_array).into_iter().flatten() {
                match kind(inner) {
                    "text" => text(inner, marks)?,
                    _ => media(inner, marks)?,
                }
            }
            mark(block, marks)?;
            ledger.result(block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default())
        }
        ("thinking" | "redacted_thinking", "assistant") => {
            if block.get("cache_control").is_some() {
                return Err("a cache mark on reasoning".to_owned());
            }
            Ok(())
        }
        ("server_tool_use" | "web_search_tool_result", "assistant") => Ok(()),
        (kind, role) => Err(format!("a block of type `{kind}` in a message of the {role}")),
    }
}

fn text(block: &Value, marks: &mut usize) -> Result<(), Fault> {
    match block.get("text") {
        Some(text) if !is_blank(text) => mark(block, marks),
        Some(_) | None => Err("a blank text block".to_owned()),
    }
}

fn media(block: &Value, marks: &mut usize) -> Result<(), Fault> {
    let source = block.get("source").map(kind).unwrap_or_default();
    match (kind(block), source) {
        ("image" | "document", "base64" | "url") | ("document", "text") => mark(block, marks),
        (kind, source) => Err(format!("a block of type `{kind}` with a source `{source}`")),
    }
}

fn mark(block: &Value, marks: &mut usize) -> Result<(), Fault> {
    let Some(mark) = block.get("cache_control") else { return Ok(()) };
    *marks += 1;
    if kind(mark) == "ephemeral" { Ok(()) } else { Err("an unknown cache mark".to_owned()) }
}

fn is_blank(text: &Value) -> bool {
    text.as_str().unwrap_or_default().trim().is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Value), expect: &str) {
        let mut body = json!({
            "model": "m", "max_tokens": 9, "stream": true,
            "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "t", "name": "bash", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                    "content": [{"type": "text", "text": "ok"}]}]},
            ],
        });
        assert_eq!(check(&body, &Signed::default()), Ok(()));
        change(&mut body);
        assert_eq!(check(&body, &Signed::default()), Err(expect.to_owned()));
    }

    #[test]
    fn every_fault_is_named() {
        refused(|body| body["surprise"] = json!(1), "surprise: extra inputs are not permitted");
        refused(|body| body["model"] = json!(""), "model: field required");
        refused(|body| body["max_tokens"] = json!(0), "max_tokens: must be above 0");
        refused(
            |body| body["output_config"] = json!({"effort": "huge"}),
            "output_config.effort: not one of the five",
        );
        refused(|body| body["tools"][0]["name"] = json!("a b"), "tools: `a b` is no tool name");
        refused(
            |body| body["tools"][0]["input_schema"] = json!({}),
            "tools: the input schema of `bash` is not of type object",
        );
        refused(|body| body["system"][0]["text"] = json!(" "), "system: a blank text block");
        refused(|body| body["messages"] = json!([]), "messages: at least one");
        refused(
            |body| body["messages"][0]["role"] = json!("assistant"),
            "messages.0: roles do not alternate from the user on",
        );
        refused(|body| body["messages"][0]["content"] = json!([]), "messages.0: empty content");
        refused(
            |body| body["messages"][0]["content"][0]["text"] = json!("\n"),
            "messages.0: content.0: a blank text block",
        );
        refused(
            |body| body["messages"][1]["content"][0]["input"] = json!("{}"),
            "messages.1: content.0: the input is not an object",
        );
        refused(
            |body| body["messages"][1]["content"][0]["id"] = json!("a.b"),
            "messages.1: content.0: `a.b` is no tool use id",
        );
        refused(
            |body| body["messages"][2]["content"][0]["tool_use_id"] = json!("u"),
            "messages.2: content.0: a result for `u`, which no tool use asked for",
        );
        refused(
            |body| body["messages"][2]["content"] = json!([{"type": "text", "text": "no"}]),
            "messages.2: tool use `t` has no result in the next turn",
        );
        refused(
            |body| body["messages"][2]["content"][0]["content"][0]["text"] = json!(""),
            "messages.2: content.0: a blank text block",
        );
        refused(
            |body| body["messages"][1]["content"][0] = json!({"type": "thinking"}),
            "messages.1: a signed block is not as it was given out",
        );
        refused(
            |body| body["messages"][0]["content"][0]["type"] = json!("video"),
            "messages.0: content.0: a block of type `video` in a message of the user",
        );
        refused(
            |body| {
                let text = json!({"type": "text", "text": "x", "cache_control":
                    {"type": "ephemeral"}});
                body["messages"][0]["content"] = json!([text, text, text, text]);
            },
            "cache_control: 5 marks, at most 4 are allowed",
        );
    }
}
