//! One tenant's ids are of no use to another, and look just like ids that never existed.

use axum::http::Method;
use serde_json::{Value, json};
use tailstep_runtime::ports::{DocumentKind, Documents, ListDocuments, ListSessions, Log};

use crate::bench::{Bench, KEY, OTHER_KEY, message};

/// Every verb on every resource.
fn requests(agent: &str, environment: &str, session: &str) -> Vec<(Method, String, Value)> {
    let named = |name: &str| json!({"name": name});
    vec![
        (Method::GET, format!("/v1/agents/{agent}"), Value::Null),
        (Method::GET, format!("/v1/agents/{agent}?version=1"), Value::Null),
        (Method::POST, format!("/v1/agents/{agent}"), named("taken")),
        (Method::POST, format!("/v1/agents/{agent}/archive"), Value::Null),
        (Method::GET, format!("/v1/agents/{agent}/versions"), Value::Null),
        (Method::GET, format!("/v1/environments/{environment}"), Value::Null),
        (Method::POST, format!("/v1/environments/{environment}"), named("taken")),
        (Method::POST, format!("/v1/environments/{environment}/archive"), Value::Null),
        (Method::DELETE, format!("/v1/environments/{environment}"), Value::Null),
        (Method::GET, format!("/v1/sessions/{session}"), Value::Null),
        (Method::POST, format!("/v1/sessions/{session}/archive"), Value::Null),
        (Method::DELETE, format!("/v1/sessions/{session}"), Value::Null),
        (Method::POST, format!("/v1/sessions/{session}/events"), message("hello")),
        (Method::GET, format!("/v1/sessions/{session}/events"), Value::Null),
        (Method::GET, format!("/v1/sessions/{session}/events/stream"), Value::Null),
    ]
}

#[tokio::test]
async fn foreign_and_missing_ids_answer_alike() {
    let bench = Bench::new().await;
    let (agent, environment) = (bench.agent(KEY).await, bench.environment(KEY).await);
    let session = bench.session().await;
    let missing = requests(
        &agent.replace('0', "Z"),
        &environment.replace('0', "Z"),
        &session.replace('0', "Z"),
    );
    for ((method, path, body), (_, missing_path, _)) in
        requests(&agent, &environment, &session).into_iter().zip(missing)
    {
        let foreign = bench.as_key(OTHER_KEY, method.clone(), &path, &body).await;
        let absent = bench.as_key(OTHER_KEY, method.clone(), &missing_path, &body).await;
        let said = foreign.error(404, "not_found_error");
        let other = absent.error(404, "not_found_error");
        let strip = |said: &str| said.split('`').step_by(2).collect::<String>();
        assert_eq!(strip(&said), strip(&other), "{method} {path}");
    }
    // Nothing was changed and nothing was made.
    assert_eq!(bench.get(&format!("/v1/agents/{agent}")).await.ok()["name"], "tester");
    let shown = bench.get(&format!("/v1/sessions/{session}")).await.ok();
    assert_eq!(shown["status"], "idle");
    assert!(bench.history(&session).await.is_empty());
    let all = ListSessions { after: None, limit: 10, descending: false };
    assert!(bench.log.list("two", &all).await.unwrap().items.is_empty());
    let all = ListDocuments { prefix: String::new(), after: None, limit: 10, descending: false };
    for kind in [DocumentKind::Agent, DocumentKind::AgentVersion, DocumentKind::Environment] {
        assert!(bench.documents.list("two", kind, &all).await.unwrap().items.is_empty());
    }
}

#[tokio::test]
async fn a_session_takes_no_foreign_parts() {
    let bench = Bench::new().await;
    let (agent, environment) = (bench.agent(KEY).await, bench.environment(KEY).await);
    let own = (bench.agent(OTHER_KEY).await, bench.environment(OTHER_KEY).await);
    for (agent, environment) in [(&agent, &own.1), (&own.0, &environment), (&agent, &environment)] {
        let body = json!({"agent": agent, "environment_id": environment});
        let got = bench.as_key(OTHER_KEY, Method::POST, "/v1/sessions", &body).await;
        got.error(404, "not_found_error");
    }
    // A client cannot choose an id.
    let body = json!({"agent": own.0, "environment_id": own.1, "id": "sesn_x"});
    let got = bench.as_key(OTHER_KEY, Method::POST, "/v1/sessions", &body).await;
    assert!(got.error(400, "invalid_request_error").starts_with("id: unknown field"));
}

#[tokio::test]
async fn lists_show_only_the_tenants_own() {
    let bench = Bench::new().await;
    bench.session().await;
    for path in ["/v1/agents", "/v1/environments", "/v1/sessions"] {
        let got = bench.as_key(OTHER_KEY, Method::GET, path, &Value::Null).await.ok();
        assert_eq!(got["data"], json!([]), "{path}");
        assert_eq!(got["next_page"], Value::Null);
    }
}

#[tokio::test]
async fn another_tenants_cursor_is_refused() {
    let bench = Bench::new().await;
    for _ in 0..3 {
        bench.agent(KEY).await;
    }
    let page = bench.get("/v1/agents?limit=1").await.ok();
    let cursor = page["next_page"].as_str().unwrap();
    let path = format!("/v1/agents?page={cursor}");
    let got = bench.as_key(OTHER_KEY, Method::GET, &path, &Value::Null).await;
    got.error(400, "invalid_request_error");
    bench.get(&path).await.ok();
}
