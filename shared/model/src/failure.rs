//! Calls that gave no whole answer: what the caller must do, and what the user is told.

use std::time::SystemTime;

use ::http::HeaderMap;
use serde_json::Value;
use tailstep_core::model::{FailureKind, ModelFailure, Usage};

/// Longest text of a provider that is shown to the user, in characters: its first sentence or two.
const EXPLANATION_CHARS_MAX: usize = 300;

pub(crate) fn failure(kind: FailureKind, message: impl Into<String>) -> ModelFailure {
    ModelFailure { kind, message: message.into(), retry_after_ms: None, usage: Usage::default() }
}

pub(crate) fn rejected(message: impl Into<String>) -> ModelFailure {
    failure(FailureKind::Rejected, message)
}

pub(crate) fn interrupted(message: impl Into<String>) -> ModelFailure {
    failure(FailureKind::Interrupted, message)
}

/// What a provider says about a failure: in the body of an answer that is not a success, or in an
/// event inside a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// The provider's name for it: `rate_limit_error`, `insufficient_quota`.
    pub(crate) kind: Option<String>,
    pub(crate) explanation: Option<String>,
}

impl Complaint {
    /// Reads the envelopes in use: `{"error":{"type","code","message"}}`, `{"error":"…"}`,
    /// `{"message":"…"}`, `{"detail":"…"}`, and plain text. Pages made for people are left out.
    pub(crate) fn read(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(value) => Self::of(&value),
            Err(_) => {
                let text = String::from_utf8_lossy(body);
                let text = text.trim();
                let shown = !text.is_empty() && !text.starts_with(['<', '{', '[']);
                Self { kind: None, explanation: shown.then(|| text.to_owned()) }
            }
        }
    }

    /// As [`Self::read`], of a value already parsed.
    pub(crate) fn of(value: &Value) -> Self {
        let text = |value: &Value, name: &str| value.get(name)?.as_str().map(str::to_owned);
        let error = value.get("error").unwrap_or(value);
        if let Some(explanation) = error.as_str() {
            return Self { kind: None, explanation: Some(explanation.to_owned()) };
        }
        // OpenAI's `code` is the finer of its two names; Anthropic has only `type`.
        let kind = text(error, "code").or_else(|| text(error, "type"));
        let explanation = text(error, "message").or_else(|| text(error, "detail"));
        Self { kind, explanation }
    }

    /// Whether only money or another key helps.
    fn is_about_credit(&self) -> bool {
        let kind = self.kind.as_deref().unwrap_or_default();
        let explanation = self.explanation.as_deref().unwrap_or_default();
        matches!(kind, "billing_error" | "insufficient_quota" | "billing_hard_limit_reached")
            || explanation.contains("credit balance is too low")
    }

    /// What to do about an answer of HTTP status `status`.
    pub(crate) fn by_status(&self, status: u16) -> FailureKind {
        match status {
            401..=403 => FailureKind::Credentials,
            400 | 404 | 429 if self.is_about_credit() => FailureKind::Credentials,
            408 => FailureKind::Interrupted,
            409 | 425 => FailureKind::Overloaded,
            429 => FailureKind::RateLimited,
            500.. => FailureKind::Overloaded,
            _ => FailureKind::Rejected,
        }
    }

    /// What to do about an error inside a stream that began as a success, where the provider's own
    /// name for it is all there is. An unknown name is a reason to try again: the request itself had
    /// been accepted.
    pub(crate) fn by_kind(&self) -> FailureKind {
        if self.is_about_credit() {
            return FailureKind::Credentials;
        }
        match self.kind.as_deref().unwrap_or_default() {
            "overloaded_error" | "api_error" | "server_error" => FailureKind::Overloaded,
            "rate_limit_error" | "rate_limit_exceeded" => FailureKind::RateLimited,
            "authentication_error" | "permission_error" | "invalid_api_key" => {
                FailureKind::Credentials
            }
            "invalid_request_error"
            | "not_found_error"
            | "request_too_large"
            | "context_length_exceeded" => FailureKind::Rejected,
            _ => FailureKind::Interrupted,
        }
    }

    /// One line for the user. `what` says who answered what (`anthropic answered 429`).
    pub(crate) fn message(&self, what: &str, secrets: &Redactor) -> String {
        let mut line = what.to_owned();
        if let Some(kind) = &self.kind {
            line.push(' ');
            line.push_str(&secrets.line(kind));
        }
        if let Some(explanation) = &self.explanation {
            line.push_str(": ");
            line.push_str(&secrets.line(explanation));
        }
        line
    }
}

/// Takes secrets out of what a provider says. Providers do echo the key that they refuse.
#[derive(Default)]
pub(crate) struct Redactor {
    keys: Vec<String>,
}

impl Redactor {
    pub(crate) fn add(&mut self, key: &str) {
        if !key.is_empty() {
            self.keys.push(key.to_owned());
        }
    }

