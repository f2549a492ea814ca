//! Hands in real sandboxes. The program is its own sandbox helper, so that nothing has to be built
//! beside it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test with a main of its own")]

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use tailstep_core::{
    agent::EnvironmentSpec,
    files::{FileResource, Given, Manifest},
    ids::{BlobRef, Position, SessionKey},
    raw::RawJson,
};
use tailstep_local::{HandsConfig, LocalHands, workspace_dir};
use tailstep_runtime::{
    content::ContentWriter,
    memory::MemoryBlobs,
    ports::{Blobs, Hands, HandsError, ToolOrder, ToolReply},
};
use tailstep_sandbox::{Limits, Spec};

#[path = "hands/packages.rs"]
mod packages;
#[path = "hands/way_out.rs"]
mod way_out;

const HELPER: &str = "--be-the-sandbox-helper";

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(HELPER) {
        return tailstep_sandbox::hands::main();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        a_workspace_outlives_its_sandboxes().await;
        a_session_keeps_its_shell_and_has_it_alone().await;
        an_idle_sandbox_is_ended().await;
        the_longest_idle_one_makes_room().await;
        a_call_waits_for_room_and_gives_up().await;
        a_dropped_call_is_stopped().await;
        a_killed_sandbox_is_lost_and_the_next_call_goes_on().await;
        a_worn_sandbox_is_replaced_between_calls().await;
        release_ends_a_running_call_and_removes_everything().await;
        outputs_become_blobs_and_a_manifest().await;
        what_a_session_is_given_is_there_and_stays_as_it_is().await;
        packages::packages_are_installed_once_for_all_sessions().await;
        packages::apt_packages_come_with_what_they_need().await;
        packages::what_keeps_a_layer_from_being_made_is_told().await;
        packages::a_failed_installation_is_told_and_not_repeated_at_once().await;
        way_out::the_way_out_is_what_the_environment_says().await;
        packages::packages_come_from_registries_through_the_way_out().await;
        a_tree_too_deep_leaves_a_session_that_can_clean_up().await;
        closed_hands_refuse().await;
    });
    let laws =
        14 + if packages::has_pip() { 3 } else { 0 } + if packages::has_apt() { 2 } else { 0 };
    println!("{laws} laws of the local hands hold");
    ExitCode::SUCCESS
}

fn config() -> HandsConfig {
    let helper_path = Some(env::current_exe().unwrap());
    let helper_args = vec![HELPER.to_owned()];
    HandsConfig {
        spec: Spec { helper_path, helper_args, ..Spec::new("/") },
        ..HandsConfig::default()
    }
}

fn hands(data: &Path, change: impl FnOnce(&mut HandsConfig)) -> Arc<LocalHands> {
    let mut config = config();
    change(&mut config);
    LocalHands::new(data, Arc::new(MemoryBlobs::default()), config)
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("default", session)
}

async fn bash(
    hands: &LocalHands,
    session: &str,
    seq: u64,
    command: &str,
) -> Result<ToolReply, HandsError> {
    hands.execute(&order(session, seq, command)).await
}

fn order(session: &str, seq: u64, command: &str) -> ToolOrder {
    ToolOrder {
        key: key(session),
        call: Position { seq, event: 0, part: 1 },
        tool: "bash".to_owned(),
        input: RawJson::encode(&serde_json::json!({ "command": command })).unwrap(),
        timeout_ms: 30_000,
        environment: EnvironmentSpec::cloud("env_1"),
        given: Given::default(),
        workspace: None,
        outputs: None,
    }
}

async fn text(hands: &LocalHands, session: &str, seq: u64, command: &str) -> String {
    let reply = bash(hands, session, seq, command).await.unwrap();
    assert!(!reply.is_error, "{command}: {}", reply.text);
    reply.text
}

