//! Sessions from their creation to their end.

use serde_json::{Value, json};

use crate::bench::{Bench, KEY, calls, ids, message};

#[tokio::test]
async fn a_new_session_is_idle_and_whole() {
    let bench = Bench::new().await;
    let body = json!({
        "agent": bench.agent(KEY).await,
        "environment_id": bench.environment(KEY).await,
        "title": "a title",
        "metadata": {"k": "v"},
        "vault_ids": [], "resources": [], "initial_events": [], "budget": null,
    });
    let made = bench.post("/v1/sessions", &body).await.ok();
    bench.advance(2_500);
    let shown = bench.get(&format!("/v1/sessions/{}", made["id"].as_str().unwrap())).await.ok();
    assert!(made["id"].as_str().unwrap().starts_with("sesn_"));
    for (field, value) in [
        ("type", json!("session")),
        ("status", json!("idle")),
        ("environment_id", body["environment_id"].clone()),
        ("title", json!("a title")),
        ("metadata", json!({"k": "v"})),
        ("resources", json!([])),
        ("vault_ids", json!([])),
        ("outcome_evaluations", json!([])),
        ("budget", Value::Null),
        ("created_at", json!("2026-11-30T00:53:20.000Z")),
        ("archived_at", Value::Null),
    ] {
        assert_eq!(made[field], value, "{field}");
        assert_eq!(shown[field], value, "{field}");
    }
    assert_eq!(shown["agent"]["id"], body["agent"]);
    assert_eq!(shown["agent"]["tools"][0]["default_config"]["enabled"], true);
    assert_eq!(shown["stats"]["duration_seconds"], 2.5);
    assert_eq!(
        shown["usage"],
        json!({
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "x_possible_charges": 0,
        })
    );
}

#[tokio::test]
async fn a_running_session_is_not_archived_or_deleted() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let path = format!("/v1/sessions/{session}");
    bench.model_answers([calls("bash")]);
    bench.say(&session, "go").await;
    bench.step().await;
    assert_eq!(bench.get(&path).await.ok()["status"], "running");
    let tries =
        [bench.post(&format!("{path}/archive"), &Value::Null).await, bench.delete(&path).await];
    for got in tries {
        assert!(got.error(409, "conflict_error").contains("user.interrupt"));
        assert_eq!(got.headers["x-should-retry"], "false");
    }
    bench.settle().await;
    let archived = bench.post(&format!("{path}/archive"), &json!({})).await.ok();
    assert_eq!(archived["status"], "terminated");
    assert!(archived["archived_at"].is_string());
    assert_eq!(archived["usage"]["input_tokens"], 2);
    let again = bench.post(&format!("{path}/archive"), &Value::Null).await.ok();
    assert_eq!(again["archived_at"], archived["archived_at"]);
    // It can be read but not written.
    let got = bench.post(&format!("{path}/events"), &message("hello?")).await;
    assert!(got.error(400, "invalid_request_error").contains("has ended"));
    let history = bench.history(&session).await;
    assert_eq!(history.last().unwrap()["type"], "session.status_terminated");
    let gone = bench.delete(&path).await.ok();
    assert_eq!(gone, json!({"id": session, "type": "session_deleted"}));
    for got in [
        bench.get(&path).await,
        bench.delete(&path).await,
        bench.get(&format!("{path}/events")).await,
        bench.post(&format!("{path}/events"), &message("hello?")).await,
        bench.post(&format!("{path}/archive"), &Value::Null).await,
    ] {
        got.error(404, "not_found_error");
    }
}

#[tokio::test]
async fn the_list_filters() {
    let bench = Bench::new().await;
    let idle = bench.session().await;
    bench.advance(10_000);
    let running = bench.session().await;
    bench.model_answers([calls("bash")]);
    bench.say(&running, "go").await;
    bench.step().await;
    let waiting = bench.session().await;
    bench.say(&waiting, "not taken up yet").await;
    let archived = bench.session().await;
    bench.post(&format!("/v1/sessions/{archived}/archive"), &Value::Null).await.ok();
    let deleted = bench.session().await;
    bench.delete(&format!("/v1/sessions/{deleted}")).await.ok();
    let agent = bench.get(&format!("/v1/sessions/{idle}")).await.ok()["agent"]["id"].clone();
    let agent = agent.as_str().unwrap();
    let mut young = vec![running.as_str(), waiting.as_str()];
    young.sort_unstable();
    let mut living = vec![idle.as_str()];
    living.extend(&young);
    let mut all = living.clone();
    all.push(&archived);
    all.sort_unstable();
    for (query, expected) in [
        ("", living.clone()),
        ("include_archived=true", all),
        ("statuses[]=idle", vec![idle.as_str()]),
        ("statuses[]=running", young.clone()),
        ("statuses%5B%5D=idle&statuses%5B%5D=running", living.clone()),
        ("statuses[]=terminated", vec![]),
        ("statuses[]=terminated&include_archived=true", vec![archived.as_str()]),
        (&format!("agent_id={agent}"), vec![idle.as_str()]),
        (&format!("agent_id={agent}&agent_version=1"), vec![idle.as_str()]),
        (&format!("agent_id={agent}&agent_version=2"), vec![]),
        ("agent_id=nobody", vec![]),
        ("created_at[lte]=2026-11-30T00:53:20Z", vec![idle.as_str()]),
        ("created_at[gt]=2026-11-30T00:53:20Z", young.clone()),
    ] {
        let got = bench.get(&format!("/v1/sessions?order=asc&{query}")).await.ok();
        let data = got["data"].as_array().unwrap();
        assert_eq!(ids(data), expected, "{query}");
    }
    let got = bench.get("/v1/sessions?statuses[]=idle").await.ok();
    assert_eq!(got["data"][0]["title"], "a title");
    assert_eq!(got["data"][0]["agent"]["name"], "tester");
}
