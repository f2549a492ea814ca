//! Sessions whose calls are run outside.

use axum::http::Method;
use serde_json::{Value, json};
use tailstep_core::model::Stop;

use crate::{
    bench::{KEY, answer, call, calls, ids, kinds, says},
    outside::{Outside, results_of},
};

#[tokio::test]
async fn a_worker_serves_a_session_to_its_end() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    assert!(outside.poll().await.is_none(), "an idle session wants nobody");
    bench.model_answers([calls("bash"), says("done")]);
    bench.say(&outside.session, "go").await;
    bench.settle().await;
    let shown = bench.get(&format!("/v1/sessions/{}", outside.session)).await.ok();
    assert_eq!(shown["status"], "idle");
    let history = bench.history(&outside.session).await;
    assert_eq!(
        kinds(&history),
        [
            "session.status_running",
            "user.message",
            "span.model_request_start",
            "agent.tool_use",
            "span.model_request_end",
            "session.usage",
            "session.status_idle",
        ]
    );
    assert_eq!(history[3]["evaluated_permission"], "allow");
    let pending = [history[3]["id"].as_str().unwrap()];
    let reason = json!({"type": "requires_action", "event_ids": pending});
    assert_eq!(history[6]["stop_reason"], reason);

    let (id, token) = outside.poll().await.unwrap();
    assert!(outside.poll().await.is_none(), "it is hidden");
    assert_eq!(outside.item(&id).await["secret"], Value::Null);
    assert_eq!(outside.ack(&id).await.ok()["state"], "starting");
    let path = outside.queue(&format!("/{id}/heartbeat?expected_last_heartbeat=NO_HEARTBEAT"));
    let beat = bench.as_key(&token, Method::POST, &path, &Value::Null).await.ok();
    assert_eq!((&beat["state"], &beat["lease_extended"]), (&json!("active"), &json!(true)));
    let path = format!("/v1/sessions/{}", outside.session);
    bench.as_key(&token, Method::GET, &path, &Value::Null).await.ok();
    let sent = outside.answers(&token, &[(pending[0], "out")]).await.ok();
    assert_eq!(sent["data"][0]["tool_use_id"], pending[0]);
    assert!(sent["data"][0]["processed_at"].is_string());
    bench.settle().await;
    let history = bench.history(&outside.session).await;
    assert_eq!(
        kinds(&history[7..]),
        [
            "user.tool_result",
            "session.status_running",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.usage",
            "session.status_idle",
        ]
    );
    assert_eq!(history[7]["content"][0]["text"], "out");
    assert_eq!(history[13]["stop_reason"]["type"], "end_turn");

    let path = outside.queue(&format!("/{id}/stop"));
    let stopped = bench.as_key(&token, Method::POST, &path, &json!({"force": true})).await.ok();
    assert_eq!(stopped["state"], "stopped");
    let stats = outside.stats().await;
    assert_eq!((&stats["depth"], &stats["pending"]), (&json!(0), &json!(0)));
    assert_eq!(stats["oldest_queued_at"], Value::Null);
    assert_eq!(outside.item(&id).await["state"], "stopped", "it is kept");
    // A token is good for as long as its item.
    let path = format!("/v1/sessions/{}", outside.session);
    let late = bench.as_key(&token, Method::GET, &path, &Value::Null).await;
    late.error(401, "authentication_error");
    // The next turn calls for a worker anew.
    bench.say(&outside.session, "more").await;
    bench.model_answers([calls("bash")]);
    bench.settle().await;
    assert_ne!(outside.poll().await.unwrap().0, id);
}

