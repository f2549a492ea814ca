//! Hands in real sandboxes. The program is its own sandbox helper, so that nothing has to be built
//! beside it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test with a main of its own")]

use std::{
    env, fs, io,
    net::IpAddr,
    path::Path,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tailstep_core::{
    agent::EnvironmentSpec,
    egress::{EgressRule, EgressSecret, Networking},
    files::{FileResource, Given, Manifest},
    ids::{BlobRef, Position, SessionKey},
    raw::RawJson,
};
use tailstep_egress::Resolver;
use tailstep_local::{HandsConfig, LocalHands, workspace_dir};
use tailstep_runtime::{
    content::ContentWriter,
    memory::{MemoryBlobs, MemorySecrets},
    ports::{Blobs, Hands, HandsError, ToolOrder, ToolReply},
};
use tailstep_sandbox::{Limits, Spec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

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
        packages_are_installed_once_for_all_sessions().await;
        a_failed_installation_is_told_and_not_repeated_at_once().await;
        the_way_out_is_what_the_environment_says().await;
        packages_come_from_registries_through_the_way_out().await;
        closed_hands_refuse().await;
    });
    println!("16 laws of the local hands hold");
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

/// Answers every request with what was asked, one line a header; counts them.
async fn echo_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && client.read_buf(&mut head).await.unwrap_or(0) > 0
            {
            }
            let key = String::from_utf8_lossy(&head).contains("x-key: the-secret-value");
            let known = if key { "known" } else { "unknown" };
            let body = format!("{known}\n{}", String::from_utf8_lossy(&head));
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = client.write_all(answer.as_bytes()).await;
        }
    });
    (port, asked)
}

async fn the_way_out_is_what_the_environment_says() {
    let data = tempfile::tempdir().unwrap();
    let (port, asked) = echo_server().await;
    let secrets = MemorySecrets::default();
    secrets.set("egress_api", "the-secret-value");
    secrets.set("anthropic_api_key", "never-to-be-had");
    let secrets = Arc::new(secrets);
    let hands = hands(data.path(), |config| {
        config.egress.allow_private = vec![format!("127.0.0.1:{port}").parse().unwrap()];
        config.secrets = secrets;
    });
    let ask = |path: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://127.0.0.1:{port}{path} HTTP/1.1\\r\\n\
             Host: 127.0.0.1:{port}\\r\\nx-key: %s\\r\\n\\r\\n' \"$API_KEY\" >&3; cat <&3"
        )
    };
    let rule = |secret: &str| EgressRule {
        ports: vec![port],
        paths: vec!["/open".to_owned()],
        secrets: vec![EgressSecret { variable: "API_KEY".into(), secret: secret.into() }],
        ..EgressRule::for_host("127.0.0.1")
    };
    let limited = |rule| Networking::Limited { rules: vec![rule], package_managers: false };
    let with = |session: &str, seq, command: &str, networking| {
        let mut order = order(session, seq, command);
        order.environment.networking = networking;
        order
    };
    // Nothing said: there is not even a proxy.
    let reply = hands.execute(&order("none", 1, &ask("/open"))).await.unwrap();
    assert!(reply.is_error && reply.text.contains("refused"), "{}", reply.text);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    // What a rule allows, with the secret put in outside and taken out of the answer.
    let open = with("some", 1, &ask("/open"), limited(rule("api")));
    let reply = hands.execute(&open).await.unwrap();
    assert!(reply.text.contains("200 OK") && reply.text.contains("known\n"), "{}", reply.text);
    assert!(!reply.text.contains("unknown"), "{}", reply.text);
    assert!(!reply.text.contains("the-secret-value"), "{}", reply.text);
    assert_eq!(reply.report.egress.len(), 1);
    assert!(reply.report.egress[0].allowed && reply.report.egress[0].port == port);
    let inside = with("some", 2, "env; cat /proc/*/environ", limited(rule("api")));
    let inside = hands.execute(&inside).await.unwrap().text;
    assert!(inside.contains("API_KEY=") && !inside.contains("the-secret-value"), "{inside}");
    // What no rule allows.
    let closed = with("some", 3, &ask("/closed"), limited(rule("api")));
    let reply = hands.execute(&closed).await.unwrap();
    assert!(reply.text.contains(" 403 ") && reply.text.contains("policy"), "{}", reply.text);
    assert!(!reply.report.egress[0].allowed, "{:?}", reply.report);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // The keys of model providers cannot be named.
    let theft = with("thief", 1, &ask("/open"), limited(rule("anthropic_api_key")));
    let error = hands.execute(&theft).await.unwrap_err().to_string();
    assert!(error.contains("anthropic_api_key") && !error.contains("never-to-be"), "{error}");
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
    let guards = children();
    assert!(!guards.is_empty());
    for guard in guards {
        Command::new("kill").args(["-9", &guard]).status().unwrap();
    }
    let lost = lost.await.unwrap();
    assert!(matches!(lost, Err(HandsError::Lost { .. })), "{lost:?}");
    let said = text(&hands, "a", 3, "cat f").await;
    assert!(said.contains("kept") && said.contains(NEW), "{said}");
}

