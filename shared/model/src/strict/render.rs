//! An answer in neutral blocks as each dialect streams it.

use serde_json::{Value, json};
use tailstep_core::model::{Block, Stop, Usage};

/// Characters in one piece of a text. Small and odd, so that every answer comes in several pieces and
/// words are split.
const PIECE_CHARS: usize = 7;

/// The blocks as the Messages API has them in one piece.
pub(super) fn anthropic_blocks(blocks: &[Block]) -> Vec<Value> {
    let blocks = blocks.iter().map(|block| match block {
        Block::Text { text } => json!({"type": "text", "text": text}),
        Block::ToolUse { id, name, .. } | Block::BrokenToolUse { id, name, .. } => {
            json!({"type": "tool_use", "id": id, "name": name})
        }
        Block::Opaque { raw, .. } => raw.read().unwrap_or(Value::Null),
    });
    blocks.collect()
}

/// The data of each event.
pub(super) fn anthropic(blocks: &[Block], stop: &Stop, usage: Usage) -> Vec<String> {
    let start = json!({"type": "message_start", "message": {"id": "msg_stub", "type": "message",
        "role": "assistant", "content": [], "stop_reason": null, "usage": {
            "input_tokens": usage.input_tokens, "output_tokens": 1,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
            "cache_creation_input_tokens": usage.cache_write_input_tokens}}});
    let mut events = vec![start.to_string(), json!({"type": "ping"}).to_string()];
    for (index, block) in blocks.iter().enumerate() {
        let (begun, deltas) = anthropic_block(block);
        events.push(format!(
            r#"{{"type":"content_block_start","index":{index},"content_block":{begun}}}"#
        ));
        events.extend(deltas.into_iter().map(|delta| {
            json!({"type": "content_block_delta", "index": index, "delta": delta}).to_string()
        }));
        events.push(json!({"type": "content_block_stop", "index": index}).to_string());
    }
    let (reason, details) = anthropic_stop(stop);
    let end = json!({"type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": null, "stop_details": details},
        "usage": {"output_tokens": usage.output_tokens}});
    events.push(end.to_string());
    events.push(json!({"type": "message_stop"}).to_string());
    events
}

/// A block at its beginning, as text so that the order of an opaque block's fields survives, and the
/// pieces that it grows by.
fn anthropic_block(block: &Block) -> (String, Vec<Value>) {
    let growing = |name: &'static str, field: &'static str, text: &str| -> Vec<Value> {
        pieces(text).into_iter().map(|piece| json!({"type": name, field: piece})).collect()
    };
    let call = |id: &str, name: &str, input: &str| {
        let begun = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        (begun.to_string(), growing("input_json_delta", "partial_json", input))
    };
    match block {
        Block::Text { text } => {
            let begun = json!({"type": "text", "text": ""});
            (begun.to_string(), growing("text_delta", "text", text))
        }
        Block::ToolUse { id, name, input } => call(id, name, input.as_str()),
        Block::BrokenToolUse { id, name, raw, .. } => call(id, name, raw),
        Block::Opaque { raw, .. } => {
            let whole: Value = raw.read().unwrap_or(Value::Null);
            if whole.get("type").and_then(Value::as_str) != Some("thinking") {
                return (raw.as_str().to_owned(), Vec::new());
            }
            let field = |name: &str| whole.get(name).and_then(Value::as_str).unwrap_or_default();
            let begun = r#"{"type":"thinking","thinking":"","signature":""}"#.to_owned();
            let mut deltas = growing("thinking_delta", "thinking", field("thinking"));
            deltas.extend(growing("signature_delta", "signature", field("signature")));
            (begun, deltas)
        }
    }
}

fn anthropic_stop(stop: &Stop) -> (String, Value) {
    let reason = match stop {
        Stop::EndTurn => "end_turn",
        Stop::ToolUse => "tool_use",
        Stop::MaxTokens => "max_tokens",
        Stop::Pause => "pause_turn",
        Stop::ContextExceeded => "model_context_window_exceeded",
        Stop::Other { reason } => reason,
        Stop::Refusal { category, explanation } => {
            let details =
                json!({"type": "refusal", "category": category, "explanation": explanation});
            return ("refusal".to_owned(), details);
        }
    };
    (reason.to_owned(), Value::Null)
}

/// The data of each event. Blocks that only Anthropic has are left out.
pub(super) fn openai(blocks: &[Block], stop: &Stop, usage: Usage) -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        json!({"id": "chatcmpl-stub", "object": "chat.completion.chunk", "usage": null,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        .to_string()
    };
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null)];
    let mut calls = 0;
    for block in blocks {
        match block {
            Block::Text { text } => events.extend(
                pieces(text).into_iter().map(|piece| chunk(json!({"content": piece}), Value::Null)),
            ),
            Block::ToolUse { id, name, .. } | Block::BrokenToolUse { id, name, .. } => {
                let begun = json!({"index": calls, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""}});
                events.push(chunk(json!({"tool_calls": [begun]}), Value::Null));
                let arguments = match block {
                    Block::ToolUse { input, .. } => input.as_str(),
                    Block::BrokenToolUse { raw, .. } => raw,
                    Block::Text { .. } | Block::Opaque { .. } => "",
                };
                events.extend(pieces(arguments).into_iter().map(|piece| {
                    let more = json!({"index": calls, "function": {"arguments": piece}});
                    chunk(json!({"tool_calls": [more]}), Value::Null)
                }));
                calls += 1;
            }
            Block::Opaque { .. } => {}
        }
    }
    let finish = match stop {
        Stop::EndTurn => "stop",
        Stop::ToolUse => "tool_calls",
        Stop::MaxTokens => "length",
        Stop::Refusal { .. } => "content_filter",
        Stop::Pause => "pause",
        Stop::ContextExceeded => "context_length_exceeded",
        Stop::Other { reason } => reason,
    };
    events.push(chunk(json!({}), json!(finish)));
    let charged = json!({"id": "chatcmpl-stub", "choices": [], "usage": {
        "prompt_tokens": usage.input_tokens + usage.cache_read_input_tokens,
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_input_tokens}}});
    events.push(charged.to_string());
    events.push("[DONE]".to_owned());
    events
}

fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect()
}
