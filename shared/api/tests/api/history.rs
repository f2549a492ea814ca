//! What a session's history shows, and in which order.

use serde_json::{Value, json};
use tailstep_core::{
    model::{Block, Broken, FailureKind, Stop},
    raw::RawJson,
};

use crate::bench::{Bench, answer, call, calls, fails, ids, kinds, message, says, text, usage};

#[tokio::test]
async fn a_turn_with_a_tool_in_the_documented_order() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let thinking =
        Block::Opaque { dialect: "d".to_owned(), raw: RawJson::parse(r#"{"t":1}"#).unwrap() };
    bench.model_answers([
        answer(
            vec![
                thinking,
                text("on it"),
                text(" "),
                call("bash", r#"{"command":"ls","n":10000000000000000000000000000001}"#),
            ],
            Stop::ToolUse,
        ),
        says("done"),
    ]);
    let sent = bench.say(&session, "go").await;
    bench.settle().await;
    let events = bench.history(&session).await;
    assert_eq!(
        kinds(&events),
        [
            "session.status_running",
            "user.message",
            "span.model_request_start",
            "agent.thinking",
            "agent.message",
            "agent.tool_use",
            "span.model_request_end",
            "agent.tool_result",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.usage",
            "session.status_idle",
        ]
    );
    assert_eq!(events[1]["id"], sent.as_str());
    assert_eq!(events[1]["processed_at"], "2026-11-30T00:53:20.000Z");
    assert_eq!(events[5]["evaluated_permission"], "allow");
    assert_eq!(events[5]["name"], "bash");
    assert_eq!(events[6]["model_request_start_id"], events[2]["id"]);
    assert_eq!(events[6]["is_error"], false);
    assert_eq!(events[6]["model_usage"]["cache_creation_input_tokens"], 4);
    assert_eq!(events[7]["tool_use_id"], events[5]["id"]);
    assert_eq!(events[7]["content"], json!([{"type": "text", "text": "bash ran"}]));
    assert_eq!(events[11]["usage"]["output_tokens"], 4);
    assert_eq!(events[12]["stop_reason"], json!({"type": "end_turn"}));
    assert_eq!(events[12]["stop_details"], Value::Null);
    let mut distinct = ids(&events);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), events.len());
}

#[tokio::test]
async fn arguments_are_shown_byte_for_byte() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let input = r#"{"z": 1.00, "a": 123456789012345678901234567890}"#;
    bench.model_answers([answer(vec![call("bash", input)], Stop::ToolUse)]);
    bench.say(&session, "go").await;
    bench.settle().await;
    let request = axum::http::Request::get(format!("/v1/sessions/{session}/events"))
        .header("x-api-key", crate::bench::KEY)
        .body(axum::body::Body::empty())
        .unwrap();
    let response = tower::ServiceExt::oneshot(bench.router.clone(), request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert!(String::from_utf8_lossy(&body).contains(input));
}

#[tokio::test]
async fn a_message_waits_at_the_end_until_it_is_taken_up() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let sent = bench.say(&session, "first").await;
    let events = bench.history(&session).await;
    assert_eq!(ids(&events), [sent.as_str()]);
    assert_eq!(events[0]["processed_at"], Value::Null);
    // A filter on the time of processing does not show what is not processed.
    let path = format!("/v1/sessions/{session}/events?created_at[gte]=2020-01-01T00:00:00Z");
    assert_eq!(bench.get(&path).await.ok()["data"], json!([]));
    assert_eq!(bench.get(&format!("/v1/sessions/{session}")).await.ok()["status"], "running");
    bench.model_answers([calls("bash"), says("both")]);
    bench.step().await;
    let second = bench.say(&session, "second").await;
    let events = bench.history(&session).await;
    assert_eq!(events.last().unwrap()["id"], second.as_str());
    assert_eq!(events.last().unwrap()["processed_at"], Value::Null);
    bench.settle().await;
    let events = bench.history(&session).await;
    assert_eq!(kinds(&events).iter().filter(|kind| **kind == "user.message").count(), 2);
    assert_eq!(kinds(&events).iter().filter(|kind| **kind == "session.status_running").count(), 1);
    let at = events.iter().position(|event| event["id"] == second.as_str()).unwrap();
    assert_eq!(
        kinds(&events)[at - 1..at + 2],
        ["agent.tool_result", "user.message", "span.model_request_start"]
    );
}