#[tokio::test]
async fn answers_come_in_any_order_and_a_second_one_changes_nothing() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    let blocks = vec![call("bash", "{}"), call("nope", "{}"), call("read", "{}")];
    bench.model_answers([answer(blocks, Stop::ToolUse)]);
    bench.say(&outside.session, "go").await;
    bench.settle().await;
    let pending = outside.pending().await;
    assert_eq!(pending.len(), 2, "the call that cannot run is answered by us");
    let history = bench.history(&outside.session).await;
    let refused: Vec<&Value> =
        history.iter().filter(|event| event["type"] == "agent.tool_result").collect();
    assert_eq!(refused.len(), 1);

    let first = outside.answers(&outside.key, &[(&pending[1], "second")]).await.ok();
    assert_eq!(outside.pending().await, [pending[0].clone()]);
    let before = bench.history(&outside.session).await;
    // Once more, from anybody, with any content, and within one batch.
    for text in ["second", "another"] {
        let again = outside.answers(&outside.key, &[(&pending[1], text)]).await.ok();
        assert_eq!(again["data"], first["data"]);
    }
    assert_eq!(bench.history(&outside.session).await, before);
    // While it waits, a message is queued.
    bench.say(&outside.session, "by the way").await;
    assert!(!bench.step().await, "and wakes nobody");
    let both = [(&*pending[0], "first"), (&*pending[1], "late"), (&*pending[0], "twice")];
    let sent = outside.answers(KEY, &both).await.ok();
    assert_eq!(sent["data"].as_array().unwrap().len(), 3);
    assert_eq!(sent["data"][1], first["data"][0]);
    assert_eq!(sent["data"][0], sent["data"][2]);
    bench.settle().await;
    let history = bench.history(&outside.session).await;
    let results: Vec<&str> = history
        .iter()
        .filter(|event| event["type"] == "user.tool_result")
        .map(|event| event["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(results, ["second", "first"]);
    assert_eq!(history.last().unwrap()["stop_reason"]["type"], "end_turn");
    // Even now.
    outside.answers(&outside.key, &[(&pending[0], "very late")]).await.ok();
    let all = ids(&history);
    let unique: std::collections::BTreeSet<&&str> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
}

#[tokio::test]
async fn answers_to_what_is_no_call_are_refused() {
    let outside = Outside::waiting().await;
    let bench = &outside.bench;
    let pending = outside.pending().await;
    let history = bench.history(&outside.session).await;
    let of_message = history[1]["id"].as_str().unwrap();
    let beyond = pending[0].replace("0000000004", "00000000ff");
    for wrong in ["sevt_nope", of_message, &beyond] {
        let batch = [(&*pending[0], "fine"), (wrong, "x")];
        let said = outside.answers(KEY, &batch).await.error(400, "invalid_request_error");
        assert!(said.starts_with("events[1].tool_use_id:"), "{said}");
    }
    assert_eq!(bench.history(&outside.session).await, history, "nothing of a batch is stored");
    let path = format!("/v1/sessions/{}/events", outside.session);
    let bodies = [
        (json!({"type": "user.tool_result"}), "tool_use_id"),
        (json!({"type": "user.tool_result", "tool_use_id": pending[0], "is_error": 1}), "is_error"),
        (
            json!({"type": "user.tool_result", "tool_use_id": pending[0],
                "content": [{"type": "search_result"}]}),
            "content[0].type",
        ),
    ];
    for (event, field) in bodies {
        let got = bench.post(&path, &json!({"events": [event]})).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with(&format!("events[0].{field}:")), "{said}");
    }
    // A result may be empty.
    let empty = json!({"events": [{"type": "user.tool_result", "tool_use_id": pending[0]}]});
    bench.post(&path, &empty).await.ok();
    // Where the deployment has hands of its own, nobody else answers.
    let own = bench.session().await;
    bench.model_answers([says("hm"), calls("bash")]);
    bench.settle().await;
    bench.say(&own, "go").await;
    bench.settle().await;
    let history = bench.history(&own).await;
    let call = history.iter().find(|event| event["type"] == "agent.tool_use").unwrap();
    let body = results_of(&[(call["id"].as_str().unwrap(), "x")]);
    let got = bench.post(&format!("/v1/sessions/{own}/events"), &body).await;
    let said = got.error(400, "invalid_request_error");
    assert!(said.contains("self_hosted"), "{said}");
}

