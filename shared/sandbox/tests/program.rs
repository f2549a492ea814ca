//! One program in a fresh sandbox, asked of the helper by a program with threads.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where it fails")]

mod common;

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, pipe},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
};

use tailstep_sandbox::{
    Network, Spec,
    program::{End, Exited, Program, Workspace, supervise},
};

/// How it ended, and what it printed.
async fn run(argv: &[&str], change: impl FnOnce(&mut Spec)) -> (End, String) {
    let workspace = tempfile::tempdir().unwrap();
    let mut spec = common::spec(workspace.path());
    change(&mut spec);
    let argv = argv.iter().map(Into::into).collect();
    let program = Program { argv, directory: None, workspace: Workspace::Mounted };
    let (mut printed, output) = pipe().unwrap();
    let nothing = File::open("/dev/null").unwrap();
    let streams: [OwnedFd; 3] = [nothing.into(), output.try_clone().unwrap().into(), output.into()];
    let end = supervise(&spec, &program, streams, |layers, listener| {
        assert!(layers.active.iter().any(|layer| layer == "user namespace"), "{layers:?}");
        assert_eq!(listener.is_some(), spec.network == Network::Proxy);
    });
    let end = end.await.unwrap();
    let mut text = String::new();
    printed.read_to_string(&mut text).unwrap();
    (end, text)
}

#[tokio::test]
async fn its_end_and_its_output_come_out() {
    let script = "id -un; pwd; cat; echo oops >&2; exit 7";
    let (end, text) = run(&["/bin/sh", "-c", script], |_| {}).await;
    assert_eq!(end, End::Exited(Exited::Code(7)));
    assert_eq!(text, "agent\n/workspace\noops\n");
    let (end, _) = run(&["/bin/sh", "-c", "kill -11 $$"], |_| {}).await;
    assert_eq!(end, End::Exited(Exited::Signal(11)));
    let (end, _) = run(&["no-such-program"], |spec| spec.network = Network::Proxy).await;
    assert!(matches!(end, End::Exited(Exited::Missing { .. })), "{end:?}");
}

#[tokio::test]
async fn limits_end_it() {
    let forever = ["/bin/sh", "-c", "echo begun; sleep 60"];
    let (end, text) = run(&forever, |spec| spec.limits.life_ms_max = 500).await;
    assert_eq!((end, text.as_str()), (End::TimeOver, "begun\n"));
    let glutton = ["python3", "-c", "x = b'x' * (1 << 30)"];
    let (end, text) = run(&glutton, |spec| spec.limits.memory_bytes = 64 << 20).await;
    // Without a control group the program itself is told.
    assert!(end == End::OutOfMemory || text.contains("MemoryError"), "{end:?}: {text}");
}

#[tokio::test]
async fn a_workspace_of_any_name_is_there() {
    let parent = tempfile::tempdir().unwrap();
    let workspace = parent.path().join(OsStr::from_bytes(b"odd \xff\n name"));
    std::fs::create_dir(&workspace).unwrap();
    std::fs::write(workspace.join("file"), "found").unwrap();
    let (end, text) = run(&["/bin/cat", "file"], |spec| spec.workspace = workspace).await;
    assert_eq!((end, text.as_str()), (End::Exited(Exited::Code(0)), "found"));
}

#[test]
fn the_helper_is_not_for_hands() {
    let helper = common::spec("/".as_ref()).helper_path.unwrap();
    let output = std::process::Command::new(helper).stdin(std::process::Stdio::null()).output();
    let output = output.unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("not by hand"), "{output:?}");
}
