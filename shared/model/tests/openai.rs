//! Chat completions over real HTTP, against the strict stub.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail by panicking")]

mod common;

use std::sync::Arc;

use common::{KEY, Keys, config, opaque, request, results, router, said, text, used, user};
use tailstep_core::{
    content::{Content, Source},
    model::{
        Block, Broken, FailureKind, Message, ModelAnswer, ModelFailure, Part, Role, Stop, Usage,
    },
};
use tailstep_model::{
    Config, Router,
    strict::{Reply, Stub},
};
use tailstep_runtime::ports::Model;

const MODEL: &str = "openai/org/model-1";

async fn ask(stub: &Stub, reply: Reply) -> Result<ModelAnswer, ModelFailure> {
    stub.push(reply);
    let found = router(stub).call(&request(MODEL, vec![user("hi")])).await;
    let fault = stub.requests().pop().unwrap().fault;
    assert_eq!(fault, None, "the stub refused our request");
    found
}

fn delta(delta: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}],"usage":null}}"#)
}

fn finish(reason: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
}

fn stream(deltas: &[&str], reason: &str) -> Reply {
    let mut data: Vec<String> = deltas.iter().map(|piece| delta(piece)).collect();
    data.push(finish(reason));
    data.push("[DONE]".into());
    Reply::events(data)
}

