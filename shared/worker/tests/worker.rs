//! The worker against a server that does what it is told: fails, takes leases away, refuses results.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tailstep_core::ids::SessionKey;
use tailstep_runtime::{
    memory::MemoryBlobs,
    ports::{Hands, HandsError, ToolOrder, ToolReply},
};
use tailstep_worker::{CallError, Client, Config, Key, Served, Until, Worker, run};
use tokio::{net::TcpListener, sync::watch, time::timeout};

const KEY: &str = "the-environment-key";
const TOKEN: &str = "the-sessions-token";
/// `{"sessions_token":"the-sessions-token"}`.
const SECRET: &str = "eyJzZXNzaW9uc190b2tlbiI6InRoZS1zZXNzaW9ucy10b2tlbiJ9";

/// What the server has and does.
#[derive(Default)]
struct Server {
    /// Given out by polls, one each.
    items: Vec<Value>,
    events: Vec<Value>,
    /// Archives of skills, by id; what is no archive is answered all the same.
    skills: BTreeMap<String, Vec<u8>>,
    /// Results as they were taken, at most one a call.
    results: Vec<(String, String)>,
    beats: u32,
    /// Requests by route, refused ones included.
    asked: BTreeMap<&'static str, u32>,
    /// The next requests to a route fail so often with this status.
    fail: BTreeMap<&'static str, (u32, u16)>,
    /// Heartbeats from this one on are answered with this state; `lost` is a 412.
    then: Option<(u32, &'static str)>,
    /// Results longer than this are refused.
    result_bytes_max: Option<usize>,
    wrong_credentials: Vec<String>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Server>>);

impl Fake {
    fn lock(&self) -> MutexGuard<'_, Server> {
        self.0.lock().unwrap()
    }

    fn with(item: Value, events: Vec<Value>) -> Self {
        let fake = Self::default();
        fake.lock().items.push(item);
        fake.lock().events = events;
        fake
    }

    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    async fn run(&self, until: Until) -> (Result<Served, CallError>, Arc<FakeHands>) {
        let hands = Arc::new(FakeHands::default());
        let (_stop, stopped) = watch::channel(false);
        let worker = self.worker(&hands, until).await;
        let ran = timeout(Duration::from_secs(20), run(worker, stopped)).await;
        (ran.expect("the worker does not end"), hands)
    }

    async fn worker(&self, hands: &Arc<FakeHands>, until: Until) -> Worker {
        let client = Client::new(&self.serve().await, None, "w-1".to_owned()).unwrap();
        let config = Config {
            environment: "env_1".to_owned(),
            key: Key::new(KEY),
            idle_ms_max: 300,
            lease_s: 2,
            sessions_max: 2,
            until,
        };
        assert!(!format!("{config:?}").contains(KEY));
        let blobs = Arc::new(MemoryBlobs::default());
        Worker { client: Arc::new(client), hands: hands.clone(), blobs, config }
    }
}

