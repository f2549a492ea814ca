//! Pages: every item once, whatever happens in between, and no cursor that breaks anything.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::bench::{Bench, KEY, calls, ids, says};

/// Follows `next_page` from `path` to the end; `between` runs after each page.
async fn follow(bench: &Bench, path: &str, between: impl AsyncFn(usize)) -> Vec<Value> {
    let mut found = Vec::new();
    let mut page = String::new();
    for round in 0.. {
        let got = bench.get(&format!("{path}{page}")).await.ok();
        found.extend(got["data"].as_array().unwrap().clone());
        between(round).await;
        let Some(next) = got["next_page"].as_str() else { break };
        page = format!("&page={next}");
    }
    found
}

#[tokio::test]
async fn sixty_sessions_of_one_millisecond() {
    let bench = Bench::new().await;
    let body = json!({
        "agent": bench.agent(KEY).await,
        "environment_id": bench.environment(KEY).await,
    });
    let mut made = BTreeSet::new();
    for _ in 0..60 {
        let session = bench.post("/v1/sessions", &body).await.ok();
        made.insert(session["id"].as_str().unwrap().to_owned());
    }
    for (order, limit) in [("asc", 25), ("desc", 25), ("asc", 1), ("desc", 60), ("desc", 59)] {
        let path = format!("/v1/sessions?order={order}&limit={limit}");
        let found = follow(&bench, &path, async |_| {}).await;
        let seen: BTreeSet<String> = ids(&found).into_iter().map(str::to_owned).collect();
        assert_eq!(found.len(), 60, "{order} {limit}");
        assert_eq!(seen, made, "{order} {limit}");
        let ids = ids(&found);
        let sorted = if order == "asc" { ids.is_sorted() } else { ids.iter().rev().is_sorted() };
        assert!(sorted);
    }
}

#[tokio::test]
async fn sessions_page_in_both_directions() {
    let bench = Bench::new().await;
    let body = json!({
        "agent": bench.agent(KEY).await,
        "environment_id": bench.environment(KEY).await,
    });
    for _ in 0..7 {
        bench.advance(1);
        bench.post("/v1/sessions", &body).await.ok();
    }
    let at = async |page: &Value| {
        let page = page.as_str().unwrap();
        bench.get(&format!("/v1/sessions?limit=3&page={page}")).await.ok()
    };
    let first = bench.get("/v1/sessions?limit=3").await.ok();
    assert_eq!(first["prev_page"], Value::Null);
    let second = at(&first["next_page"]).await;
    let third = at(&second["next_page"]).await;
    assert_eq!(third["data"].as_array().unwrap().len(), 1);
    assert_eq!(third["next_page"], Value::Null);
    let back = at(&third["prev_page"]).await;
    assert_eq!(ids(back["data"].as_array().unwrap()), ids(second["data"].as_array().unwrap()));
    let start = at(&back["prev_page"]).await;
    assert_eq!(ids(start["data"].as_array().unwrap()), ids(first["data"].as_array().unwrap()));
    assert_eq!(start["prev_page"], Value::Null);
    let again = at(&start["next_page"]).await;
    assert_eq!(ids(again["data"].as_array().unwrap()), ids(second["data"].as_array().unwrap()));
}

#[tokio::test]
async fn a_filter_that_matches_little_still_fills_its_page() {
    let bench = Bench::new().await;
    let rare = bench.session().await;
    let shown = bench.get(&format!("/v1/sessions/{rare}")).await.ok();
    let agent = shown["agent"]["id"].as_str().unwrap().to_owned();
    let body = json!({
        "agent": bench.agent(KEY).await,
        "environment_id": bench.environment(KEY).await,
    });
    for _ in 0..250 {
        bench.post("/v1/sessions", &body).await.ok();
    }
    let page = bench.get(&format!("/v1/sessions?limit=1&agent_id={agent}")).await.ok();
    assert_eq!(ids(page["data"].as_array().unwrap()), [rare.as_str()]);
    assert_eq!(page["next_page"], Value::Null);
}

#[tokio::test]
async fn agents_environments_and_versions_page() {
    let bench = Bench::new().await;
    let agent = bench.agent(KEY).await;
    for version in 2..=23 {
        let body = json!({"description": format!("version {version}")});
        bench.post(&format!("/v1/agents/{agent}"), &body).await.ok();
    }
    for _ in 0..44 {
        bench.agent(KEY).await;
        bench.environment(KEY).await;
    }
    for (path, count) in [
        ("/v1/agents?limit=10", 45),
        ("/v1/environments?limit=11", 44),
        (&format!("/v1/agents/{agent}/versions?limit=4"), 23),
    ] {
        let found = follow(&bench, path, async |_| {}).await;
        assert_eq!(found.len(), count, "{path}");
        let distinct: BTreeSet<String> =
            found.iter().map(|item| format!("{}{}", item["id"], item["version"])).collect();
        assert_eq!(distinct.len(), count, "{path}");
    }
    let first = bench.get(&format!("/v1/agents/{agent}/versions")).await.ok();
    assert_eq!(first["data"][0]["version"], 23);
}

/// What is there when the paging begins is shown once each, while the session goes on.
#[tokio::test]
async fn events_are_listed_once_while_the_log_grows() {
    for order in ["asc", "desc"] {
        for limit in [1, 2, 3, 7] {
            for filter in ["", "&types[]=user.message&types[]=agent.message"] {
                grows(order, limit, filter).await;
            }
        }
    }
}

