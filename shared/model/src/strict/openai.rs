//! The check of a chat completion's body.

use serde_json::{Map, Value};

use super::{Fault, Ledger, at};
use crate::calls;

/// What we may send; the real API knows more.
const FIELDS: [&str; 10] = [
    "model",
    "max_tokens",
    "max_completion_tokens",
    "messages",
    "reasoning_effort",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "temperature",
];

/// # Errors
/// The first fault, with its place.
pub(super) fn check(body: &Value) -> Result<(), Fault> {
    let body = body.as_object().ok_or("the body is not an object")?;
    if let Some(unknown) = body.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("unrecognized request argument supplied: {unknown}"));
    }
    if body.get("model").and_then(Value::as_str).unwrap_or_default().is_empty() {
        return Err("model: field required".to_owned());
    }
    if body.contains_key("max_tokens") && body.contains_key("max_completion_tokens") {
        return Err("max_tokens and max_completion_tokens exclude each other".to_owned());
    }
    at(|| "tools".to_owned(), tools(body))?;
    messages(body)
}

fn tools(body: &Map<String, Value>) -> Result<(), Fault> {
    let Some(tools) = body.get("tools") else { return Ok(()) };
    let tools = tools.as_array().filter(|list| !list.is_empty()).ok_or("an empty list")?;
    for tool in tools {
        let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
        if !calls::is_name(name) {
            return Err(format!("`{name}` is no tool name"));
        }
        if !tool.pointer("/function/parameters").is_some_and(Value::is_object) {
            return Err(format!("the parameters of `{name}` are not an object"));
        }
    }
    Ok(())
}

fn messages(body: &Map<String, Value>) -> Result<(), Fault> {
    let messages = body.get("messages").and_then(Value::as_array);
    let messages = messages.filter(|list| !list.is_empty()).ok_or("messages: at least one")?;
    let mut ledger = Ledger::default();
    for (index, message) in messages.iter().enumerate() {
        at(|| format!("messages.{index}"), self::message(message, index, &mut ledger))?;
    }
    at(|| "messages".to_owned(), ledger.close())
}

fn message(message: &Value, index: usize, ledger: &mut Ledger) -> Result<(), Fault> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if role == "tool" {
        content(message)?;
        let id = message.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
        return ledger.result(id);
    }
    // Nothing may stand between calls and their results.
    ledger.close()?;
    match role {
        "system" if index == 0 => content(message),
        "user" => content(message),
        "assistant" => match message.get("tool_calls") {
            None => content(message),
            Some(calls) => {
                let calls = calls.as_array().filter(|list| !list.is_empty()).ok_or("no calls")?;
                calls.iter().try_for_each(|call| self::call(call, ledger))
            }
        },
        _ => Err(format!("a message of role `{role}`")),
    }
}

fn call(call: &Value, ledger: &mut Ledger) -> Result<(), Fault> {
    let text = |path: &str| call.pointer(path).and_then(Value::as_str).unwrap_or_default();
    if !calls::is_name(text("/function/name")) {
        return Err(format!("`{}` is no tool name", text("/function/name")));
    }
    match serde_json::from_str(text("/function/arguments")) {
        Ok(Value::Object(_)) => ledger.call(text("/id")),
        Ok(_) | Err(_) => Err(format!("the arguments of `{}` are no JSON object", text("/id"))),
    }
}

fn content(message: &Value) -> Result<(), Fault> {
    let blank = || "a blank text".to_owned();
    match message.get("content") {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(()),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            for part in parts {
                let text = part.get("text").and_then(Value::as_str).map(str::trim);
                match (part.get("type").and_then(Value::as_str), text) {
                    (Some("text"), Some("") | None) => return Err(blank()),
                    (Some("text" | "image_url"), _) => {}
                    (kind, _) => return Err(format!("a part of type {kind:?}")),
                }
            }
            Ok(())
        }
        _ => Err(blank()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Value), expect: &str) {
        let mut body = json!({
            "model": "m", "max_tokens": 9, "stream": true,
            "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}],
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "t",
                    "type": "function", "function": {"name": "bash", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "t", "content": "ok"},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
            ],
        });
        assert_eq!(check(&body), Ok(()));
        change(&mut body);
        assert_eq!(check(&body), Err(expect.to_owned()));
    }

    #[test]
    fn every_fault_is_named() {
        refused(
            |body| body["surprise"] = json!(1),
            "unrecognized request argument supplied: surprise",
        );
        refused(|body| body["model"] = json!(""), "model: field required");
        refused(
            |body| body["max_completion_tokens"] = json!(1),
            "max_tokens and max_completion_tokens exclude each other",
        );
        refused(|body| body["tools"] = json!([]), "tools: an empty list");
        refused(|body| body["messages"] = json!([]), "messages: at least one");
        refused(|body| body["messages"][1]["content"] = json!(" "), "messages.1: a blank text");
        refused(
            |body| body["messages"][4]["content"][0]["text"] = json!(""),
            "messages.4: a blank text",
        );
        refused(|body| body["messages"][3]["content"] = json!(""), "messages.3: a blank text");
        refused(
            |body| body["messages"][3] = json!({"role": "user", "content": "x"}),
            "messages.3: tool use `t` has no result in the next turn",
        );
        refused(
            |body| body["messages"][4] = body["messages"][3].clone(),
            "messages.4: a second or late result for tool use `t`",
        );
        refused(
            |body| body["messages"][2]["tool_calls"][0]["function"]["arguments"] = json!("[]"),
            "messages.2: the arguments of `t` are no JSON object",
        );
        refused(
            |body| body["messages"][1]["role"] = json!("system"),
            "messages.1: a message of role `system`",
        );
    }
}