#[tokio::test]
async fn an_interrupt_stops_the_turn_and_is_shown_processed() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    bench.model_answers([answer(vec![call("bash", "{}"), call("read", "{}")], Stop::ToolUse)]);
    bench.say(&session, "go").await;
    bench.step().await;
    let path = format!("/v1/sessions/{session}/events");
    let sent = bench.post(&path, &json!({"events": [{"type": "user.interrupt"}]})).await.ok();
    assert_eq!(sent["data"][0]["type"], "user.interrupt");
    assert!(sent["data"][0]["processed_at"].is_string());
    let events = bench.history(&session).await;
    assert_eq!(
        kinds(&events)[events.len() - 5..],
        [
            "user.interrupt",
            "agent.tool_result",
            "agent.tool_result",
            "session.usage",
            "session.status_idle"
        ]
    );
    assert_eq!(events.last().unwrap()["stop_reason"]["type"], "end_turn");
    assert_eq!(events[events.len() - 3]["x_origin"], "cancelled");
    bench.settle().await;
    // An interrupt of an idle session is kept and does nothing.
    bench.post(&path, &json!({"events": [{"type": "user.interrupt"}]})).await.ok();
    assert_eq!(kinds(&bench.history(&session).await).last(), Some(&"user.interrupt"));
    assert_eq!(bench.get(&format!("/v1/sessions/{session}")).await.ok()["status"], "idle");
}

#[tokio::test]
async fn a_call_stopped_in_flight_has_its_span_closed() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    bench.say(&session, "go").await;
    // The intent alone: its worker died.
    let key = tailstep_core::ids::SessionKey::new("one", session.as_str());
    let log = bench.runtime.log.clone();
    let mut loaded = tailstep_runtime::load::load(log.as_ref(), &key).await.unwrap();
    let intent = [tailstep_core::event::Event::ModelStarted(tailstep_core::event::ModelStarted {
        attempt: 1,
        inputs: loaded.session.queued.clone(),
    })];
    let lag = tailstep_runtime::ports::Projection::Lag;
    tailstep_runtime::record::record(&bench.runtime, &mut loaded, &intent, lag).await.unwrap();
    let path = format!("/v1/sessions/{session}/events");
    bench.post(&path, &json!({"events": [{"type": "user.interrupt"}]})).await.ok();
    let events = bench.history(&session).await;
    assert_eq!(
        kinds(&events),
        [
            "session.status_running",
            "user.message",
            "span.model_request_start",
            "user.interrupt",
            "span.model_request_end",
            "session.usage",
            "session.status_idle",
        ]
    );
    assert_eq!(events[4]["is_error"], true);
    assert_eq!(events[4]["model_request_start_id"], events[2]["id"]);
    let shown = bench.get(&format!("/v1/sessions/{session}")).await.ok();
    assert_eq!(shown["usage"]["x_possible_charges"], 1);
}

#[tokio::test]
async fn a_failure_is_retried_in_the_open() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    bench.model_fails(fails(FailureKind::Overloaded, "the provider is overloaded"));
    bench.say(&session, "go").await;
    bench.settle().await;
    assert_eq!(bench.get(&format!("/v1/sessions/{session}")).await.ok()["status"], "rescheduling");
    bench.advance(600_000);
    bench.settle().await;
    let events = bench.history(&session).await;
    assert_eq!(
        kinds(&events),
        [
            "session.status_running",
            "user.message",
            "span.model_request_start",
            "span.model_request_end",
            "session.error",
            "session.status_rescheduled",
            "session.status_running",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.usage",
            "session.status_idle",
        ]
    );
    assert_eq!(
        events[4]["error"],
        json!({
            "type": "model_overloaded_error",
            "message": "the provider is overloaded",
            "retry_status": {"type": "retrying"},
        })
    );
}

#[tokio::test]
async fn the_ways_a_turn_ends() {
    struct Case {
        name: &'static str,
        tell: fn(&Bench),
        tail: &'static [&'static str],
        stop: Value,
        error: Option<(&'static str, &'static str)>,
    }
    let refusal = || {
        let stop = Stop::Refusal { category: Some("c".to_owned()), explanation: None };
        answer(vec![text("I will not"), call("bash", "{}")], stop)
    };
    let cases = [
        Case {
            name: "refused",
            tell: |_| {},
            tail: &[
                "agent.message",
                "span.model_request_end",
                "session.usage",
                "session.status_idle",
            ],
            stop: json!("refusal"),
            error: None,
        },
        Case {
            name: "rejected",
            tell: |bench| bench.model_fails(fails(FailureKind::Rejected, "too long")),
            tail: &[
                "span.model_request_end",
                "session.error",
                "session.usage",
                "session.status_idle",
            ],
            stop: json!("retries_exhausted"),
            error: Some(("model_request_failed_error", "too long")),
        },
        Case {
            name: "limit",
            tell: |bench| bench.model_answers((0..5).map(|_| calls("no_such_tool"))),
            tail: &["agent.tool_result", "session.error", "session.usage", "session.status_idle"],
            stop: json!("retries_exhausted"),
            error: Some(("unknown_error", "refused_calls")),
        },
    ];
    for case in cases {
        let bench = Bench::new().await;
        let session = bench.session().await;
        if case.name == "refused" {
            bench.model_answers([refusal()]);
        }
        (case.tell)(&bench);
        bench.say(&session, "go").await;
        bench.settle().await;
        let events = bench.history(&session).await;
        assert_eq!(kinds(&events)[events.len() - case.tail.len()..], *case.tail, "{}", case.name);
        let idle = events.last().unwrap();
        assert_eq!(idle["stop_reason"]["type"], case.stop, "{}", case.name);
        if case.name == "refused" {
            assert_eq!(
                idle["stop_details"],
                json!({"type": "refusal", "category": "c", "explanation": null})
            );
        }
        if let Some((kind, message)) = case.error {
            let error = &events[events.len() - 3]["error"];
            assert_eq!(error["type"], kind);
            assert!(error["message"].as_str().unwrap().contains(message), "{error}");
            assert_eq!(error["retry_status"]["type"], "exhausted");
        }
        // The session takes the next message.
        bench.say(&session, "again").await;
        bench.settle().await;
        let last = bench.history(&session).await;
        assert_eq!(last.last().unwrap()["stop_reason"]["type"], "end_turn", "{}", case.name);
    }
}

