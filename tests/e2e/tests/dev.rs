//! `tailstep dev` from the outside.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::json;
use tests_e2e::{Built, Dev, dev::KEY, http, run};

const TURN: Duration = Duration::from_secs(30);

#[test]
fn a_session_runs_and_a_clean_stop_keeps_it() {
    let data = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(data.path(), &[], &[]).unwrap();
    assert!(dev.printed.is_empty(), "a given key is not shown: {:?}", dev.printed);
    let session = dev.session("scripted/echo").unwrap();
    dev.say(&session, "Use the bash tool to run exactly: echo secret-word").unwrap();
    let events = dev.rest(&session, TURN).unwrap();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    for expected in ["agent.tool_use", "agent.tool_result", "agent.message", "session.status_idle"]
    {
        assert!(types.contains(&expected), "{types:?}");
    }
    let log = dev.log_lines();
    dev.signal(Signal::TERM);
    assert!(dev.wait(Duration::from_secs(5)).unwrap().success());

    let mut actions = Vec::new();
    for (_, line) in &log {
        let line: serde_json::Value = serde_json::from_str(line).expect("each log line is JSON");
        if line["message"] == "step" {
            assert_eq!(line["session"], session.as_str());
            assert!(
                line["seq"].is_u64() && line["effect_ms"].is_u64() && line["attempt"] == 1,
                "{line}"
            );
            assert_eq!(line["outcome"], "Done");
            actions.push(line["action"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(actions, ["model", "tool", "model"], "one line a step");
    assert!(!log.iter().any(|(_, line)| line.contains("secret-word")), "content is in the log");

    let again = Dev::start(data.path(), &[], &[]).unwrap();
    assert_eq!(again.events(&session).unwrap(), events);
}

#[test]
fn the_first_start_makes_a_key_and_shows_it_once() {
    let data = tempfile::tempdir().unwrap();
    let start = || Dev::start(data.path(), &["--no-hands"], &[("TAILSTEP_API_KEY", "")]).unwrap();
    let dev = start();
    let [line] = &dev.printed[..] else { panic!("{:?}", dev.printed) };
    let key = line.strip_prefix("api key: ").unwrap().split(' ').next().unwrap().to_owned();
    let status = |dev: &Dev, key: &str| {
        http::call(&dev.url, "GET", "/v1/agents", Some(key), None).unwrap().0
    };
    assert_eq!((status(&dev, &key), status(&dev, "wrong"), status(&dev, KEY)), (200, 401, 401));
    drop(dev);
    for file in fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let content = if file.is_file() { fs::read(&file).unwrap() } else { Vec::new() };
        assert!(!contains(&content, key.as_bytes()), "the key itself is in {}", file.display());
    }
    let dev = start();
    assert!(dev.printed.is_empty(), "{:?}", dev.printed);
    assert_eq!(status(&dev, &key), 200);
}

fn contains(content: &[u8], text: &[u8]) -> bool {
    content.windows(text.len()).any(|window| window == text)
}

#[test]
fn what_prevents_a_start_is_one_line_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = run(folder.path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(output.stdout.is_empty());
        for word in words {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    };
    refused(&["dev", "--listen", &address], &[&address, "in use", "--listen"]);
    refused(&["dev", "--listen", "nonsense"], &["nonsense", "--listen"]);
    refused(&["dev", "--listen", "127.0.0.1:0", "--log", "=%"], &["--log"]);

    let data = folder.path().join("held");
    let held = Dev::start(&data, &["--no-hands"], &[]).unwrap();
    let held_at = data.to_str().unwrap();
    refused(&["dev", "--listen", "127.0.0.1:0", "--data", held_at], &["in use", "--data"]);
    refused(&["sessions", "--data", held_at], &["in use", "--data"]);
    drop(held);

    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(
        foreign.join("tailstep.db"),
        "not a database, but long enough to be looked at\n".repeat(100),
    )
    .unwrap();
    refused(&["dev", "--listen", "127.0.0.1:0", "--data", foreign.to_str().unwrap()], &["--data"]);
}

#[test]
fn a_data_directory_of_a_newer_version_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    drop(Dev::start(&data, &["--no-hands"], &[]).unwrap());
    // SQLite keeps the format's number in bytes 60 to 63 of the first page.
    let file = data.join("tailstep.db");
    let mut content = fs::read(&file).unwrap();
    content[60..64].copy_from_slice(&9_999u32.to_be_bytes());
    fs::write(&file, &content).unwrap();
    let _ = fs::remove_file(data.join("tailstep.db-wal"));
    let output =
        run(folder.path(), &["dev", "--listen", "127.0.0.1:0", "--no-hands", "--data", "data"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("9999") && said.contains("upgrade") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(fs::read(&file).unwrap(), content, "nothing was written");
}

#[test]
fn without_hands_a_tool_answers_an_error() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--no-hands"], &[]).unwrap();
    let session = dev.session("scripted/echo").unwrap();
    dev.say(&session, "Use the bash tool to run exactly: true").unwrap();
    let events = dev.rest(&session, TURN).unwrap();
    let result = events.iter().find(|event| event["type"] == "agent.tool_result").unwrap();
    assert_eq!(result["is_error"], true);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("--no-hands"), "{result}");
}

#[test]
fn scripted_ids_are_announced() {
    let data = tempfile::tempdir().unwrap();
    let arguments = ["--no-hands", "--scripted-model", "some-real-id"];
    let dev = Dev::start(data.path(), &arguments, &[]).unwrap();
    let session = dev.session("some-real-id").unwrap();
    dev.say(&session, "Reply with exactly this text: hi").unwrap();
    let events = dev.rest(&session, TURN).unwrap();
    assert!(
        events
            .iter()
            .any(|event| event["content"][0]["text"] == "hi" && event["type"] == "agent.message")
    );
    let said = dev.log_lines();
    assert!(
        said.iter()
            .any(|(_, line)| line.contains("some-real-id") && line.contains("scripted/echo")),
        "{said:?}"
    );
}

#[test]
fn a_signal_ends_it_in_mid_step_and_a_second_one_at_once() {
    let data = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(data.path(), &[], &[]).unwrap();
    let session = dev.session("scripted/echo").unwrap();
    dev.say(&session, "Use the bash tool to run exactly: sleep 100").unwrap();
    let tool_runs =
        |dev: &Dev| dev.events(&session).unwrap().iter().any(|e| e["type"] == "agent.tool_use");
    let until = Instant::now() + TURN;
    while !tool_runs(&dev) {
        assert!(Instant::now() < until, "the tool does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let asked = Instant::now();
    dev.signal(Signal::TERM);
    assert!(dev.wait(Duration::from_secs(8)).unwrap().success());
    assert!(asked.elapsed() > Duration::from_millis(500), "the step was given no time");

    // The abandoned call is taken up by the next start; there it is stopped by its user.
    let mut dev = Dev::start(data.path(), &[], &[]).unwrap();
    let interrupt = json!({ "events": [{ "type": "user.interrupt" }] });
    dev.ok("POST", &format!("/v1/sessions/{session}/events"), Some(&interrupt)).unwrap();
    dev.rest(&session, TURN).unwrap();
    dev.say(&session, "Use the bash tool to run exactly: sleep 100").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let asked = Instant::now();
    dev.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(200));
    dev.signal(Signal::INT);
    dev.wait(Duration::from_secs(2)).unwrap();
    assert!(asked.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_stop_ends_event_streams_cleanly() {
    let data = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(data.path(), &["--no-hands"], &[]).unwrap();
    let session = dev.session("scripted/echo").unwrap();
    let host = dev.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(TURN)).unwrap();
    write!(stream, "GET /v1/sessions/{session}/events/stream HTTP/1.1\r\nhost: {host}\r\nx-api-key: {KEY}\r\n\r\n").unwrap();
    dev.say(&session, "Reply with exactly this text: hi").unwrap();
    dev.rest(&session, TURN).unwrap();
    let asked = Instant::now();
    dev.signal(Signal::TERM);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("session.status_idle") && answer.ends_with("\r\n0\r\n\r\n"),
        "{answer}"
    );
    assert!(dev.wait(Duration::from_secs(5)).unwrap().success());
    assert!(asked.elapsed() < Duration::from_secs(2), "an open stream kept it");
}

#[test]
fn help_and_mistakes_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let help = run(folder.path(), &["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8(help.stdout).unwrap();
    for command in ["dev", "run", "sessions", "logs"] {
        assert!(text.contains(command), "{text}");
    }
    for arguments in [&["dev", "--workers", "0"][..], &["nonsense"], &["run"], &[]] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
    assert!(!folder.path().join(".tailstep").exists(), "a mistake makes no data directory");
}

#[test]
fn a_reader_who_leaves_ends_it_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        ["run", "--model", "scripted/echo", "--json", "Take 5 steps with the bash tool: true"];
    let mut command = Built::get().command();
    let mut child = command
        .args(arguments)
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}