/// What is nested so deep that a sandbox is ended for it is no reason to refuse the next one.
async fn a_tree_too_deep_leaves_a_session_that_can_clean_up() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |_| {});
    for (session, directory) in [("w", "/workspace"), ("o", "/mnt/session/outputs")] {
        let nest = format!(
            "cd {directory}; echo kept > keep; deep=$(printf 'd/%.0s' $(seq 600)); mkdir -p $deep; \
             echo deep > ${{deep}}deepest; sleep 20"
        );
        let ended = bash(&hands, session, 1, &nest).await;
        assert!(matches!(ended, Err(HandsError::Lost { .. })), "{ended:?}");
        let said = text(&hands, session, 2, &format!("cat {directory}/keep")).await;
        assert!(said.contains(NEW) && said.contains("kept"), "{said}");
        let found = format!("sleep 3; cd {directory}; find . -name deepest -exec cat {{}} +; ls");
        let said = text(&hands, session, 3, &found).await;
        assert!(said.contains("deep\n") && said.contains("nested-too-deep-1"), "{said}");
        let clean = format!("cd {directory}; rm -rf d nested-too-deep-*; ls");
        assert!(text(&hands, session, 4, &clean).await.starts_with("keep\n"));
    }
}

async fn until(what: &str, look: impl Fn() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < Duration::from_secs(60), "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const NEW: &str = "new sandbox";

async fn a_workspace_outlives_its_sandboxes() {
    let data = tempfile::tempdir().unwrap();
    let seeded = workspace_dir(data.path(), &key("s"));
    fs::create_dir_all(&seeded).unwrap();
    fs::write(seeded.join("seed.txt"), "from outside\n").unwrap();
    let first = hands(data.path(), |_| {});
    let said = text(&first, "s", 1, "cat seed.txt; echo from inside > made.txt").await;
    assert!(said.contains("from outside") && !said.contains(NEW), "{said}");
    assert_eq!(fs::read_to_string(seeded.join("made.txt")).unwrap(), "from inside\n");
    first.close().await;
    drop(first);
    // Another process's life: the model is told that its shell is another one.
    let second = hands(data.path(), |_| {});
    let said = text(&second, "s", 2, "cat made.txt").await;
    assert!(said.contains("from inside") && said.contains(NEW), "{said}");
}

async fn a_session_keeps_its_shell_and_has_it_alone() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |_| {});
    assert_eq!(hands.live(), 0, "nothing is made before it is needed");
    let walls = LocalHands::check_host(Some(Path::new("/no/such/helper"))).await;
    assert!(walls.is_err_and(|why| why.contains("/no/such/helper")));
    let report = bash(&hands, "a", 9, "true").await.unwrap().report;
    let group = fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0");
    let expected: &[&str] = if group { &[] } else { &["control group"] };
    assert_eq!(report.walls_missing, expected, "what does not stand is said with each result");
    text(&hands, "a", 1, "x=mine; echo hello > a.txt").await;
    assert_eq!(text(&hands, "a", 2, "echo $x").await.trim(), "mine");
    assert_eq!(text(&hands, "b", 2, "echo ${x:-none}; ls").await.trim(), "none");
    assert_eq!(hands.live(), 2);
    // The same place in the log is the same call: it is answered and not run again.
    text(&hands, "a", 3, "echo once >> count.txt").await;
    text(&hands, "a", 3, "echo once >> count.txt").await;
    assert_eq!(text(&hands, "a", 4, "cat count.txt").await.trim(), "once");
}

async fn an_idle_sandbox_is_ended() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |config| config.idle_ms = 200);
    text(&hands, "a", 1, "echo kept > f").await;
    until("the idle sandbox is ended", || hands.live() == 0).await;
    let said = text(&hands, "a", 2, "cat f").await;
    assert!(said.contains("kept") && said.contains(NEW), "{said}");
}

async fn the_longest_idle_one_makes_room() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |config| config.live_max = 2);
    text(&hands, "a", 1, "x=1").await;
    text(&hands, "b", 1, "x=1").await;
    text(&hands, "a", 2, "x=2").await;
    text(&hands, "c", 1, "x=1").await;
    assert_eq!(hands.live(), 2);
    assert_eq!(text(&hands, "a", 3, "echo $x").await.trim(), "2", "a was used after b");
    assert!(text(&hands, "b", 2, "echo x${x}x").await.contains("xx"), "b had to go");
}

async fn a_call_waits_for_room_and_gives_up() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |config| {
        config.live_max = 1;
        config.room_wait_ms = 30_000;
    });
    let busy = {
        let hands = hands.clone();
        tokio::spawn(async move { text(&hands, "a", 1, "touch began; sleep 1; echo a").await })
    };
    let began = workspace_dir(data.path(), &key("a")).join("began");
    until("a is at work", || began.exists()).await;
    assert_eq!(text(&hands, "b", 1, "echo b").await.trim(), "b", "when a is through");
    assert_eq!(busy.await.unwrap().trim(), "a", "and a was not disturbed");

    let impatient = self::hands(&data.path().join("other"), |config| {
        config.live_max = 1;
        config.room_wait_ms = 50;
    });
    let busy = {
        let hands = impatient.clone();
        tokio::spawn(async move { bash(&hands, "a", 1, "touch began; sleep 20").await })
    };
    let began = workspace_dir(&data.path().join("other"), &key("a")).join("began");
    until("a is at work", || began.exists()).await;
    let refused = bash(&impatient, "b", 1, "echo b").await;
    assert!(matches!(refused, Err(HandsError::Unavailable { .. })), "{refused:?}");
    busy.abort();
}

