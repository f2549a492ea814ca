//! What a command inside a sandbox can use up, and that reaching a limit is told and survived.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where it fails")]

mod common;

use std::time::{Duration, Instant};

use common::{Scene, start, start_with};
use serde_json::json;

/// The most memory, in KiB, that a process has used (`VmHWM`).
fn peak_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Who runs commands: PID 1, the guard, and this process as their supervisor.
fn runners(scene: &Scene) -> [(&'static str, u32); 3] {
    let guard = scene.guard_pid();
    let inner = common::children(guard);
    assert_eq!(inner.len(), 1, "the guard has one child, PID 1");
    [("PID 1", inner[0]), ("the guard", guard), ("the supervisor", std::process::id())]
}

#[tokio::test]
#[ignore = "run by another test as a process of its own"]
async fn role_flooded() {
    let scene = start().await;
    // A short flood first: what the code itself takes, and one reply of the largest kind, is no growth.
    scene.run("bash", json!({ "command": "cat /dev/zero", "timeout_ms": 500 })).await;
    let line = "yes \"$(head -c 100000 /dev/zero | tr '\\0' x)\" | tr -d '\\n'";
    for command in ["cat /dev/zero", "yes", line] {
        let before = runners(&scene).map(|(_, process)| peak_kib(process));
        let start = Instant::now();
        let input = json!({ "command": command, "timeout_ms": 10_000 });
        let reply = scene.run("bash", input).await;
        let took = start.elapsed();
        assert!(reply.timed_out && reply.text.contains("timed out after 10000 ms"), "{command}");
        assert!(took < Duration::from_secs(12), "{command}: {took:?}");
        assert!(reply.truncated_bytes > 1 << 20, "{command}: {}", reply.truncated_bytes);
        for ((name, process), before) in runners(&scene).into_iter().zip(before) {
            let grown = peak_kib(process) - before;
            println!("{command}: {name} held {before} KiB before and {grown} KiB more after");
            assert!(grown < 2 * REPLY_KIB, "{name} grew by {grown} KiB");
        }
    }
}

/// The largest reply on the line: what is kept of a call's output, 100 KiB, as JSON, which spells a
/// byte with up to six.
const REPLY_KIB: u64 = 6 * 100;

#[test]
fn ten_seconds_of_flood_grow_nobody_beyond_two_replies() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "role_flooded", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.matches("KiB more after").count(), 9, "{said}");
}

#[tokio::test]
async fn floods_use_neither_memory_nor_time() {
    let scene = start().await;
    scene.prints("true").await;
    let [(_, pid_1), ..] = runners(&scene);
    let before = peak_kib(pid_1);
    let cap = 100 << 10;
    for command in [
        "timeout 2 yes",
        "timeout 2 cat /dev/zero",
        "head -c 10000000 /dev/zero >&2; exec 1>&-; head -c 10000000 /dev/zero >&2",
        "timeout 3 python3 -c 'import os\nwhile True: os.write(1, b\"x\")'",
        "head -c 160000000 /dev/zero | tr '\\0' x",
        "exec 3>&1 >&-; timeout 1 yes >&2",
        "timeout 2 yes \"$(printf '\\033[31m')\"",
    ] {
        let start = Instant::now();
        let reply = scene.bash(command).await;
        assert!(start.elapsed() < Duration::from_secs(20), "{command}: {:?}", start.elapsed());
        assert!(reply.text.len() < 6 * cap, "{command}: {}", reply.text.len());
        assert!(reply.truncated_bytes > 100_000, "{command}: {}", reply.truncated_bytes);
        scene.run("bash", json!({ "restart": true })).await;
    }
    let grown = peak_kib(pid_1) - before;
    assert!(grown < 2 * 1_024, "PID 1 grew by {grown} KiB over floods of hundreds of megabytes");
}

