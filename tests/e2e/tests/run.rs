//! `tailstep run` from the outside, with scripts in place of a model and real sandboxes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests_e2e::{Built, built::root, run};

/// A folder with a project, scripts, and room for the data directory.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new(files: &[(&str, &str)]) -> Self {
        let desk = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(desk.project()).unwrap();
        for (path, text) in files {
            let path = desk.project().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        desk
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.project().join(path)).unwrap()
    }

    /// Runs a script of bash commands over the project.
    fn run_commands(&self, commands: &[&str], more: &[&str]) -> Ran {
        let mut turns: Vec<Value> = commands
            .iter()
            .map(|command| json!({ "blocks": [{ "type": "tool_use", "name": "bash", "input": { "command": command } }] }))
            .collect();
        turns.push(json!({ "blocks": [{ "type": "text", "text": "all done" }] }));
        fs::write(self.folder.path().join("script.json"), Value::from(turns).to_string()).unwrap();
        let arguments = ["run", "--model", "scripted/script.json", "--workspace", "project"];
        self.run(&[&arguments, more, &["go"]].concat())
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Built::get().command();
        command.args(arguments).current_dir(self.folder.path());
        command.env("TAILSTEP_SCRIPT_ROOT", self.folder.path());
        Ran::of(command.output().unwrap())
    }
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn expect(&self, code: i32, out: &[&str], err: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        for word in out {
            assert!(self.out.contains(word), "`{word}` is not in:\n{}", self.out);
        }
        for word in err {
            assert!(self.err.contains(word), "`{word}` is not in:\n{}", self.err);
        }
        assert!(!self.out.contains('\x1b') && !self.err.contains('\x1b'), "colour in a pipe");
    }

    fn session(&self) -> String {
        let line = self.err.lines().find_map(|line| line.strip_prefix("session "));
        line.expect("the session is named").to_owned()
    }
}

#[test]
fn events_are_printed_and_the_exit_status_says_done() {
    let desk = Desk::new(&[]);
    let ran = desk.run(&[
        "run",
        "--model",
        "scripted/echo",
        "Use the bash tool to run exactly: echo $((6*7)); exit 3",
    ]);
    ran.expect(
        0,
        &["> Use the bash tool", "bash: echo $((6*7))", "  ! 42", "The tool failed"],
        &["session sesn_"],
    );
}

#[test]
fn json_is_one_event_a_line() {
    let desk = Desk::new(&[("a", "1\n")]);
    let ran = desk.run_commands(&["echo 2 > a"], &["--json"]);
    ran.expect(0, &[], &[]);
    let events: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert!(
        types.contains(&"session.status_running") && types.contains(&"agent.tool_result"),
        "{types:?}"
    );
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["applied"]), (&json!("x_workspace.changes"), &json!(false)));
    assert!(last["patch"].as_str().unwrap().contains("-1\n+2\n"), "{last}");
    assert_eq!(desk.read("a"), "1\n");
}

#[test]
fn nothing_is_touched_without_a_yes_and_the_diff_can_be_applied_later() {
    let desk = Desk::new(&[("a", "1\n"), ("gone", "x\n")]);
    let ran = desk.run_commands(&["echo 2 > a; rm gone; echo n > new"], &[]);
    ran.expect(
        0,
        &["all done", "--- a/a\n+++ b/a\n", "-1\n+2\n", "deleted file", "new file"],
        &["not applied: 3 changed files"],
    );
    assert_eq!((desk.read("a").as_str(), desk.read("gone").as_str()), ("1\n", "x\n"));

    let applied = desk.run(&["run", "--resume", &ran.session(), "--apply"]);
    applied.expect(0, &["-1\n+2\n"], &["applied: 3 changed files"]);
    assert_eq!((desk.read("a").as_str(), desk.read("new").as_str()), ("2\n", "n\n"));
    assert!(!desk.project().join("gone").exists());
    let nothing_left = desk.run(&["run", "--resume", &ran.session(), "--apply"]);
    nothing_left.expect(0, &[], &["nothing is changed"]);
    assert!(!nothing_left.out.contains("diff"), "{}", nothing_left.out);
}

