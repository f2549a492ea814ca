//! Event streams: what they show, where they begin and how they end.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use tailstep_core::model::{FailureKind, Stop};

use crate::bench::{Bench, Frame, KEY, Stream, answer, call, calls, fails, ids, kinds, says};

fn types(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

#[tokio::test]
async fn a_turn_as_it_happens() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    bench.say(&session, "before the stream").await;
    bench.settle().await;
    let mut stream = bench.stream(&session, None).await;
    assert_eq!(stream.frame().await.unwrap().event, "ping");
    bench.model_answers([calls("bash"), says("done")]);
    let sent = bench.say(&session, "go").await;
    bench.settle().await;
    let frames = stream.ready().await;
    assert_eq!(
        types(&frames),
        [
            "user.message",
            "session.status_running",
            "user.message",
            "span.model_request_start",
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
    // The same id twice: first waiting, then taken up.
    for (at, processed) in [(0, false), (2, true)] {
        assert_eq!(frames[at].data["id"], sent.as_str());
        assert_eq!(frames[at].data["processed_at"].is_string(), processed);
        assert_eq!(frames[at].data["content"][0]["text"], "go");
    }
    // But for that, the stream is the end of the list.
    let listed = bench.history(&session).await;
    let streamed: Vec<Value> = frames[1..].iter().map(|frame| frame.data.clone()).collect();
    assert_eq!(listed[listed.len() - streamed.len()..], streamed);
    let places: Vec<&String> = frames.iter().map(|frame| frame.id.as_ref().unwrap()).collect();
    let mut distinct = places.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), places.len());
}

/// Takes the stream apart at every place and puts it together again.
#[tokio::test]
async fn last_event_id_goes_on_exactly_behind() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let mut stream = bench.stream(&session, None).await;
    bench.model_fails(fails(FailureKind::Overloaded, "overloaded"));
    bench.say(&session, "go").await;
    bench.settle().await;
    bench.advance(600_000);
    bench.model_answers([calls("bash")]);
    bench.step().await;
    bench.say(&session, "and this").await;
    bench.model_answers([says("done")]);
    bench.settle().await;
    bench.say(&session, "again").await;
    bench.settle().await;
    let all = stream.ready().await;
    assert!(types(&all).contains(&"session.status_rescheduled"), "{:?}", types(&all));
    for (at, frame) in all.iter().enumerate() {
        let mut rest = bench.stream(&session, frame.id.as_deref()).await;
        let rest = rest.ready().await;
        // Usage and spans, too, are the same as without the break.
        assert_eq!(rest, all[at + 1..], "behind {frame:?}");
    }
}