fn blocks() -> Vec<Block> {
    vec![
        text("Let me look: é🦀"),
        used("call_1", "bash", r#"{"command":"echo \"é\\n🦀\"","n":1.00,"z":1,"a":2}"#),
        used("call_2", "get_weather", r#"{ "city" : "Paris", "id" : 12345678901234567890123 }"#),
    ]
}

#[tokio::test]
async fn an_answer_is_read_whatever_the_pieces() {
    let stub = Stub::start().await.unwrap();
    for size in [1, 2, 3, 5, 7, 11, 64, 1_000, 100_000] {
        let answer =
            ask(&stub, Reply::answer(blocks(), Stop::ToolUse).in_pieces([size])).await.unwrap();
        assert_eq!(answer.blocks, blocks(), "pieces of {size}");
        assert_eq!(answer.stop, Stop::ToolUse);
    }
}

#[tokio::test]
async fn a_conversation_is_rendered_and_bodies_grow_at_the_end() {
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    let mut asked = request(MODEL, vec![user("hi")]);
    asked.effort = Some("max".into());
    asked.tools.truncate(1);
    stub.push(Reply::answer(blocks(), Stop::ToolUse));
    let answer = router.call(&asked).await.unwrap();

    let mut messages = said(&answer);
    messages.parts.insert(
        0,
        match opaque(r#"{"type":"thinking"}"#) {
            Block::Opaque { dialect, raw } => Part::Opaque { dialect, raw },
            _ => unreachable!(),
        },
    );
    Arc::make_mut(&mut asked.messages).push(messages);
    let mut answered = results(&[("call_1", "ok")]);
    answered.parts.push(Part::ToolResult {
        id: "call_2".into(),
        content: vec![
            Content::text("seen"),
            Content::Image {
                source: Source::Base64 { media_type: "image/png".into(), data: "AA==".into() },
            },
        ],
        is_error: true,
    });
    answered.parts.push(Part::Content(Content::text("and?")));
    answered.parts.push(Part::Content(Content::Document {
        source: Source::Text { media_type: "text/plain".into(), data: "law".into() },
        title: Some("t".into()),
        context: None,
    }));
    Arc::make_mut(&mut asked.messages).push(answered);
    stub.push(Reply::text("done"));
    router.call(&asked).await.unwrap();

    let requests = stub.requests();
    assert_eq!(requests[0].path, "/v1/chat/completions");
    assert_eq!(requests[0].header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    let first = concat!(
        r#"{"model":"org/model-1","max_tokens":1000,"stream":true,"#,
        r#""stream_options":{"include_usage":true},"reasoning_effort":"xhigh","#,
        r#""tools":[{"type":"function","function":{"name":"bash","#,
        r#""description":"the bash tool","parameters":"#,
        r#"{"type":"object","properties":{"command":{"type":"string"}}}}}],"#,
        r#""messages":[{"role":"system","content":"Answer briefly."},"#,
        r#"{"role":"user","content":"hi"}"#,
    );
    assert_eq!(requests[0].body, format!("{first}]}}"));
    let calls: Vec<String> = blocks()
        .into_iter()
        .filter_map(|block| match block {
            Block::ToolUse { id, name, input } => Some(format!(
                r#"{{"id":"{id}","type":"function","function":{{"name":"{name}","arguments":{}}}}}"#,
                serde_json::to_string(input.as_str()).unwrap()
            )),
            _ => None,
        })
        .collect();
    let second = [
        r#"{"role":"assistant","content":"Let me look: é🦀","tool_calls":["#,
        &calls.join(","),
        r#"]},{"role":"tool","tool_call_id":"call_1","content":"ok"},"#,
        r#"{"role":"tool","tool_call_id":"call_2","#,
        r#""content":"error: seen\n\n(pictures follow in the next message)"},"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":"#,
        r#"{"url":"data:image/png;base64,AA=="}},{"type":"text","text":"and?"},"#,
        r#"{"type":"text","text":"Document: t\n\nlaw"}]}"#,
    ]
    .concat();
    assert_eq!(requests[1].body, format!("{first},{second}]}}"));
    assert_eq!(requests[1].fault, None);
}

#[tokio::test]
async fn documents_that_are_no_text_are_refused() {
    let stub = Stub::start().await.unwrap();
    let document = Content::Document {
        source: Source::Url { url: "https://x/y.pdf".into() },
        title: None,
        context: None,
    };
    let message = Message { role: Role::User, parts: vec![Part::Content(document)] };
    let failed = router(&stub).call(&request(MODEL, vec![message])).await.unwrap_err();
    assert_eq!(failed.kind, FailureKind::Rejected);
    assert!(failed.message.contains("documents as plain text only"), "{}", failed.message);
    assert_eq!(stub.requests().len(), 0);
}

#[tokio::test]
async fn every_finish_reason() {
    let stub = Stub::start().await.unwrap();
    let says = r#"{"content":"x"}"#;
    let calls = r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"bash"}}]}"#;
    let filtered = Stop::Refusal { category: Some("content_filter".into()), explanation: None };
    let declined = Stop::Refusal { category: None, explanation: Some("I cannot.".into()) };
    for (piece, reason, expect) in [
        (says, "stop", Stop::EndTurn),
        (calls, "stop", Stop::ToolUse),
        (calls, "tool_calls", Stop::ToolUse),
        (calls, "function_call", Stop::ToolUse),
        (says, "length", Stop::MaxTokens),
        (says, "content_filter", filtered),
        (r#"{"content":null,"refusal":"I cannot."}"#, "stop", declined),
        (says, "brand_new", Stop::Other { reason: "brand_new".into() }),
    ] {
        let answer = ask(&stub, stream(&[piece], reason)).await.unwrap();
        assert_eq!(answer.stop, expect, "{reason}");
        assert_eq!(answer.blocks.len(), 1);
    }
}

