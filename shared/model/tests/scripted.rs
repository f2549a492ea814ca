//! The scripted model.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail by panicking")]

mod common;

use std::{fs, sync::Arc, time::Instant};

use common::{Keys, request, results, said, text, used, user};
use tailstep_core::{
    content::{Content, Source},
    model::{
        Block, Broken, FailureKind, Message, ModelAnswer, ModelRequest, Part, Role, Stop, Usage,
    },
};
use tailstep_model::{Config, Router, scripted::Scripted, strict::validate_messages};
use tailstep_runtime::ports::Model;

async fn echo(request: &ModelRequest) -> ModelAnswer {
    validate_messages(request).unwrap();
    let answer = Scripted::new(None).call("echo", request).await.unwrap();
    let again = Scripted::new(None).call("echo", request).await.unwrap();
    assert_eq!(answer, again, "the same request gets the same answer");
    assert!(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0);
    answer
}

async fn first(asked: &str) -> ModelAnswer {
    echo(&request("scripted/echo", vec![user(asked)])).await
}

#[tokio::test]
async fn plain_requests() {
    for (asked, block, stop) in [
        ("Reply with exactly this text: CONF-1 é", text("CONF-1 é"), Stop::EndTurn),
        ("Reply with exactly this text: a\nb ", text("a\nb"), Stop::EndTurn),
        (
            "Use the bash tool to run exactly: echo \"x\" && true",
            used("toolu_0_0_0", "bash", r#"{"command":"echo \"x\" && true"}"#),
            Stop::ToolUse,
        ),
        (
            "Call the get_weather tool for city Paris.",
            used("toolu_0_0_0", "get_weather", r#"{"city":"Paris"}"#),
            Stop::ToolUse,
        ),
        (
            "Call the get_weather tool for city San José",
            used("toolu_0_0_0", "get_weather", r#"{"city":"San José"}"#),
            Stop::ToolUse,
        ),
        (
            "Call the launch tool for city Paris.",
            text("I was not given a tool named launch."),
            Stop::EndTurn,
        ),
        (
            "hello",
            text("This is the scripted model, no real one is behind it. You said: hello"),
            Stop::EndTurn,
        ),
    ] {
        let answer = first(asked).await;
        assert_eq!((answer.blocks, answer.stop), (vec![block], stop), "{asked}");
    }
    let picture = Content::Image { source: Source::Url { url: "https://x/y.png".into() } };
    let message = Message { role: Role::User, parts: vec![Part::Content(picture)] };
    let answer = echo(&request("scripted/echo", vec![message])).await;
    assert_eq!(
        answer.blocks,
        [text("This is the scripted model, no real one is behind it. You sent no text.")]
    );
}

#[tokio::test]
async fn a_result_is_quoted_and_the_next_request_is_new_work() {
    let mut messages = vec![user("Use the bash tool to run exactly: ls")];
    let answer = echo(&request("scripted/echo", messages.clone())).await;
    messages.push(said(&answer));
    messages.push(results(&[("toolu_0_0_0", "\na.txt\nb.txt\n")]));
    let answer = echo(&request("scripted/echo", messages.clone())).await;
    assert_eq!(answer.blocks, [text("The tool answered: a.txt")]);

    messages.push(said(&answer));
    messages.push(user("Use the bash tool to run exactly: pwd"));
    let answer = echo(&request("scripted/echo", messages.clone())).await;
    assert_eq!(answer.blocks, [used("toolu_2_2_0", "bash", r#"{"command":"pwd"}"#)]);

    // The turn was stopped: the result and the next words are in one message.
    messages.push(said(&answer));
    messages.push(Message {
        role: Role::User,
        parts: vec![
            Part::ToolResult {
                id: "toolu_2_2_0".into(),
                content: vec![Content::text("stopped")],
                is_error: true,
            },
            Part::Content(Content::text("Reply with exactly this text: B")),
        ],
    });
    let answer = echo(&request("scripted/echo", messages.clone())).await;
    assert_eq!(answer.blocks, [text("B")]);

    messages.truncate(6);
    messages.push(Message {
        role: Role::User,
        parts: vec![Part::ToolResult {
            id: "toolu_2_2_0".into(),
            content: vec![Content::text("denied by the user")],
            is_error: true,
        }],
    });
    let answer = echo(&request("scripted/echo", messages)).await;
    assert_eq!(answer.blocks, [text("The tool failed: denied by the user")]);
}

/// Runs a request until the answer calls no tool, and returns the whole conversation.
async fn run(mut messages: Vec<Message>) -> (Vec<Message>, usize) {
    let mut calls = 0;
    loop {
        let asked = request("scripted/echo", messages);
        let answer = Scripted::new(None).call("echo", &asked).await.unwrap();
        messages = asked.messages.to_vec();
        messages.push(said(&answer));
        let Some(Block::ToolUse { id, input, .. }) = answer.blocks.first() else {
            return (messages, calls);
        };
        assert_eq!(input.as_str(), r#"{"command":"true"}"#);
        messages.push(results(&[(id, "ok")]));
        calls += 1;
    }
}

#[tokio::test]
async fn steps_are_taken_one_after_another() {
    for count in [0, 1, 40] {
        let asked = format!("Take {count} steps with the bash tool: true");
        let before = vec![user("hello"), said(&first("hello").await)];
        let (messages, calls) = run([before, vec![user(&asked)]].concat()).await;
        assert_eq!(calls, count);
        assert_eq!(
            messages.last().unwrap().parts,
            [Part::Content(Content::text(format!("done after {count} steps")))]
        );
        let mut whole = request("scripted/echo", messages);
        Arc::make_mut(&mut whole.messages).push(user("more"));
        validate_messages(&whole).unwrap();
    }
}

#[tokio::test]
async fn ids_of_others_are_looked_behind() {
    let call = ModelAnswer {
        blocks: vec![used("call_x", "bash", r#"{"command":"true"}"#)],
        stop: Stop::ToolUse,
        usage: Usage::default(),
    };
    let asked = user("Take 2 steps with the bash tool: true");
    let messages = vec![asked, said(&call), results(&[("call_x", "ok")])];
    let (messages, calls) = run(messages).await;
    assert_eq!((calls, messages.len()), (1, 6));
}

#[tokio::test]
async fn the_two_thousandth_step_costs_as_much_as_the_first() {
    let start = vec![user("Take 2000 steps with the bash tool: true")];
    let (mut messages, calls) = run(start).await;
    assert_eq!(calls, 2_000);
    messages.pop();
    let last = request("scripted/echo", messages.clone());
    messages.truncate(3);
    let early = request("scripted/echo", messages);
    let time = |request: &ModelRequest| {
        let scripted = Scripted::new(None);
        let request = request.clone();
        async move {
            let begun = Instant::now();
            for _ in 0..2_000 {
                scripted.call("echo", &request).await.unwrap();
            }
            begun.elapsed()
        }
    };
    // The best of several, so that a busy machine does not decide; a walk through the messages
    // would be some hundred times slower.
    let mut ratio = f64::MAX;
    for _ in 0..5 {
        ratio = ratio.min(time(&last).await.as_secs_f64() / time(&early).await.as_secs_f64());
    }
    assert!(ratio < 3.0, "{ratio}");
}

struct Scripts {
    folder: tempfile::TempDir,
    scripted: Scripted,
}

impl Scripts {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("scripts/deep")).unwrap();
        fs::write(folder.path().join("secret.json"), "[]").unwrap();
        let scripted = Scripted::new(Some(folder.path().join("scripts")));
        Self { folder, scripted }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join("scripts").join(name), text).unwrap();
    }
}

#[tokio::test]
async fn a_script_is_played_by_the_conversation_alone() {
    let scripts = Scripts::new();
    scripts.write(
        "demo.json",
        r#"[
          {"note": "looks first", "expect": "fix", "blocks": [
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "name": "read", "input": {"path": "a", "n": 1.00}},
            {"type": "broken_tool_use", "name": "bash", "arguments": "{\"a", "reason": "cut"}]},
          {"expect": "1 failed", "blocks": [{"type": "opaque", "dialect": "anthropic", "raw": {"b": 1.0}},
            {"type": "text", "text": "hm"}], "stop": "max_tokens", "usage":
            {"input_tokens": 5, "output_tokens": 6}},
          {"failure": {"kind": "overloaded", "message": "busy", "retry_after_ms": 1500}}
        ]"#,
    );
    let play = async |messages: Vec<Message>| {
        scripts.scripted.call("demo", &request("scripted/demo", messages)).await
    };
    let mut messages = vec![user("please fix it")];
    let answer = play(messages.clone()).await.unwrap();
    assert_eq!(play(messages.clone()).await.unwrap(), answer);
    let cut = Block::BrokenToolUse {
        id: "toolu_0_0_2".into(),
        name: "bash".into(),
        raw: "{\"a".into(),
        reason: Broken::Cut,
    };
    assert_eq!(
        answer.blocks,
        [text("Looking."), used("toolu_0_0_1", "read", r#"{"path": "a", "n": 1.00}"#), cut,]
    );
    assert_eq!(answer.stop, Stop::ToolUse);

    messages.push(said(&answer));
    messages.push(results(&[("toolu_0_0_1", "all passed"), ("toolu_0_0_2", "cut")]));
    let failed = play(messages.clone()).await.unwrap_err();
    assert_eq!(failed.kind, FailureKind::Rejected);
    assert_eq!(failed.message, "script `demo`, turn 2: expected `1 failed` in the last message");
    messages.pop();
    messages.push(results(&[("toolu_0_0_1", "1 failed"), ("toolu_0_0_2", "cut")]));
    let answer = play(messages.clone()).await.unwrap();
    assert_eq!(answer.stop, Stop::MaxTokens);
    assert_eq!((answer.usage.input_tokens, answer.usage.output_tokens), (5, 6));

    messages.push(said(&answer));
    messages.push(user("go on"));
    let failed = play(messages.clone()).await.unwrap_err();
    assert_eq!(failed.kind, FailureKind::Overloaded);
    assert_eq!((failed.message.as_str(), failed.retry_after_ms), ("busy", Some(1_500)));
    messages.push(said(&answer));
    messages.push(user("go on"));
    let failed = play(messages).await.unwrap_err();
    assert_eq!(failed.message, "script `demo` is at its end: it has 3 turns");
}

#[tokio::test]
async fn a_paused_answer_goes_on() {
    let scripts = Scripts::new();
    scripts.write(
        "pause.json",
        r#"[
          {"blocks": [{"type": "text", "text": "a"}, {"type": "text", "text": " "}], "stop": "pause"},
          {"blocks": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}], "stop": "pause"},
          {"blocks": [{"type": "tool_use", "name": "bash"}]},
          {"blocks": [{"type": "text", "text": "end"}]}
        ]"#,
    );
    let mut messages = vec![user("hi")];
    let mut so_far = Vec::new();
    for expect in [Stop::Pause, Stop::Pause, Stop::ToolUse] {
        let asked = request("scripted/pause", messages.clone());
        let answer = scripts.scripted.call("pause", &asked).await.unwrap();
        assert_eq!(answer.stop, expect);
        so_far.extend(said(&answer).parts);
        messages.truncate(1);
        messages.push(Message { role: Role::Assistant, parts: so_far.clone() });
    }
    let Some(Part::ToolUse { id, .. }) = so_far.last() else { panic!("{so_far:?}") };
    messages.push(results(&[(id, "ok")]));
    let answer =
        scripts.scripted.call("pause", &request("scripted/pause", messages)).await.unwrap();
    assert_eq!(answer.blocks, [text("end")]);
}

#[tokio::test]
async fn scripts_stay_in_their_folder_and_faults_are_named() {
    let scripts = Scripts::new();
    scripts.write("deep/ok.json", "[]");
    scripts.write("faulty.json", r#"[{"blocks": [{"type": "text"}]}]"#);
    scripts.write("typo.json", r#"[{"block": []}]"#);
    scripts.write(
        "both.json",
        r#"[{"blocks": [{"type":"text","text":"x"}], "failure": {"kind": "overloaded"}}]"#,
    );
    scripts.write("list.json", r#"[{"blocks": [{"type":"tool_use","name":"x","input":[1]}]}]"#);
    std::os::unix::fs::symlink("../secret.json", scripts.folder.path().join("scripts/link.json"))
        .unwrap();
    for (name, told) in [
        ("deep/ok", None),
        ("deep/ok.json", None),
        ("gone", Some("there is no script `gone`")),
        ("../secret", Some("must be a path below the script folder")),
        ("deep/../../secret", Some("must be a path below the script folder")),
        ("/etc/passwd", Some("must be a path below the script folder")),
        ("link", Some("must be a path below the script folder")),
        ("faulty", Some("turn 1: a text block needs a `text`")),
        ("typo", Some("unknown field `block`")),
        ("both", Some("turn 1: has both blocks and a failure")),
        ("list", Some("turn 1: the `input` of a tool use must be an object")),
    ] {
        match (scripts.scripted.check(name), told) {
            (Ok(()), None) => {}
            (Err(said), Some(told)) => assert!(said.contains(told), "{said}"),
            (found, told) => panic!("{name}: {found:?}, not {told:?}"),
        }
    }
    // A script that changes is read again.
    scripts.write("deep/ok.json", r#"[{"blocks": [{"type": "text", "text": "new"}]}]"#);
    let asked = request("scripted/deep/ok", vec![user("hi")]);
    let answer = scripts.scripted.call("deep/ok", &asked).await.unwrap();
    assert_eq!(answer.blocks, [text("new")]);
}

#[tokio::test]
async fn a_script_waits_only_when_it_says_so() {
    let scripts = Scripts::new();
    scripts.write("slow.json", r#"[{"delay_ms": 120, "blocks": [{"type": "text", "text": "x"}]}]"#);
    let config =
        Config { script_root: Some(scripts.folder.path().join("scripts")), ..Config::default() };
    let router = Router::new(&config, Keys::fixed(None)).unwrap();
    let begun = Instant::now();
    router.call(&request("scripted/slow", vec![user("hi")])).await.unwrap();
    assert!(begun.elapsed().as_millis() >= 120);
}