#[tokio::test]
async fn what_is_streamed_is_listed_already() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let mut stream = bench.stream(&session, None).await;
    let checker = tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Some(frame) = stream.event().await {
            let id = frame.data["id"].as_str().unwrap().to_owned();
            seen.push((frame.event, id));
            if seen.last().unwrap().0 == "session.status_idle" {
                break;
            }
        }
        seen
    });
    bench.model_answers([calls("bash"), calls("read"), says("done")]);
    bench.say(&session, "go").await;
    let mut listed_before_end = Vec::new();
    while bench.step().await {
        listed_before_end.push(bench.history(&session).await.len());
        tokio::task::yield_now().await;
    }
    assert!(listed_before_end.is_sorted());
    let seen = tokio::time::timeout(Duration::from_secs(5), checker).await.unwrap().unwrap();
    let history = bench.history(&session).await;
    let listed = ids(&history);
    for (kind, id) in seen {
        assert!(listed.contains(&id.as_str()), "{kind} {id}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_ends_cleanly_with_its_session() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let mut stream = bench.stream(&session, None).await;
    bench.post(&format!("/v1/sessions/{session}/archive"), &Value::Null).await.ok();
    let frame = stream.event().await.unwrap();
    assert_eq!(frame.event, "session.status_terminated");
    assert!(frame.data["processed_at"].is_string());
    assert_eq!(stream.event().await, None);
    // There is nothing to follow in a session that is over.
    let mut late = bench.stream(&session, None).await;
    assert_eq!(late.event().await, None);
    let mut replayed = bench.stream(&session, frame.id.as_deref()).await;
    assert_eq!(replayed.event().await, None);

    // Deleted: the log may be gone before the stream looks.
    let session = bench.session().await;
    let mut stream = bench.stream(&session, None).await;
    bench.delete(&format!("/v1/sessions/{session}")).await.ok();
    let frame = stream.event().await.unwrap();
    assert_eq!(frame.event, "session.deleted");
    assert!(frame.data["id"].as_str().unwrap().starts_with("sevt_"));
    assert_eq!(stream.event().await, None);
}

#[tokio::test(start_paused = true)]
async fn pings_keep_it_open_and_the_limit_ends_it() {
    let bench = Bench::with_stream_max(Some(40_000)).await;
    let session = bench.session().await;
    let began = tokio::time::Instant::now();
    let mut stream = bench.stream(&session, None).await;
    let mut pings = Vec::new();
    while let Some(frame) = stream.frame().await {
        assert_eq!(
            frame,
            Frame { id: None, event: "ping".to_owned(), data: json!({"type": "ping"}) }
        );
        pings.push(began.elapsed().as_secs());
    }
    assert_eq!(pings, [0, 15, 30]);
    assert_eq!(began.elapsed().as_secs(), 40);
}

#[tokio::test]
async fn a_frame_is_one_line_of_data_whatever_the_model_wrote() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let mut stream = bench.stream(&session, None).await;
    let input = "{\n  \"command\": \"a\\nb\",\r\n  \"n\": 1.0\n}";
    bench.model_answers([answer(vec![call("bash", input)], Stop::ToolUse)]);
    bench.say(&session, "go").await;
    bench.settle().await;
    let frames = stream.ready().await;
    let used = frames.iter().find(|frame| frame.event == "agent.tool_use").unwrap();
    assert_eq!(used.data["input"], json!({"command": "a\nb", "n": 1.0}));
}

#[tokio::test]
async fn a_message_from_before_the_stream_is_shown_when_it_is_taken_up() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let sent = bench.say(&session, "early").await;
    let mut stream = bench.stream(&session, None).await;
    bench.settle().await;
    let frames = stream.ready().await;
    assert_eq!(types(&frames)[..2], ["session.status_running", "user.message"]);
    assert_eq!(frames[1].data["id"], sent.as_str());
    assert_eq!(frames[1].data["content"][0]["text"], "early");
    assert_eq!(kinds(&bench.history(&session).await).first(), Some(&"session.status_running"));
}

#[tokio::test]
async fn wrong_requests_are_refused_before_a_stream_opens() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let other = bench.session().await;
    let path = format!("/v1/sessions/{session}/events/stream");
    let mut foreign: Stream = bench.stream(&other, None).await;
    bench.say(&other, "x").await;
    let foreign_id = foreign.event().await.unwrap().id.unwrap();
    let tail = &session[session.len() - 8..];
    for bad in [
        "x",
        "..",
        &foreign_id,
        &format!("{tail}.99.0.0"),
        &format!("{tail}.0.0.0"),
        &format!("{tail}.1.0"),
        &format!("{tail}.1.0.0.0"),
        "sevt_1",
    ] {
        let headers = [("last-event-id", bad)];
        let got = bench.with_headers(KEY, Method::GET, &path, &Value::Null, &headers).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with("Last-Event-ID:"), "{bad}: {said}");
    }
    let got = bench.get(&format!("{path}?event_deltas[]=agent.message")).await;
    let said = got.error(400, "invalid_request_error");
    assert!(said.starts_with("event_deltas[]:") && said.contains("not supported"), "{said}");
    bench.get(&format!("{path}?from=1")).await.error(400, "invalid_request_error");
}
