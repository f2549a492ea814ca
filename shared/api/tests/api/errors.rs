//! What is refused, and in which words.

use axum::{
    body::Body,
    http::{Method, Request},
};
use serde_json::{Value, json};

use crate::{
    bench::{Bench, KEY, message},
    outside::Outside,
};

#[tokio::test]
async fn a_key_opens_in_either_header_and_nothing_else_does() {
    let bench = Bench::new().await;
    let ask = async |headers: &[(&str, &str)]| {
        let mut request = Request::builder().uri("/v1/agents?beta=true");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        bench.send_raw(request.body(Body::empty()).unwrap()).await
    };
    for good in [
        [("authorization", "Bearer key-of-one")],
        [("authorization", "bearer key-of-one")],
        [("x-api-key", "key-of-one")],
    ] {
        ask(&good).await.ok();
    }
    let long = "k".repeat(1_000);
    let mut said = Vec::new();
    for bad in [
        &[][..],
        &[("authorization", "Bearer wrong-key")],
        &[("authorization", "key-of-one")],
        &[("authorization", "Basic key-of-one")],
        &[("authorization", "Bearer ")],
        &[("x-api-key", "wrong-key")],
        &[("x-api-key", "")],
        &[("x-api-key", &long)],
    ] {
        let got = ask(bad).await;
        said.push(got.error(401, "authentication_error"));
        assert!(!got.body.to_string().contains("wrong-key"));
    }
    said.dedup();
    assert_eq!(said.len(), 1);
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_in_the_envelope() {
    let bench = Bench::new().await;
    for path in ["/", "/v1", "/v1/vaults", "/v1/agents/x/y", "/v1/sessions/x/threads"] {
        bench.get(path).await.error(404, "not_found_error");
    }
    for (method, path) in [
        (Method::PUT, "/v1/agents"),
        (Method::DELETE, "/v1/agents/agent_x"),
        (Method::POST, "/v1/sessions/sesn_x"),
        (Method::GET, "/v1/agents/agent_x/archive"),
    ] {
        let got = bench.as_key(KEY, method, path, &Value::Null).await;
        got.error(405, "invalid_request_error");
        assert!(got.headers.contains_key("allow"), "{path}");
    }
    // Ids of any shape are looked for and not found.
    for id in ["x", "agent_", "..%2F..", "%00", "agent_%23", &"a".repeat(5_000)] {
        bench.get(&format!("/v1/agents/{id}")).await.error(404, "not_found_error");
        bench.get(&format!("/v1/sessions/{id}")).await.error(404, "not_found_error");
    }
    for path in ["/v1/agents/%ff%fe", "/v1/environments/%ff", "/v1/sessions/%ff/events"] {
        bench.get(path).await.error(400, "invalid_request_error");
    }
}

#[tokio::test]
async fn routes_without_fields_ignore_none() {
    let outside = Outside::waiting().await;
    let bench = &outside.bench;
    let (item, _) = outside.poll().await.unwrap();
    let as_worker =
        [outside.queue(&format!("/{item}/ack")), outside.queue(&format!("/{item}/heartbeat"))];
    let as_user = [
        format!("/v1/agents/{}/archive", bench.agent(KEY).await),
        format!("/v1/environments/{}/archive", outside.environment),
        format!("/v1/sessions/{}/archive", outside.session),
    ];
    for (key, path) in as_worker
        .iter()
        .map(|path| (outside.key.as_str(), path))
        .chain(as_user.iter().map(|path| (KEY, path)))
    {
        let field = json!({"desired_ttl_seconds": 1});
        let said = bench.as_key(key, Method::POST, path, &field).await;
        let said = said.error(400, "invalid_request_error");
        assert_eq!(said, "desired_ttl_seconds: unknown field; allowed here: none", "{path}");
        let said = bench.as_key(key, Method::POST, path, &json!([])).await;
        said.error(400, "invalid_request_error");
        bench.as_key(key, Method::POST, path, &json!({})).await.ok();
    }
}

#[tokio::test]
async fn bodies_have_a_limit_that_is_named() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let limit = 4_500_000;
    let frame = message("").to_string().len();
    let fits = message(&"x".repeat(limit - frame));
    assert_eq!(fits.to_string().len(), limit);
    bench.post(&path, &fits).await.ok();
    for over in [limit + 1, 6_100_000, 10_100_000] {
        let got = bench.post(&path, &message(&"x".repeat(over - frame))).await;
        assert!(got.error(413, "invalid_request_error").contains("4500000 bytes"));
    }
    // The limit is one of bytes, not of characters.
    let got = bench.post(&path, &message(&"🦀".repeat(1_200_000))).await;
    got.error(413, "invalid_request_error");
    assert_eq!(bench.history(&session).await.len(), 1);
    // A definition is small enough for a body, and too large to store.
    let body = json!({"name": "n", "model": "m", "system": "🦀".repeat(100_000)});
    let got = bench.post("/v1/agents", &body).await;
    assert!(got.error(413, "invalid_request_error").contains("300000"));
}