#[tokio::test]
async fn every_form_of_tool_arguments() {
    let stub = Stub::start().await.unwrap();
    let broken = |raw: &str, reason| Block::BrokenToolUse {
        id: "c".into(),
        name: "bash".into(),
        raw: raw.into(),
        reason,
    };
    for (arguments, reason, expect) in [
        ("\"\"", "tool_calls", used("c", "bash", "{}")),
        ("null", "tool_calls", used("c", "bash", "{}")),
        ("\"null\"", "tool_calls", used("c", "bash", "{}")),
        (r#""{\"a\": 1.00}""#, "tool_calls", used("c", "bash", r#"{"a": 1.00}"#)),
        (r#"{"a": 1.00}"#, "tool_calls", used("c", "bash", r#"{"a": 1.00}"#)),
        (r#""{\"a\": ""#, "length", broken("{\"a\": ", Broken::Cut)),
        (r#""{\"a\": ""#, "tool_calls", broken("{\"a\": ", Broken::Malformed)),
        (r#""{\"a\": ]}""#, "length", broken("{\"a\": ]}", Broken::Malformed)),
        (r#""[1]""#, "tool_calls", broken("[1]", Broken::Malformed)),
    ] {
        let piece = format!(
            r#"{{"tool_calls":[{{"index":0,"id":"c","type":"function",
                "function":{{"name":"bash","arguments":{arguments}}}}}]}}"#
        );
        let answer = ask(&stub, stream(&[&piece], reason)).await.unwrap();
        assert_eq!(answer.blocks, [expect], "{arguments} {reason}");
    }
    // A call that ran into the limit, reported as an ordinary end.
    let silent = Reply::events([
        delta(
            r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"bash","arguments":"{\"a"}}]}"#,
        ),
        finish("tool_calls"),
        r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1000}}"#.into(),
        "[DONE]".into(),
    ]);
    let answer = ask(&stub, silent).await.unwrap();
    assert_eq!(answer.blocks, [broken("{\"a", Broken::Cut)]);
}

#[tokio::test]
async fn calls_are_told_apart_however_servers_number_them() {
    let stub = Stub::start().await.unwrap();
    let expect = [used("a", "bash", r#"{"x":1}"#), used("b", "bash", r#"{"y":2}"#)];
    for deltas in [
        // As OpenAI does it.
        vec![
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"bash","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":1"}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"bash","arguments":"{\"y\""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"}"}},{"index":1,"function":{"arguments":":2}"}}]}"#,
        ],
        // Every call is number 0.
        vec![
            r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"bash","arguments":"{\"x\":1}"}}]}"#,
            r#"{"tool_calls":[{"index":0,"id":"b","function":{"name":"bash","arguments":"{\"y\":2}"}}]}"#,
        ],
        // No numbers, and the id and name again in each piece.
        vec![
            r#"{"tool_calls":[{"id":"a","function":{"name":"bash","arguments":"{\"x\""}}]}"#,
            r#"{"tool_calls":[{"id":"a","function":{"name":"bash","arguments":":1}"}}]}"#,
            r#"{"tool_calls":[{"id":"b","function":{"name":"bash","arguments":"{\"y\":2"}}]}"#,
            r#"{"tool_calls":[{"function":{"arguments":"}"}}]}"#,
        ],
    ] {
        let answer = ask(&stub, stream(&deltas, "tool_calls")).await.unwrap();
        assert_eq!(answer.blocks, expect, "{deltas:?}");
    }
    // No ids at all: ours differ from answer to answer.
    let bare = r#"{"tool_calls":[{"index":0,"function":{"name":"bash","arguments":"{}"}},
        {"index":1,"function":{"name":"bash","arguments":"{}"}}]}"#;
    let answer = ask(&stub, stream(&[bare], "tool_calls")).await.unwrap();
    assert_eq!(answer.blocks, [used("call_0_0", "bash", "{}"), used("call_0_1", "bash", "{}")]);
}

#[tokio::test]
async fn cached_tokens_are_taken_out_of_the_prompt() {
    let stub = Stub::start().await.unwrap();
    let answer = ask(
        &stub,
        Reply::events([
            delta(r#"{"content":"x"}"#),
            finish("stop"),
            r#"{"choices":[],"usage":{"prompt_tokens":327079,"completion_tokens":2096,
            "prompt_tokens_details":{"cached_tokens":284672}}}"#
                .into(),
            "[DONE]".into(),
        ]),
    )
    .await
    .unwrap();
    assert_eq!(
        answer.usage,
        Usage {
            input_tokens: 42_407,
            output_tokens: 2_096,
            cache_read_input_tokens: 284_672,
            cache_write_input_tokens: 0,
        }
    );
}