async fn answer(State(fake): State<Fake>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let parts_of_path: Vec<&str> = path.split('/').skip(2).collect();
    let skill = match parts_of_path[..] {
        ["skills", id, "versions", _] | ["skills", id, "versions", _, "content"] => id,
        _ => "",
    };
    let route = match path.rsplit('/').next().unwrap() {
        "sesn_1" => "session",
        "content" if !skill.is_empty() => "content",
        _ if !skill.is_empty() => "version",
        "poll" => "poll",
        "ack" => "ack",
        "heartbeat" => "heartbeat",
        "stop" => "stop",
        "stream" => "stream",
        "events" if parts.method == "POST" => "send",
        "events" => "list",
        _ => return refuse(404),
    };
    let credential = parts.headers["authorization"].to_str().unwrap();
    let mut server = fake.lock();
    let right = if matches!(route, "poll" | "ack") { KEY } else { TOKEN };
    if credential != format!("Bearer {right}") {
        server.wrong_credentials.push(format!("{route}: {credential}"));
    }
    *server.asked.entry(route).or_default() += 1;
    if let Some((left, status)) = server.fail.get_mut(route).filter(|(left, _)| *left > 0) {
        *left -= 1;
        return refuse(*status);
    }
    match route {
        "poll" => json_of(&server.items.pop().unwrap_or_default()),
        "ack" => json_of(&json!({})),
        "heartbeat" => beat(&mut server, parts.uri.query().unwrap_or_default()),
        "stop" => {
            assert_eq!(body, json!({"force": true}));
            json_of(&json!({}))
        }
        "session" => {
            let skill = |id| json!({"type": "custom", "skill_id": id, "version": "v1"});
            let skills: Vec<Value> = server.skills.keys().map(skill).collect();
            json_of(&json!({"id": "sesn_1", "agent": {"skills": skills}}))
        }
        "version" => json_of(&json!({"id": "v1", "skill_id": skill, "name": skill})),
        "content" => server.skills[skill].clone().into_response(),
        "list" => json_of(&json!({"data": server.events, "next_page": null})),
        // Ends at once: what comes later is seen by the list.
        "stream" => ([("content-type", "text/event-stream")], Body::empty()).into_response(),
        _ => send(&mut server, &body),
    }
}

fn beat(server: &mut Server, query: &str) -> Response {
    server.beats += 1;
    let expected = match server.beats {
        1 => "expected_last_heartbeat=NO_HEARTBEAT".to_owned(),
        n => format!("expected_last_heartbeat=2026-01-01T00%3A00%3A{:02}Z", n - 1),
    };
    assert!(query.contains(&expected), "{query}");
    let state = match server.then {
        Some((from, state)) if server.beats >= from => state,
        Some(_) | None => "active",
    };
    if state == "lost" {
        return refuse(412);
    }
    json_of(&json!({
        "type": "work_heartbeat",
        "last_heartbeat": format!("2026-01-01T00:00:{:02}Z", server.beats),
        "lease_extended": state == "active",
        "state": state,
        "ttl_seconds": 2,
    }))
}

/// Takes one result a call, and ends the turn when all calls have theirs.
fn send(server: &mut Server, body: &Value) -> Response {
    let event = &body["events"][0];
    let text = event["content"][0]["text"].as_str().unwrap();
    if server.result_bytes_max.is_some_and(|max| text.len() > max) {
        return refuse(413);
    }
    let call = event["tool_use_id"].as_str().unwrap().to_owned();
    if server.results.iter().all(|(answered, _)| *answered != call) {
        server.results.push((call.clone(), text.to_owned()));
        let id = format!("r{}", server.results.len());
        server.events.push(json!({"type": "user.tool_result", "id": id, "tool_use_id": call}));
    }
    let calls = server.events.iter().filter(|event| event["type"] == "agent.tool_use").count();
    if server.results.len() == calls {
        server.events.push(idle("end_turn"));
    }
    json_of(&json!({"data": []}))
}

fn refuse(status: u16) -> Response {
    let body = json!({"type": "error", "error": {"type": "x", "message": "by the test"}});
    (StatusCode::from_u16(status).unwrap(), body.to_string()).into_response()
}

fn json_of(value: &Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}

fn item(kind: &str) -> Value {
    json!({"id": "work_1", "data": {"type": kind, "id": "sesn_1"}, "secret": SECRET})
}

fn call(id: &str, permission: &str) -> Value {
    json!({"type": "agent.tool_use", "id": id, "name": "bash", "input": {"command": id},
        "evaluated_permission": permission})
}

fn idle(reason: &str) -> Value {
    json!({"type": "session.status_idle", "id": format!("i-{reason}"),
        "stop_reason": {"type": reason}})
}

/// Runs calls: `slow` takes long, `lost` loses the sandbox, `long` says much.
#[derive(Default)]
struct FakeHands {
    begun: Mutex<Vec<String>>,
    done: Mutex<Vec<String>>,
    released: Mutex<u32>,
    /// Names of the skills that calls came with.
    skills: Mutex<Vec<Vec<String>>>,
}

