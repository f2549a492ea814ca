//! How sandboxes end: always wholly, whoever dies first, and without residue.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where it fails")]

mod common;

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{children, start, start_with};
use serde_json::json;
use tailstep_sandbox::{Access, Mount};

/// Host processes whose command line has `mark` as an argument.
fn marked(mark: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes()) {
            found.push(pid);
        }
    }
    found
}

fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const DAEMONS: &str =
    "setsid sh -c '(sleep MARK &) ; sleep MARK' & (setsid sleep MARK &) ; sleep MARK";

#[tokio::test]
async fn destroying_ends_daemons_and_can_be_repeated() {
    let mark = "31111.25";
    let scene = start().await;
    let command = DAEMONS.replace("MARK", mark).replace("; sleep 31111.25", "; true");
    scene.prints(&command).await;
    wait_for("the daemons run", Duration::from_secs(3), || marked(mark).len() >= 2);
    scene.sandbox.destroy().await;
    assert_eq!(marked(mark), Vec::<u32>::new());
    scene.sandbox.destroy().await;
    let late =
        scene.sandbox.execute(common::call("late", "bash", json!({ "command": "true" }))).await;
    assert!(late.unwrap_err().to_string().contains("destroyed"));
}

/// `TAILSTEP_TEST_ROUNDS` sets the number of rounds.
#[tokio::test]
async fn nothing_of_a_timed_out_call_lives_on() {
    let rounds = std::env::var("TAILSTEP_TEST_ROUNDS").map_or(40, |n| n.parse::<u32>().unwrap());
    let scripts = [
        "setsid sh -c '(sleep MARK &) ; sleep MARK' & (setsid sleep MARK &) ; sleep MARK",
        "trap '' TERM HUP INT; (trap '' TERM HUP; nohup setsid setsid sleep MARK &) ; sleep MARK",
        "for i in 1 2 3 4 5 6 7 8; do (sleep MARK & disown; sleep MARK &) & done; wait; sleep MARK",
        "while :; do (setsid sleep MARK &) ; sleep 0.01; done",
    ];
    let scene = start().await;
    for round in 0..rounds {
        let mark = format!("4{round:06}.25");
        let command = scripts[round as usize % scripts.len()].replace("MARK", &mark);
        let input = json!({ "command": command, "timeout_ms": 30 + u64::from(round % 7) * 10 });
        let reply = scene.run("bash", input).await;
        assert!(reply.timed_out, "round {round}: {}", reply.text);
        assert_eq!(marked(&mark), Vec::<u32>::new(), "round {round} left something");
        assert_eq!(scene.prints("echo well").await, "well\n", "round {round}");
    }
    println!("{rounds} rounds");
}

#[tokio::test]
async fn dropping_a_sandbox_in_mid_call_ends_it() {
    let mark = "31112.25";
    let scene = start().await;
    let call = common::call("1", "bash", json!({ "command": DAEMONS.replace("MARK", mark) }));
    let running =
        tokio::time::timeout(Duration::from_millis(700), scene.sandbox.execute(call)).await;
    assert!(running.is_err(), "the command still ran");
    drop(scene);
    let start = Instant::now();
    while !marked(mark).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn dropping_the_future_stops_the_call_and_keeps_the_sandbox() {
    let mark = "31113.25";
    let scene = start().await;
    let call = common::call("1", "bash", json!({ "command": DAEMONS.replace("MARK", mark) }));
    let running =
        tokio::time::timeout(Duration::from_millis(700), scene.sandbox.execute(call.clone())).await;
    assert!(running.is_err() && !marked(mark).is_empty());
    assert_eq!(scene.prints("echo alive").await, "alive\n");
    assert_eq!(marked(mark), Vec::<u32>::new());
    let again = scene.sandbox.execute(call).await.unwrap();
    assert!(
        again.text.contains("stopped on request"),
        "a stopped call is not run again: {}",
        again.text
    );
}

/// Word to stop a call may be right behind it.
#[tokio::test]
async fn a_call_that_is_given_up_at_once_holds_up_no_other() {
    let scene = start().await;
    for round in 0..60 {
        let call =
            common::call(&format!("given up {round}"), "bash", json!({ "command": "sleep 600" }));
        let wait = Duration::from_micros(round * 25);
        assert!(tokio::time::timeout(wait, scene.sandbox.execute(call)).await.is_err());
        let next = tokio::time::timeout(Duration::from_secs(20), scene.prints("echo next")).await;
        assert_eq!(next.as_deref(), Ok("next\n"), "round {round}");
    }
}

#[tokio::test]
async fn a_call_delivered_twice_runs_once() {
    let scene = start().await;
    let call = common::call("same", "bash", json!({ "command": "echo x >> log; wc -l < log" }));
    let first = scene.sandbox.execute(call.clone()).await.unwrap();
    let again = scene.sandbox.execute(call).await.unwrap();
    assert_eq!((first.text.as_str(), &again), ("1\n", &first));
}

#[tokio::test]
async fn a_killed_guard_takes_everything_along() {
    let mark = "31114.25";
    let scene = start().await;
    scene.prints(&format!("(setsid sleep {mark} &); true")).await;
    let guard = scene.guard_pid();
    let outcome = tokio::join!(
        scene.sandbox.execute(common::call("1", "bash", json!({ "command": "sleep 60" }))),
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            kill(guard);
        }
    );
    assert!(outcome.0.unwrap_err().to_string().contains("guard was killed"));
    wait_for("daemons end", Duration::from_secs(3), || marked(mark).is_empty());
}

