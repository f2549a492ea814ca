//! What tests of hands outside stand on: an environment for workers, a key to it, a session in it.

use axum::http::Method;
use serde_json::{Value, json};

use crate::bench::{Bench, Got, KEY, calls};

/// An environment for workers, a key to it, and one session.
pub(crate) struct Outside {
    pub(crate) bench: Bench,
    pub(crate) environment: String,
    pub(crate) key: String,
    pub(crate) session: String,
}

impl Outside {
    pub(crate) async fn new() -> Self {
        let bench = Bench::new().await;
        let environment = environment(&bench).await;
        let key = key(&bench, &environment).await;
        let session = session(&bench, &environment).await;
        Self { bench, environment, key, session }
    }

    /// As [`Self::new`], with one call of bash that waits.
    pub(crate) async fn waiting() -> Self {
        let outside = Self::new().await;
        outside.bench.model_answers([calls("bash")]);
        outside.bench.say(&outside.session, "go").await;
        outside.bench.settle().await;
        outside
    }

    pub(crate) fn queue(&self, rest: &str) -> String {
        format!("/v1/environments/{}/work{rest}", self.environment)
    }

    pub(crate) async fn worker(&self, method: Method, path: &str, body: &Value) -> Got {
        self.bench.as_key(&self.key, method, path, body).await
    }

    /// The item and its token.
    pub(crate) async fn poll(&self) -> Option<(String, String)> {
        let got = self.worker(Method::GET, &self.queue("/poll"), &Value::Null).await.ok();
        let id = got["id"].as_str()?.to_owned();
        assert_eq!(got["data"], json!({"type": "session", "id": self.session}));
        Some((id, token(&got)))
    }

    pub(crate) async fn item(&self, id: &str) -> Value {
        self.bench.get(&self.queue(&format!("/{id}"))).await.ok()
    }

    pub(crate) async fn ack(&self, id: &str) -> Got {
        self.worker(Method::POST, &self.queue(&format!("/{id}/ack")), &Value::Null).await
    }

    pub(crate) async fn beat(&self, id: &str, expected: &str) -> Got {
        let path = format!("/{id}/heartbeat?expected_last_heartbeat={expected}");
        self.worker(Method::POST, &self.queue(&path), &Value::Null).await
    }

    pub(crate) async fn stop(&self, id: &str, force: bool) -> Got {
        let path = self.queue(&format!("/{id}/stop"));
        self.worker(Method::POST, &path, &json!({"force": force})).await
    }

    pub(crate) async fn stats(&self) -> Value {
        self.bench.get(&self.queue("/stats")).await.ok()
    }

    /// Ids of the calls that the session waits for.
    pub(crate) async fn pending(&self) -> Vec<String> {
        let history = self.bench.history(&self.session).await;
        let last = history.last().unwrap();
        assert_eq!(last["type"], "session.status_idle");
        let ids = last["stop_reason"]["event_ids"].as_array();
        ids.into_iter().flatten().map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    pub(crate) async fn answers(&self, key: &str, results: &[(&str, &str)]) -> Got {
        let path = format!("/v1/sessions/{}/events", self.session);
        self.bench.as_key(key, Method::POST, &path, &results_of(results)).await
    }
}

pub(crate) fn results_of(results: &[(&str, &str)]) -> Value {
    let events: Vec<Value> = results
        .iter()
        .map(|(id, text)| {
            json!({
                "type": "user.tool_result",
                "tool_use_id": id,
                "is_error": false,
                "content": [{"type": "text", "text": text}],
            })
        })
        .collect();
    json!({"events": events})
}

pub(crate) async fn environment(bench: &Bench) -> String {
    let body = json!({"name": "outside", "config": {"type": "self_hosted"}});
    let made = bench.post("/v1/environments", &body).await.ok();
    assert_eq!(made["config"], json!({"type": "self_hosted"}));
    made["id"].as_str().unwrap().to_owned()
}

pub(crate) async fn session(bench: &Bench, environment: &str) -> String {
    let body = json!({"agent": bench.agent(KEY).await, "environment_id": environment});
    bench.post("/v1/sessions", &body).await.ok()["id"].as_str().unwrap().to_owned()
}

pub(crate) async fn key(bench: &Bench, environment: &str) -> String {
    let path = format!("/v1/x/environments/{environment}/keys");
    bench.post(&path, &json!({"name": "a worker"})).await.ok()["key"].as_str().unwrap().to_owned()
}

/// The token in a polled item's secret.
pub(crate) fn token(item: &Value) -> String {
    let secret = item["secret"].as_str().unwrap();
    assert!(!secret.contains(['=', '+', '/']), "base64url without padding");
    let bytes = decode(secret);
    let secret: Value = serde_json::from_slice(&bytes).unwrap();
    secret["sessions_token"].as_str().unwrap().to_owned()
}

fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for digit in text.bytes() {
        bits = bits << 6 | u32::try_from(DIGITS.iter().position(|d| *d == digit).unwrap()).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    bytes
}
