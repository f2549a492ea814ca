//! What workers' credentials open, and what they do not.

use axum::http::Method;
use serde_json::{Value, json};
use tailstep_core::ids::sha256_hex;
use tailstep_runtime::ports::{DocumentKind, Documents};

use crate::{
    bench::{KEY, message},
    outside::{Outside, environment, key, session},
};

#[tokio::test]
async fn worker_credentials_open_nothing_else() {
    let outside = Outside::waiting().await;
    let bench = &outside.bench;
    let (id, token) = outside.poll().await.unwrap();
    let other = environment(bench).await;
    let other_key = key(bench, &other).await;
    let other_session = session(bench, &other).await;
    let get = Method::GET;
    // The tenant's own key does not poll.
    for rest in ["/poll", ""] {
        let said = bench.get(&outside.queue(rest)).await.error(403, "permission_error");
        assert!(said.contains("/keys"), "{said}");
    }
    for (key, method, path, status) in [
        (&other_key, Method::GET, outside.queue("/poll"), 403),
        (&other_key, Method::GET, format!("/v1/sessions/{}", outside.session), 404),
        (&other_key, Method::GET, format!("/v1/sessions/{}/events/stream", outside.session), 404),
        (&outside.key, Method::GET, format!("/v1/sessions/{other_session}"), 404),
        (&outside.key, Method::GET, outside.queue("/stats"), 403),
        (&outside.key, Method::GET, outside.queue(&format!("/{id}")), 403),
        (&outside.key, Method::GET, "/v1/agents".to_owned(), 403),
        (&outside.key, Method::DELETE, format!("/v1/sessions/{}", outside.session), 403),
        (&outside.key, Method::POST, format!("/v1/x/environments/{other}/keys"), 403),
        (&token, Method::GET, outside.queue("/poll"), 403),
        (&token, Method::POST, outside.queue(&format!("/{id}/ack")), 403),
        (&token, Method::GET, format!("/v1/sessions/{other_session}"), 404),
        (&token, Method::GET, "/v1/sessions".to_owned(), 403),
    ] {
        let got = bench.as_key(key, method.clone(), &path, &Value::Null).await;
        let kind = if status == 403 { "permission_error" } else { "not_found_error" };
        got.error(status, kind);
    }
    // An environment that is gone or not for workers has no queue.
    let cloud = bench.environment(KEY).await;
    let any = key(bench, "any").await;
    let path = |environment: &str| format!("/v1/environments/{environment}/work/poll");
    bench
        .as_key(&any, get.clone(), &path(&cloud), &Value::Null)
        .await
        .error(400, "invalid_request_error");
    bench
        .as_key(&any, get.clone(), &path("env_x"), &Value::Null)
        .await
        .error(404, "not_found_error");
    let later = environment(bench).await;
    bench.as_key(&any, get.clone(), &path(&later), &Value::Null).await.ok();
    let own = bench.session().await;
    bench
        .as_key(&any, get, &format!("/v1/sessions/{own}"), &Value::Null)
        .await
        .error(404, "not_found_error");
    // A worker neither speaks for people nor stops what they began.
    let events = format!("/v1/sessions/{}/events", outside.session);
    let interrupt = json!({"events": [{"type": "user.interrupt"}]});
    for (key, body) in [(&outside.key, message("hi")), (&token, message("hi")), (&token, interrupt)]
    {
        let got = bench.as_key(key, Method::POST, &events, &body).await;
        got.error(403, "permission_error");
    }
    let got = outside.answers(&other_key, &[(&outside.pending().await[0], "x")]).await;
    got.error(404, "not_found_error");
    // A token with another random half, or of another item.
    let (claims, _) = token.split_once('.').unwrap();
    for forged in [format!("{claims}.{}", "0".repeat(64)), claims.to_owned(), format!("{token}0")] {
        let path = format!("/v1/sessions/{}", outside.session);
        bench
            .as_key(&forged, Method::GET, &path, &Value::Null)
            .await
            .error(401, "authentication_error");
    }
}

#[tokio::test]
async fn environment_keys_are_shown_once_listed_and_taken_back() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    let path = format!("/v1/x/environments/{}/keys", outside.environment);
    let made = bench.post(&path, &Value::Null).await.ok();
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert!(key.starts_with("tailstep_env_"));
    let page = bench.get(&format!("{path}?limit=1")).await.ok();
    assert_eq!(page["data"].as_array().unwrap().len(), 1);
    let rest = format!("{path}?limit=1&page={}", page["next_page"].as_str().unwrap());
    let rest = bench.get(&rest).await.ok();
    assert_eq!(rest["next_page"], Value::Null);
    let names = [&page["data"][0], &rest["data"][0]];
    assert!(names.iter().all(|name| name.get("key").is_none()));
    assert!(names.iter().any(|name| name["id"] == id && name["name"] == "worker"));
    // Only the hash is stored.
    let hash = sha256_hex(key.as_bytes());
    let stored = bench.documents.get("", DocumentKind::EnvironmentKey, &hash).await.unwrap();
    assert!(!String::from_utf8_lossy(&stored.unwrap().body).contains(key));

    let poll = outside.queue("/poll");
    bench.as_key(key, Method::GET, &poll, &Value::Null).await.ok();
    bench.delete(&format!("{path}/{id}")).await.ok();
    let gone = bench.as_key(key, Method::GET, &poll, &Value::Null).await;
    gone.error(401, "authentication_error");
    bench.delete(&format!("{path}/{id}")).await.error(404, "not_found_error");
    outside.worker(Method::GET, &poll, &Value::Null).await.ok();

    let cloud = bench.environment(KEY).await;
    let refused = bench.post(&format!("/v1/x/environments/{cloud}/keys"), &json!({})).await;
    refused.error(400, "invalid_request_error");
    let missing = bench.post("/v1/x/environments/env_x/keys", &json!({})).await;
    missing.error(404, "not_found_error");
    let named = bench.post(&path, &json!({"nam": "x"})).await;
    named.error(400, "invalid_request_error");
}
