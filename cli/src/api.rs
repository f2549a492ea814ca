//! The public API, called within the process: the same routes, the same checks, no socket.

use anyhow::{Context, anyhow, bail};
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{Method, Request, Response, StatusCode, header},
};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

/// No answer is larger: a page holds at most a thousand events, and their texts are bounded.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// One caller of the API.
#[derive(Clone)]
pub(crate) struct Api {
    router: Router,
}

/// One event as the API shows it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: String,
    /// The JSON object as it came, on one line.
    pub(crate) raw: String,
    pub(crate) fields: Value,
}

impl Api {
    pub(crate) fn new(router: Router) -> Self {
        Self { router }
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, Body::empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, Body::from(body.to_string())).await
    }

    /// A form, whose type says what parts it.
    pub(crate) async fn post_form(
        &self,
        path: &str,
        content_type: &str,
        body: Body,
    ) -> anyhow::Result<Value> {
        json(self.request(Method::POST, path, content_type, body).await?).await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::DELETE, path, Body::empty()).await
    }

    /// Every item of a list, page after page.
    pub(crate) async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let joint = if path.contains('?') { '&' } else { '?' };
        let mut items = Vec::new();
        let mut page = String::new();
        loop {
            let mut answer = self.get(&format!("{path}{page}")).await?;
            let Some(Value::Array(data)) = answer.get_mut("data").map(Value::take) else {
                bail!("the API answered a list without its data");
            };
            items.extend(data);
            match answer.get("next_page").and_then(Value::as_str) {
                Some(next) => page = format!("{joint}page={next}"),
                None => return Ok(items),
            }
        }
    }

    /// The bytes of a file, as they come.
    pub(crate) async fn content(&self, path: &str) -> anyhow::Result<Body> {
        Ok(self.send(Method::GET, path, Body::empty()).await?.into_body())
    }

    /// Follows a session from now on.
    pub(crate) async fn follow(&self, session: &str) -> anyhow::Result<Events> {
        let path = format!("/v1/sessions/{session}/events/stream");
        let answer = self.send(Method::GET, &path, Body::empty()).await?;
        Ok(Events { body: answer.into_body(), received: Vec::new() })
    }

    async fn call(&self, method: Method, path: &str, body: Body) -> anyhow::Result<Value> {
        json(self.send(method, path, body).await?).await
    }

    async fn send(&self, method: Method, path: &str, body: Body) -> anyhow::Result<Response<Body>> {
        self.request(method, path, "application/json", body).await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Body,
    ) -> anyhow::Result<Response<Body>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .body(body)?;
        let answer = match self.router.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        if answer.status() == StatusCode::OK {
            return Ok(answer);
        }
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await?;
        let envelope: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let message = envelope["error"]["message"].as_str();
        Err(anyhow!("{}", message.map_or_else(|| status.to_string(), str::to_owned)))
    }
}

async fn json(answer: Response<Body>) -> anyhow::Result<Value> {
    let bytes = to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await?;
    serde_json::from_slice(&bytes).context("the API answered something that is not JSON")
}

/// Events as they come.
pub(crate) struct Events {
    body: Body,
    received: Vec<u8>,
}

impl Events {
    /// The next event, or `None` when the session is over. Losing this future loses nothing.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            while let Some(frame) = self.take_frame() {
                if let Some(event) = read(&frame)? {
                    return Ok(Some(event));
                }
            }
            match self.body.frame().await {
                Some(frame) => {
                    let data = frame.context("the event stream broke")?.into_data();
                    self.received.extend_from_slice(&data.unwrap_or_else(|_| Bytes::new()));
                }
                None => return Ok(None),
            }
        }
    }

    /// What stands before the next blank line.
    fn take_frame(&mut self) -> Option<Vec<u8>> {
        let end = self.received.windows(2).position(|pair| pair == b"\n\n")?;
        let rest = self.received.split_off(end + 2);
        Some(std::mem::replace(&mut self.received, rest))
    }
}

/// The event of one frame; `None` for a ping or a comment.
fn read(frame: &[u8]) -> anyhow::Result<Option<Event>> {
    let text = std::str::from_utf8(frame).context("an event is not UTF-8")?;
    let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    if data.is_empty() {
        return Ok(None);
    }
    // A model's own JSON may go over several lines; between its tokens a space is as good.
    let event = event(data.join(" ").trim())?;
    match event.kind.as_str() {
        "ping" => Ok(None),
        "error" => {
            bail!("{}", event.fields["error"]["message"].as_str().unwrap_or("unknown error"))
        }
        _ => Ok(Some(event)),
    }
}

/// Reads one event from its JSON.
pub(crate) fn event(json: &str) -> anyhow::Result<Event> {
    let fields: Value = serde_json::from_str(json).context("an event is not JSON")?;
    let kind = fields["type"].as_str().unwrap_or_default().to_owned();
    Ok(Event { kind, raw: json.to_owned(), fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_put_together_from_any_pieces() {
        let text = ": hi\n\nevent: a\ndata: {\"type\":\"a\",\ndata: \"n\":1}\n\nevent: ping\n\
                    data: {\"type\":\"ping\"}\n\nevent: b\ndata: {\"type\":\"b\"}\n\n";
        for size in [1, 2, 7, text.len()] {
            let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
                text.as_bytes().chunks(size).map(|piece| Ok(piece.to_vec())).collect();
            let body = Body::from_stream(futures_util::stream::iter(pieces));
            let mut events = Events { body, received: Vec::new() };
            let first = events.next().await.unwrap().unwrap();
            assert_eq!((first.kind.as_str(), first.raw.as_str()), ("a", r#"{"type":"a",  "n":1}"#));
            assert_eq!(events.next().await.unwrap().unwrap().kind, "b");
            assert!(events.next().await.unwrap().is_none());
        }
    }
}