#[async_trait]
impl Hands for FakeHands {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let input = order.input.as_str().to_owned();
        self.begun.lock().unwrap().push(input.clone());
        let skills = order.given.skills.iter().map(|skill| skill.name.clone()).collect();
        self.skills.lock().unwrap().push(skills);
        if input.contains("slow") {
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        if input.contains("lost") {
            return Err(HandsError::Lost { what: "by the test".to_owned() });
        }
        self.done.lock().unwrap().push(input.clone());
        let text = if input.contains("long") { "x".repeat(100) } else { format!("ran {input}") };
        Ok(ToolReply { text, ..ToolReply::default() })
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        *self.released.lock().unwrap() += 1;
        Ok(())
    }
}

#[tokio::test]
async fn calls_are_answered_and_the_item_given_back() {
    let events = vec![call("a", "allow"), call("b", "ask"), call("c", "allow")];
    let fake = Fake::with(item("session"), events);
    // The person says no, and the server answers for it.
    fake.lock().events.push(json!({"type": "user.tool_confirmation", "id": "n",
        "tool_use_id": "b", "result": "deny"}));
    fake.lock().results.push(("b".to_owned(), "denied".to_owned()));
    let (ran, _) = fake.run(Until::Drained).await;
    assert_eq!(ran.unwrap(), Served { items: 1 });
    let server = fake.lock();
    let answered: Vec<&str> = server.results.iter().map(|(call, _)| call.as_str()).collect();
    assert_eq!(answered, ["b", "a", "c"]);
    assert_eq!(server.results[1].1, r#"ran {"command":"a"}"#, "the input as it was sent");
    assert_eq!((server.asked["ack"], server.asked["stop"]), (1, 1));
    assert_eq!(server.wrong_credentials, [""; 0]);
}

/// A worker that takes a session over sees the calls of its past before their answers.
#[tokio::test]
async fn calls_of_the_past_are_not_run_again() {
    let fake = Fake::with(item("session"), Vec::new());
    for n in 0..50 {
        let (id, result) = (format!("a{n}"), format!("past{n}"));
        fake.lock().events.push(call(&id, "allow"));
        fake.lock()
            .events
            .push(json!({"type": "user.tool_result", "id": result, "tool_use_id": id}));
        fake.lock().results.push((id, String::new()));
    }
    fake.lock().events.push(call("b", "allow"));
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    assert_eq!(*hands.begun.lock().unwrap(), [r#"{"command":"b"}"#]);
}

#[tokio::test]
async fn what_fails_for_a_while_is_tried_again() {
    let fake = Fake::with(item("session"), vec![call("a", "allow")]);
    for (route, status) in
        [("poll", 503), ("ack", 500), ("stream", 429), ("list", 503), ("send", 500), ("stop", 502)]
    {
        fake.lock().fail.insert(route, (1, status));
    }
    let (ran, _) = fake.run(Until::Once).await;
    assert_eq!(ran.unwrap(), Served { items: 1 });
    let server = fake.lock();
    assert_eq!(server.results.len(), 1);
    assert_eq!((server.asked["send"], server.asked["stop"]), (2, 2));
}

#[tokio::test]
async fn skills_come_with_every_call() {
    let fake = Fake::with(item("session"), vec![call("a", "allow"), call("b", "allow")]);
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    archive.start_file("pdf/SKILL.md", zip::write::SimpleFileOptions::default()).unwrap();
    let archive = archive.finish().unwrap().into_inner();
    for (id, archive) in [("pdf", archive), ("broken", b"no archive".to_vec())] {
        fake.lock().skills.insert(id.to_owned(), archive);
    }
    for (route, status) in [("session", 503), ("version", 500), ("content", 429)] {
        fake.lock().fail.insert(route, (1, status));
    }
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    assert_eq!(*hands.skills.lock().unwrap(), [["pdf"], ["pdf"]], "what is broken is left out");
    let server = fake.lock();
    assert_eq!(server.asked["session"], 2, "asked once for both calls, and once again");
    assert_eq!(server.wrong_credentials, [""; 0]);
}

#[tokio::test]
async fn a_lost_lease_drops_everything() {
    let fake = Fake::with(item("session"), vec![call("slow", "allow")]);
    fake.lock().then = Some((2, "lost"));
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    assert_eq!(hands.begun.lock().unwrap().len(), 1);
    assert!(hands.done.lock().unwrap().is_empty(), "the call was stopped");
    let server = fake.lock();
    assert!(server.results.is_empty());
    assert!(!server.asked.contains_key("stop"), "the item is somebody else's");
}

#[tokio::test]
async fn nothing_runs_before_the_first_heartbeat() {
    let fake = Fake::with(item("session"), vec![call("a", "allow")]);
    fake.lock().then = Some((1, "lost"));
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    assert!(hands.begun.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_item_that_is_to_stop_lets_its_call_end() {
    let fake = Fake::with(item("session"), vec![call("slow", "allow"), call("b", "allow")]);
    fake.lock().then = Some((2, "stopping"));
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    let server = fake.lock();
    assert_eq!(server.results.len(), 1, "and begins no other");
    assert_eq!(hands.begun.lock().unwrap().len(), 1);
    assert_eq!(server.asked["stop"], 1);
}

#[tokio::test]
async fn a_refused_or_lost_result_is_still_a_result() {
    let fake = Fake::with(item("session"), vec![call("long", "allow"), call("lost", "allow")]);
    fake.lock().result_bytes_max = Some(99);
    let (ran, _) = fake.run(Until::Once).await;
    ran.unwrap();
    let server = fake.lock();
    assert!(server.results[0].1.contains("refused"), "{:?}", server.results);
    assert!(!server.results[1].1.contains("by the test"), "details are for the worker's log");
}

#[tokio::test]
async fn a_session_that_is_over_loses_its_workspace() {
    let over = json!({"type": "session.status_terminated", "id": "t"});
    let fake = Fake::with(item("session"), vec![call("a", "allow"), over]);
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    assert_eq!(*hands.released.lock().unwrap(), 1);
    assert_eq!(fake.lock().asked["stop"], 1);
}

#[tokio::test]
async fn what_is_not_a_session_is_given_back_untouched() {
    let fake = Fake::with(item("healthcheck"), vec![call("a", "allow")]);
    let (ran, hands) = fake.run(Until::Once).await;
    ran.unwrap();
    assert!(hands.begun.lock().unwrap().is_empty());
    assert_eq!(fake.lock().asked["stop"], 1);
}

#[tokio::test]
async fn a_key_that_is_refused_ends_the_worker() {
    let fake = Fake::default();
    fake.lock().fail.insert("poll", (1, 401));
    let (ran, _) = fake.run(Until::Stopped).await;
    let error = ran.unwrap_err();
    assert!(matches!(error, CallError::Status { status: 401, .. }), "{error}");
    assert!(!error.to_string().contains(KEY));
}

#[tokio::test]
async fn told_to_stop_it_ends_and_gives_back_what_it_has() {
    let fake = Fake::with(item("session"), vec![call("a", "allow"), idle("requires_action")]);
    // Its result is not taken for now, so that it is still at it.
    fake.lock().fail.insert("send", (1, 503));
    let hands = Arc::new(FakeHands::default());
    let (stop, stopped) = watch::channel(false);
    let worker = fake.worker(&hands, Until::Stopped).await;
    let running = tokio::spawn(run(worker, stopped));
    while hands.done.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send(true).unwrap();
    let ran = timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
    assert_eq!(ran.unwrap(), Served { items: 1 });
    let server = fake.lock();
    assert_eq!((server.results.len(), server.asked["stop"]), (1, 1));
}

#[test]
fn a_base_url_is_checked() {
    for wrong in ["", "localhost:8080", "ftp://x", "http://", "http://x?y=1"] {
        assert!(Client::new(wrong, None, String::new()).is_err(), "{wrong}");
    }
    for right in ["http://127.0.0.1:8080", "https://x.example/stage/"] {
        assert!(Client::new(right, None, String::new()).is_ok(), "{right}");
    }
}
