//! The same request twice: what a client sends again must not happen again.

use axum::http::Method;
use serde_json::{Value, json};

use crate::bench::{Bench, KEY, OTHER_KEY, kinds, message};

async fn post(bench: &Bench, path: &str, body: &Value, headers: &[(&str, &str)]) -> Value {
    bench.with_headers(KEY, Method::POST, path, body, headers).await.ok()
}

const RETRY: [(&str, &str); 1] = [("x-stainless-retry-count", "1")];
const FIRST: [(&str, &str); 1] = [("x-stainless-retry-count", "0")];

async fn messages(bench: &Bench, session: &str) -> usize {
    let history = bench.history(session).await;
    kinds(&history).iter().filter(|kind| **kind == "user.message").count()
}

#[tokio::test]
async fn a_clients_retry_of_a_send_stores_nothing() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let first = post(&bench, &path, &message("hi"), &FIRST).await;
    let retry = post(&bench, &path, &message("hi"), &RETRY).await;
    assert_eq!(first, retry);
    // Said twice on purpose: stored twice, and a retry of it still stores nothing.
    let second = post(&bench, &path, &message("hi"), &FIRST).await;
    assert_ne!(second["data"][0]["id"], first["data"][0]["id"]);
    let retry = post(&bench, &path, &message("hi"), &RETRY).await;
    assert_eq!(retry, second);
    bench.settle().await;
    assert_eq!(
        post(&bench, &path, &message("hi"), &RETRY).await["data"][0]["id"],
        second["data"][0]["id"]
    );
    assert_eq!(messages(&bench, &session).await, 2);
    // Another body, and the same one after a minute, are new.
    post(&bench, &path, &message("other"), &RETRY).await;
    bench.advance(60_001);
    post(&bench, &path, &message("hi"), &RETRY).await;
    assert_eq!(messages(&bench, &session).await, 4);
}

#[tokio::test]
async fn a_retry_whose_first_try_never_arrived_is_stored_once() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let retry = post(&bench, &path, &message("hi"), &RETRY).await;
    let again = post(&bench, &path, &message("hi"), &[("x-stainless-retry-count", "2")]).await;
    assert_eq!(retry, again);
    assert_eq!(messages(&bench, &session).await, 1);
}

#[tokio::test]
async fn a_key_makes_a_send_one_send() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let key = [("idempotency-key", "abc")];
    let first = post(&bench, &path, &message("hi"), &key).await;
    bench.settle().await;
    bench.advance(3_600_000);
    let again = post(&bench, &path, &message("hi"), &key).await;
    assert_eq!(first["data"][0]["id"], again["data"][0]["id"]);
    let got = bench.with_headers(KEY, Method::POST, &path, &message("other"), &key).await;
    assert!(got.error(409, "conflict_error").starts_with("Idempotency-Key:"));
    assert_eq!(got.headers["x-should-retry"], "false");
    post(&bench, &path, &message("hi"), &[("idempotency-key", "def")]).await;
    assert_eq!(messages(&bench, &session).await, 2);
}

#[tokio::test]
async fn a_key_makes_a_create_one_create() {
    let bench = Bench::new().await;
    let agent = bench.agent(KEY).await;
    let environment = bench.environment(KEY).await;
    let cases = [
        ("/v1/agents", json!({"name": "a", "model": "m"}), json!({"name": "b", "model": "m"})),
        ("/v1/environments", json!({"name": "a"}), json!({"name": "b"})),
        (
            "/v1/sessions",
            json!({"agent": agent, "environment_id": environment}),
            json!({"agent": agent, "environment_id": environment, "title": "x"}),
        ),
    ];
    let key = [("idempotency-key", "one key for each route")];
    for (path, body, other) in cases {
        let first = post(&bench, path, &body, &key).await;
        bench.advance(86_400_000);
        let again = post(&bench, path, &body, &key).await;
        assert_eq!(first["id"], again["id"], "{path}");
        let got = bench.with_headers(KEY, Method::POST, path, &other, &key).await;
        assert!(got.error(409, "conflict_error").starts_with("Idempotency-Key:"), "{path}");
        let without = post(&bench, path, &body, &[]).await;
        assert_ne!(first["id"], without["id"], "{path}");
    }
    // Another tenant's key of the same name is another key.
    let body = json!({"name": "a"});
    let own = post(&bench, "/v1/environments", &body, &key).await;
    let got = bench.with_headers(OTHER_KEY, Method::POST, "/v1/environments", &body, &key).await;
    assert_ne!(got.ok()["id"], own["id"]);
}

#[tokio::test]
async fn a_refused_request_does_not_use_its_key_up() {
    let bench = Bench::new().await;
    let key = [("idempotency-key", "k")];
    let wrong = json!({"name": " "});
    let got = bench.with_headers(KEY, Method::POST, "/v1/environments", &wrong, &key).await;
    got.error(400, "invalid_request_error");
    post(&bench, "/v1/environments", &json!({"name": "right"}), &key).await;
    for bad in ["", " ", &"k".repeat(256)] {
        let headers = [("idempotency-key", bad)];
        let got = bench.with_headers(KEY, Method::POST, "/v1/environments", &wrong, &headers).await;
        assert!(got.error(400, "invalid_request_error").starts_with("Idempotency-Key:"), "{bad}");
    }
}

#[tokio::test]
async fn a_key_used_before_gives_its_session_even_when_the_agent_is_archived() {
    let bench = Bench::new().await;
    let agent = bench.agent(KEY).await;
    let body = json!({"agent": agent, "environment_id": bench.environment(KEY).await});
    let key = [("idempotency-key", "k")];
    let first = post(&bench, "/v1/sessions", &body, &key).await;
    bench.post(&format!("/v1/agents/{agent}/archive"), &Value::Null).await.ok();
    assert_eq!(post(&bench, "/v1/sessions", &body, &key).await["id"], first["id"]);
}

#[tokio::test]
async fn a_clients_retry_of_a_create_makes_nothing() {
    let bench = Bench::new().await;
    let agent = bench.agent(KEY).await;
    let environment = bench.environment(KEY).await;
    for (path, body) in [
        ("/v1/agents", json!({"name": "a", "model": "m"})),
        ("/v1/environments", json!({"name": "a"})),
        ("/v1/sessions", json!({"agent": agent, "environment_id": environment})),
    ] {
        let first = post(&bench, path, &body, &FIRST).await;
        let retry = post(&bench, path, &body, &RETRY).await;
        assert_eq!(first["id"], retry["id"], "{path}");
        let second = post(&bench, path, &body, &FIRST).await;
        assert_ne!(first["id"], second["id"], "{path}");
        bench.advance(60_001);
        let late = post(&bench, path, &body, &RETRY).await;
        assert_ne!(late["id"], second["id"], "{path}");
    }
}