    /// `text` on one line, without secrets, not too long.
    pub(crate) fn line(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for key in &self.keys {
            text = text.replace(key, "[redacted]");
        }
        let mut line = String::new();
        let words = text.split(|c: char| c.is_whitespace() || c.is_control());
        for word in words.filter(|word| !word.is_empty()) {
            if !line.is_empty() {
                line.push(' ');
            }
            // A key that is not ours, or ours with stars in the middle.
            line.push_str(if has_key(word) { "[redacted]" } else { word });
        }
        match line.char_indices().nth(EXPLANATION_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }
}

/// Whether something in `word` begins as both providers' keys do.
fn has_key(word: &str) -> bool {
    word.match_indices("sk-")
        .any(|(at, _)| !word[..at].chars().next_back().is_some_and(char::is_alphanumeric))
}

/// How long the provider asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date.
/// A date is compared with the answer's own `Date`, because two machines' clocks may differ.
pub(crate) fn retry_after_ms(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let get = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(ms) = get("retry-after-ms").and_then(|text| millis(text, 1.0)) {
        return Some(ms);
    }
    let asked = get("retry-after")?;
    if let Some(ms) = millis(asked, 1_000.0) {
        return Some(ms);
    }
    let until = httpdate::parse_http_date(asked).ok()?;
    let now = get("date").and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    let wait = until.duration_since(now).unwrap_or_default();
    Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}

/// A number of units, as whole milliseconds; negative is none at all.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, as wanted")]
fn millis(text: &str, unit_ms: f64) -> Option<u64> {
    let number: f64 = text.parse().ok()?;
    number.is_finite().then(|| (number.max(0.0) * unit_ms).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[track_caller]
    fn wait(headers: &[(&'static str, &'static str)], expect: Option<u64>) {
        let map = headers.iter().map(|(name, value)| {
            (name.parse::<::http::HeaderName>().unwrap(), ::http::HeaderValue::from_static(value))
        });
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(retry_after_ms(&map.collect(), now), expect, "{headers:?}");
    }

    #[test]
    fn every_form_of_retry_after() {
        wait(&[], None);
        wait(&[("retry-after", "171")], Some(171_000));
        wait(&[("retry-after", "0")], Some(0));
        wait(&[("retry-after", "1.5")], Some(1_500));
        wait(&[("retry-after", "-3")], Some(0));
        wait(&[("retry-after", "soon")], None);
        wait(&[("retry-after", "NaN")], None);
        wait(&[("retry-after-ms", "250"), ("retry-after", "1")], Some(250));
        wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")], Some(10_000));
        wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT")], Some(0));
        // The provider's own clock decides, not ours.
        wait(
            &[
                ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"),
                ("date", "Sun, 06 Nov 1994 08:49:17 GMT"),
            ],
            Some(30_000),
        );
        wait(&[("retry-after", "1384000")], Some(1_384_000_000));
    }

    #[track_caller]
    fn status(status: u16, body: &str, expect: FailureKind) {
        assert_eq!(Complaint::read(body.as_bytes()).by_status(status), expect, "{status} {body}");
    }

    #[test]
    fn every_status_says_what_to_do() {
        use FailureKind::{Credentials, Interrupted, Overloaded, RateLimited, Rejected};
        for (code, expect) in [
            (301, Rejected),
            (400, Rejected),
            (401, Credentials),
            (402, Credentials),
            (403, Credentials),
            (404, Rejected),
            (408, Interrupted),
            (409, Overloaded),
            (413, Rejected),
            (422, Rejected),
            (429, RateLimited),
            (500, Overloaded),
            (502, Overloaded),
            (503, Overloaded),
            (504, Overloaded),
            (529, Overloaded),
        ] {
            status(code, "{}", expect);
        }
        status(429, r#"{"error":{"code":"insufficient_quota","message":"m"}}"#, Credentials);
        status(429, r#"{"error":{"message":"monthly limit, resets in 16 days"}}"#, RateLimited);
        status(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error",
               "message":"Your credit balance is too low to access the API"}}"#,
            Credentials,
        );
    }

    #[test]
    fn every_envelope_is_read() {
        for (body, kind, explanation) in [
            (r#"{"type":"error","error":{"type":"t","message":"m"}}"#, Some("t"), Some("m")),
            (r#"{"error":{"message":"m","type":"t","code":"c"}}"#, Some("c"), Some("m")),
            (r#"{"error":{"message":"m","type":"t","code":null}}"#, Some("t"), Some("m")),
            (r#"{"error":{"message":"m","code":404}}"#, None, Some("m")),
            (r#"{"error":"model not found"}"#, None, Some("model not found")),
            (r#"{"detail":"Not Found"}"#, None, Some("Not Found")),
            ("upstream timed out", None, Some("upstream timed out")),
            ("<html><body>502</body></html>", None, None),
            ("{\"half", None, None),
            ("[]", None, None),
            ("", None, None),
        ] {
            let read = Complaint::read(body.as_bytes());
            let expect = Complaint {
                kind: kind.map(str::to_owned),
                explanation: explanation.map(str::to_owned),
            };
            assert_eq!(read, expect, "{body}");
        }
    }

    #[test]
    fn lines_hold_no_key_and_one_line() {
        let mut secrets = Redactor::default();
        secrets.add("abc-123");
        assert_eq!(secrets.line("key abc-123,\n\tnot\u{7}good"), "key [redacted], not good");
        assert_eq!(secrets.line("provided: sk-abcd***wxyz."), "provided: [redacted]");
        assert_eq!(secrets.line("key=sk-abcd task-1"), "[redacted] task-1");
        let long = secrets.line(&"é".repeat(1_000));
        assert_eq!(long.chars().count(), EXPLANATION_CHARS_MAX + 1);
    }
}
