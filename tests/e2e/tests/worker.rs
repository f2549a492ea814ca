//! `tailstep dev` and `tailstep worker` as two processes: calls are run, a worker that is killed in
//! the middle of one costs no result, and a key stays where it belongs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests_e2e::{Built, Dev, dev::KEY};

/// A debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shortest lease there is.
const LEASE: &str = "2";

/// A server, and an environment whose sessions need workers.
struct Stage {
    folder: TempDir,
    dev: Dev,
    environment: String,
    key: String,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dev = Dev::start(&folder.path().join("data"), &[], &[]).unwrap();
        let body = json!({ "name": "outside", "config": { "type": "self_hosted" } });
        let environment = text(&dev.ok("POST", "/v1/environments", Some(&body)).unwrap()["id"]);
        let path = format!("/v1/x/environments/{environment}/keys");
        let key = text(&dev.ok("POST", &path, None).unwrap()["key"]);
        Self { folder, dev, environment, key }
    }

    fn session(&self) -> String {
        self.session_with(&json!([]))
    }

    fn session_with(&self, skills: &Value) -> String {
        let agent = json!({
            "name": "e2e", "model": "scripted/echo", "skills": skills,
            "tools": [{ "type": "agent_toolset_20260401" }],
        });
        let agent = self.dev.ok("POST", "/v1/agents", Some(&agent)).unwrap();
        let body = json!({ "agent": agent["id"], "environment_id": self.environment });
        text(&self.dev.ok("POST", "/v1/sessions", Some(&body)).unwrap()["id"])
    }

    fn worker(&self, name: &str, arguments: &[&str]) -> Worker {
        let workdir = self.folder.path().join(name);
        let log = self.folder.path().join(format!("{name}.log"));
        let mut command = Built::get().command();
        command.args(["worker", "--environment", &self.environment, "--base-url", &self.dev.url]);
        command.arg("--workdir").arg(&workdir).args(arguments);
        command.env("ANTHROPIC_ENVIRONMENT_KEY", &self.key);
        command.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Worker { child: command.spawn().unwrap(), workdir, log }
    }

    /// Waits until the session's last turn has ended, and gives its events.
    fn ended(&self, session: &str) -> Vec<Value> {
        let mut events = Vec::new();
        until("the turn ends", || {
            events = self.dev.events(session).unwrap();
            let last = events.last().unwrap();
            last["type"] == "session.status_idle" && last["stop_reason"]["type"] == "end_turn"
        });
        events
    }

    fn items(&self) -> Vec<Value> {
        let path = format!("/v1/environments/{}/work", self.environment);
        let listed = tests_e2e::http::call(&self.dev.url, "GET", &path, Some(&self.key), None);
        // An environment key goes as a bearer; in either header it is the same key.
        listed.unwrap().1["data"].as_array().unwrap().clone()
    }
}

struct Worker {
    child: Child,
    workdir: PathBuf,
    log: PathBuf,
}

impl Worker {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the worker ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for nothing: {what}");
        sleep(Duration::from_millis(20));
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn results(events: &[Value]) -> Vec<String> {
    let results = events.iter().filter(|event| event["type"] == "user.tool_result");
    results.map(|event| text(&event["content"][0]["text"])).collect()
}

/// A file of that name somewhere below `folder`.
fn has_file(folder: &Path, name: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        entry.file_name() == name
            || entry.file_type().is_ok_and(|kind| kind.is_dir()) && has_file(&entry.path(), name)
    })
}

#[test]
fn a_worker_serves_sessions_and_keeps_its_key_to_itself() {
    let stage = Stage::new();
    let sessions = [stage.session(), stage.session()];
    for session in &sessions {
        let say =
            "Take 3 steps with the bash tool: env; cat /proc/[0-9]*/environ; echo x >> n; cat n";
        stage.dev.say(session, say).unwrap();
    }
    let mut worker = stage.worker("one", &["--drain", "--max-idle-s", "1", "--concurrency", "2"]);
    for session in &sessions {
        let events = stage.ended(session);
        let results = results(&events);
        assert_eq!(results.len(), 3);
        assert!(results[2].ends_with("x\nx\nx\n"), "{results:?}");
        let said = format!("{events:?}");
        assert!(!said.contains(&stage.key) && !said.contains("tailstep_work_"), "a key got inside");
    }
    assert!(worker.wait().success(), "{}", worker.log());
    assert!(!worker.log().contains(&stage.key) && !worker.log().contains("tailstep_work_"));
    assert!(stage.items().iter().all(|item| item["state"] == "stopped"));
    let server_log: String = stage.dev.log_lines().into_iter().map(|(_, line)| line).collect();
    assert!(!server_log.contains(&stage.key) && !server_log.contains("tailstep_work_"));
}