#[test]
fn the_printed_diff_is_a_patch() {
    let desk = Desk::new(&[("a", "1\n2\n3\n"), ("b c/d", "no end")]);
    let ran = desk
        .run_commands(&["sed -i s/2/zwei/ a; printf more >> 'b c/d'; chmod +x a; echo n > n"], &[]);
    ran.expect(0, &["old mode 100644\nnew mode 100755"], &[]);
    let start = ran.out.find("diff --git").unwrap();
    fs::write(desk.folder.path().join("patch"), &ran.out[start..]).unwrap();
    let git = Command::new("git").args(["apply", "../patch"]).current_dir(desk.project()).output();
    let git = git.expect("git is there");
    assert!(git.status.success(), "{}", String::from_utf8_lossy(&git.stderr));
    assert_eq!(
        (desk.read("a").as_str(), desk.read("b c/d").as_str()),
        ("1\nzwei\n3\n", "no endmore")
    );
}

#[test]
fn what_was_changed_meanwhile_is_not_overwritten() {
    let desk = Desk::new(&[("a", "1\n"), ("b", "1\n")]);
    let ran = desk.run_commands(&["echo 2 > a; echo 2 > b"], &[]);
    fs::write(desk.project().join("a"), "mine\n").unwrap();
    let refused = desk.run(&["run", "--resume", &ran.session(), "--apply"]);
    refused.expect(2, &[], &["conflict: a was changed meanwhile", "nothing was applied"]);
    assert_eq!((desk.read("a").as_str(), desk.read("b").as_str()), ("mine\n", "1\n"));
}

#[test]
fn links_lead_nowhere() {
    let desk = Desk::new(&[("a", "1\n")]);
    let secret = desk.folder.path().join("secret");
    fs::write(&secret, "host only\n").unwrap();
    symlink(&secret, desk.project().join("link")).unwrap();
    let read_it = format!("cat link {}; echo 2 > link; ln -s /etc/passwd out", secret.display());
    let ran = desk.run_commands(&[&read_it], &["--apply"]);
    assert!(!ran.out.contains("host only"), "{}", ran.out);
    ran.expect(2, &[], &["conflict: out is a link that leads out of the folder"]);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "host only\n");
}

#[test]
fn a_session_goes_on_with_its_workspace() {
    let desk = Desk::new(&[("a", "1\n")]);
    let first = ["run", "--model", "scripted/echo", "--workspace", "project"];
    let ran = desk.run(&[&first[..], &["Use the bash tool to run exactly: echo 2 >> a"]].concat());
    ran.expect(0, &["+2"], &[]);
    let again =
        ["run", "--resume", &ran.session(), "Use the bash tool to run exactly: echo 3 >> a; cat a"];
    desk.run(&again).expect(0, &["| 1", "| 2", "| 3", "+2\n+3\n"], &[]);
}

#[test]
fn files_are_seen_inside_and_nothing_of_them_stays_listed() {
    let desk = Desk::new(&[]);
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(desk.folder.path().join("large.bin"), &large).unwrap();
    fs::write(desk.folder.path().join("a \"b\"\n"), "odd").unwrap();
    let look = "sha256sum < /mnt/session/uploads/large.bin; cat /data/odd; \
                echo x > /data/odd || echo closed";
    let say = format!("Use the bash tool to run exactly: {look}");
    let file = ["--file", "large.bin", "--file", "a \"b\"\n:/data/odd"];
    let ran = desk.run(&[&["run", "--model", "scripted/echo"], &file[..], &[&say]].concat());
    let hash =
        Command::new("sha256sum").arg(desk.folder.path().join("large.bin")).output().unwrap();
    let hash = String::from_utf8(hash.stdout).unwrap();
    ran.expect(0, &[hash.split_whitespace().next().unwrap(), "odd", "closed"], &[]);
    let twice =
        ["run", "--model", "scripted/echo", "--file", "large.bin", "--file", "large.bin", "go"];
    desk.run(&twice).expect(1, &[], &["two --file would be at /mnt/session/uploads/large.bin"]);
    for (wrong, said) in [
        ("no/such", "cannot give the file no/such"),
        ("project", "is not a regular file"),
        ("large.bin:/usr/x", "--file"),
        ("..", "names no file"),
    ] {
        let ran = desk.run(&["run", "--model", "scripted/echo", "--file", wrong, "go"]);
        assert!(ran.code != Some(0) && ran.err.contains(said), "{wrong}: {}", ran.err);
    }
}

