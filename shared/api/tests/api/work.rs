//! The work queue of a self-hosted environment.

use axum::http::Method;
use serde_json::{Value, json};
use tailstep_runtime::ports::{DocumentKind, Documents, ListDocuments};

use crate::{
    bench::{calls, ids},
    outside::{Outside, session, token},
};

#[tokio::test]
async fn polls_are_checked_and_wait() {
    let outside = Outside::new().await;
    for wrong in ["block_ms=0", "block_ms=1000", "block_ms=x", "reclaim_older_than_ms=0"] {
        let path = outside.queue(&format!("/poll?{wrong}"));
        let got = outside.worker(Method::GET, &path, &Value::Null).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with(wrong.split('=').next().unwrap()), "{said}");
    }
    let began = std::time::Instant::now();
    let path = outside.queue("/poll?block_ms=300");
    let empty = outside.worker(Method::GET, &path, &Value::Null).await;
    assert_eq!(empty.headers["content-type"], "application/json");
    assert_eq!(empty.ok(), Value::Null);
    assert!(began.elapsed().as_millis() >= 300);
    // What comes meanwhile is found.
    outside.bench.model_answers([calls("bash")]);
    let path = outside.queue("/poll?block_ms=999");
    let (found, ()) = tokio::join!(outside.worker(Method::GET, &path, &Value::Null), async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        outside.bench.say(&outside.session, "go").await;
        outside.bench.settle().await;
    });
    assert_eq!(found.ok()["state"], "queued");
    let headers = [("anthropic-worker-id", "w-1")];
    let path = outside.queue("/poll");
    outside.bench.with_headers(&outside.key, Method::GET, &path, &Value::Null, &headers).await.ok();
    assert_eq!(outside.stats().await["workers_polling"], 1);
    outside.bench.advance(30_000);
    assert_eq!(outside.stats().await["workers_polling"], 0);
}

#[tokio::test]
async fn an_item_nobody_acknowledges_is_given_out_again() {
    let outside = Outside::waiting().await;
    let stats = outside.stats().await;
    assert_eq!((&stats["depth"], &stats["pending"]), (&json!(1), &json!(0)));
    assert!(stats["oldest_queued_at"].is_string());
    let (id, first) = outside.poll().await.unwrap();
    let stats = outside.stats().await;
    assert_eq!((&stats["depth"], &stats["pending"]), (&json!(0), &json!(1)));
    outside.bench.advance(4_999);
    assert!(outside.poll().await.is_none());
    let path = outside.queue("/poll?reclaim_older_than_ms=1000");
    let got = outside.worker(Method::GET, &path, &Value::Null).await.ok();
    assert_eq!(got["id"], id.as_str());
    let second = token(&got);
    let path = format!("/v1/sessions/{}", outside.session);
    let old = outside.bench.as_key(&first, Method::GET, &path, &Value::Null).await;
    old.error(401, "authentication_error");
    outside.bench.as_key(&second, Method::GET, &path, &Value::Null).await.ok();
    outside.bench.advance(5_000);
    assert!(outside.poll().await.is_some());
}

#[tokio::test]
async fn heartbeats_follow_one_another_and_a_lease_runs_out() {
    let outside = Outside::waiting().await;
    let (id, token) = outside.poll().await.unwrap();
    outside.ack(&id).await.ok();
    outside.ack(&id).await.ok();
    let first = outside.beat(&id, "NO_HEARTBEAT").await.ok();
    assert_eq!(first["ttl_seconds"], 60);
    let last = first["last_heartbeat"].as_str().unwrap().to_owned();
    outside.bench.advance(1_000);
    for wrong in ["NO_HEARTBEAT", "yesterday", "2026-11-30T00:00:00Z", &last.replace('Z', "0Z")] {
        let got = outside.beat(&id, wrong).await;
        got.error(412, "invalid_request_error");
        let details = &got.body["error"]["details"];
        assert_eq!(details["error_code"], "heartbeat_precondition_failed");
        let state = json!({"last_heartbeat": last, "lease_extended": false, "state": "active",
            "ttl_seconds": 60});
        assert_eq!(details["current_state"], state);
    }
    let path = outside
        .queue(&format!("/{id}/heartbeat?expected_last_heartbeat={last}&desired_ttl_seconds=10"));
    let second = outside.worker(Method::POST, &path, &Value::Null).await.ok();
    assert_eq!(second["ttl_seconds"], 10);
    assert_ne!(second["last_heartbeat"], last.as_str());
    assert!(outside.poll().await.is_none());

    outside.bench.advance(10_000);
    let shown = outside.item(&id).await;
    assert_eq!((&shown["state"], &shown["latest_heartbeat_at"]), (&json!("queued"), &Value::Null));
    let late = outside.beat(&id, second["last_heartbeat"].as_str().unwrap()).await;
    late.error(412, "invalid_request_error");
    let path = format!("/v1/sessions/{}", outside.session);
    let late = outside.bench.as_key(&token, Method::GET, &path, &Value::Null).await;
    late.error(401, "authentication_error");
    // Another worker goes on, and there is still one result.
    let (again, token) = outside.poll().await.unwrap();
    assert_eq!(again, id);
    let pending = outside.pending().await;
    outside.answers(&token, &[(&pending[0], "new")]).await.ok();
    outside.answers(&outside.key, &[(&pending[0], "old")]).await.ok();
    outside.bench.settle().await;
    let history = outside.bench.history(&outside.session).await;
    let results = history.iter().filter(|event| event["type"] == "user.tool_result");
    assert_eq!(results.count(), 1);
}