#[test]
fn a_worker_fetches_the_agents_skills() {
    let stage = Stage::new();
    let files: [(&str, &[u8]); 2] = [
        ("it/SKILL.md", b"---\nname: make-it\ndescription: Makes it.\n---\n# How to make it\n"),
        ("it/bin/make", b"#!/bin/sh\necho made\n"),
    ];
    let made = tests_e2e::http::upload_all(&stage.dev.url, "/v1/skills", Some(KEY), &files);
    let skill = text(&made.unwrap().1["id"]);
    let session = stage.session_with(&json!([{ "type": "custom", "skill_id": skill }]));
    let command = "cat /skills/make-it/SKILL.md; /skills/make-it/bin/make; \
                   touch /skills/make-it/x || echo kept";
    let say = format!("Use the bash tool to run exactly: {command}");
    stage.dev.say(&session, &say).unwrap();
    let mut worker = stage.worker("one", &["--drain", "--max-idle-s", "1"]);
    let events = stage.ended(&session);
    let said = results(&events).remove(0);
    assert!(said.contains("# How to make it\nmade\n") && said.contains("kept"), "{said}");
    assert!(worker.wait().success(), "{}", worker.log());
    let left = fs::read_dir(worker.workdir.join("skills")).unwrap().count();
    assert_eq!(left, 0, "each session has its own copies");
}

#[test]
fn a_worker_killed_in_a_call_is_followed_by_another_and_there_is_one_result() {
    let stage = Stage::new();
    let session = stage.session();
    let command = "touch begun; sleep 2; echo done";
    let say = format!("Use the bash tool to run exactly: {command}");
    stage.dev.say(&session, &say).unwrap();
    let first = stage.worker("first", &["--lease-s", LEASE]);
    until("the call begins", || has_file(&first.workdir, "begun"));
    first.signal(Signal::KILL);
    let killed = Instant::now();
    let mut second = stage.worker("second", &["--lease-s", LEASE, "--once", "--max-idle-s", "1"]);
    let events = stage.ended(&session);
    assert_eq!(results(&events), ["done\n"]);
    assert!(has_file(&second.workdir, "begun"), "the second worker has run it anew");
    assert!(killed.elapsed() < Duration::from_secs(30));
    assert!(second.wait().success(), "{}", second.log());
    let items = stage.items();
    assert_eq!(items.len(), 1, "the item was queued again: {items:?}");
    assert_eq!(items[0]["state"], "stopped");
}

#[test]
fn a_worker_told_to_end_lets_its_call_end_and_gives_the_session_back() {
    let stage = Stage::new();
    let session = stage.session();
    stage
        .dev
        .say(&session, "Take 2 steps with the bash tool: touch begun; sleep 1; echo x")
        .unwrap();
    let mut first = stage.worker("first", &[]);
    until("the call begins", || has_file(&first.workdir, "begun"));
    first.signal(Signal::TERM);
    assert!(first.wait().success(), "{}", first.log());
    let events = stage.dev.events(&session).unwrap();
    assert_eq!(results(&events), ["x\n"], "the call under way has ended, and no other has begun");
    // At once, and not when a lease has run out.
    let _second = stage.worker("second", &[]);
    assert_eq!(results(&stage.ended(&session)), ["x\n", "x\n"]);
    assert_eq!(stage.items().len(), 2);
}

#[test]
fn an_interrupt_stops_the_call_on_the_worker() {
    let stage = Stage::new();
    let session = stage.session();
    stage
        .dev
        .say(&session, "Use the bash tool to run exactly: touch begun; sleep 50; touch late")
        .unwrap();
    let worker = stage.worker("one", &[]);
    until("the call begins", || has_file(&worker.workdir, "begun"));
    let interrupt = json!({ "events": [{ "type": "user.interrupt" }] });
    stage.dev.ok("POST", &format!("/v1/sessions/{session}/events"), Some(&interrupt)).unwrap();
    stage.ended(&session);
    // The same worker goes on with what comes next; it would be busy for long if it had not stopped.
    let began = Instant::now();
    stage.dev.say(&session, "Use the bash tool to run exactly: echo next").unwrap();
    let events = stage.ended(&session);
    assert!(results(&events)[0].ends_with("next\n"), "{:?}", results(&events));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(!has_file(&worker.workdir, "late"));
}

#[test]
fn a_worker_without_a_good_key_says_so_and_ends() {
    let stage = Stage::new();
    let run = |key: &str, environment: &str| {
        let mut command = Built::get().command();
        command.args(["worker", "--base-url", &stage.dev.url, "--environment", environment]);
        command.args(["--workdir"]).arg(stage.folder.path().join("none"));
        if !key.is_empty() {
            command.env("ANTHROPIC_ENVIRONMENT_KEY", key);
        }
        let output = command.output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(key.is_empty() || !said.contains(key), "{said}");
        said
    };
    assert!(run("", &stage.environment).contains("ANTHROPIC_ENVIRONMENT_KEY is not set"));
    let wrong = format!("tailstep_env_{}", "0".repeat(64));
    assert!(run(&wrong, &stage.environment).contains("401"));
    assert!(run(KEY, &stage.environment).contains("403"));
    assert!(run(&stage.key, "env_other").contains("403"));
}
