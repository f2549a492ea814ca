//! What every test here stands on.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tailstep_api::{App, HandsFeatures, keys, router};
use tailstep_core::{
    event::HandsReport,
    files::{FileContent, Manifest, OutputFile},
    ids::{SessionKey, UnixMs},
    limits::{Limits, files::UPLOAD_BYTES_MAX},
    model::{Block, FailureKind, ModelAnswer, ModelFailure, ModelRequest, Stop, Usage},
    raw::RawJson,
};
use tailstep_runtime::{
    Runtime,
    content::ContentWriter,
    memory::{MemoryBlobs, MemoryDocuments, MemoryLog, MemoryQueue},
    ports::{Blobs, Clock, Hands, HandsError, Model, ToolOrder, ToolReply},
    prefix::Prefixes,
    step::step,
};
use tower::ServiceExt;

pub(crate) const KEY: &str = "key-of-one";
pub(crate) const OTHER_KEY: &str = "key-of-two";

/// A clock that stands still until it is moved.
#[derive(Default)]
pub(crate) struct StillClock(AtomicU64);

impl Clock for StillClock {
    fn now_ms(&self) -> UnixMs {
        self.0.load(Ordering::SeqCst)
    }
}

/// Answers what it was told to, in order; without more to say, it says so.
#[derive(Default)]
pub(crate) struct FakeModel(Mutex<VecDeque<Result<ModelAnswer, ModelFailure>>>);

#[async_trait]
impl Model for FakeModel {
    async fn call(&self, _request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        let next = self.0.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Ok(says("nothing more to say")))
    }

    fn check(&self, model: &str) -> Result<(), String> {
        if model.starts_with("nowhere/") {
            return Err(format!("no provider is configured for `{model}`"));
        }
        Ok(())
    }
}

/// Every call works, and reports what it was told to, once.
#[derive(Default)]
pub(crate) struct FakeHands(Mutex<HandsReport>);

#[async_trait]
impl Hands for FakeHands {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        Ok(ToolReply {
            text: format!("{} ran", order.tool),
            is_error: false,
            report: std::mem::take(&mut *self.0.lock().unwrap()),
            ..ToolReply::default()
        })
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        Ok(())
    }
}

pub(crate) fn usage(n: u64) -> Usage {
    Usage {
        input_tokens: n,
        output_tokens: 2 * n,
        cache_read_input_tokens: 3 * n,
        cache_write_input_tokens: 4 * n,
    }
}

pub(crate) fn answer(blocks: Vec<Block>, stop: Stop) -> ModelAnswer {
    ModelAnswer { blocks, stop, usage: usage(1) }
}

pub(crate) fn text(text: &str) -> Block {
    Block::Text { text: text.to_owned() }
}

pub(crate) fn says(said: &str) -> ModelAnswer {
    answer(vec![text(said)], Stop::EndTurn)
}

pub(crate) fn call(tool: &str, input: &str) -> Block {
    Block::ToolUse {
        id: format!("toolu_{tool}"),
        name: tool.to_owned(),
        input: RawJson::parse(input).unwrap(),
    }
}

pub(crate) fn calls(tool: &str) -> ModelAnswer {
    answer(vec![call(tool, "{}")], Stop::ToolUse)
}

pub(crate) fn fails(kind: FailureKind, message: &str) -> ModelFailure {
    ModelFailure { kind, message: message.to_owned(), retry_after_ms: None, usage: usage(0) }
}

pub(crate) struct Bench {
    /// What the router was made of.
    pub(crate) app: App,
    pub(crate) router: Router,
    pub(crate) runtime: Runtime,
    pub(crate) documents: Arc<MemoryDocuments>,
    pub(crate) blobs: Arc<MemoryBlobs>,
    pub(crate) log: Arc<MemoryLog>,
    clock: Arc<StillClock>,
    model: Arc<FakeModel>,
    hands: Arc<FakeHands>,
}

