//! The hands in a process that is walled in by its machine alone. Hardening is for good, so each
//! test runs a role of this program in a process of its own.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test without the usual harness is no test to the linter"
)]

use std::process::{Command, Output};

use serde_json::json;
use tailstep_sandbox::{Call, Limits, Reply, Sockets, vm};

fn role(name: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--role", name])
        .current_dir(directory.path())
        .env("AWS_SECRET_ACCESS_KEY", "CANARY-SECRET")
        .env("SOME_TOKEN", "CANARY-TOKEN")
        .env("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
        .output()
        .unwrap()
}

fn check(name: &str) {
    let Output { status, stdout, stderr } = role(name);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(status.success(), "{name}: {}\n{}", text(&stdout), text(&stderr));
    println!("ok {name}");
}

fn harden() -> vm::Hands {
    let limits = Limits::default();
    vm::harden(&limits, &vm::LAMBDA_NAMES).unwrap();
    vm::Hands::open(std::env::current_dir().unwrap(), &limits, Sockets::Local).unwrap()
}

fn bash(hands: &mut vm::Hands, command: &str, timeout_ms: u64) -> Reply {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    hands.run(&Call {
        call_id: NEXT.fetch_add(1, Ordering::Relaxed).to_string(),
        tool: "bash".into(),
        input: json!({ "command": command }).to_string(),
        timeout_ms,
    })
}

/// The environment is gone, from the variables, from memory and from children.
fn secrets() {
    let mut hands = harden();
    assert_eq!(std::env::var("AWS_SECRET_ACCESS_KEY").ok(), None);
    assert_eq!(std::env::var("AWS_LAMBDA_RUNTIME_API").as_deref(), Ok("127.0.0.1:9001"));
    let block = std::fs::read("/proc/self/environ").unwrap_or_default();
    let block = String::from_utf8_lossy(&block).into_owned();
    assert!(!block.contains("CANARY"), "{block}");
    let seen = bash(&mut hands, "env", 0).text;
    assert!(!seen.contains("CANARY") && !seen.contains("AWS_"), "{seen}");
    let own = std::process::id();
    for file in ["environ", "mem", "maps", "fd/0"] {
        // Root of the machine may look into any process; without capabilities it may not.
        let reply = bash(&mut hands, &format!("head -c 1 /proc/{own}/{file} | wc -c"), 0);
        assert!(reply.text.contains("Permission denied"), "{file}: {}", reply.text);
    }
}

/// Commands have no privileges and no way to the machine's own network.
fn walls() {
    let mut hands = harden();
    let status = bash(&mut hands, "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status", 0);
    assert_eq!(status.text, "CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n");
    let reply = bash(&mut hands, "exec 3<>/dev/tcp/127.0.0.1/9001", 0);
    assert!(reply.is_error && reply.text.contains("not supported"), "{}", reply.text);
    assert!(bash(&mut hands, "unshare -U true", 0).is_error);
    assert_eq!(bash(&mut hands, "ulimit -c", 0).text, "0\n");
    assert_eq!(bash(&mut hands, "x=kept", 0).text, "");
    assert_eq!(bash(&mut hands, "echo $x", 0).text, "kept\n");
}

/// A deadline ends daemons that left their session and their parent.
fn deadline() {
    let mut hands = harden();
    let command =
        "(setsid sh -c '(sleep 33333.5 &); sleep 33333.5' &); setsid sleep 33333.5 & sleep 33333.5";
    let reply = bash(&mut hands, command, 700);
    assert!(reply.timed_out && reply.text.contains("timed out after 700 ms"), "{}", reply.text);
    let left = bash(&mut hands, "ps -e -o args= | grep -c '^sleep 33333.5' || true", 0);
    assert_eq!(left.text, "0\n");
    let zombies = bash(&mut hands, "ps -e -o stat=,ppid= | grep -c \"^Z.* $PPID$\" || true", 0);
    assert_eq!(zombies.text, "0\n");
}

/// Hardening must come before threads.
fn late() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let why = vm::harden(&Limits::default(), &[]).unwrap_err();
            assert!(why.to_string().contains("before any thread"), "{why}");
        });
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let roles: [(&str, fn()); 4] =
        [("secrets", secrets), ("walls", walls), ("deadline", deadline), ("late", late)];
    match arguments.iter().position(|argument| argument == "--role") {
        Some(at) => roles.iter().find(|(name, _)| *name == arguments[at + 1]).unwrap().1(),
        // Listing is all that a test runner asks for besides running.
        None if arguments.iter().any(|argument| argument == "--list") => {}
        None => roles.iter().for_each(|(name, _)| check(name)),
    }
}