async fn a_dropped_call_is_stopped() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |_| {});
    let running = {
        let hands = hands.clone();
        tokio::spawn(async move { bash(&hands, "a", 1, "touch began; sleep 2; touch late").await })
    };
    let workspace = workspace_dir(data.path(), &key("a"));
    until("the call runs", || workspace.join("began").exists()).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(!workspace.join("late").exists(), "the call was stopped");
    assert!(text(&hands, "a", 2, "echo on").await.contains("on"), "the session goes on");
}

async fn a_killed_sandbox_is_lost_and_the_next_call_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |_| {});
    text(&hands, "a", 1, "echo kept > f").await;
    let lost = {
        let hands = hands.clone();
        tokio::spawn(async move { bash(&hands, "a", 2, "touch began; sleep 20").await })
    };
    until("the call runs", || workspace_dir(data.path(), &key("a")).join("began").exists()).await;
    let guards = guards();
    assert!(!guards.is_empty());
    for guard in guards {
        Command::new("kill").args(["-9", &guard]).status().unwrap();
    }
    let lost = lost.await.unwrap();
    assert!(matches!(lost, Err(HandsError::Lost { .. })), "{lost:?}");
    let said = text(&hands, "a", 3, "cat f").await;
    assert!(said.contains("kept") && said.contains(NEW), "{said}");
}

/// What the helpers have forked: a guard for each sandbox, and a spare one each.
fn guards() -> Vec<String> {
    children("self").iter().flat_map(|helper| children(helper)).collect()
}

fn children(of: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(str::to_owned));
    }
    found
}

async fn a_worn_sandbox_is_replaced_between_calls() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |config| {
        config.spec.limits = Limits { life_ms_max: 4_000, call_ms_max: 3_000, ..Limits::default() };
    });
    text(&hands, "a", 1, "x=1").await;
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    // It would not last as long as this call, and nothing is lost.
    let said = text(&hands, "a", 2, "sleep 2.2; echo whole").await;
    assert!(said.contains("whole") && said.contains(NEW), "{said}");
    assert_eq!(hands.live(), 1);
}

async fn release_ends_a_running_call_and_removes_everything() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |_| {});
    text(&hands, "b", 1, "echo other > f").await;
    let running = {
        let hands = hands.clone();
        let command =
            "mkdir -p shut/deep; touch shut/deep/f; chmod 000 shut; touch began; sleep 20";
        tokio::spawn(async move { bash(&hands, "a", 1, command).await })
    };
    let workspace = workspace_dir(data.path(), &key("a"));
    until("the call runs", || workspace.join("began").exists()).await;
    let start = Instant::now();
    for _ in 0..2 {
        hands.release(&key("a")).await.unwrap();
        assert!(!workspace.parent().unwrap().exists());
    }
    assert!(start.elapsed() < Duration::from_secs(15), "the call was not waited for");
    let lost = running.await.unwrap();
    assert!(matches!(lost, Err(HandsError::Lost { .. })), "{lost:?}");
    assert_eq!(text(&hands, "b", 2, "cat f").await.trim(), "other", "others stay");
    hands.release(&key("never was")).await.unwrap();
}

async fn closed_hands_refuse() {
    let data = tempfile::tempdir().unwrap();
    let hands = hands(data.path(), |_| {});
    text(&hands, "a", 1, "true").await;
    hands.close().await;
    until("nothing but a spare is left", || guards().len() == children("self").len()).await;
    let refused = bash(&hands, "a", 2, "true").await;
    assert!(matches!(refused, Err(HandsError::Unavailable { .. })), "{refused:?}");
}