/// An answer of the API.
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Got {
    /// The body of a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.body
    }

    /// Checks the envelope; gives the message.
    #[track_caller]
    pub(crate) fn error(&self, status: u16, kind: &str) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        assert_eq!(self.body["type"], "error", "{}", self.body);
        assert_eq!(self.body["error"]["type"], kind, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/json");
        let request_id = self.body["request_id"].as_str().unwrap();
        assert!(request_id.starts_with("req_"));
        assert_eq!(self.headers["request-id"], request_id);
        self.body["error"]["message"].as_str().unwrap().to_owned()
    }
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with_stream_max(None).await
    }

    pub(crate) async fn with_stream_max(stream_max_ms: Option<u64>) -> Self {
        let clock = Arc::new(StillClock::default());
        clock.0.store(1_796_000_000_000, Ordering::SeqCst);
        let (log, model) = (Arc::new(MemoryLog::default()), Arc::new(FakeModel::default()));
        let documents = Arc::new(MemoryDocuments::default());
        let hands = Arc::new(FakeHands::default());
        let blobs = Arc::new(MemoryBlobs::default());
        let runtime = Runtime {
            log: log.clone(),
            queue: Arc::new(MemoryQueue::new(clock.clone(), 30_000)),
            model: model.clone(),
            hands: hands.clone(),
            documents: documents.clone(),
            clock: clock.clone(),
            limits: Limits::default(),
            prefixes: Arc::new(Prefixes::new(0)),
        };
        for (key, tenant) in [(KEY, "one"), (OTHER_KEY, "two")] {
            keys::ensure_key(documents.as_ref(), tenant, key, "test", 0).await.unwrap();
        }
        let app = App {
            runtime: runtime.clone(),
            documents: documents.clone(),
            blobs: blobs.clone(),
            upload_bytes_max: UPLOAD_BYTES_MAX,
            hands: HandsFeatures { files: true, skills: true, packages: true, networking: true },
            stream_max_ms,
        };
        Self {
            router: router(app.clone()),
            app,
            runtime,
            documents,
            blobs,
            log,
            clock,
            model,
            hands,
        }
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// A call of `session` that leaves exactly these files: path, bytes, and when they were first
    /// seen.
    pub(crate) async fn puts_out(&self, session: &str, files: &[(&str, &[u8], UnixMs)]) {
        let mut manifest = Manifest::empty();
        for (path, bytes, collected_at_ms) in files {
            let mut writer = ContentWriter::new(self.blobs.as_ref(), "one");
            writer.write(bytes).await.unwrap();
            let content: FileContent = writer.finish().await.unwrap();
            let path = (*path).to_owned();
            manifest.files.push(OutputFile { path, content, collected_at_ms: *collected_at_ms });
        }
        let encoded = manifest.encode().unwrap();
        let blob = self.blobs.put("one", encoded.into()).await.unwrap();
        self.hands_report(HandsReport { outputs: Some(blob), ..HandsReport::default() });
        self.model_answers([calls("bash"), says("done")]);
        self.say(session, "put out").await;
        self.settle().await;
    }

    /// What the hands report of their next call.
    pub(crate) fn hands_report(&self, report: HandsReport) {
        *self.hands.0.lock().unwrap() = report;
    }

    /// What the model answers next, after what it was told before.
    pub(crate) fn model_answers(&self, answers: impl IntoIterator<Item = ModelAnswer>) {
        self.model.0.lock().unwrap().extend(answers.into_iter().map(Ok));
    }

    pub(crate) fn model_fails(&self, failure: ModelFailure) {
        self.model.0.lock().unwrap().push_back(Err(failure));
    }

    /// One step; `false` when no message is visible.
    pub(crate) async fn step(&self) -> bool {
        let deliveries = self.runtime.queue.receive(1, 0).await.unwrap();
        let Some(delivery) = deliveries.first() else { return false };
        step(&self.runtime, delivery, None).await.unwrap();
        self.runtime.queue.ack(delivery).await.unwrap();
        true
    }

    /// Steps until nothing is left to do now.
    pub(crate) async fn settle(&self) {
        while self.step().await {}
    }

    pub(crate) async fn send_raw(&self, request: Request<Body>) -> Got {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            panic!("not JSON: {}", String::from_utf8_lossy(&bytes));
        });
        Got { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn as_key(&self, key: &str, method: Method, path: &str, body: &Value) -> Got {
        self.with_headers(key, method, path, body, &[]).await
    }

    pub(crate) async fn with_headers(
        &self,
        key: &str,
        method: Method,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Got {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send_raw(request.body(body).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.as_key(KEY, Method::GET, path, &Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Got {
        self.as_key(KEY, Method::POST, path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Got {
        self.as_key(KEY, Method::DELETE, path, &Value::Null).await
    }

    /// An agent with all tools; gives its id.
    pub(crate) async fn agent(&self, key: &str) -> String {
        let body = json!({
            "name": "tester",
            "model": "m-1",
            "tools": [{"type": "agent_toolset_20260401"}],
        });
        let made = self.as_key(key, Method::POST, "/v1/agents", &body).await.ok();
        made["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn environment(&self, key: &str) -> String {
        let body = json!({"name": "env"});
        let made = self.as_key(key, Method::POST, "/v1/environments", &body).await.ok();
        made["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn session_of(&self, key: &str) -> String {
        let body = json!({
            "agent": self.agent(key).await,
            "environment_id": self.environment(key).await,
            "title": "a title",
        });
        let made = self.as_key(key, Method::POST, "/v1/sessions", &body).await.ok();
        made["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn session(&self) -> String {
        self.session_of(KEY).await
    }

    /// Sends one message; gives its event id.
    pub(crate) async fn say(&self, session: &str, said: &str) -> String {
        let path = format!("/v1/sessions/{session}/events");
        let sent = self.post(&path, &message(said)).await.ok();
        sent["data"][0]["id"].as_str().unwrap().to_owned()
    }

    /// The whole history on one page.
    pub(crate) async fn history(&self, session: &str) -> Vec<Value> {
        let page = self.get(&format!("/v1/sessions/{session}/events")).await.ok();
        assert_eq!(page["next_page"], Value::Null);
        page["data"].as_array().unwrap().clone()
    }

    /// Opens a stream; its headers have come when this returns.
    pub(crate) async fn stream(&self, session: &str, last_event_id: Option<&str>) -> Stream {
        let mut request = Request::builder()
            .uri(format!("/v1/sessions/{session}/events/stream"))
            .header("x-api-key", KEY);
        if let Some(last) = last_event_id {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { body: response.into_body(), buffer: String::new() }
    }
}

/// One message as the body of a send.
pub(crate) fn message(said: &str) -> Value {
    json!({"events": [{"type": "user.message", "content": [{"type": "text", "text": said}]}]})
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

pub(crate) fn ids(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["id"].as_str().unwrap()).collect()
}

pub(crate) struct Stream {
    body: Body,
    buffer: String,
}

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    pub(crate) id: Option<String>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl Stream {
    /// The next frame, or `None` at a clean end.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = self.buffer.split_once("\n\n") {
                let frame = parse(frame);
                self.buffer = rest.to_owned();
                return Some(frame);
            }
            let frame = self.body.frame().await?.unwrap();
            self.buffer.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    }

    /// The next event, pings left out.
    pub(crate) async fn event(&mut self) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            if frame.event != "ping" {
                return Some(frame);
            }
        }
    }

    /// All events that come without waiting.
    pub(crate) async fn ready(&mut self) -> Vec<Frame> {
        let mut found = Vec::new();
        let patience = Duration::from_millis(100);
        while let Ok(Some(frame)) = tokio::time::timeout(patience, self.event()).await {
            found.push(frame);
        }
        found
    }
}

fn parse(frame: &str) -> Frame {
    let mut parsed = Frame { id: None, event: String::new(), data: Value::Null };
    for line in frame.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        match name {
            "id" => parsed.id = Some(value.to_owned()),
            "event" => parsed.event = value.to_owned(),
            "data" => parsed.data = serde_json::from_str(value).unwrap(),
            _ => panic!("unexpected line {line}"),
        }
    }
    assert_eq!(parsed.data["type"], parsed.event.as_str());
    parsed
}