#[tokio::test]
async fn an_item_is_stopped_gently_or_at_once() {
    let outside = Outside::waiting().await;
    let (id, _) = outside.poll().await.unwrap();
    outside.ack(&id).await.ok();
    let first = outside.beat(&id, "NO_HEARTBEAT").await.ok();
    assert_eq!(outside.stop(&id, false).await.ok()["state"], "stopping");
    assert_eq!(outside.stop(&id, false).await.ok()["state"], "stopping");
    // The worker sees it at its next heartbeat, whatever it expects.
    let told = outside.beat(&id, "anything").await.ok();
    assert_eq!((&told["state"], &told["lease_extended"]), (&json!("stopping"), &json!(false)));
    assert_eq!(told["last_heartbeat"], first["last_heartbeat"]);
    outside.ack(&id).await.error(409, "conflict_error");
    assert_eq!(outside.stop(&id, true).await.ok()["state"], "stopped");
    for force in [true, false] {
        let again = outside.stop(&id, force).await;
        again.error(409, "conflict_error");
        assert_eq!(again.headers["x-should-retry"], "false");
    }
    let told = outside.beat(&id, "anything").await.ok();
    assert_eq!((&told["state"], &told["lease_extended"]), (&json!("stopped"), &json!(false)));
    // The session still waits, so another item has taken its place: at once the first time, and
    // later and later when workers keep giving it back.
    let (second, _) = outside.poll().await.unwrap();
    assert_ne!(second, id);
    outside.stop(&second, true).await.ok();
    assert!(outside.poll().await.is_none());
    assert_eq!(outside.stats().await["depth"], 1);
    outside.bench.advance(2_000);
    let (third, _) = outside.poll().await.unwrap();
    // One that is to stop and whose worker never says so ends with its lease.
    outside.ack(&third).await.ok();
    outside.stop(&third, false).await.ok();
    outside.bench.advance(60_000);
    assert_eq!(outside.item(&third).await["state"], "stopped");
    assert!(outside.poll().await.is_none(), "this poll finds it over");
    outside.bench.advance(4_000);
    assert!(outside.poll().await.is_some(), "and the next one its successor");
}

#[tokio::test]
async fn a_stop_that_died_half_way_is_mended_by_the_next_poll() {
    // Whatever dies between two writes, the next poll finds a session that waits.
    let outside = Outside::waiting().await;
    let place = format!("{}#{}", outside.environment, outside.session);
    let kind = DocumentKind::Work;
    let mut document = outside.bench.documents.get("one", kind, &place).await.unwrap().unwrap();
    let mut item: Value = serde_json::from_slice(&document.body).unwrap();
    item["state"] = json!("stopped");
    let revision = document.revision;
    document.body = item.to_string().into();
    document.revision += 1;
    let expect = tailstep_runtime::ports::Expect::Revision(revision);
    outside.bench.documents.put(&document, expect).await.unwrap();
    assert!(outside.poll().await.is_none(), "this poll puts it back");
    assert!(outside.poll().await.is_some());
}

#[tokio::test]
async fn what_is_done_with_leaves_no_live_item() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    // A turn without a call is over before any worker came.
    bench.say(&outside.session, "hello").await;
    bench.settle().await;
    assert_eq!(outside.stats().await["depth"], 1);
    assert!(outside.poll().await.is_none());
    assert_eq!(outside.stats().await["depth"], 0);
    let all = ListDocuments { prefix: String::new(), after: None, limit: 9, descending: false };
    let left = bench.documents.list("one", DocumentKind::Work, &all).await.unwrap();
    assert!(left.items.is_empty());
}

#[tokio::test]
async fn items_are_listed_in_pages_and_carry_metadata() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    let mut made = Vec::new();
    for _ in 0..3 {
        bench.advance(10);
        bench.model_answers([calls("bash")]);
        let session = session(bench, &outside.environment).await;
        bench.say(&session, "go").await;
        bench.settle().await;
    }
    let mut path = outside.queue("?limit=2");
    loop {
        let page = outside.worker(Method::GET, &path, &Value::Null).await.ok();
        made.extend(page["data"].as_array().unwrap().clone());
        let Some(next) = page["next_page"].as_str() else { break };
        assert_eq!(page["data"].as_array().unwrap().len(), 2);
        path = outside.queue(&format!("?limit=2&page={next}"));
    }
    assert_eq!(made.len(), 3);
    let listed = ids(&made);
    assert!(listed.iter().rev().is_sorted(), "newest first");
    assert!(made.iter().all(|item| item["secret"].is_null() && item["state"] == "queued"));
    let path = outside.queue(&format!("/{}", listed[0]));
    let patch = json!({"metadata": {"a": "1", "b": "2"}});
    bench.post(&path, &patch).await.ok();
    let patched = bench.post(&path, &json!({"metadata": {"a": null}})).await.ok();
    assert_eq!(patched["metadata"], json!({"b": "2"}));
    bench.post(&path, &json!({"metadata": {"a": 1}})).await.error(400, "invalid_request_error");
    bench.post(&path, &json!({"state": "x"})).await.error(400, "invalid_request_error");
    outside.stop(listed[0], true).await.ok();
    let ended = bench.post(&path, &json!({"metadata": {"c": "3"}})).await.ok();
    assert_eq!(ended["metadata"], json!({"b": "2", "c": "3"}));
    assert_eq!(bench.get(&path).await.ok()["metadata"], ended["metadata"]);
    let unknown = outside.queue("/work_01M8MZ2A0033DFNSGB1BBDH24Y");
    bench.get(&unknown).await.error(404, "not_found_error");
}
