//! Events as they come over the wire: the few fields that a worker looks at.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::client::CallError;

/// Servers say something every 15 s; a stream that is silent for longer than this is dead.
const SILENCE_MS_MAX: u64 = 60_000;

/// The longest frame: an event's own limit is the body limit of a send, and its text is escaped.
const FRAME_BYTES_MAX: usize = 32 << 20;

#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    #[serde(default)]
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// As the model wrote it.
    #[serde(default)]
    pub(crate) input: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) evaluated_permission: Option<String>,
    #[serde(default)]
    pub(crate) tool_use_id: Option<String>,
    /// Of a confirmation.
    #[serde(default)]
    pub(crate) result: Option<String>,
    #[serde(default)]
    pub(crate) stop_reason: Option<StopReason>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StopReason {
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    pub(crate) data: Vec<Event>,
    #[serde(default)]
    pub(crate) next_page: Option<String>,
}

/// A stream of events.
pub(crate) struct Events {
    body: Incoming,
    received: Vec<u8>,
}

impl Events {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, received: Vec::new() }
    }

    /// The next event; `None` at the clean end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, CallError> {
        let broken = |what: String| CallError::Unreachable { what };
        loop {
            while let Some(frame) = take_frame(&mut self.received) {
                if let Some(event) = read(&frame)? {
                    return Ok(Some(event));
                }
            }
            if self.received.len() > FRAME_BYTES_MAX {
                return Err(CallError::Malformed { what: "an event has no end".to_owned() });
            }
            let next = timeout(Duration::from_millis(SILENCE_MS_MAX), self.body.frame()).await;
            let next = next.map_err(|_| broken("the event stream is silent".to_owned()))?;
            match next {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// What stands before the next blank line.
fn take_frame(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = received.windows(2).position(|pair| pair == b"\n\n")?;
    let rest = received.split_off(end + 2);
    Some(std::mem::replace(received, rest))
}

/// The event of one frame; `None` for pings and comments.
fn read(frame: &[u8]) -> Result<Option<Event>, CallError> {
    let wrong = |what: String| CallError::Malformed { what };
    let text = std::str::from_utf8(frame).map_err(|error| wrong(error.to_string()))?;
    let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    if data.is_empty() {
        return Ok(None);
    }
    let event: Event =
        serde_json::from_str(data.join("\n").trim()).map_err(|error| wrong(error.to_string()))?;
    match event.kind.as_str() {
        "ping" => Ok(None),
        // The server gives the stream up; another one may do better.
        "error" => {
            Err(CallError::Unreachable { what: "the event stream ended in an error".into() })
        }
        _ => Ok(Some(event)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_one_by_one() {
        let mut received = b": hi\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nid: 1\nevent: \
            agent.tool_use\ndata: {\"type\":\"agent.tool_use\",\"id\":\"e\",\"input\":{ \"a\": \
            1.0}}\n\nevent: x"
            .to_vec();
        let mut found = Vec::new();
        while let Some(frame) = take_frame(&mut received) {
            found.extend(read(&frame).unwrap());
        }
        assert_eq!(received, b"event: x");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].input.as_ref().unwrap().get(), "{ \"a\": 1.0}");
        assert!(read(b"event: error\ndata: {\"type\":\"error\"}\n").unwrap_err().may_pass());
        assert!(!read(b"data: {\n").unwrap_err().may_pass());
    }
}