#[tokio::test]
async fn calls_that_cannot_run_are_shown_with_their_refusal() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let broken = Block::BrokenToolUse {
        id: "toolu_1".to_owned(),
        name: "bash".to_owned(),
        raw: "{\"command\":\"xx".to_owned(),
        reason: Broken::Cut,
    };
    bench.model_answers([answer(vec![broken, call("nope", "{}")], Stop::MaxTokens)]);
    bench.say(&session, "go").await;
    bench.settle().await;
    let events = bench.history(&session).await;
    let uses: Vec<&Value> = events.iter().filter(|e| e["type"] == "agent.tool_use").collect();
    assert_eq!(uses[0]["input"], json!({}));
    assert_eq!(uses[0]["x_broken_input"], "{\"command\":\"xx");
    assert_eq!(uses[1]["evaluated_permission"], "deny");
    assert!(uses[1].get("evaluation").is_none());
    let results: Vec<&Value> = events.iter().filter(|e| e["type"] == "agent.tool_result").collect();
    for (used, result) in uses.iter().zip(&results) {
        assert_eq!(result["tool_use_id"], used["id"]);
        assert_eq!(result["is_error"], true);
        assert_eq!(result["x_origin"], "refused");
    }
}

#[tokio::test]
async fn usage_events_count_the_session_in_any_order_and_from_any_page() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    for turn in 0..5 {
        bench.say(&session, &format!("turn {turn}")).await;
        bench.settle().await;
    }
    for (order, expected) in [("asc", [1, 2, 3, 4, 5]), ("desc", [5, 4, 3, 2, 1])] {
        let mut seen = Vec::new();
        let mut page = String::new();
        loop {
            let path = format!(
                "/v1/sessions/{session}/events?limit=1&order={order}&types[]=session.usage{page}"
            );
            let got = bench.get(&path).await.ok();
            for event in got["data"].as_array().unwrap() {
                seen.push(event["usage"]["input_tokens"].as_u64().unwrap());
            }
            let Some(next) = got["next_page"].as_str() else { break };
            page = format!("&page={next}");
        }
        assert_eq!(seen, expected, "{order}");
    }
    let total = bench.get(&format!("/v1/sessions/{session}")).await.ok();
    assert_eq!(total["usage"]["input_tokens"], usage(5).input_tokens);
}

#[tokio::test]
async fn a_long_history_comes_in_pages_of_bounded_size() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let big = "x".repeat(2_400_000);
    for _ in 0..3 {
        bench.say(&session, &big).await;
        bench.settle().await;
    }
    let mut pages = 0;
    let mut found = Vec::new();
    let mut page = String::new();
    loop {
        let got = bench.get(&format!("/v1/sessions/{session}/events{page}")).await.ok();
        assert!(got.to_string().len() < 6_000_000);
        pages += 1;
        found.extend(got["data"].as_array().unwrap().clone());
        let Some(next) = got["next_page"].as_str() else { break };
        page = format!("?page={next}");
    }
    assert_eq!(pages, 3);
    assert_eq!(kinds(&found).iter().filter(|kind| **kind == "user.message").count(), 3);
    assert_eq!(found.len(), 3 * 7);
}

#[tokio::test]
async fn types_and_times_filter() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    bench.say(&session, "one").await;
    bench.settle().await;
    bench.advance(1_000);
    bench.say(&session, "two").await;
    bench.settle().await;
    let path = format!("/v1/sessions/{session}/events");
    let only = bench
        .get(&format!("{path}?types%5B%5D=user.message&types[]=agent.message&order=desc"))
        .await
        .ok();
    assert_eq!(
        kinds(only["data"].as_array().unwrap()),
        ["agent.message", "user.message", "agent.message", "user.message"]
    );
    let later = bench
        .get(&format!("{path}?types[]=user.message&created_at[gt]=2026-11-30T00:53:20.000Z"))
        .await
        .ok();
    assert_eq!(later["data"][0]["content"][0]["text"], "two");
    assert_eq!(later["data"].as_array().unwrap().len(), 1);
    let error = bench.get(&format!("{path}?types[]=nonsense")).await;
    assert!(error.error(400, "invalid_request_error").starts_with("types[]:"));
    let _ = message("");
}
