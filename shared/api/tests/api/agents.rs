//! Agents and their versions.

use bytes::Bytes;
use serde_json::{Value, json};
use tailstep_runtime::ports::{Document, DocumentKind, Documents, Expect};

use crate::bench::{Bench, KEY};

#[tokio::test]
async fn everything_is_echoed_in_its_resolved_form() {
    let bench = Bench::new().await;
    let body = json!({
        "name": "coder",
        "model": {"id": "m-1", "effort": "high", "speed": "standard"},
        "description": "writes code",
        "system": "Be brief.",
        "tools": [{
            "type": "agent_toolset_20260401",
            "default_config": {"enabled": false},
            "configs": [
                {"name": "grep"},
                {"name": "bash", "type": "bash", "enabled": true,
                 "permission_policy": {"type": "always_allow"}},
                {"name": "web_search", "enabled": false, "allowed_domains": []},
            ],
        }],
        "metadata": {"team": "x", "gone": null},
        "mcp_servers": [],
        "skills": [],
        "multiagent": null,
        "execution_identity": {"type": "service_account"},
    });
    let made = bench.post("/v1/agents", &body).await.ok();
    let allow = json!({"type": "always_allow"});
    let config = |name: &str, enabled: bool| json!({"name": name, "type": name, "enabled": enabled, "permission_policy": allow});
    assert_eq!(
        made,
        json!({
            "id": made["id"],
            "type": "agent",
            "version": 1,
            "name": "coder",
            "description": "writes code",
            "system": "Be brief.",
            "model": {"id": "m-1", "effort": {"type": "high"}, "speed": "standard"},
            "tools": [{
                "type": "agent_toolset_20260401",
                "default_config": {"enabled": false, "permission_policy": allow},
                "configs": [config("bash", true), config("grep", true), config("web_search", false)],
            }],
            "mcp_servers": [],
            "skills": [],
            "multiagent": null,
            "execution_identity": {"type": "service_account"},
            "metadata": {"team": "x"},
            "created_at": "2026-11-30T00:53:20.000Z",
            "updated_at": "2026-11-30T00:53:20.000Z",
            "archived_at": null,
        })
    );
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("agent_"));
    assert_eq!(bench.get(&format!("/v1/agents/{id}")).await.ok(), made);
    // What is shown can be sent back.
    let mut echo = made.clone();
    for field in ["id", "type", "created_at", "updated_at", "archived_at"] {
        echo.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(bench.post(&format!("/v1/agents/{id}"), &echo).await.ok(), made);
}

#[tokio::test]
async fn an_update_makes_a_version_and_no_change_makes_none() {
    let bench = Bench::new().await;
    let id = bench.agent(KEY).await;
    let path = format!("/v1/agents/{id}");
    bench.advance(1_000);
    let body = json!({"version": 1, "description": "v2", "metadata": {"a": "1", "b": "2"}});
    let second = bench.post(&path, &body).await.ok();
    assert_eq!(second["version"], 2);
    assert_eq!(second["updated_at"], "2026-11-30T00:53:21.000Z");
    assert_eq!(second["created_at"], "2026-11-30T00:53:20.000Z");
    bench.advance(1_000);
    let same = bench.post(&path, &json!({"description": "v2", "metadata": {"a": "1"}})).await.ok();
    assert_eq!(same, second);
    let stale = bench.post(&path, &json!({"version": 1, "description": "x"})).await;
    assert!(stale.error(409, "conflict_error").starts_with("version:"));
    assert_eq!(stale.headers["x-should-retry"], "false");
    let body = json!({"description": null, "tools": [], "metadata": {"a": null, "c": "3"}});
    let third = bench.post(&path, &body).await.ok();
    assert_eq!(third["version"], 3);
    assert_eq!(third["description"], Value::Null);
    assert_eq!(third["tools"], json!([]));
    assert_eq!(third["metadata"], json!({"b": "2", "c": "3"}));
    for (version, shown) in [(2, &second), (3, &third)] {
        assert_eq!(bench.get(&format!("{path}?version={version}")).await.ok(), *shown);
    }
    for version in [4, 99] {
        bench.get(&format!("{path}?version={version}")).await.error(404, "not_found_error");
    }
    let versions = bench.get(&format!("{path}/versions")).await.ok();
    let numbers: Vec<&Value> =
        versions["data"].as_array().unwrap().iter().map(|agent| &agent["version"]).collect();
    assert_eq!(numbers, [3, 2, 1]);
}

