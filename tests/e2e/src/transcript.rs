//! What a session came to, without what differs from run to run.

use serde_json::{Value, json};

/// How a result begins whose call found the shell of the calls before it gone; true after every
/// crash, and the only way in which a result may differ.
const NEW_SANDBOX: &str = "[This call ran in a new sandbox";

/// Messages, calls and results in order; without ids, times, costs and the marks of single model
/// requests, of which a crash may add some.
pub fn transcript(events: &[Value]) -> Vec<Value> {
    let kept = events.iter().filter(|event| {
        let kind = event["type"].as_str().unwrap_or_default();
        !kind.starts_with("span.") && kind != "session.usage" && kind != "agent.thinking"
    });
    kept.map(|event| {
        json!({
            "type": event["type"],
            "name": event["name"],
            "input": event["input"],
            "content": without_notice(&event["content"]),
            "is_error": event["is_error"],
            "stop_reason": event["stop_reason"],
            // Which call a result belongs to, by its place and not by its id.
            "call": events.iter().position(|other| {
                !event["tool_use_id"].is_null() && other["id"] == event["tool_use_id"]
            }).map(|place| calls_before(events, place)),
        })
    })
    .collect()
}

fn without_notice(content: &Value) -> Value {
    let mut content = content.clone();
    for block in content.as_array_mut().into_iter().flatten() {
        if let Some(text) = block["text"].as_str().filter(|text| text.starts_with(NEW_SANDBOX)) {
            block["text"] = text.split_once('\n').map_or("", |(_, rest)| rest).into();
        }
    }
    content
}

fn calls_before(events: &[Value], place: usize) -> usize {
    events[..place].iter().filter(|event| event["type"] == "agent.tool_use").count()
}
