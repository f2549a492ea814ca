//! Every tool as a table of calls and answers, over a scratch directory of this process.

use std::{fs, os::unix::fs::symlink, sync::atomic::AtomicU32};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

struct Bench {
    directory: TempDir,
    tools: Toolset,
    calls: usize,
}

fn bench() -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let tools = Toolset::open(Surroundings {
        directory: directory.path().to_owned(),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        reach: Reach::Group { shell: Arc::new(AtomicU32::new(0)) },
        output_bytes_max: 4_096,
        call_ms_max: 30_000,
        oom_kills: None,
    })
    .unwrap();
    Bench { directory, tools, calls: 0 }
}

impl Bench {
    fn raw(&mut self, tool: &str, input: &str, timeout_ms: u64) -> Reply {
        self.calls += 1;
        self.tools.run(&Call {
            call_id: self.calls.to_string(),
            tool: tool.into(),
            input: input.into(),
            timeout_ms,
        })
    }

    #[track_caller]
    fn check(&mut self, tool: &str, input: Value, text: &str) {
        let reply = self.raw(tool, &input.to_string(), 0);
        assert_eq!((reply.text.as_str(), reply.is_error), (text, false), "{tool} {input}");
    }

    /// The call must fail, and its text hold every part given.
    #[track_caller]
    fn fails(&mut self, tool: &str, input: Value, parts: &[&str]) {
        let reply = self.raw(tool, &input.to_string(), 0);
        assert!(reply.is_error, "{tool} {input}: {}", reply.text);
        for part in parts {
            assert!(reply.text.contains(part), "{tool} {input}: {part} is not in {}", reply.text);
        }
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.directory.path().join(path)).unwrap()
    }
}

#[test]
fn the_shell_keeps_its_state() {
    let mut bench = bench();
    let mut sh =
        |command: &str, text: &str| bench.check("bash", json!({ "command": command }), text);
    sh("echo hello", "hello\n");
    sh("mkdir d && cd d && x=5 && f() { echo \"f $1 $x\"; }", "");
    sh("f a; pwd | sed 's:.*/::'", "f a 5\nd\n");
    sh("declare -a list=(1 2 3); set -u", "");
    sh("echo ${#list[@]}", "3\n");
    sh("echo \"it's\" 'q\"uote' $'tab\\t'", "it's q\"uote tab\t\n");
    sh("cat <<'EOF'\nline one\n$notexpanded\nEOF", "line one\n$notexpanded\n");
    sh(
        "for i in 1 2; do echo $i; done; break",
        "1\n2\nbash: line 19: break: only meaningful in a `for', `while', or `until' loop\n",
    );
    sh("cat; read x || echo 'no input'", "no input\n");
    sh("# only a comment", "");
    sh("", "");
}

#[test]
fn a_command_cannot_close_the_output_for_good() {
    let mut bench = bench();
    let mut sh =
        |command: &str, text: &str| bench.check("bash", json!({ "command": command }), text);
    sh("x=1; exec 1>&- 2>&-", "");
    sh("echo alive $x", "alive 1\n");
    sh("exec 2>/dev/null", "");
    sh("echo seen >&2", "seen\n");
    sh("exec 8>&- 9>&-", "");
    sh("echo still $x", "still 1\n");
}

#[test]
fn both_streams_come_in_order_and_plain() {
    let mut bench = bench();
    let command = "echo 1; echo 2 >&2; echo 3; ls /nonexistent 2>/dev/null; echo 4 >&2";
    bench.check("bash", json!({ "command": command }), "1\n2\n3\n4\n");
    bench.check("bash", json!({ "command": r"printf '\033[31mred\033[0m\n'" }), "red\n");
}

#[test]
fn failures_name_the_exit_code() {
    let mut bench = bench();
    bench.fails("bash", json!({ "command": "echo out; false" }), &["out\n[exit code 1]"]);
    bench.fails("bash", json!({ "command": "(exit 42)" }), &["[exit code 42]"]);
    bench.fails(
        "bash",
        json!({ "command": "no-such-program-here" }),
        &["[exit code 127]", "not found"],
    );
    bench.fails("bash", json!({ "command": "if then" }), &["syntax error"]);
    bench.fails("bash", json!({ "command": "sh -c 'kill -9 $$'" }), &["[exit code 137]"]);
    // A syntax error and a killed child leave the shell itself alone.
    bench.check("bash", json!({ "command": "echo alive" }), "alive\n");
}