#[tokio::test]
async fn an_archived_agent_takes_no_changes_and_no_sessions() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let shown = bench.get(&format!("/v1/sessions/{session}")).await.ok();
    let id = shown["agent"]["id"].as_str().unwrap();
    let archived = bench.post(&format!("/v1/agents/{id}/archive"), &Value::Null).await.ok();
    assert!(archived["archived_at"].is_string());
    bench.advance(1_000);
    let again = bench.post(&format!("/v1/agents/{id}/archive"), &json!({})).await.ok();
    assert_eq!(again, archived);
    let got = bench.post(&format!("/v1/agents/{id}"), &json!({"name": "x"})).await;
    assert!(got.error(400, "invalid_request_error").contains("archived"));
    let body = json!({"agent": id, "environment_id": shown["environment_id"]});
    let got = bench.post("/v1/sessions", &body).await;
    assert!(got.error(400, "invalid_request_error").starts_with("agent:"));
    assert_eq!(bench.get("/v1/agents").await.ok()["data"], json!([]));
    let all = bench.get("/v1/agents?include_archived=true").await.ok();
    assert_eq!(all["data"][0]["id"], id);
    // A session that runs on it goes on.
    bench.say(&session, "still there?").await;
    bench.settle().await;
    assert_eq!(bench.history(&session).await.last().unwrap()["type"], "session.status_idle");
}

#[tokio::test]
async fn a_session_keeps_the_version_it_was_made_with() {
    let bench = Bench::new().await;
    let agent = bench.agent(KEY).await;
    let environment = bench.environment(KEY).await;
    bench.post(&format!("/v1/agents/{agent}"), &json!({"system": "two"})).await.ok();
    let make = async |agent: Value| {
        let body = json!({"agent": agent, "environment_id": environment});
        bench.post("/v1/sessions", &body).await
    };
    let latest = make(json!(agent)).await.ok();
    assert_eq!(latest["agent"]["version"], 2);
    let first = make(json!({"type": "agent", "id": agent, "version": 1})).await.ok();
    assert_eq!(first["agent"]["version"], 1);
    assert_eq!(first["agent"]["system"], Value::Null);
    make(json!({"type": "agent", "id": agent, "version": 9})).await.error(404, "not_found_error");
    bench.post(&format!("/v1/agents/{agent}"), &json!({"system": "three"})).await.ok();
    let id = latest["id"].as_str().unwrap();
    assert_eq!(bench.get(&format!("/v1/sessions/{id}")).await.ok()["agent"]["system"], "two");
    assert!(latest["agent"].get("metadata").is_none());
}

/// A writer died between its two writes: the next update finishes that one first.
#[tokio::test]
async fn a_version_written_ahead_is_finished_and_never_replaced() {
    let bench = Bench::new().await;
    let id = bench.agent(KEY).await;
    let path = format!("/v1/agents/{id}");
    let kind = DocumentKind::AgentVersion;
    let first = format!("{id}#0000000001");
    let stored = bench.documents.get("one", kind, &first).await.unwrap().unwrap();
    let mut body: Value = serde_json::from_slice(&stored.body).unwrap();
    body["spec"]["version"] = json!(2);
    body["spec"]["name"] = json!("from the dead writer");
    let ahead =
        Document { id: format!("{id}#0000000002"), body: Bytes::from(body.to_string()), ..stored };
    bench.documents.put(&ahead, Expect::Absent).await.unwrap();
    // Until then nobody sees it.
    assert_eq!(bench.get(&path).await.ok()["version"], 1);
    bench.get(&format!("{path}?version=2")).await.error(404, "not_found_error");
    let versions = bench.get(&format!("{path}/versions")).await.ok();
    assert_eq!(versions["data"].as_array().unwrap().len(), 1);
    let third = bench.post(&path, &json!({"description": "mine"})).await.ok();
    assert_eq!(third["version"], 3);
    assert_eq!(third["name"], "from the dead writer");
    assert_eq!(third["description"], "mine");
    let second = bench.get(&format!("{path}?version=2")).await.ok();
    assert_eq!(
        (&second["name"], &second["description"]),
        (&json!("from the dead writer"), &Value::Null)
    );
}

#[tokio::test]
async fn updates_at_the_same_time_all_count() {
    let bench = Bench::new().await;
    let id = bench.agent(KEY).await;
    let path = format!("/v1/agents/{id}");
    let updates = (0..8).map(|n| {
        let body = json!({"metadata": {format!("k{n}"): "v"}});
        let (bench, path) = (&bench, &path);
        async move { bench.post(path, &body).await.ok() }
    });
    let done = futures_util::future::join_all(updates).await;
    let agent = bench.get(&path).await.ok();
    assert_eq!(agent["version"], 9);
    assert_eq!(agent["metadata"].as_object().unwrap().len(), 8);
    for made in done {
        let version = bench.get(&format!("{path}?version={}", made["version"])).await.ok();
        assert_eq!(version, made);
    }
}