#[tokio::test]
async fn a_flood_does_not_hold_the_deadline_up() {
    let scene = start().await;
    let start = Instant::now();
    let reply = scene.run("bash", json!({ "command": "yes", "timeout_ms": 1000 })).await;
    assert!(reply.timed_out && reply.is_error, "{}", reply.text.len());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_deadline_kills_new_sessions_and_double_forks() {
    let scene = start().await;
    let command = "setsid sh -c '(sleep 7777 &) ; sleep 7777' & (setsid nohup sleep 7777 >/dev/null 2>&1 &) ; \
                   python3 -c 'import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork()==0: time.sleep(7777)\n'; sleep 7777";
    let reply = scene.run("bash", json!({ "command": command, "timeout_ms": 1500 })).await;
    assert!(reply.timed_out, "{}", reply.text);
    assert!(reply.text.contains("timed out after 1500 ms"), "{}", reply.text);
    let left = scene.prints("ps -e -o comm= | grep -c -E 'sleep|python' || true").await;
    assert_eq!(left, "0\n");
}

#[tokio::test]
async fn a_daemon_that_keeps_the_pipe_open_does_not_block() {
    let scene = start().await;
    let start = Instant::now();
    assert_eq!(scene.prints("sleep 60 & echo started").await, "started\n");
    assert_eq!(scene.prints("jobs -r | wc -l").await, "1\n");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn memory_is_bounded_and_its_end_is_told() {
    let scene = start_with(|spec| spec.limits.memory_bytes = 128 << 20).await;
    let hog = "python3 -c 'x=b\"x\"*(400<<20); print(len(x))'";
    let reply = scene.bash(hog).await;
    assert!(reply.is_error, "{}", reply.text);
    assert!(reply.text.contains("[exit code 137]"), "{}", reply.text);
    assert!(reply.text.contains("memory limit of 128 MiB was reached"), "{}", reply.text);
    let shared = "python3 -c 'import os\nfd=os.memfd_create(\"x\")\nfor _ in range(400): os.write(fd,b\"x\"*(1<<20))'";
    let reply = scene.bash(shared).await;
    assert!(
        reply.text.contains("memory limit"),
        "memory outside any process counts: {}",
        reply.text
    );
    assert_eq!(scene.prints("echo alive").await, "alive\n");
}

#[tokio::test]
async fn a_plain_kill_is_not_called_a_lack_of_memory() {
    let scene = start().await;
    let reply = scene.bash("sh -c 'kill -9 $$'").await;
    assert!(
        reply.text.contains("[exit code 137]") && !reply.text.contains("memory"),
        "{}",
        reply.text
    );
}

#[tokio::test]
async fn processes_are_bounded() {
    let scene = start_with(|spec| spec.limits.pids_max = 40).await;
    let bomb = "for i in $(seq 100); do sleep 50 & done";
    let reply = scene.run("bash", json!({ "command": bomb, "timeout_ms": 10_000 })).await;
    assert!(reply.text.contains("Resource temporarily unavailable"), "{}", reply.text);
    scene.run("bash", json!({ "restart": true })).await;
    assert_eq!(scene.prints("echo alive").await, "alive\n");
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_deadline() {
    let scene = start_with(|spec| spec.limits.pids_max = 60).await;
    let reply = scene
        .run("bash", json!({ "command": "f() { f | f & }; f; sleep 30", "timeout_ms": 2000 }))
        .await;
    assert!(reply.is_error);
    scene.run("bash", json!({ "restart": true })).await;
    assert_eq!(scene.prints("echo alive").await, "alive\n");
}

#[tokio::test]
async fn files_and_temporary_space_are_bounded() {
    let scene = start_with(|spec| {
        spec.limits.tmp_bytes = 8 << 20;
        spec.limits.file_bytes_max = 16 << 20;
    })
    .await;
    let reply = scene.bash("head -c 20000000 /dev/zero > /tmp/f").await;
    assert!(reply.is_error && reply.text.contains("No space left"), "{}", reply.text);
    let reply = scene.bash("trap '' XFSZ; head -c 20000000 /dev/zero > big").await;
    assert!(reply.is_error, "{}", reply.text);
    let reply = scene
        .bash("rm /tmp/f; cd /tmp; python3 -c 'for n in range(100000): open(str(n),\"w\")'")
        .await;
    assert!(reply.is_error && reply.text.contains("No space left"), "{}", reply.text);
    assert_eq!(scene.prints("ulimit -c; ulimit -n").await, "0\n4096\n");
}

#[tokio::test]
async fn a_call_cannot_pass_the_sandbox_limit() {
    let scene = start_with(|spec| spec.limits.call_ms_max = 700).await;
    let reply = scene.run("bash", json!({ "command": "sleep 60", "timeout_ms": 60_000 })).await;
    assert!(reply.timed_out && reply.text.contains("700 ms"), "{}", reply.text);
}

#[tokio::test]
async fn a_life_ends_on_time_and_says_so() {
    let scene = start_with(|spec| spec.limits.life_ms_max = 1_500).await;
    let start = Instant::now();
    let outcome =
        scene.sandbox.execute(common::call("1", "bash", json!({ "command": "sleep 60" }))).await;
    let why = outcome.unwrap_err().to_string();
    assert!(why.contains("its time was over (life_ms_max)"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let again =
        scene.sandbox.execute(common::call("2", "bash", json!({ "command": "true" }))).await;
    assert!(again.unwrap_err().to_string().contains("its time was over"));
}
