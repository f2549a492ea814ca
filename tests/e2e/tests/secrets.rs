//! Canary secrets wherever the server has some, and a session that looks for them: none may appear in
//! what the model, the client or the operator's log is shown, or in what is stored.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::json;
use tests_e2e::{
    Dev,
    dev::{CANARY, KEY},
    http,
};

const TURN: Duration = Duration::from_secs(120);

const NAMES: [&str; 9] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "DATABASE_URL",
    "EGRESS_API",
    "HARMLESS_LOOKING",
];

#[test]
fn canaries_show_nowhere() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("secrets.json");
    fs::write(&file, json!({ "stored_key": format!("{CANARY}-stored") }).to_string()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let values: Vec<(&str, String)> =
        NAMES.iter().map(|name| (*name, format!("{CANARY}-{name}"))).collect();
    let environment: Vec<(&str, &str)> =
        values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let provider = refusing_provider();
    let environment: Vec<(&str, &str)> =
        environment.into_iter().chain([("TAILSTEP_OPENAI_BASE_URL", provider.as_str())]).collect();
    let mut dev = Dev::start(data.path(), &["--log", "trace"], &environment).unwrap();
    let session = dev.session("scripted/echo").unwrap();
    let at = data.path().display();
    for command in [
        "env; set; export -p".to_owned(),
        "cat /proc/*/environ /proc/*/cmdline /proc/*/task/*/environ | tr '\\0' '\\n'; true"
            .to_owned(),
        "ls -la /proc/*/fd /proc/*/cwd /proc/*/root; true".to_owned(),
        "for m in /proc/[0-9]*/maps; do head -c 100000 $m; done; grep -a canary /proc/*/mem; true"
            .to_owned(),
        format!(
            "cat {at}/secrets.json; grep -r canary {at} /workspace /tmp /mnt /run /dev/shm; true"
        ),
        "echo ${!AWS_*} ${!ANTHROPIC_*} ${!EGRESS_*}; true".to_owned(),
    ] {
        // What is searched for must not be what is found.
        let command = command.replace("canary", "c[a]nary");
        dev.say(&session, &format!("Use the bash tool to run exactly: {command}")).unwrap();
        dev.rest(&session, TURN).unwrap();
    }
    let events = dev.events(&session).unwrap();
    let results = events.iter().filter(|event| event["type"] == "agent.tool_result").count();
    assert_eq!(results, 6, "each command ran");
    clean("the events", json!(events).to_string().as_bytes());
    // A provider that answers with the very key it was sent.
    let refused = dev.session("openai/echo-my-key").unwrap();
    dev.say(&refused, "hello").unwrap();
    let said = json!(dev.rest(&refused, TURN).unwrap()).to_string();
    assert!(said.contains("session.error"), "{said}");
    clean("the error of a provider", said.as_bytes());
    let url = dev.url.clone();
    clean("an answer to broken JSON", &broken_request(&url));
    for (method, path, key, body) in [
        ("POST", "/v1/agents", KEY, json!({ "name": 7 })),
        ("POST", "/v1/agents", "wrong-key", json!({})),
        ("GET", "/v1/no/such/route", KEY, json!(null)),
        (
            "POST",
            "/v1/sessions",
            KEY,
            json!({ "agent": "agent_none", "environment_id": "env_none" }),
        ),
    ] {
        let body = Some(&body).filter(|body| !body.is_null());
        let answer = http::call(&url, method, path, Some(key), body).unwrap();
        clean(path, format!("{answer:?}").as_bytes());
    }
    dev.signal(Signal::TERM);
    dev.wait(Duration::from_secs(30)).unwrap();
    let log = dev.log_lines();
    let steps = log.iter().filter(|(_, line)| line.contains("\"step\"")).count();
    assert!(steps >= 12, "{steps} steps in {} lines of log", log.len());
    for (_, line) in log {
        clean("the log", line.as_bytes());
    }
    for stored in files(data.path()).iter().filter(|stored| **stored != file) {
        clean(&stored.display().to_string(), &fs::read(stored).unwrap());
    }
}

/// A model provider that refuses every call, and repeats the credential in doing so.
fn refusing_provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut request = BufReader::new(client.try_clone().unwrap());
            let (mut line, mut key) = (String::new(), String::new());
            while line != "\r\n" {
                line.clear();
                request.read_line(&mut line).unwrap();
                if line.to_ascii_lowercase().starts_with("authorization:") {
                    key = line.trim().to_owned();
                }
            }
            assert!(key.contains(CANARY), "the provider is sent its key: {key}");
            let body = json!({ "error": { "message": format!("bad key: {key}") } }).to_string();
            let head = "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json";
            let length = body.len();
            let answer =
                format!("{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            let _ = client.write_all(answer.as_bytes());
        }
    });
    url
}

fn broken_request(url: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    write!(
        stream,
        "POST /v1/agents HTTP/1.1\r\nHost: h\r\nx-api-key: {KEY}\r\nConnection: close\r\n\
         Content-Length: 9\r\n\r\n{{\"name\": "
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    answer
}

#[track_caller]
fn clean(what: &str, bytes: &[u8]) {
    let found = bytes.windows(CANARY.len()).position(|window| window == CANARY.as_bytes());
    let around = found.map(|at| {
        let from = at.saturating_sub(60);
        String::from_utf8_lossy(&bytes[from..(at + 60).min(bytes.len())]).into_owned()
    });
    assert_eq!(around, None, "a secret shows in {what}");
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}
