//! The Messages API over real HTTP, against the strict stub.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail by panicking")]

mod common;

use common::{KEY, config, opaque, request, results, router, said, text, used, user};
use serde_json::Value;
use tailstep_core::{
    content::{Content, Source},
    model::{
        Block, Broken, FailureKind, Message, ModelAnswer, ModelFailure, Part, Role, Stop, Usage,
    },
};
use tailstep_model::{
    Router,
    strict::{Reply, Stub},
};
use tailstep_runtime::ports::Model;

const MODEL: &str = "claude-test-1";

/// Sends one request and returns what came of it.
async fn ask(stub: &Stub, reply: Reply) -> Result<ModelAnswer, ModelFailure> {
    stub.push(reply);
    let found = router(stub).call(&request(MODEL, vec![user("hi")])).await;
    let fault = stub.requests().pop().unwrap().fault;
    assert_eq!(fault, None, "the stub refused our request");
    found
}

/// The data of an answer whose first block begins as `begin` and grows by `deltas`.
fn block_stream(begin: &str, deltas: &[&str], end: &str) -> Reply {
    let mut data = vec![
        r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}"#
            .to_owned(),
        format!(r#"{{"type":"content_block_start","index":0,"content_block":{begin}}}"#),
    ];
    data.extend(
        deltas
            .iter()
            .map(|delta| format!(r#"{{"type":"content_block_delta","index":0,"delta":{delta}}}"#)),
    );
    data.push(r#"{"type":"content_block_stop","index":0}"#.to_owned());
    data.push(format!(
        r#"{{"type":"message_delta","delta":{end},"usage":{{"output_tokens":81}}}}"#
    ));
    data.push(r#"{"type":"message_stop"}"#.to_owned());
    Reply::events(data)
}

const ENDS: &str = r#"{"stop_reason":"end_turn"}"#;
const CALLS: &str = r#"{"stop_reason":"tool_use"}"#;
const FULL: &str = r#"{"stop_reason":"max_tokens"}"#;

fn every_kind() -> Vec<Block> {
    vec![
        opaque(r#"{"type":"thinking","thinking":"hm, \"é🦀\"\n","signature":"c2lnbmVk+/=="}"#),
        opaque(r#"{"type":"redacted_thinking","data":"AAEC"}"#),
        text("Let me look: é🦀"),
        used("toolu_1", "bash", r#"{"command":"echo \"é\\n🦀\"","n":1.00,"z":1,"a":2}"#),
        used("toolu_2", "get_weather", r#"{ "city" : "Paris", "id" : 12345678901234567890123 }"#),
    ]
}

#[tokio::test]
async fn an_answer_is_read_whatever_the_pieces() {
    let stub = Stub::start().await.unwrap();
    for size in [1, 2, 3, 5, 7, 11, 64, 1_000, 100_000] {
        let reply = Reply::answer(every_kind(), Stop::ToolUse).in_pieces([size]);
        let answer = ask(&stub, reply).await.unwrap();
        assert_eq!(answer.blocks, every_kind(), "pieces of {size}");
        assert_eq!(answer.stop, Stop::ToolUse);
        assert_eq!(answer.usage.input_tokens, 11);
        assert_eq!(answer.usage.output_tokens, 7);
    }
}

#[tokio::test]
async fn what_came_goes_back_byte_for_byte() {
    let stub = Stub::start().await.unwrap();
    let first = vec![user("hi")];
    stub.push(Reply::answer(every_kind(), Stop::ToolUse));
    let router = router(&stub);
    let answer = router.call(&request(MODEL, first.clone())).await.unwrap();

    let stored = stored(&answer);
    let mut second = first;
    second.push(said(&stored));
    second.push(results(&[("toolu_1", "ok"), ("toolu_2", "sun")]));
    stub.push(Reply::text("done"));
    router.call(&request(MODEL, second)).await.unwrap();

    let body = &stub.requests()[1].body;
    for block in every_kind() {
        let expect = match block {
            Block::ToolUse { input, .. } => format!(r#""input":{}}}"#, input.as_str()),
            Block::Opaque { raw, .. } => raw.as_str().to_owned(),
            Block::Text { text } => serde_json::to_string(&text).unwrap(),
            Block::BrokenToolUse { .. } => unreachable!(),
        };
        assert!(body.contains(&expect), "{expect} is not in {body}");
    }
    assert_eq!(stub.requests()[1].fault, None);
}

/// What a log gives back.
fn stored(answer: &ModelAnswer) -> ModelAnswer {
    serde_json::from_str(&serde_json::to_string(answer).unwrap()).unwrap()
}

#[tokio::test]
async fn the_next_body_begins_with_this_one() {
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    let mut messages = vec![user("hi")];
    for step in 0..6 {
        let id = format!("toolu_{step}");
        stub.push(Reply::answer(
            vec![text("step"), used(&id, "bash", r#"{"command":"true"}"#)],
            Stop::ToolUse,
        ));
        let answer = router.call(&request(MODEL, messages.clone())).await.unwrap();
        messages.push(said(&answer));
        messages.push(results(&[(&id, "ok")]));
    }
    let bodies: Vec<String> = stub.requests().into_iter().map(|request| request.body).collect();
    for pair in bodies.windows(2) {
        let plain = |body: &str| body.replace(r#","cache_control":{"type":"ephemeral"}"#, "");
        // Behind the last message only the two brackets of the list and the body close.
        let (before, after) = (plain(&pair[0]), plain(&pair[1]));
        let prefix = before.strip_suffix("]}").unwrap();
        assert!(after.starts_with(prefix), "{before}\n{after}");
    }
    // One mark behind the system prompt, one at the ends of the last two messages of the user.
    let marks: Vec<usize> =
        bodies.iter().map(|body| body.matches("cache_control").count()).collect();
    assert_eq!(marks, [2, 3, 3, 3, 3, 3]);
    let last: Value = serde_json::from_str(&bodies[5]).unwrap();
    assert!(last.pointer("/system/0/cache_control").is_some());
    assert!(last.pointer("/messages/10/content/0/cache_control").is_some());
    assert!(last.pointer("/messages/8/content/0/cache_control").is_some());
    assert!(
        bodies.iter().all(|body| body.starts_with(r#"{"model":"claude-test-1","max_tokens":1000"#))
    );
}

#[tokio::test]
async fn a_request_has_all_that_it_should() {
    let stub = Stub::start().await.unwrap();
    let mut asked = request(
        MODEL,
        vec![Message {
            role: Role::User,
            parts: vec![
                Part::Content(Content::Image {
                    source: Source::Base64 { media_type: "image/png".into(), data: "AAAA".into() },
                }),
                Part::Content(Content::Document {
                    source: Source::Text { media_type: "text/plain".into(), data: "law".into() },
                    title: Some("t".into()),
                    context: None,
                }),
                Part::Content(Content::text("hi")),
            ],
        }],
    );
    asked.effort = Some("high".into());
    asked.tools[1].description = " ".into();
    stub.push(Reply::text("ok"));
    router(&stub).call(&asked).await.unwrap();
    let sent = &stub.requests()[0];
    assert_eq!(sent.header("x-api-key"), Some(KEY));
    assert_eq!(sent.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(
        sent.body,
        concat!(
            r#"{"model":"claude-test-1","max_tokens":1000,"stream":true,"#,
            r#""output_config":{"effort":"high"},"#,
            r#""tools":[{"name":"bash","description":"the bash tool","input_schema":"#,
            r#"{"type":"object","properties":{"command":{"type":"string"}}}},"#,
            r#"{"name":"get_weather","input_schema":"#,
            r#"{"type":"object","properties":{"command":{"type":"string"}}}}],"#,
            r#""system":[{"type":"text","text":"Answer briefly.","#,
            r#""cache_control":{"type":"ephemeral"}}],"#,
            r#""messages":[{"role":"user","content":[{"type":"image","source":"#,
            r#"{"type":"base64","media_type":"image/png","data":"AAAA"}},"#,
            r#"{"type":"document","source":{"type":"text","media_type":"text/plain","data":"law"},"#,
            r#""title":"t"},{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]}"#,
        )
    );
}

#[tokio::test]
async fn blocks_of_others_and_odd_ids_do_not_spoil_a_request() {
    let stub = Stub::start().await.unwrap();
    let foreign = Part::Opaque {
        dialect: "bedrock".into(),
        raw: tailstep_core::raw::RawJson::parse(r#"{"x":1}"#).unwrap(),
    };
    let odd = ModelAnswer {
        blocks: vec![used("functions.bash:0", "no such tool!", "{}")],
        stop: Stop::ToolUse,
        usage: Usage::default(),
    };
    let messages = vec![
        user("hi"),
        Message { role: Role::Assistant, parts: vec![foreign] },
        user("go on"),
        said(&odd),
        results(&[("functions.bash:0", "ok")]),
    ];
    let mut asked = request(MODEL, messages);
    asked.system = None;
    stub.push(Reply::text("ok"));
    router(&stub).call(&asked).await.unwrap();
    let body: Value = serde_json::from_str(&stub.requests()[0].body).unwrap();
    // Without a system prompt, the mark is on the last tool.
    assert!(body.pointer("/tools/1/cache_control").is_some());
}

#[tokio::test]
async fn every_stop_reason() {
    let stub = Stub::start().await.unwrap();
    let refusal = r#"{"stop_reason":"refusal","stop_details":{"type":"refusal","category":"cyber",
        "explanation":"no"}}"#;
    let bare = Stop::Refusal { category: None, explanation: None };
    let full = Stop::Refusal { category: Some("cyber".into()), explanation: Some("no".into()) };
    for (end, expect) in [
        (ENDS, Stop::EndTurn),
        (r#"{"stop_reason":"stop_sequence","stop_sequence":"x"}"#, Stop::EndTurn),
        (CALLS, Stop::ToolUse),
        (FULL, Stop::MaxTokens),
        (r#"{"stop_reason":"pause_turn"}"#, Stop::Pause),
        (r#"{"stop_reason":"refusal","stop_details":null}"#, bare),
        (refusal, full),
        (r#"{"stop_reason":"model_context_window_exceeded"}"#, Stop::ContextExceeded),
        (r#"{"stop_reason":"brand_new"}"#, Stop::Other { reason: "brand_new".into() }),
    ] {
        let reply = block_stream(r#"{"type":"text","text":""}"#, &[], end);
        assert_eq!(ask(&stub, reply).await.unwrap().stop, expect, "{end}");
    }
    // An end that does not say why is a broken answer.
    let failed = ask(&stub, block_stream(r#"{"type":"text","text":"x"}"#, &[], "{}")).await;
    assert_eq!(failed.unwrap_err().kind, FailureKind::Interrupted);
}

#[tokio::test]
async fn every_form_of_tool_arguments() {
    let stub = Stub::start().await.unwrap();
    let begin = r#"{"type":"tool_use","id":"t","name":"bash","input":{}}"#;
    let broken = |raw: &str, reason| Block::BrokenToolUse {
        id: "t".into(),
        name: "bash".into(),
        raw: raw.into(),
        reason,
    };
    let piece = |json: &str| {
        format!(
            r#"{{"type":"input_json_delta","partial_json":{}}}"#,
            serde_json::to_string(json).unwrap()
        )
    };
    for (pieces, end, expect) in [
        (vec![], CALLS, used("t", "bash", "{}")),
        (vec![""], CALLS, used("t", "bash", "{}")),
        (vec!["{\"a\"", ": 1.00}"], CALLS, used("t", "bash", "{\"a\": 1.00}")),
        (vec!["{\"a\"", ": 1.00}"], FULL, used("t", "bash", "{\"a\": 1.00}")),
        (vec!["{\"a\":"], FULL, broken("{\"a\":", Broken::Cut)),
        (vec![], FULL, broken("", Broken::Cut)),
        (vec!["{\"a\":"], CALLS, broken("{\"a\":", Broken::Malformed)),
        (vec!["[1]"], CALLS, broken("[1]", Broken::Malformed)),
    ] {
        let deltas: Vec<String> = pieces.iter().map(|json| piece(json)).collect();
        let deltas: Vec<&str> = deltas.iter().map(String::as_str).collect();
        let answer = ask(&stub, block_stream(begin, &deltas, end)).await.unwrap();
        assert_eq!(answer.blocks, [expect], "{pieces:?} {end}");
    }
    // Some gateways send the whole input at once.
    let whole = r#"{"type":"tool_use","id":"t","name":"bash","input":{"b":1,"a":1.0}}"#;
    let answer = ask(&stub, block_stream(whole, &[], CALLS)).await.unwrap();
    assert_eq!(answer.blocks, [used("t", "bash", r#"{"b":1,"a":1.0}"#)]);
}

#[tokio::test]
async fn blocks_that_we_do_not_know_are_kept_whole() {
    let stub = Stub::start().await.unwrap();
    for (begin, deltas, expect) in [
        (r#"{"type":"new", "n": 1.00,"a":{}}"#, vec![], r#"{"type":"new", "n": 1.00,"a":{}}"#),
        (
            r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{}}"#,
            vec![
                r#"{"type":"input_json_delta","partial_json":"{\"q\": "}"#,
                r#"{"type":"input_json_delta","partial_json":"1.0}"}"#,
            ],
            r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{"q": 1.0}}"#,
        ),
        (
            r#"{"type":"compaction","content":null}"#,
            vec![r#"{"type":"compaction_delta","content":"sum"}"#],
            r#"{"type":"compaction","content":"sum"}"#,
        ),
        (
            r#"{"type":"thinking","thinking":"","signature":""}"#,
            vec![
                r#"{"type":"thinking_delta","thinking":"a\u00e9"}"#,
                r#"{"type":"thinking_delta","thinking":"\"b"}"#,
                r#"{"type":"signature_delta","signature":"Zm8="}"#,
            ],
            r#"{"type":"thinking","thinking":"aé\"b","signature":"Zm8="}"#,
        ),
        (
            r#"{"type":"cited","citations":[{"x":1.0}]}"#,
            vec![r#"{"type":"citations_delta","citation":{"y":2.0}}"#],
            r#"{"type":"cited","citations":[{"x":1.0},{"y":2.0}]}"#,
        ),
    ] {
        let answer = ask(&stub, block_stream(begin, &deltas, ENDS)).await.unwrap();
        assert_eq!(answer.blocks, [opaque(expect)]);
    }
    // Reasoning that was cut before its signature can never be sent back.
    let cut = block_stream(
        r#"{"type":"thinking","thinking":"","signature":""}"#,
        &[r#"{"type":"thinking_delta","thinking":"half"}"#],
        FULL,
    );
    assert_eq!(ask(&stub, cut).await.unwrap().blocks, []);
    // Citations of a text are not kept, the text is.
    let cited = block_stream(
        r#"{"type":"text","text":"a","citations":[]}"#,
        &[
            r#"{"type":"citations_delta","citation":{"y":2.0}}"#,
            r#"{"type":"text_delta","text":"b"}"#,
        ],
        ENDS,
    );
    assert_eq!(ask(&stub, cited).await.unwrap().blocks, [text("ab")]);
}

#[tokio::test]
async fn usage_has_four_classes() {
    let stub = Stub::start().await.unwrap();
    let charged = Usage {
        input_tokens: 3,
        output_tokens: 81,
        cache_read_input_tokens: 5,
        cache_write_input_tokens: 109_075,
    };
    let answer = ask(&stub, Reply::text("x").usage(charged)).await.unwrap();
    assert_eq!(answer.usage, charged);
    // Gateways report the input at the end only.
    let late = Reply::events([
        r#"{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},
            "usage":{"input_tokens":9,"output_tokens":4,"cache_read_input_tokens":null}}"#,
        r#"{"type":"message_stop"}"#,
    ]);
    let usage = Usage { input_tokens: 9, output_tokens: 4, ..Usage::default() };
    assert_eq!(ask(&stub, late).await.unwrap().usage, usage);
}

/// A prime, so that the cuts fall on every kind of place; each costs a connection.
const STRIDE: usize = 13;

#[tokio::test]
async fn an_answer_cut_anywhere_is_interrupted() {
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    let asked = request(MODEL, vec![user("hi")]);
    let blocks = || vec![text("é"), used("t", "bash", r#"{"a":1}"#)];
    let mut cut = 0;
    let whole = loop {
        stub.push(Reply::answer(blocks(), Stop::ToolUse).cut_after(cut));
        match router.call(&asked).await {
            Ok(answer) => break answer,
            Err(failed) => {
                assert_eq!(failed.kind, FailureKind::Interrupted, "cut after {cut}");
                assert!(failed.usage.output_tokens <= 7);
            }
        }
        cut += STRIDE;
    };
    // Only what follows the end signal may be missing.
    assert_eq!(whole.blocks, blocks());
    assert!(cut > 1_000, "{cut}");
    assert_eq!(stub.requests().len(), cut / STRIDE + 1, "a call is tried once");
}

#[tokio::test]
async fn an_orderly_end_without_the_end_signal_is_interrupted() {
    let stub = Stub::start().await.unwrap();
    let failed = ask(&stub, Reply::events([
        r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#,
    ]))
    .await
    .unwrap_err();
    assert_eq!(failed.kind, FailureKind::Interrupted);
    assert_eq!(failed.message, "the answer of anthropic ended before its end signal");
    assert_eq!(failed.usage.input_tokens, 3);
    assert_eq!(failed.usage.output_tokens, 2);
}

#[tokio::test]
async fn errors_inside_a_stream() {
    let stub = Stub::start().await.unwrap();
    for (kind, expect) in [
        ("overloaded_error", FailureKind::Overloaded),
        ("api_error", FailureKind::Overloaded),
        ("rate_limit_error", FailureKind::RateLimited),
        ("timeout_error", FailureKind::Interrupted),
        ("brand_new_error", FailureKind::Interrupted),
        ("invalid_request_error", FailureKind::Rejected),
        ("authentication_error", FailureKind::Credentials),
        ("billing_error", FailureKind::Credentials),
    ] {
        let reply = Reply::text("half").error_event(kind, &format!("sorry {KEY}"));
        let failed = ask(&stub, reply).await.unwrap_err();
        assert_eq!(failed.kind, expect, "{kind}");
        assert_eq!(
            failed.message,
            format!("anthropic broke the answer off: {kind}: sorry [redacted]")
        );
        assert_eq!(failed.usage.input_tokens, 11);
    }
}

#[tokio::test]
async fn the_stub_refuses_what_the_provider_would() {
    let stub = Stub::start().await.unwrap();
    let thinking = r#"{"type":"thinking","thinking":"hm","signature":"c2ln"}"#;
    let answer = vec![opaque(thinking), used("toolu_1", "bash", r#"{"command":"ls"}"#)];
    stub.push(Reply::answer(answer.clone(), Stop::ToolUse));
    let router: Router = router(&stub);
    router.call(&request(MODEL, vec![user("hi")])).await.unwrap();

    let with = |blocks: Vec<Block>| {
        let answer = ModelAnswer { blocks, stop: Stop::ToolUse, usage: Usage::default() };
        vec![user("hi"), said(&answer), results(&[("toolu_1", "ok")])]
    };
    let mut forged = answer.clone();
    forged[0] = opaque(&thinking.replace("hm", "ha"));
    for (messages, expect) in [
        (vec![user("hi"), said_of(&answer)], "tool use `toolu_1` has no result"),
        (with(forged), "a signed block is not as it was given out"),
        (with(vec![answer[1].clone()]), "the signed reasoning of tool use `toolu_1` is missing"),
        (vec![user("hi"), user("hi")], "roles do not alternate"),
    ] {
        let failed = router.call(&request(MODEL, messages)).await.unwrap_err();
        assert_eq!(failed.kind, FailureKind::Rejected);
        assert!(failed.message.contains(expect), "{}", failed.message);
        assert!(stub.requests().pop().unwrap().fault.is_some());
    }
    stub.push(Reply::text("done"));
    router.call(&request(MODEL, with(answer))).await.unwrap();
    assert_eq!(stub.waiting(), 0);
}

fn said_of(blocks: &[Block]) -> Message {
    said(&ModelAnswer { blocks: blocks.to_vec(), stop: Stop::ToolUse, usage: Usage::default() })
}

#[tokio::test]
async fn connections_are_used_again() {
    let stub = Stub::start().await.unwrap();
    let router = Router::new(&config(&stub), common::Keys::fixed(Some(KEY))).unwrap();
    for _ in 0..5 {
        stub.push(Reply::text("x"));
        router.call(&request(MODEL, vec![user("hi")])).await.unwrap();
    }
    assert_eq!(stub.connections(), 1);
}