#[test]
fn outputs_come_into_a_folder_and_never_over_a_file() {
    let desk = Desk::new(&[]);
    let out = desk.folder.path().join("out");
    let bytes: Vec<u8> = (0..=255).collect();
    let put = "cd /mnt/session/outputs && mkdir -p deep/er && \
               python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)))' > deep/er/bytes && \
               : > empty && echo 1 > $'odd\\nname' && ln -s /etc/passwd link";
    let ran = desk.run_commands(&[put], &["--outputs", "out"]);
    ran.expect(0, &[], &["3 of 3 outputs are new in out"]);
    assert_eq!(fs::read(out.join("deep/er/bytes")).unwrap(), bytes);
    assert_eq!(fs::read(out.join("empty")).unwrap(), b"");
    assert_eq!(fs::read(out.join("odd\nname")).unwrap(), b"1\n");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3, "nothing else, and no half file");
    let again = ["run", "--resume", &ran.session(), "--outputs", "out"];
    desk.run(&again).expect(0, &[], &["0 of 3 outputs are new in out"]);
    // What the user has there stays, and no link leads elsewhere.
    fs::write(out.join("empty"), "mine").unwrap();
    fs::remove_dir_all(out.join("deep")).unwrap();
    let elsewhere = desk.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, out.join("deep")).unwrap();
    let ran = desk.run(&again);
    ran.expect(2, &[], &["conflict: output \"empty\"", "conflict: output \"deep/er/bytes\""]);
    assert_eq!(fs::read(out.join("empty")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let json = desk.run(&[&again[..], &["--json"]].concat());
    let last: Value = serde_json::from_str(json.out.lines().last().unwrap()).unwrap();
    assert_eq!(last["conflicts"], json!(["deep/er/bytes", "empty"]), "{last}");
    let nowhere = desk.run(&["run", "--model", "scripted/echo", "--outputs", "out/empty", "go"]);
    nowhere.expect(1, &[], &["cannot use out/empty for outputs"]);
}

#[test]
fn a_killed_run_is_finished_by_resume() {
    let desk = Desk::new(&[("a", "1\n")]);
    let task = "Take 6 steps with the bash tool: sleep 0.1; echo tick";
    let mut command = Built::get().command();
    command.args(["run", "--model", "scripted/echo", task]).current_dir(desk.folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(600));
    child.kill().unwrap();
    let killed = Ran::of(child.wait_with_output().unwrap());
    let session = killed.session();
    let resumed = desk.run(&["run", "--resume", &session]);
    resumed.expect(0, &["done after 6 steps"], &[]);
    let log = desk.run(&["logs", &session, "--json"]);
    let ticks =
        log.out.lines().filter(|line| line.contains("agent.tool_result") && line.contains("tick"));
    assert_eq!(ticks.count(), 6, "{}", log.out);
}

#[test]
fn an_interrupt_stops_the_turn_and_leaves_the_session() {
    let desk = Desk::new(&[]);
    let mut command = Built::get().command();
    command.args([
        "run",
        "--model",
        "scripted/echo",
        "Use the bash tool to run exactly: sleep 100",
    ]);
    command.current_dir(desk.folder.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let began = Instant::now();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.expect(1, &["interrupted"], &["interrupting"]);
    assert!(began.elapsed() < Duration::from_secs(10));
    let again = ["run", "--resume", &ran.session(), "Reply with exactly this text: still here"];
    desk.run(&again).expect(0, &["still here"], &[]);
}

#[test]
fn an_agent_file_has_the_apis_fields() {
    let desk = Desk::new(&[]);
    let write =
        |agent: Value| fs::write(desk.folder.path().join("agent.json"), agent.to_string()).unwrap();
    write(json!({ "name": "mine", "model": "scripted/echo", "tools": [] }));
    let ran = desk.run(&["run", "--agent", "agent.json", "Use the bash tool to run exactly: true"]);
    ran.expect(0, &["I was not given a tool named bash"], &[]);
    write(json!({ "name": "mine", "model": "scripted/echo", "tolls": [] }));
    desk.run(&["run", "--agent", "agent.json", "x"]).expect(1, &[], &["agent.json", "tolls"]);
    write(json!({ "name": "mine" }));
    let ran = desk.run(&[
        "run",
        "--agent",
        "agent.json",
        "--model",
        "scripted/echo",
        "Reply with exactly this text: ok",
    ]);
    ran.expect(0, &["ok"], &[]);
}

#[test]
fn what_prevents_a_run_is_one_line_that_says_what_to_do() {
    let desk = Desk::new(&[]);
    for (arguments, words) in [
        (&["run", "x"][..], &["ANTHROPIC_API_KEY", "scripted/echo"][..]),
        (&["run", "--model", "some-model", "x"], &["some-model", "ANTHROPIC_API_KEY"]),
        (&["run", "--model", "nobody/x", "x"], &["nobody/", "openai/NAME"]),
        (&["run", "--model", "openai/x", "x"], &["TAILSTEP_OPENAI_BASE_URL"]),
        (&["run", "--model", "scripted/none.json", "x"], &["none.json"]),
        (&["run", "--model", "scripted/echo", "--workspace", "nowhere", "x"], &["nowhere"]),
        (&["run", "--agent", "nowhere.json", "x"], &["nowhere.json"]),
        (&["run", "--resume", "sesn_nothing", "x"], &["sesn_nothing"]),
        (&["run", "--resume", "sesn_nothing"], &["sesn_nothing"]),
        (&["logs", "sesn_nothing"], &["sesn_nothing"]),
        (&["sessions", "--data", "nowhere"], &["nowhere", "--data"]),
    ] {
        let ran = desk.run(arguments);
        ran.expect(1, &[], words);
        let lines: Vec<_> = ran.err.lines().filter(|line| !line.starts_with("session ")).collect();
        assert_eq!(lines.len(), 1, "{}", ran.err);
    }
}

#[test]
fn a_model_that_fails_for_good_ends_with_one() {
    let desk = Desk::new(&[]);
    let turns = json!([{ "failure": { "kind": "rejected", "message": "the script says no" } }]);
    fs::write(desk.folder.path().join("script.json"), turns.to_string()).unwrap();
    let ran = desk.run(&["run", "--model", "scripted/script.json", "x"]);
    ran.expect(1, &["error: ", "the script says no"], &[]);
}

#[test]
fn sessions_are_listed_and_their_events_printed() {
    let desk = Desk::new(&[]);
    let ran = desk.run(&["run", "--model", "scripted/echo", "Reply with exactly this text: hello"]);
    let session = ran.session();
    let listed = run(desk.folder.path(), &["sessions"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains(&session) && listed.contains("idle") && listed.contains("Reply with"),
        "{listed}"
    );
    desk.run(&["run", "--resume", &session]).expect(1, &[], &["at rest", "what it is to do next"]);
    let logged = desk.run(&["logs", &session]);
    logged.expect(0, &["> Reply with exactly this text: hello", "\nhello\n"], &[]);
    assert!(Path::new(desk.folder.path()).join(".tailstep").is_dir());
}

/// Runs a copy of the demo, changed by `change`.
fn demo(change: impl Fn(&Path)) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let example = root().join("examples/fix-failing-test");
    let copied = Command::new("cp").arg("-R").arg(&example).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    let example = folder.path().join("fix-failing-test");
    change(&example);
    let tailstep = &Built::get().tailstep;
    let mut command = Command::new("sh");
    command.arg(example.join("demo.sh")).arg(tailstep).current_dir(folder.path());
    command.env_remove("ANTHROPIC_API_KEY").env_remove("TAILSTEP_MODEL");
    Ran::of(command.output().unwrap())
}

#[test]
fn the_demo_shows_a_failing_test_a_diff_and_a_passing_test() {
    let shown = [
        "7 passed, 3 failed",
        "SCRIPT",
        "+hours=$((total % 86400 / 3600))",
        "10 passed, 0 failed",
        "done:",
    ];
    demo(|_| {}).expect(0, &shown, &["applied: 1 changed file"]);
}

#[test]
fn the_demo_fails_when_the_agent_does() {
    let script = |json: Value| {
        move |example: &Path| fs::write(example.join("script.json"), json.to_string()).unwrap()
    };
    let idle = json!([{ "blocks": [{ "type": "text", "text": "All tests pass." }] }]);
    demo(script(idle)).expect(1, &["All tests pass."], &["the test still fails"]);
    let write = json!({ "file_path": "tests/run.sh", "content": "echo 10 passed, 0 failed" });
    let cheat = json!([
        { "blocks": [{ "type": "tool_use", "name": "write", "input": write }] },
        { "blocks": [{ "type": "text", "text": "All tests pass." }] },
    ]);
    demo(script(cheat)).expect(1, &[], &["changed the test instead"]);
    let no_bug =
        |example: &Path| fs::write(example.join("project/tests/run.sh"), "exit 0").unwrap();
    demo(no_bug).expect(1, &[], &["should fail before"]);
}
