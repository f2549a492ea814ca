//! A session's events as a person reads them.

mod spinner;

use std::io::{IsTerminal, Write, stderr, stdout};

use serde_json::Value;

pub(crate) use spinner::{Spinner, TICK};

use crate::{
    api::Event,
    style::{Paint, visible},
};

/// Lines of a tool's result that are shown; the whole result is in the log.
const RESULT_LINES_SHOWN: usize = 14;

/// Characters of one shown line.
const LINE_CHARS_SHOWN: usize = 160;

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON object a line, as the API has it.
    Json,
    Text(Paint),
}

impl Form {
    /// `json` as the user asked; otherwise text, in colour where it shows.
    pub(crate) fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Text(Paint::for_stream(&stdout())) }
    }

    /// Whether a person is watching who can be shown motion and be asked.
    pub(crate) fn is_watched(self) -> bool {
        matches!(self, Self::Text(_)) && stdout().is_terminal() && stderr().is_terminal()
    }

    /// Prints `event` to standard output, if this form shows it.
    ///
    /// # Errors
    /// When nobody reads any more.
    pub(crate) fn print(self, event: &Event) -> std::io::Result<()> {
        let mut out = stdout().lock();
        match self {
            Self::Json => writeln!(out, "{}", event.raw)?,
            Self::Text(paint) => {
                for line in lines(event, paint) {
                    writeln!(out, "{line}")?;
                }
            }
        }
        out.flush()
    }
}

/// What is going on after `event`, for the spinner; `None` leaves it as it was.
pub(crate) fn going_on(event: &Event) -> Option<String> {
    match event.kind.as_str() {
        "span.model_request_start" => Some("thinking".to_owned()),
        "agent.tool_use" => Some(format!("running {}", text(&event.fields["name"]))),
        "agent.tool_result" => Some("working".to_owned()),
        "session.status_rescheduled" => Some("waiting for the model's provider".to_owned()),
        _ => None,
    }
}

fn lines(event: &Event, paint: Paint) -> Vec<String> {
    let fields = &event.fields;
    match event.kind.as_str() {
        "user.message" if fields["processed_at"].is_null() => Vec::new(),
        "user.message" => {
            said(fields).lines().map(|line| paint.bold(&format!("> {line}"))).collect()
        }
        "user.interrupt" => vec![paint.yellow("interrupted")],
        "agent.message" => said(fields).lines().map(str::to_owned).collect(),
        "agent.tool_use" => vec![paint.cyan(&call(fields))],
        "agent.tool_result" => result(fields, paint),
        "session.error" => {
            let message = visible(text(&fields["error"]["message"]));
            vec![paint.red(&format!("error: {message}"))]
        }
        "session.status_rescheduled" => vec![paint.dim("the model is asked again later")],
        "session.usage" => vec![paint.dim(&usage(&fields["usage"]))],
        "session.status_terminated" => vec![paint.dim("the session is over")],
        _ => Vec::new(),
    }
}

/// The text blocks, and the other blocks by their kind.
fn said(fields: &Value) -> String {
    let blocks = fields["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown: Vec<String> = blocks
        .iter()
        .map(|block| match block["text"].as_str() {
            Some(text) => visible(text),
            None => format!("[{}]", visible(text(&block["type"]))),
        })
        .collect();
    shown.join("\n")
}

/// The call in one line: what it does to what.
fn call(fields: &Value) -> String {
    let name = visible(text(&fields["name"]));
    let input = &fields["input"];
    let target = match name.as_str() {
        "bash" if input["restart"] == Value::Bool(true) => "(restart)",
        "bash" => text(&input["command"]),
        "glob" | "grep" => text(&input["pattern"]),
        _ => text(&input["file_path"]),
    };
    let mut target_lines = target.lines();
    let first = target_lines.next().unwrap_or_default();
    let more = if target_lines.next().is_some() { " …" } else { "" };
    shorten(&format!("{name}: {}{more}", visible(first)))
}

fn result(fields: &Value, paint: Paint) -> Vec<String> {
    let said = said(fields);
    let all: Vec<&str> = said.lines().collect();
    let failed = fields["is_error"] == Value::Bool(true);
    let (mark, hidden) =
        (if failed { "  ! " } else { "  | " }, all.len().saturating_sub(RESULT_LINES_SHOWN));
    let colour = |line: String| if failed { paint.red(&line) } else { paint.dim(&line) };
    let mut lines = Vec::new();
    if hidden > 0 {
        // The end says how it went.
        lines.push(colour(format!("{mark}… {hidden} more lines above")));
    }
    lines.extend(all[hidden..].iter().map(|line| colour(format!("{mark}{}", shorten(line)))));
    lines
}

fn usage(usage: &Value) -> String {
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let cached = count("cache_read_input_tokens");
    let input = count("input_tokens") + cached;
    let cached = if cached > 0 { format!(" ({cached} cached)") } else { String::new() };
    format!("tokens: {input} in{cached}, {} out", count("output_tokens"))
}

fn shorten(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARS_SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: &[&str]) {
        assert_eq!(lines(&crate::api::event(json).unwrap(), Paint::Plain), expected);
    }

    #[test]
    fn a_call_and_its_result_are_short() {
        check(
            r#"{"type":"agent.tool_use","name":"bash","input":{"command":"make test\nrm x"}}"#,
            &["bash: make test …"],
        );
        check(
            r#"{"type":"agent.tool_use","name":"edit","input":{"file_path":"src/a","old_string":"x"}}"#,
            &["edit: src/a"],
        );
        check(
            r#"{"type":"agent.tool_result","is_error":true,"content":[{"type":"text","text":"no\nexit 3"}]}"#,
            &["  ! no", "  ! exit 3"],
        );
        let long: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let event = serde_json::json!({
            "type": "agent.tool_result", "content": [{"type": "text", "text": long.join("\n")}]
        });
        let shown = lines(&crate::api::event(&event.to_string()).unwrap(), Paint::Plain);
        assert_eq!((shown.len(), shown[0].as_str()), (15, "  | … 6 more lines above"));
    }

    #[test]
    fn what_a_model_says_cannot_steer_the_terminal() {
        check(
            "{\"type\":\"agent.message\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u001b[2Jb\"}]}",
            &["a\\u{1b}[2Jb"],
        );
    }

    #[test]
    fn a_message_shows_once_when_it_is_taken_up() {
        let content = r#""content":[{"type":"text","text":"go"}]"#;
        check(&format!(r#"{{"type":"user.message","processed_at":null,{content}}}"#), &[]);
        check(&format!(r#"{{"type":"user.message","processed_at":"2026",{content}}}"#), &["> go"]);
        check(r#"{"type":"some.future_event"}"#, &[]);
    }
}
