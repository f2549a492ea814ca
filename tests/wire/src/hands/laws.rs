//! What holds while nothing but the sandbox itself fails.

use std::{fs, path::Path, time::Duration};

use tailstep_runtime::ports::HandsError;
use tokio::time::{Instant, sleep};

use super::{
    Subject, Walls,
    session::{Session, until},
};

/// How replies say that the sandbox is another one.
pub(super) const NEW: &str = "new sandbox";

/// A file that commands can write to from within, and we read from without.
pub(super) fn lines(file: &Path) -> usize {
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

pub(super) async fn commands_answer_with_output_and_exit_code(s: Subject) {
    let mut one = Session::new();
    assert_eq!(one.text(&s, "echo out; echo err >&2").await, "out\nerr\n");
    let failed = one.bash(&s, "echo before; exit_with() { return 3; }; exit_with").await;
    assert!(failed.is_error && failed.text.contains("before"), "{}", failed.text);
    assert!(failed.text.contains("[exit code 3]"), "{}", failed.text);
    let unknown = one.tool(&s, "teleport", "{}").await;
    assert!(unknown.is_error && unknown.text.contains("no tool"), "{}", unknown.text);
    let bad = one.tool(&s, "bash", r#"{"comand":"true"}"#).await;
    assert!(bad.is_error && bad.text.contains("command"), "{}", bad.text);
}

pub(super) async fn files_are_written_read_edited_and_found(s: Subject) {
    let mut one = Session::new();
    let written =
        one.tool(&s, "write", r#"{"file_path":"a/note.txt","content":"one\ntwo\nthree\n"}"#).await;
    assert!(!written.is_error, "{}", written.text);
    let edited = one
        .tool(&s, "edit", r#"{"file_path":"a/note.txt","old_string":"two","new_string":"2"}"#)
        .await;
    assert!(!edited.is_error, "{}", edited.text);
    let read = one.tool(&s, "read", r#"{"file_path":"a/note.txt"}"#).await;
    assert!(!read.is_error && read.text.contains('2') && !read.text.contains("two"));
    assert_eq!(one.text(&s, "cat a/note.txt").await, "one\n2\nthree\n");
    let found = one.tool(&s, "glob", r#"{"pattern":"**/*.txt"}"#).await;
    assert!(found.text.contains("a/note.txt"), "{}", found.text);
    let hit = one.tool(&s, "grep", r#"{"pattern":"^thr"}"#).await;
    assert!(hit.text.contains("note.txt"), "{}", hit.text);
    let out = one.tool(&s, "read", r#"{"file_path":"../../../../etc/hostname"}"#).await;
    assert!(out.is_error, "{}", out.text);
}

pub(super) async fn a_workspace_and_a_shell_last_from_call_to_call(s: Subject) {
    let mut one = Session::new();
    one.text(&s, "echo kept > file; X=kept; mkdir -p d && ln -s ../file d/link").await;
    assert_eq!(one.text(&s, "cat file d/link; echo $X").await, "kept\nkept\nkept\n");
    one.text(&s, "rm -r d file").await;
    assert_eq!(one.text(&s, "ls -A").await, "");
}

pub(super) async fn a_call_delivered_again_runs_once(s: Subject) {
    let mut one = Session::new();
    one.text(&s, "true").await;
    let command = format!("echo ran | tee -a {} made", s.outside.inside.join("count").display());
    let order = one.bash_order(&command);
    let first = one.send(&s, &order).await.unwrap();
    let again = one.send(&s, &order).await.unwrap();
    assert_eq!((again.text, again.is_error), (first.text, first.is_error));
    let count = s.outside.here.join("count");
    assert_eq!(lines(&count), 1, "the same call ran once");
    assert_eq!(one.text(&s, "cat made").await, "ran\n", "and left what it left");
    one.text(&s, &command).await;
    assert_eq!(lines(&count), 2, "another call with the same command runs");
}

pub(super) async fn a_deadline_ends_the_call_and_all_that_it_started(s: Subject) {
    let mut one = Session::new();
    let beat = s.outside.inside.join("beat");
    let command = format!(
        "echo begun; (setsid sh -c 'while sleep 0.1; do echo x >> {}; done' &) ; sleep 600",
        beat.display()
    );
    let mut order = one.bash_order(&command);
    order.timeout_ms = 1_500;
    let start = Instant::now();
    let reply = one.send(&s, &order).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "took {:?}", start.elapsed());
    assert!(reply.is_error && reply.text.contains("timed out"), "{}", reply.text);
    assert!(reply.text.contains("begun"), "what was printed is kept: {}", reply.text);
    let beats = lines(&s.outside.here.join("beat"));
    assert!(beats > 0, "the daemon had started");
    sleep(Duration::from_millis(700)).await;
    assert_eq!(lines(&s.outside.here.join("beat")), beats, "the daemon is gone");
    assert_eq!(one.text(&s, "echo on").await, "on\n");
}

pub(super) async fn a_flood_of_output_is_bounded(s: Subject) {
    let mut one = Session::new();
    let reply =
        one.bash(&s, "echo first; head -c 50000000 /dev/zero | tr '\\0' y; echo last").await;
    assert!(reply.text.len() < 300_000, "{} bytes", reply.text.len());
    assert!(reply.text.starts_with("first") && reply.text.contains("last"));
}

pub(super) async fn sessions_share_nothing(s: Subject) {
    let (mut one, mut two) = (Session::new(), Session::new());
    let leave = match s.walls {
        Walls::Own => "C=canary-of-one; echo $C > canary; echo $C > /tmp/canary",
        Walls::Providers => "C=canary-of-one; echo $C > canary",
    };
    one.text(&s, leave).await;
    let look = match s.walls {
        Walls::Own => "ls -A; echo [$C]; cat canary ../*/canary /tmp/canary /tmp/*/canary; true",
        Walls::Providers => "ls -A; echo [$C]; cat canary; true",
    };
    let seen = two.text(&s, look).await;
    assert!(seen.starts_with("[]\n") && !seen.contains("canary-of-one"), "{seen}");
    two.text(&s, "echo two > canary").await;
    assert_eq!(one.text(&s, "cat canary; echo [$C]").await, "canary-of-one\n[canary-of-one]\n");
}

pub(super) async fn a_sandbox_is_named_by_its_session(s: Subject) {
    let (mut one, mut two) = (Session::new(), Session::new());
    one.text(&s, "true").await;
    two.text(&s, "true").await;
    let (first, other) = (s.provider.name(&one.key).await, s.provider.name(&two.key).await);
    if first.is_some() {
        assert_ne!(first, other);
    }
    one.text(&s, "true").await;
    assert_eq!(s.provider.name(&one.key).await, first, "the next call finds the same one");
}

pub(super) async fn a_sandbox_lost_between_calls_is_replaced_and_the_model_is_told(s: Subject) {
    let (mut one, mut two) = (Session::new(), Session::new());
    two.text(&s, "echo of-two > file; X=of-two").await;
    one.text(&s, "echo saved > file; X=gone").await;
    assert!(s.provider.kill(&one.key).await, "there is a sandbox to kill");
    let order = one.bash_order("cat file; echo [$X]");
    let reply = match one.send(&s, &order).await {
        Ok(reply) => reply,
        // Hands that notice a death only by talking to the dead may say so once.
        Err(HandsError::Lost { what }) => {
            assert!(!what.is_empty());
            one.bash(&s, "cat file; echo [$X]").await
        }
        Err(error) => panic!("{error}"),
    };
    assert!(reply.text.contains(NEW) && reply.text.contains("processes"), "{}", reply.text);
    assert!(reply.text.ends_with("saved\n[]\n"), "{}", reply.text);
    assert_eq!(one.text(&s, "cat file").await, "saved\n", "said once");
    assert_eq!(two.text(&s, "cat file; echo $X").await, "of-two\nof-two\n");
}

/// Larger than a message of any provider.
pub(super) async fn a_large_workspace_outlives_its_sandbox(s: Subject) {
    let mut one = Session::new();
    // What cannot be compressed, so that the archive is as large.
    let made = one.text(&s, "head -c 12000000 /dev/urandom > big; sha256sum big").await;
    assert_eq!(one.text(&s, "echo small > file; sha256sum big").await, made);
    assert!(s.provider.kill(&one.key).await, "there is a sandbox to kill");
    let order = one.bash_order("cat file; sha256sum big");
    let reply = match one.send(&s, &order).await {
        Ok(reply) => reply,
        Err(HandsError::Lost { .. }) => one.bash(&s, "cat file; sha256sum big").await,
        Err(error) => panic!("{error}"),
    };
    assert!(reply.text.ends_with(&format!("small\n{made}")), "{}", reply.text);
    one.text(&s, "rm big").await;
    assert_eq!(one.text(&s, "ls").await, "file\n");
}

pub(super) async fn a_sandbox_lost_in_a_call_is_said_to_be_lost(s: Subject) {
    let mut one = Session::new();
    one.text(&s, "echo saved > file").await;
    let mark = s.outside.inside.join("begun");
    let order = one.bash_order(&format!("echo > {}; sleep 600", mark.display()));
    let killer = async {
        let begun = s.outside.here.join("begun");
        until("the call has begun", || std::future::ready(begun.exists())).await;
        assert!(s.provider.kill(&one.key).await);
    };
    let (ended, ()) = tokio::join!(s.hands.execute(&order), killer);
    match ended {
        Err(HandsError::Lost { what }) => assert!(what.len() > 10, "says too little: {what}"),
        other => panic!("not said to be lost: {other:?}"),
    }
    let reply = one.bash(&s, "cat file").await;
    assert!(reply.text.contains(NEW), "{}", reply.text);
    assert!(reply.text.ends_with("saved\n"), "{}", reply.text);
}

pub(super) async fn releasing_is_idempotent_and_leaves_nothing(s: Subject) {
    let mut one = Session::new();
    s.hands.release(&one.key).await.unwrap();
    one.text(&s, "echo x > file").await;
    for _ in 0..2 {
        s.hands.release(&one.key).await.unwrap();
    }
    let provider = &s.provider;
    until("the provider's list is empty", || async { provider.live().await == 0 }).await;
}

pub(super) async fn secrets_of_the_host_are_not_inside(s: Subject) {
    let mut one = Session::new();
    // Harnesses start what they start with this value in its environment.
    let look = "env; cat /proc/1/environ /proc/self/environ /proc/$PPID/environ /proc/*/environ \
                2>/dev/null | tr '\\0' '\\n'; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; true";
    let seen = one.text(&s, look).await;
    for canary in ["CANARY", "AWS_LAMBDA_RUNTIME_API", "AWS_SECRET", "AWS_SESSION_TOKEN"] {
        assert!(!seen.contains(canary), "{canary} is seen: {seen}");
    }
}