/// Processes that this one has started.
fn children() -> Vec<String> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let children =
            fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
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
    assert!(children().is_empty(), "nothing is left running");
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

/// Hands whose packages come from a directory that holds one wheel: a module and a program.
fn hands_with_a_wheel(data: &Path, wheels: &Path) -> Arc<LocalHands> {
    const MAKE: &str = "import sys, zipfile
z = zipfile.ZipFile(sys.argv[1] + '/spoken-1.0-py3-none-any.whl', 'w')
z.writestr('spoken.py', 'WORD = \"heard\"\\ndef main(): print(\"the program \" + WORD)\\n')
info = 'spoken-1.0.dist-info/'
z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: spoken\\nVersion: 1.0\\n')
z.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
z.writestr(info + 'entry_points.txt', '[console_scripts]\\nspoken = spoken:main\\n')
z.writestr(info + 'RECORD', '')
z.close()";
    let made = Command::new("python3").args(["-c", MAKE]).arg(wheels).status();
    assert!(made.unwrap().success());
    hands(data, |config| config.packages.directory = Some(wheels.to_owned()))
}

/// Whether this host's sandboxes have pip; without it two laws cannot be looked at.
fn has_pip() -> bool {
    let pip = Command::new("/usr/bin/python3").args(["-m", "pip", "--version"]).output();
    let found = pip.is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIPPED: /usr/bin/python3 has no pip, so no package is installed");
    }
    found
}

fn with_packages(session: &str, seq: u64, command: &str, pip: &[&str]) -> ToolOrder {
    let mut order = order(session, seq, command);
    order.environment.packages.pip = pip.iter().map(|&package| package.to_owned()).collect();
    order
}

async fn packages_are_installed_once_for_all_sessions() {
    if !has_pip() {
        return;
    }
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hands = hands_with_a_wheel(data.path(), wheels.path());
    let command = "python3 -c 'import spoken; print(\"module\", spoken.WORD)'; spoken; \
                   touch /opt/tailstep/packages/x 2>&1";
    let (a, b) = (
        with_packages("a", 1, command, &["spoken==1.0"]),
        with_packages("b", 1, command, &["spoken==1.0"]),
    );
    let (a, b) = tokio::join!(hands.execute(&a), hands.execute(&b));
    for reply in [a.unwrap(), b.unwrap()] {
        for said in ["module heard", "the program heard", "Read-only file system"] {
            assert!(reply.text.contains(said), "{said}: {}", reply.text);
        }
    }
    let layers = || {
        let all = fs::read_dir(data.path().join("layers")).unwrap();
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let built = layers();
    assert_eq!(built.len(), 1, "{built:?}");
    let place = data.path().join("layers").join(&built[0]);
    let made_at = fs::metadata(&place).unwrap().modified().unwrap();
    // Another process finds it: the wheel is not needed any more.
    hands.close().await;
    let again = self::hands(data.path(), |config| {
        config.packages.directory = Some(wheels.path().to_owned());
    });
    fs::remove_file(wheels.path().join("spoken-1.0-py3-none-any.whl")).unwrap();
    let reply = again.execute(&with_packages("c", 1, "spoken", &["spoken==1.0"])).await.unwrap();
    assert!(reply.text.contains("the program heard"), "{}", reply.text);
    assert_eq!(fs::metadata(&place).unwrap().modified().unwrap(), made_at);
    // A session without packages sees none.
    assert!(bash(&again, "d", 1, "spoken").await.unwrap().text.contains("not found"));
}

/// Every name is this machine.
struct AllHere;

#[async_trait::async_trait]
impl Resolver for AllHere {
    async fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }
}