#[tokio::test]
async fn what_makes_an_answer_whole() {
    let stub = Stub::start().await.unwrap();
    let x = delta(r#"{"content":"x"}"#);
    let end = finish("stop");
    for (bytes, whole) in [
        (format!("data: {x}\n\ndata: {end}\n\ndata: [DONE]\n\n"), true),
        (format!("data: {x}\n\ndata: {end}\n\n"), true),
        (format!("data: {x}\r\n\r\ndata: {end}"), true),
        (format!(": OPENROUTER PROCESSING\n\ndata: {x}\n\ndata: {end}\n\ndata: [DONE]"), true),
        (format!("data: {x}\n\ndata: [DONE]\n\n"), false),
        (format!("data: {x}\n\n"), false),
        (String::new(), false),
    ] {
        let found = ask(&stub, Reply::stream(bytes.clone())).await;
        match found {
            Ok(answer) => assert!(whole && answer.blocks == [text("x")], "{bytes}"),
            Err(failed) => {
                assert!(!whole && failed.kind == FailureKind::Interrupted, "{bytes} {failed:?}");
            }
        }
    }
}

/// A prime, so that the cuts fall on every kind of place; each costs a connection.
const STRIDE: usize = 13;

#[tokio::test]
async fn an_answer_cut_anywhere_is_interrupted() {
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    let asked = request(MODEL, vec![user("hi")]);
    let mut cut = 0;
    let whole = loop {
        stub.push(Reply::answer(blocks(), Stop::ToolUse).cut_after(cut));
        match router.call(&asked).await {
            Ok(answer) => break answer,
            Err(failed) => assert_eq!(failed.kind, FailureKind::Interrupted, "cut after {cut}"),
        }
        cut += STRIDE;
    };
    assert_eq!(whole.blocks, blocks());
    assert!(cut > 1_000, "{cut}");
}

#[tokio::test]
async fn errors_inside_a_stream() {
    let stub = Stub::start().await.unwrap();
    for (kind, expect) in [
        ("server_error", FailureKind::Overloaded),
        ("rate_limit_exceeded", FailureKind::RateLimited),
        ("insufficient_quota", FailureKind::Credentials),
        ("context_length_exceeded", FailureKind::Rejected),
        ("odd", FailureKind::Interrupted),
    ] {
        let reply = Reply::text("half").error_event(kind, &format!("sorry {KEY}"));
        let failed = ask(&stub, reply).await.unwrap_err();
        assert_eq!(failed.kind, expect, "{kind}");
        assert!(failed.message.ends_with(&format!("{kind}: sorry [redacted]")));
    }
}

#[tokio::test]
async fn a_server_that_wants_no_key_needs_none() {
    let stub = Stub::start().await.unwrap();
    let bare = Router::new(&config(&stub), Keys::fixed(None)).unwrap();
    stub.push(Reply::text("ok"));
    bare.call(&request(MODEL, vec![user("hi")])).await.unwrap();
    assert_eq!(stub.requests()[0].header("authorization"), None);

    stub.accept_only("another");
    let failed = bare.call(&request(MODEL, vec![user("hi")])).await.unwrap_err();
    assert_eq!(failed.kind, FailureKind::Credentials);
    assert_eq!(
        failed.message,
        "no key for the openai-compatible server: set the secret `openai_api_key` (in local mode \
         the variable OPENAI_API_KEY)"
    );
}

#[tokio::test]
async fn without_an_address_there_is_no_provider() {
    let router = Router::new(&Config::default(), Keys::fixed(Some(KEY))).unwrap();
    let told = router.check(MODEL).unwrap_err();
    assert!(told.contains("TAILSTEP_OPENAI_BASE_URL"), "{told}");
    let failed = router.call(&request(MODEL, vec![user("hi")])).await.unwrap_err();
    assert_eq!((failed.kind, failed.message), (FailureKind::Rejected, told));
}