/// Path, body, how the message begins, and what it must say.
async fn refused(bench: &Bench, path: &str, cases: &[(Value, &str, &str)]) {
    for (body, begins, contains) in cases {
        let got = bench.post(path, body).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with(begins) && said.contains(contains), "{body}: {said}");
    }
}

#[tokio::test]
async fn bodies_that_are_no_objects() {
    let bench = Bench::new().await;
    for text in ["", "{", "[]", "null", "\"x\"", "{\"a\":\"\\ud800\"}", "\u{feff}{}", "{} x"] {
        let request = Request::post("/v1/agents")
            .header("x-api-key", KEY)
            .body(Body::from(text.to_owned()))
            .unwrap();
        let got = bench.send_raw(request).await;
        assert!(got.error(400, "invalid_request_error").starts_with("the request body"), "{text}");
    }
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let request =
        Request::post("/v1/agents").header("x-api-key", KEY).body(Body::from(deep)).unwrap();
    bench.send_raw(request).await.error(400, "invalid_request_error");
}

#[tokio::test]
async fn wrong_agents() {
    let bench = Bench::new().await;
    let with = |field: &str, value: Value| {
        let mut body = json!({"name": "n", "model": "m"});
        body[field] = value;
        body
    };
    let tool = |entry: Value| with("tools", json!([entry]));
    let toolset = "agent_toolset_20260401";
    let policy = |kind: &str| json!({"type": toolset, "default_config": {"permission_policy": {"type": kind}}});
    let config = |config: Value| tool(json!({"type": toolset, "configs": [config]}));
    let many: serde_json::Map<String, Value> =
        (0..17).map(|n| (format!("k{n}"), json!("v"))).collect();
    refused(
        &bench,
        "/v1/agents",
        &[
            (json!({"model": "m"}), "name:", "required"),
            (json!({"name": "n"}), "model:", "required"),
            (with("name", json!("  ")), "name:", "blank"),
            (with("name", json!("n".repeat(257))), "name:", "at most 256"),
            (with("name", json!(1)), "name:", "string"),
            (with("system", json!("s".repeat(100_001))), "system:", "at most 100000"),
            (with("nonsense", json!(1)), "nonsense:", "allowed here: name"),
            (with("model", json!("")), "model:", "blank"),
            (with("model", json!("nowhere/x")), "model:", "no provider"),
            (with("model", json!({"id": "m", "speed": "fast"})), "model.speed:", "not supported"),
            (with("model", json!({"id": "m", "effort": "huge"})), "model.effort:", "low"),
            (with("model", json!({"id": "m", "x": 1})), "model.x:", "unknown field"),
            (with("skills", json!([{"type": "anthropic"}])), "skills[0].type:", "not supported"),
            (with("mcp_servers", json!([{}])), "mcp_servers:", "not supported"),
            (with("multiagent", json!({"type": "coordinator"})), "multiagent:", "not supported"),
            (
                with("execution_identity", json!({"type": "aws_role", "role_arn": "x"})),
                "execution_identity.type:",
                "not supported",
            ),
            (tool(json!({"type": "custom", "name": "t"})), "tools[0].type:", "custom tools"),
            (tool(json!({"type": "mcp_toolset"})), "tools[0].type:", "not supported"),
            (tool(json!({"type": "x"})), "tools[0].type:", "unknown tool type"),
            (tool(json!("bash")), "tools[0]:", "object"),
            (
                tool(policy("always_ask")),
                "tools[0].default_config.permission_policy.type:",
                "not supported",
            ),
            (tool(policy("auto")), "tools[0].default_config.permission_policy.type:", "auto"),
            (config(json!({"name": "fly"})), "tools[0].configs[0].name:", "bash"),
            (config(json!({"name": "web_fetch"})), "tools[0].configs[0].name:", "not supported"),
            (config(json!({"name": "bash", "type": "read"})), "tools[0].configs[0].type:", "name"),
            (
                config(json!({"name": "bash", "permission_policy": {"type": "always_ask"}})),
                "tools[0].configs[0].permission_policy.type:",
                "not supported",
            ),
            (with("tools", json!([{"type": toolset}, {"type": toolset}])), "tools[1]:", "merge"),
            (with("metadata", json!({"k": 1})), "metadata.k:", "string"),
            (with("metadata", json!({"k": "v".repeat(513)})), "metadata.k:", "at most 512"),
            (with("metadata", json!({"k".repeat(65): "v"})), "metadata:", "at most 64"),
            (with("metadata", json!(many)), "metadata:", "at most 16"),
        ],
    )
    .await;
    let id = bench.agent(KEY).await;
    refused(
        &bench,
        &format!("/v1/agents/{id}"),
        &[
            (json!({"name": null}), "name:", "cleared"),
            (json!({"model": null}), "model:", "cleared"),
            (json!({"version": 0}), "version:", "whole number"),
            (json!({"skills": [1]}), "skills[0]:", "must be an object"),
        ],
    )
    .await;
    assert_eq!(bench.get(&format!("/v1/agents/{id}")).await.ok()["version"], 1);
}