/// A package index of one wheel (PEP 503).
async fn index_server(wheel: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && client.read_buf(&mut head).await.unwrap_or(0) > 0
            {
            }
            let page = "<a href=\"/spoken-1.0-py3-none-any.whl\">spoken-1.0-py3-none-any.whl</a>";
            let (kind, body) = match head.starts_with(b"GET /spoken-1.0") {
                true => ("application/octet-stream", wheel.clone()),
                false => ("text/html", page.as_bytes().to_vec()),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n",
                body.len()
            );
            let _ = client.write_all(&[head.as_bytes(), &body].concat()).await;
        }
    });
    port
}

async fn packages_come_from_registries_through_the_way_out() {
    if !has_pip() {
        return;
    }
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    hands_with_a_wheel(data.path(), wheels.path()).close().await;
    let wheel = fs::read(wheels.path().join("spoken-1.0-py3-none-any.whl")).unwrap();
    let port = index_server(wheel).await;
    let with_rules = |registries: Vec<EgressRule>| {
        let data = tempfile::tempdir().unwrap();
        let hands = hands(data.path(), |config| {
            config.egress.allow_private = vec![format!("127.0.0.1:{port}").parse().unwrap()];
            config.egress.resolver = Arc::new(AllHere);
            config.packages.registries = registries;
            config.packages.environment = vec![
                ("PIP_INDEX_URL".into(), format!("http://index.test:{port}/simple")),
                ("PIP_TRUSTED_HOST".into(), "index.test".into()),
                ("PIP_RETRIES".into(), "0".into()),
            ];
        });
        (data, hands)
    };
    let rule = EgressRule { ports: vec![port], ..EgressRule::for_host("index.test") };
    let (_data, open) = with_rules(vec![rule]);
    let reply = open.execute(&with_packages("a", 1, "spoken", &["spoken==1.0"])).await.unwrap();
    assert!(reply.text.contains("the program heard"), "{}", reply.text);
    // The session's own sandbox has no network all the same.
    let reply = bash(&open, "a", 2, "exec 3<>/dev/tcp/127.0.0.1/3128").await.unwrap();
    assert!(reply.is_error && reply.text.contains("refused"), "{}", reply.text);
    let (_data, closed) = with_rules(Vec::new());
    let refused = closed.execute(&with_packages("a", 1, "true", &["spoken==1.0"])).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("pip"), "{refused}");
}

async fn a_failed_installation_is_told_and_not_repeated_at_once() {
    if !has_pip() {
        return;
    }
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hands = hands_with_a_wheel(data.path(), wheels.path());
    let ask = |session: &str| with_packages(session, 1, "touch ran; ls", &["missing==9"]);
    let failed = hands.execute(&ask("a")).await.unwrap_err();
    let HandsError::Unprepared { told } = &failed else { panic!("{failed:?}") };
    for said in ["this call did not run", "pip:", "missing==9"] {
        assert!(told.contains(said), "{told}");
    }
    let begun = Instant::now();
    let again = hands.execute(&ask("b")).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(200), "it was built again");
    assert_eq!(again.to_string(), failed.to_string());
    assert_eq!(fs::read_dir(data.path().join("layers")).unwrap().count(), 0, "nothing is left");
    assert!(!workspace_dir(data.path(), &key("a")).join("ran").exists());
}

/// Only root reads what the sandbox's user has closed to itself.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}