#[tokio::test]
async fn a_killed_first_process_is_told() {
    let scene = start().await;
    let inner = children(scene.guard_pid());
    kill(inner[0]);
    let lost = scene.sandbox.execute(common::call("1", "bash", json!({ "command": "true" }))).await;
    let why = lost.unwrap_err().to_string();
    assert!(why.contains("the sandbox is gone: its first process died"), "{why}");
}

/// The other half of the next test: a supervisor that waits to be killed.
#[tokio::test]
#[ignore = "run by another test as a process of its own"]
async fn role_supervisor() {
    let mark = std::env::var("SUPERVISOR_MARK").unwrap();
    let scene = start().await;
    scene.bash(&DAEMONS.replace("MARK", &mark)).await;
}

#[test]
fn kill_9_of_the_supervisor_leaves_no_process() {
    let mark = "31115.25";
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "role_supervisor"])
        .env("SUPERVISOR_MARK", mark)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("daemons start", Duration::from_secs(20), || marked(mark).len() >= 4);
    // The helper, its guards, of which one is a spare, and the first processes inside.
    let helper = children(supervisor.id())[0];
    wait_for("a spare guard", Duration::from_secs(3), || children(helper).len() == 2);
    let guards = children(helper);
    let mut all: Vec<u32> = guards.iter().flat_map(|guard| children(*guard)).collect();
    all.extend([helper].iter().chain(&guards));
    supervisor.kill().unwrap();
    assert_eq!(supervisor.wait().unwrap().signal(), Some(9));
    wait_for("everything ends", Duration::from_secs(3), || {
        marked(mark).is_empty()
            && all.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
}

/// Run apart, since it kills what other tests of this program use.
#[tokio::test]
#[ignore = "run by another test as a process of its own"]
async fn role_helper_killer() {
    let scene = start().await;
    let helper = parent(scene.guard_pid());
    let spare = || children(helper).into_iter().find(|guard| *guard != scene.guard_pid());
    wait_for("a spare guard", Duration::from_secs(3), || spare().is_some());
    // A spare that dies is replaced.
    let first = spare().unwrap();
    kill(first);
    wait_for("another spare", Duration::from_secs(3), || spare().is_some_and(|pid| pid != first));
    assert_eq!(start().await.prints("echo from a spare").await, "from a spare\n");
    // So is a helper; what it had made goes on.
    kill(helper);
    assert_eq!(scene.prints("echo alive").await, "alive\n");
    // The dead helper's spare may still take one; the next ones must not wait for anybody.
    let begun = Instant::now();
    start().await.sandbox.destroy().await;
    let second = start().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "a dead helper was waited for");
    assert_eq!(second.prints("echo from another helper").await, "from another helper\n");
    assert_ne!(parent(second.guard_pid()), helper);
    scene.sandbox.destroy().await;
    second.sandbox.destroy().await;
}