#[tokio::test]
async fn wrong_environments() {
    let bench = Bench::new().await;
    let config = |config: Value| json!({"name": "n", "config": config});
    refused(
        &bench,
        "/v1/environments",
        &[
            (json!({}), "name:", "required"),
            (json!({"name": "n", "x": 1}), "x:", "unknown field"),
            (json!({"name": "n", "scope": "account"}), "scope:", "not supported"),
            (config(json!({"type": "moon"})), "config.type:", "cloud"),
            (config(json!({})), "config.type:", "required"),
            (
                config(json!({"type": "cloud", "networking": {"type": "closed"}})),
                "config.networking.type:",
                "unrestricted or limited",
            ),
            (
                config(json!({"type": "cloud", "packages": {"apt": ["curl", "-o", "x"]}})),
                "config.packages.apt[1]:",
                "must be NAME",
            ),
            (
                config(json!({"type": "cloud", "packages": {"pip": ["numpy", "--index-url=x"]}})),
                "config.packages.pip[1]:",
                "must be NAME",
            ),
            (
                config(json!({"type": "cloud", "packages": {"npm": ["a; id"]}})),
                "config.packages.npm[0]:",
                "must be NAME",
            ),
            (
                config(json!({"type": "cloud", "packages": {"cargo": [1]}})),
                "config.packages.cargo[0]:",
                "must be a string",
            ),
            (
                config(json!({"type": "cloud", "packages": {"pip": vec!["a"; 101]}})),
                "config.packages:",
                "at most 100",
            ),
            (
                config(json!({"type": "cloud", "packages": {"yum": []}})),
                "config.packages.yum:",
                "unknown field",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn wrong_sessions() {
    let bench = Bench::new().await;
    let (agent, environment) = (bench.agent(KEY).await, bench.environment(KEY).await);
    let with = |field: &str, value: Value| {
        let mut body = json!({"agent": agent, "environment_id": environment});
        body[field] = value;
        body
    };
    refused(
        &bench,
        "/v1/sessions",
        &[
            (json!({"environment_id": environment}), "agent:", "required"),
            (json!({"agent": agent}), "environment_id:", "required"),
            (with("agent", json!(["x"])), "agent:", "id"),
            (with("agent", json!({"type": "agent"})), "agent.id:", "required"),
            (
                with("agent", json!({"type": "agent_with_overrides", "id": agent})),
                "agent.type:",
                "not supported",
            ),
            (
                with("agent", json!({"type": "agent", "id": agent, "version": 0})),
                "agent.version:",
                "1",
            ),
            (with("title", json!("t".repeat(513))), "title:", "at most 512"),
            (with("vault_ids", json!(["v"])), "vault_ids:", "not supported"),
            (
                with("resources", json!([{"type": "memory_store"}])),
                "resources[0].type:",
                "not supported",
            ),
            (with("initial_events", json!([{}])), "initial_events:", "not supported"),
            (with("budget", json!({"type": "limit"})), "budget:", "not supported"),
            (with("tools", json!([])), "tools:", "unknown field"),
        ],
    )
    .await;
    assert_eq!(bench.get("/v1/sessions").await.ok()["data"], json!([]));
    for (query, begins) in [
        ("limit=0", "limit:"),
        ("limit=101", "limit:"),
        ("order=up", "order:"),
        ("statuses[]=asleep", "statuses[]:"),
        ("include_archived=1", "include_archived:"),
        ("created_at[gte]=today", "created_at[gte]:"),
        ("deployment_id=depl_1", "deployment_id:"),
        ("memory_store_id=m", "memory_store_id:"),
        ("agent_version=latest", "agent_version:"),
        ("color=red", "color:"),
    ] {
        let got = bench.get(&format!("/v1/sessions?{query}")).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with(begins), "{query}: {said}");
    }
}

#[tokio::test]
async fn wrong_events_store_nothing() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let one = |event: Value| json!({"events": [event]});
    let said = |content: Value| one(json!({"type": "user.message", "content": content}));
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = |source: Value| said(json!([{"type": "image", "source": source}]));
    let first = message("fine")["events"][0].clone();
    refused(
        &bench,
        &path,
        &[
            (json!({}), "events:", "required"),
            (json!({"events": []}), "events:", "1 to 50"),
            (json!({"events": vec![first.clone(); 51]}), "events:", "not 51"),
            (json!({"events": [first], "x": 1}), "x:", "unknown field"),
            (one(json!({"type": "user.nonsense"})), "events[0].type:", "user.message"),
            (one(json!({"type": "user.tool_confirmation"})), "events[0].type:", "not supported"),
            (one(json!({"type": "user.tool_result"})), "events[0].tool_use_id:", "required"),
            (one(json!({"type": "system.message"})), "events[0].type:", "not supported"),
            (one(json!({"type": "user.message"})), "events[0].content:", "required"),
            (said(json!("hi")), "events[0].content:", "array"),
            (said(json!([])), "events[0].content:", "nothing"),
            (said(json!([text("   "), text("\n")])), "events[0].content:", "nothing"),
            (said(json!([{"type": "text"}])), "events[0].content[0].text:", "required"),
            (said(json!([{"type": "video"}])), "events[0].content[0].type:", "image"),
            (
                said(json!([{"type": "text", "text": "x", "cache_control": {}}])),
                "events[0].content[0].cache_control:",
                "unknown field",
            ),
            (
                image(json!({"type": "file", "file_id": "f"})),
                "events[0].content[0].source.type:",
                "not supported",
            ),
            (
                image(json!({"type": "base64", "media_type": "image/png", "data": "?"})),
                "events[0].content[0].source.data:",
                "base64",
            ),
            (
                image(json!({"type": "base64", "media_type": "image/bmp", "data": "QUJD"})),
                "events[0].content[0].source.media_type:",
                "image/png",
            ),
            (
                image(json!({"type": "url", "url": "file:///etc/passwd"})),
                "events[0].content[0].source.url:",
                "https://",
            ),
            (
                one(json!({"type": "user.interrupt", "session_thread_id": "t"})),
                "events[0].session_thread_id:",
                "not supported",
            ),
            // All or nothing.
            (
                json!({"events": [message("fine")["events"][0], {"type": "user.nonsense"}]}),
                "events[1].type:",
                "not an event",
            ),
        ],
    )
    .await;
    assert!(bench.history(&session).await.is_empty());
    let good = said(json!([
        text("look"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
        {"type": "document", "title": null, "context": "c",
         "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
    ]));
    let sent = bench.post(&path, &good).await.ok();
    assert_eq!(sent["data"][0]["content"][1], good["events"][0]["content"][1]);
    assert_eq!(sent["data"][0]["content"][3]["source"]["data"], "words");
    assert_eq!(sent["data"][0]["processed_at"], Value::Null);
}

#[tokio::test]
async fn too_many_waiting_messages_are_refused_for_now() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}/events");
    let fifty = json!({"events": vec![message("x")["events"][0].clone(); 50]});
    for _ in 0..20 {
        bench.post(&path, &fifty).await.ok();
    }
    let got = bench.post(&path, &message("one more")).await;
    assert!(got.error(429, "rate_limit_error").contains("1000"));
    assert_eq!(got.headers["retry-after"], "1");
    // The whole queue is one page.
    assert_eq!(bench.history(&session).await.len(), 1_000);
    bench.settle().await;
    bench.post(&path, &message("one more")).await.ok();
}