#[test]
fn a_shell_that_exits_is_replaced() {
    let mut bench = bench();
    bench.fails(
        "bash",
        json!({ "command": "x=1; echo bye; exit 3" }),
        &["bye\n", "exited with code 3"],
    );
    bench.check("bash", json!({ "command": "echo ${x-unset}" }), "unset\n");
    bench.fails("bash", json!({ "command": "kill -9 $$" }), &["exited with code 137"]);
    bench.check("bash", json!({ "command": "x=1" }), "");
    bench.check("bash", json!({ "restart": true }), "the shell was restarted");
    bench.check("bash", json!({ "command": "echo ${x-unset}" }), "unset\n");
    bench.check("bash", json!({ "command": "echo ${x-unset}", "restart": true }), "unset\n");
}

#[test]
fn a_deadline_ends_the_command_and_says_so() {
    let mut bench = bench();
    let start = Instant::now();
    let input = json!({ "command": "echo begun; sleep 60; echo never", "timeout_ms": 300 });
    let reply = bench.raw("bash", &input.to_string(), 0);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(reply.is_error && reply.timed_out, "{reply:?}");
    assert!(reply.text.starts_with("begun\n[timed out after 300 ms"), "{}", reply.text);
    // The caller's own time holds as well, whichever is shorter.
    let reply = bench.raw("bash", r#"{"command":"sleep 60"}"#, 200);
    assert!(reply.timed_out && reply.text.contains("200 ms"), "{}", reply.text);
    bench.check("bash", json!({ "command": "echo alive" }), "alive\n");
}

#[test]
fn a_stop_from_another_thread_ends_the_command() {
    let mut bench = bench();
    let stop = bench.tools.stop();
    let asker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        stop.call("another call");
        stop.call("1");
    });
    let start = Instant::now();
    let reply = bench.raw("bash", r#"{"command":"sleep 60"}"#, 0);
    asker.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(reply.is_error && !reply.timed_out && reply.text.contains("stopped on request"));
    bench.check("bash", json!({ "command": "echo alive" }), "alive\n");
}