async fn outputs_become_blobs_and_a_manifest() {
    let data = tempfile::tempdir().unwrap();
    let blobs = Arc::new(MemoryBlobs::default());
    let hands = LocalHands::new(data.path(), blobs.clone(), config());
    let mut known: Option<BlobRef> = None;
    let mut seq = 0;
    let mut call = async |hands: &LocalHands, command: &str, known: &mut Option<BlobRef>| {
        seq += 1;
        let order = ToolOrder { outputs: known.clone(), ..order("s", seq, command) };
        let reply = hands.execute(&order).await.unwrap();
        assert!(!reply.is_error, "{command}: {}", reply.text);
        if reply.report.outputs.is_some() {
            *known = reply.report.outputs.clone();
        }
        reply
    };
    assert_eq!(call(&hands, "echo nothing", &mut known).await.report.outputs, None);
    let make = "cd /mnt/session/outputs && printf made > 'a b' && mkdir -m 700 sub && \
                printf deep > sub/deep && chmod 0 sub/deep && : > empty && ls -ld .";
    let reply = call(&hands, make, &mut known).await;
    assert!(!reply.text.contains("[outputs"), "{}", reply.text);
    let stored = blobs.get("default", known.as_ref().unwrap()).await.unwrap();
    let manifest = Manifest::decode(&stored).unwrap();
    let paths: Vec<_> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    if is_root() {
        assert_eq!(paths, ["a b", "empty", "sub/deep"]);
    }
    let bytes = blobs.get("default", &manifest.files[0].content.chunks[0]).await.unwrap();
    assert_eq!(&bytes[..], b"made");
    // Unchanged, also for the next sandbox and the next process.
    assert_eq!(
        call(&hands, "cat '/mnt/session/outputs/a b'", &mut known).await.report.outputs,
        None
    );
    hands.close().await;
    let hands = LocalHands::new(data.path(), blobs.clone(), config());
    assert_eq!(call(&hands, "ls /mnt/session/outputs", &mut known).await.report.outputs, None);
    let link = "ln -s /etc/passwd /mnt/session/outputs/out; printf 'no line end'";
    let reply = call(&hands, link, &mut known).await;
    let told =
        "no line end\n[outputs: 1 entry of /mnt/session/outputs left out: out (it is a link)]";
    assert!(reply.text.ends_with(told), "{}", reply.text);
    let reply = call(&hands, "echo again", &mut known).await;
    assert!(!reply.text.contains("[outputs"), "said once: {}", reply.text);
    // Nothing else may be written beside the outputs.
    let reply = bash(&hands, "s", 99, "touch /mnt/session/x").await.unwrap();
    assert!(reply.is_error || reply.text.contains("Read-only"), "{}", reply.text);
    hands.release(&key("s")).await.unwrap();
    assert!(blobs.get("default", known.as_ref().unwrap()).await.is_ok(), "the log names it");
}

async fn what_a_session_is_given_is_there_and_stays_as_it_is() {
    let data = tempfile::tempdir().unwrap();
    let blobs = Arc::new(MemoryBlobs::default());
    let hands = LocalHands::new(data.path(), blobs.clone(), config());
    let mut writer = ContentWriter::new(blobs.as_ref(), "default");
    writer.write(b"given bytes\n").await.unwrap();
    let content = writer.finish().await.unwrap();
    let file = |id: &str, mount_path: &str| FileResource {
        id: id.to_owned(),
        file_id: "file_1".to_owned(),
        filename: "a.txt".to_owned(),
        mount_path: mount_path.to_owned(),
        content: content.clone(),
        added_at_ms: 0,
    };
    let files = vec![file("r1", "/mnt/session/uploads/file_1"), file("r2", "/data/in/a b.txt")];
    let given = Given { files, skills: Vec::new() };
    let command = "cat /mnt/session/uploads/file_1 '/data/in/a b.txt'; \
                   echo x > /mnt/session/uploads/file_1; rm -f '/data/in/a b.txt'; ls -l /data/in";
    for (round, hands) in
        [&hands, &LocalHands::new(data.path(), blobs, config())].iter().enumerate()
    {
        let order = ToolOrder { given: given.clone(), ..order("s", round as u64, command) };
        let reply = hands.execute(&order).await.unwrap();
        assert_eq!(reply.text.matches("given bytes").count(), 2, "{}", reply.text);
        let (denied, busy) = ("Read-only file system", "busy");
        assert!(reply.text.contains(denied) || reply.text.contains(busy), "{}", reply.text);
        hands.close().await;
    }
}

/// Only root reads what the sandbox's user has closed to itself.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}