#[tokio::test]
async fn an_interrupt_abandons_the_calls() {
    let outside = Outside::waiting().await;
    let bench = &outside.bench;
    let pending = outside.pending().await;
    let path = format!("/v1/sessions/{}/events", outside.session);
    bench.post(&path, &json!({"events": [{"type": "user.interrupt"}]})).await.ok();
    let history = bench.history(&outside.session).await;
    assert_eq!(
        kinds(&history[7..]),
        ["user.interrupt", "agent.tool_result", "session.usage", "session.status_idle"]
    );
    assert_eq!(history[8]["x_origin"], "cancelled");
    assert_eq!(history[10]["stop_reason"]["type"], "end_turn");
    // The worker that was at it posts its result all the same.
    let late = outside.answers(&outside.key, &[(&pending[0], "late")]).await.ok();
    assert_eq!(late["data"][0]["id"], history[8]["id"]);
    assert_eq!(bench.history(&outside.session).await, history);
    assert!(outside.poll().await.is_none(), "nobody is wanted any more");
    bench.say(&outside.session, "again").await;
    bench.settle().await;
}

#[tokio::test]
async fn a_session_that_waits_can_be_archived() {
    let outside = Outside::waiting().await;
    let path = format!("/v1/sessions/{}/archive", outside.session);
    assert_eq!(outside.bench.post(&path, &Value::Null).await.ok()["status"], "terminated");
    assert!(outside.poll().await.is_none());
    let pending = "sevt_0000000000000000";
    outside.answers(KEY, &[(pending, "x")]).await.error(400, "invalid_request_error");
}

#[tokio::test]
async fn an_environment_stays_what_it_is() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    let path = format!("/v1/environments/{}", outside.environment);
    let got = bench.post(&path, &json!({"config": {"type": "cloud"}})).await;
    got.error(400, "invalid_request_error");
    assert_eq!(got.body["error"]["details"]["error_code"], "invalid_config_type_change");
    let same = json!({"name": "renamed", "config": {"type": "self_hosted"}});
    assert_eq!(bench.post(&path, &same).await.ok()["name"], "renamed");
    let cloud = bench.environment(KEY).await;
    let got = bench
        .post(&format!("/v1/environments/{cloud}"), &json!({"config": {"type": "self_hosted"}}))
        .await;
    assert_eq!(got.body["error"]["details"]["error_code"], "invalid_config_type_change");
    for extra in [json!({"networking": {"type": "unrestricted"}}), json!({"packages": {}})] {
        let mut config = extra;
        config["type"] = json!("self_hosted");
        let got = bench.post("/v1/environments", &json!({"name": "n", "config": config})).await;
        assert!(got.error(400, "invalid_request_error").starts_with("config."));
    }
}

#[tokio::test]
async fn a_stream_shows_what_is_waited_for() {
    let outside = Outside::new().await;
    let bench = &outside.bench;
    bench.model_answers([calls("bash")]);
    let mut stream = bench.stream(&outside.session, None).await;
    bench.say(&outside.session, "go").await;
    bench.settle().await;
    let before = stream.ready().await;
    assert_eq!(before.last().unwrap().data["stop_reason"]["type"], "requires_action");
    // One that opens between the last answer and the next model call sees the session go on.
    let pending = outside.pending().await;
    outside.answers(KEY, &[(&pending[0], "x")]).await.ok();
    let mut second = bench.stream(&outside.session, None).await;
    bench.settle().await;
    let (first, second) = (stream.ready().await, second.ready().await);
    let kinds: Vec<&str> = second.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(kinds[..2], ["session.status_running", "span.model_request_start"]);
    assert_eq!(first[0].event, "user.tool_result");
    assert_eq!(first[1..], second[..]);
    let listed = bench.history(&outside.session).await;
    let all: Vec<&str> =
        before.iter().chain(&first).filter_map(|f| f.data["id"].as_str()).collect();
    for id in ids(&listed) {
        assert!(all.contains(&id), "{id} was not streamed");
    }
}