#[test]
fn a_killed_helper_costs_nothing() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "role_helper_killer"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn parent(of: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{of}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_start_at_the_same_time() {
    let starting: Vec<_> = (0..24)
        .map(|number| {
            tokio::spawn(async move {
                let scene = start().await;
                let said = scene.prints(&format!("echo {number} > own; cat own")).await;
                assert_eq!(said, format!("{number}\n"));
                scene.guard_pid()
            })
        })
        .collect();
    let mut guards = std::collections::BTreeSet::new();
    for one in starting {
        guards.insert(one.await.unwrap());
    }
    assert_eq!(guards.len(), 24, "each has its own guard");
}

/// A sandbox that was prepared before the host changed shows the host as it is. Run apart, since it
/// changes the host for other tests of this program.
#[tokio::test]
#[ignore = "run by another test as a process of its own"]
async fn role_changed_host() {
    start().await.sandbox.destroy().await;
    // The spare has time to be made.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let place = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place.path()).status();
    assert!(mounted.unwrap().success());
    fs::write(place.path().join("late"), "here").unwrap();
    let source = place.path().to_owned();
    let target = "/data".into();
    let scene = start_with(|spec| {
        spec.mounts.push(Mount { source, target, access: Access::ReadOnly });
    })
    .await;
    assert_eq!(scene.prints("cat /data/late").await, "here");
    scene.sandbox.destroy().await;
    let gone = Command::new("umount").arg(place.path()).status();
    assert!(gone.unwrap().success(), "a spare keeps no mount of the host busy");
    // So does what is mounted over something that the spare has.
    let scene = start().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let own = tempfile::tempdir_in("/usr/local").unwrap();
    let cache = own.path().join("ld.so.cache");
    fs::write(&cache, "ours").unwrap();
    let mounted = Command::new("mount").arg("--bind").arg(&cache).arg("/etc/ld.so.cache").status();
    assert!(mounted.unwrap().success());
    let changed = start().await;
    let seen = changed.prints("head -c 4 /etc/ld.so.cache").await;
    assert!(Command::new("umount").arg("/etc/ld.so.cache").status().unwrap().success());
    assert_eq!(seen, "ours");
    assert_ne!(scene.prints("head -c 4 /etc/ld.so.cache").await, "ours");
}

#[test]
fn what_the_host_mounts_later_is_seen() {
    if !rustix::process::geteuid().is_root() {
        // An ordinary user cannot mount anything.
        return;
    }
    let output = Command::new("unshare")
        .args(["--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "role_changed_host"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The other half of the next test: everything over again as an ordinary user.
#[tokio::test]
#[ignore = "run by another test as a process of its own"]
async fn role_ordinary_user() {
    let home = std::env::var("ORDINARY_HOME").unwrap();
    let workspace = tempfile::tempdir_in(home).unwrap();
    let scene = common::Scene::over(workspace, |_| {}).await;
    assert_eq!(
        scene.prints("id -un; echo x > f; cat f; ls -d /root 2>/dev/null; true").await,
        "agent\nx\n"
    );
    let layers = scene.sandbox.layers();
    assert!(layers.active.iter().any(|layer| layer == "landlock"), "{layers:?}");
    assert!(layers.missing.iter().all(|why| why.starts_with("control group: ")), "{layers:?}");
    assert_eq!(layers.missing.len(), 1, "the missing bound on memory is told: {layers:?}");
    let reply = scene.bash("python3 -c 'x=b\"x\"*(2<<30)'").await;
    assert!(reply.is_error && reply.text.contains("MemoryError"), "{}", reply.text);
    let reply = scene.bash("sleep 60").await;
    assert!(reply.timed_out || reply.is_error);
}

#[test]
fn an_ordinary_user_can_run_sandboxes_too() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    if !rustix::process::geteuid().is_root() {
        // Then every other test has shown it.
        return;
    }
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Copies, since the build directory may lie where only root can go.
    let test = home.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    let helper = home.path().join("tailstep-hands");
    fs::copy(env!("CARGO_BIN_EXE_tailstep-hands"), &helper).unwrap();
    let scratch = home.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    std::os::unix::fs::chown(&scratch, Some(12_345), Some(12_345)).unwrap();
    let output = Command::new(&test)
        .args(["--ignored", "--exact", "role_ordinary_user"])
        .env("ORDINARY_HOME", &scratch)
        .env("TAILSTEP_TEST_HELPER", &helper)
        .env("TAILSTEP_TEST_CALL_MS", "3000")
        .current_dir("/")
        .uid(12_345)
        .gid(12_345)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[tokio::test]
async fn fifty_sandboxes_leave_nothing_behind() {
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    // The first one opens what a runtime keeps.
    start().await.sandbox.destroy().await;
    let (descriptors_before, mounts_before) = (descriptors(), mounts());
    let mut guards = Vec::new();
    for round in 0..50 {
        let scene = start_with(|_| {}).await;
        guards.push(scene.guard_pid());
        if round % 10 == 0 {
            scene.prints("(setsid sleep 600 &); true").await;
        }
        scene.sandbox.destroy().await;
    }
    // Other tests of this program run at the same time and hold some descriptors.
    assert!(
        descriptors() < descriptors_before + 25,
        "{} then {}",
        descriptors_before,
        descriptors()
    );
    assert_eq!(mounts(), mounts_before);
    for guard in guards {
        wait_for("guards end", Duration::from_secs(3), || {
            !Path::new(&format!("/proc/{guard}")).exists()
        });
        let groups = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let tops = groups.lines().filter(|line| line.contains(" - cgroup"));
        for top in tops.filter_map(|line| line.split(' ').nth(4)) {
            let left = control_groups_of(Path::new(top), guard);
            assert_eq!(left, 0, "control group of guard {guard} is left in {top}");
        }
    }
}

fn control_groups_of(under: &Path, guard: u32) -> usize {
    let name = format!("tailstep-{guard}-");
    let entries = fs::read_dir(under).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| {
            let own = entry.file_name().to_string_lossy().starts_with(&name);
            usize::from(own) + control_groups_of(&entry.path(), guard)
        })
        .sum()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