#[test]
fn background_jobs_hold_nothing_up() {
    let mut bench = bench();
    let start = Instant::now();
    bench.check("bash", json!({ "command": "sleep 30 & echo started" }), "started\n");
    let noisy = bench.raw("bash", r#"{"command":"(while :; do echo noise; done) & :"}"#, 0);
    assert!(!noisy.is_error);
    // What a job writes between two commands belongs to neither, and never blocks the job.
    std::thread::sleep(Duration::from_millis(200));
    let next = bench.raw("bash", r#"{"command":"kill %2; wait %2; sleep 0.05; echo done"}"#, 0);
    assert!(next.text.ends_with("done\n"), "{}", next.text);
    bench.check("bash", json!({ "command": "jobs -r | wc -l" }), "1\n");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn floods_are_cut_in_the_middle() {
    let mut bench = bench();
    let reply = bench.raw("bash", r#"{"command":"seq 1 1000000"}"#, 0);
    assert!(!reply.is_error);
    assert!(reply.text.starts_with("1\n2\n3\n") && reply.text.ends_with("\n1000000\n"));
    assert!(reply.text.len() < 4_096 + 100, "{}", reply.text.len());
    let all: usize = (1..=1_000_000).map(|n: u32| n.to_string().len() + 1).sum();
    assert_eq!(reply.truncated_bytes as usize, all - 4_096);
    assert!(reply.text.contains(&format!("{} bytes of output left out", reply.truncated_bytes)));
}

#[test]
fn files_are_read_whole_or_in_part() {
    let mut bench = bench();
    bench.put("a.txt", "one\ntwo\nthree");
    bench.put("big.txt", "0123456789abcdef\n".repeat(20_000));
    bench.put("binary", b"\x7fELF\0\0");
    bench.put("latin1", b"caf\xe9\n");
    bench.check("read", json!({ "file_path": "a.txt" }), "one\ntwo\nthree");
    let absolute = bench.directory.path().join("a.txt");
    bench.check("read", json!({ "file_path": absolute }), "one\ntwo\nthree");
    for (range, text) in
        [([1, 1], "one\n"), ([2, 3], "two\nthree"), ([2, -1], "two\nthree"), ([3, 99], "three")]
    {
        bench.check("read", json!({ "file_path": "a.txt", "view_range": range }), text);
    }
    let last = json!({ "file_path": "big.txt", "view_range": [20_000, -1] });
    bench.check("read", last, "0123456789abcdef\n");
    bench.check("read", json!({ "file_path": "latin1" }), "caf\u{fffd}\n");
    bench.fails("read", json!({ "file_path": "big.txt" }), &["340000 bytes", "view_range"]);
    bench.fails("read", json!({ "file_path": "binary" }), &["`binary` is a binary file"]);
    bench.fails("read", json!({ "file_path": "x.png" }), &["an image"]);
    bench.fails("read", json!({ "file_path": "gone" }), &["file_path `gone` does not exist"]);
    bench.fails(
        "read",
        json!({ "file_path": "a.txt", "view_range": [9, 10] }),
        &["line 9", "has 3"],
    );
    let all = bench.raw("read", r#"{"file_path":"big.txt","view_range":[1,-1]}"#, 0);
    assert!(!all.is_error && all.truncated_bytes > 0 && all.text.len() < (256 << 10) + 200);
}

#[test]
fn files_are_written_where_they_belong() {
    let mut bench = bench();
    bench.check(
        "write",
        json!({ "file_path": "a/b/c.txt", "content": "hi" }),
        "wrote 2 bytes to a/b/c.txt",
    );
    bench.check(
        "write",
        json!({ "file_path": "a/b/c.txt", "content": "" }),
        "wrote 0 bytes to a/b/c.txt",
    );
    assert_eq!(bench.get("a/b/c.txt"), "");
    symlink("/tmp", bench.directory.path().join("out")).unwrap();
    bench.fails(
        "write",
        json!({ "file_path": "out/e", "content": "x" }),
        &["leads out of the workspace"],
    );
    bench.fails(
        "write",
        json!({ "file_path": "/tmp/e", "content": "x" }),
        &["leads out of the workspace"],
    );
    bench.fails("write", json!({ "file_path": "a", "content": "x" }), &["is a directory"]);
    bench.fails(
        "write",
        json!({ "file_path": "a/b/c.txt/d", "content": "x" }),
        &["not a directory"],
    );
    bench.fails("write", json!({ "file_path": "f\0g", "content": "x" }), &["NUL"]);
}

#[test]
fn edits_replace_exactly_what_was_named() {
    let mut bench = bench();
    bench.put("f", "aa b aa\nb.c\n");
    let edit =
        |old: &str, new: &str| json!({ "file_path": "f", "old_string": old, "new_string": new });
    bench.check("edit", edit("b.c", "$1\\n"), "changed 1 place in f");
    assert_eq!(bench.get("f"), "aa b aa\n$1\\n\n");
    bench.fails("edit", edit("aa", "x"), &["occurs 2 times", "replace_all"]);
    bench.fails("edit", edit("zz", "x"), &["not found in `f`"]);
    bench.fails("edit", edit("aa", "aa"), &["identical"]);
    bench.fails("edit", edit("", "aa"), &["old_string is empty"]);
    let all =
        json!({ "file_path": "f", "old_string": "aa", "new_string": "x", "replace_all": true });
    bench.check("edit", all, "changed 2 places in f");
    assert_eq!(bench.get("f"), "x b x\n$1\\n\n");
    bench.put("binary", [0xff, 0xfe]);
    let binary = json!({ "file_path": "binary", "old_string": "a", "new_string": "b" });
    bench.fails("edit", binary, &["not UTF-8"]);
}

#[test]
fn edits_keep_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let mut bench = bench();
    bench.put("run.sh", "echo old");
    let path = bench.directory.path().join("run.sh");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let edit = json!({ "file_path": "run.sh", "old_string": "old", "new_string": "new" });
    bench.check("edit", edit, "changed 1 place in run.sh");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn globs_find_files() {
    let mut bench = bench();
    for path in ["a.rs", "src/b.rs", "src/deep/c.rs", "src/d.py", ".git/x.rs", ".hidden/e.rs"] {
        bench.put(path, "");
    }
    symlink("a.rs", bench.directory.path().join("link.rs")).unwrap();
    let glob = |pattern: &str| json!({ "pattern": pattern });
    bench.check("glob", glob("*.rs"), "a.rs\nlink.rs");
    bench.check("glob", glob("**/*.rs"), ".hidden/e.rs\na.rs\nlink.rs\nsrc/b.rs\nsrc/deep/c.rs");
    bench.check("glob", glob("src/*.{rs,py}"), "src/b.rs\nsrc/d.py");
    bench.check("glob", json!({ "pattern": "*.rs", "path": "src" }), "src/b.rs");
    let absolute = format!("{}/src/*.py", bench.directory.path().display());
    bench.check("glob", glob(&absolute), "src/d.py");
    bench.check("glob", glob("*.zig"), "no file matches `*.zig`");
    bench.fails("glob", glob("../*"), &["leads out of the workspace"]);
    bench.fails("glob", glob("/etc/*"), &["leads out of the workspace"]);
    bench.fails("glob", glob("a["), &["pattern is not a glob"]);
    bench.fails("glob", json!({ "pattern": "*", "path": "gone" }), &["path `gone` does not exist"]);
    for n in 0..250 {
        bench.put(&format!("many/{n:03}"), "");
    }
    let reply = bench.raw("glob", r#"{"pattern":"many/*"}"#, 0);
    assert_eq!(reply.text.lines().filter(|line| line.starts_with("many/")).count(), 200);
    assert!(reply.text.contains("more than 200 files match"), "{}", reply.text);
}

#[test]
fn greps_find_lines() {
    let mut bench = bench();
    bench.put("a.txt", "alpha\nBeta 12\nalpha beta\n");
    bench.put("d/b.txt", "no match\nbeta\n");
    bench.put("d/bin", b"beta\0beta\n");
    bench.put("long.txt", format!("beta{}\n", "x".repeat(5_000)));
    symlink("/etc/passwd", bench.directory.path().join("secret")).unwrap();
    bench.check("grep", json!({ "pattern": "^al" }), "a.txt:1:alpha\na.txt:3:alpha beta\n");
    bench.check("grep", json!({ "pattern": r"\d+" }), "a.txt:2:Beta 12\n");
    bench.check("grep", json!({ "pattern": "beta", "path": "d" }), "d/b.txt:2:beta\n");
    bench.check("grep", json!({ "pattern": "alpha$", "path": "a.txt" }), "a.txt:1:alpha\n");
    bench.check("grep", json!({ "pattern": "root:x" }), "no line matches `root:x`");
    bench.fails(
        "grep",
        json!({ "pattern": "root", "path": "secret" }),
        &["leads out of the workspace"],
    );
    bench.fails("grep", json!({ "pattern": "(" }), &["not a regular expression"]);
    bench.fails("grep", json!({ "pattern": "x{1000}{1000}{1000}" }), &["not a regular expression"]);
    let reply = bench.raw("grep", r#"{"pattern":"betax"}"#, 0);
    assert!(reply.text.len() < 2_100 && reply.text.ends_with("...\n"), "{}", reply.text.len());
    bench.put("many.txt", "beta\n".repeat(10_000));
    let reply = bench.raw("grep", r#"{"pattern":"beta","path":"many.txt"}"#, 0);
    assert!(reply.truncated_bytes > 0 && reply.text.len() < 4_300, "{}", reply.text.len());
    assert!(reply.text.ends_with("many.txt:10000:beta\n"), "{}", reply.text);
}

#[test]
fn bad_input_names_the_field_and_the_remedy() {
    let mut bench = bench();
    bench.fails("bash", json!({}), &["bash", "field `command` is missing"]);
    bench.fails("bash", json!({ "command": 5 }), &["field `command` must be a string, not 5"]);
    bench.fails(
        "bash",
        json!({ "command": "ls", "cwd": "/" }),
        &["unknown field `cwd`", "command, restart, timeout_ms"],
    );
    bench.fails(
        "bash",
        json!({ "command": "ls", "timeout_ms": -1 }),
        &["`timeout_ms` must be a whole number above 0"],
    );
    bench.fails(
        "bash",
        json!({ "command": "ls", "restart": "yes" }),
        &["`restart` must be true or false"],
    );
    bench.fails("bash", json!({ "command": "echo a\u{0}b" }), &["`command` holds a NUL"]);
    bench.fails("read", json!({}), &["field `file_path` is missing"]);
    bench.fails("read", json!({ "file_path": "" }), &["is empty"]);
    for range in
        [json!([0, 1]), json!([3, 2]), json!([1]), json!("1-2"), json!([1, "2"]), json!([1.5, 2])]
    {
        bench.fails(
            "read",
            json!({ "file_path": "a", "view_range": range }),
            &["`view_range` must be [start, end]"],
        );
    }
    bench.fails("write", json!({ "file_path": "a" }), &["field `content` is missing"]);
    bench.fails(
        "edit",
        json!({ "file_path": "a", "old_string": "b" }),
        &["field `new_string` is missing"],
    );
    bench.fails("glob", json!({ "pattern": null }), &["field `pattern` is missing"]);
    bench.fails("frob", json!({}), &["no tool `frob`", "bash, read, write, edit, glob, grep"]);
    for (text, part) in
        [("{", "not valid JSON"), ("[]", "must be a JSON object"), ("7", "must be a JSON object")]
    {
        let reply = bench.raw("grep", text, 0);
        assert!(reply.is_error && reply.text.contains(part), "{text}: {}", reply.text);
    }
}

#[test]
fn a_call_delivered_twice_runs_once() {
    let mut bench = bench();
    let call = |id: &str, command: &str| Call {
        call_id: id.into(),
        tool: "bash".into(),
        input: json!({ "command": command }).to_string(),
        timeout_ms: 0,
    };
    let first = bench.tools.run(&call("a", "echo x >> log; wc -l < log"));
    let again = bench.tools.run(&call("a", "echo x >> log; wc -l < log"));
    assert_eq!((first.text.as_str(), &again), ("1\n", &first));
    let repeat = bench.tools.run(&call("b", "echo x >> log; wc -l < log"));
    assert_eq!(repeat.text, "2\n");
    let other = bench.tools.run(&call("a", "echo y >> log"));
    assert!(other.is_error && other.text.contains("used before"), "{}", other.text);
    assert_eq!(bench.get("log"), "x\nx\n");
}