async fn grows(order: &str, limit: usize, filter: &str) {
    let bench = Bench::new().await;
    let session = bench.session().await;
    for turn in 0..3 {
        bench.model_answers([calls("bash"), says("done")]);
        bench.say(&session, &format!("turn {turn}")).await;
        bench.settle().await;
    }
    // Three messages wait behind a turn that is under way.
    bench.model_answers([calls("bash"), says("done")]);
    bench.say(&session, "under way").await;
    bench.step().await;
    for waiting in 0..3 {
        bench.say(&session, &format!("waiting {waiting}")).await;
    }
    let path = format!("/v1/sessions/{session}/events?order={order}{filter}");
    let there = bench.get(&path).await.ok();
    let there: BTreeSet<String> =
        ids(there["data"].as_array().unwrap()).into_iter().map(str::to_owned).collect();
    let rounds_max = there.len() + 1;
    let found = follow(&bench, &format!("{path}&limit={limit}"), async |round| {
        // The waiting messages are taken up, further ones come, and turns end.
        if round < rounds_max {
            bench.step().await;
            bench.say(&session, &format!("round {round}")).await;
        } else {
            bench.settle().await;
        }
    })
    .await;
    let name = format!("{order}, {limit} a page, filter `{filter}`");
    let seen: BTreeSet<String> = ids(&found).into_iter().map(str::to_owned).collect();
    assert_eq!(seen.len(), found.len(), "something twice: {name}");
    let missing: Vec<&String> = there.difference(&seen).collect();
    assert!(missing.is_empty(), "{name}: {missing:?}");
    if order == "desc" {
        assert_eq!(seen, there, "{name}");
    }
}

/// A page ends among the waiting messages; before the next page they are taken up.
#[tokio::test]
async fn a_message_listed_as_waiting_is_not_listed_again() {
    for order in ["asc", "desc"] {
        for limit in 1..=3 {
            let bench = Bench::new().await;
            let session = bench.session().await;
            let mut sent = Vec::new();
            for n in 0..3 {
                sent.push(bench.say(&session, &format!("message {n}")).await);
            }
            let path = format!("/v1/sessions/{session}/events?order={order}&limit={limit}");
            let found = follow(&bench, &path, async |round| {
                if round == 0 {
                    bench.settle().await;
                }
            })
            .await;
            let mut messages = ids(&found);
            messages.retain(|id| sent.iter().any(|sent| sent == id));
            messages.sort_unstable();
            assert_eq!(messages, sent, "{order}, {limit} a page");
            let waiting = found.iter().filter(|event| event["processed_at"].is_null()).count();
            assert_eq!(waiting, limit, "{order}, {limit} a page");
        }
    }
}

#[tokio::test]
async fn desc_is_asc_backwards() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    bench.model_answers([calls("bash"), says("done"), says("more")]);
    bench.say(&session, "one").await;
    bench.settle().await;
    bench.say(&session, "two").await;
    bench.settle().await;
    bench.say(&session, "waits").await;
    bench.say(&session, "waits, too").await;
    let path = format!("/v1/sessions/{session}/events");
    let asc = bench.history(&session).await;
    for limit in 1..asc.len() {
        let mut desc =
            follow(&bench, &format!("{path}?order=desc&limit={limit}"), async |_| {}).await;
        desc.reverse();
        assert_eq!(desc, asc, "{limit}");
        let pages = follow(&bench, &format!("{path}?limit={limit}"), async |_| {}).await;
        assert_eq!(pages, asc, "{limit}");
    }
}

#[tokio::test]
async fn no_cursor_breaks_anything() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let other = bench.session().await;
    for session in [&session, &other] {
        bench.say(session, "hello").await;
        bench.settle().await;
    }
    let events = format!("/v1/sessions/{session}/events?limit=2");
    let agent = bench.agent(KEY).await;
    let body = json!({"description": "two"});
    bench.post(&format!("/v1/agents/{agent}"), &body).await.ok();
    let lists = [
        events.clone(),
        format!("{events}&order=desc"),
        format!("/v1/sessions/{other}/events?limit=2"),
        "/v1/sessions?limit=1".to_owned(),
        "/v1/sessions?limit=1&order=asc".to_owned(),
        "/v1/agents?limit=1".to_owned(),
        "/v1/environments?limit=1".to_owned(),
        format!("/v1/agents/{agent}/versions?limit=1"),
    ];
    let mut cursors = Vec::new();
    for list in &lists {
        let page = bench.get(list).await.ok();
        cursors.push(page["next_page"].as_str().unwrap().to_owned());
    }
    // A cursor works on its own list only.
    for (at, list) in lists.iter().enumerate() {
        for (from, cursor) in cursors.iter().enumerate() {
            let got = bench.get(&format!("{list}&page={cursor}")).await;
            if at == from {
                got.ok();
            } else {
                let said = got.error(400, "invalid_request_error");
                assert!(said.starts_with("page:"), "{said}");
            }
        }
    }
    // Nor does a broken one: cut, changed in one place, or plain noise.
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..600 {
        let (list, cursor) = (&lists[round % lists.len()], &cursors[round % lists.len()]);
        let mut bytes = cursor.clone().into_bytes();
        match round % 3 {
            0 => bytes.truncate((next() as usize) % bytes.len()),
            1 => {
                let at = (next() as usize) % bytes.len();
                bytes[at] = if bytes[at] == b'a' { b'b' } else { b'a' };
            }
            _ => {
                let length = next() % 60 + 1;
                bytes = (0..length).map(|_| b'!' + (next() % 94) as u8).collect();
            }
        }
        if bytes.is_empty() {
            continue;
        }
        let text: String = bytes.iter().map(|byte| format!("%{byte:02x}")).collect();
        let got = bench.get(&format!("{list}&page={text}")).await;
        got.error(400, "invalid_request_error");
    }
}
