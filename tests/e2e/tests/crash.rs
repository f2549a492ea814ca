//! `kill -9` of `tailstep dev` at random moments of a session: the transcript comes out as if nothing
//! had happened, and no kill costs more than the step it interrupted.
//!
//! `TAILSTEP_CRASH_KILLS` sets the number of kills, `TAILSTEP_CRASH_SEED` the moments.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests_e2e::{Dev, transcript::transcript};

/// Tool steps of one session; as many model steps and one more go with them.
const STEPS: usize = 20;

/// About how long one tool step works, so that most kills hit one in the middle.
const STEP_SECONDS: &str = "0.04";

/// From the start of the process to the first step that it completes.
const RESUMED_WITHIN: Duration = Duration::from_secs(1);

/// From the last kill until nothing is left of the killed servers' sandboxes.
const GONE_WITHIN: Duration = Duration::from_secs(3);

/// A life ends at most this long after it began to listen, at random.
const LIFE_MS_MAX: u64 = 300;

/// After this many lives in a row that were too short for a step, one is long enough. A step that
/// kills ten workers is given up by design, and that limit is not what is tested here.
const BARREN_LIVES_MAX: u32 = 6;
const LONG_LIFE_MS: u64 = 1_000;

#[test]
fn a_killed_server_loses_no_step_and_doubles_none() {
    let kills = number("TAILSTEP_CRASH_KILLS").unwrap_or(10);
    let seed = number("TAILSTEP_CRASH_SEED").unwrap_or_else(random);
    let mut moments = Random(seed);
    let folder = tempfile::tempdir().unwrap();
    write_script(folder.path());
    let undisturbed = reference(folder.path());
    assert_eq!(calls(&undisturbed), STEPS);

    let mut seen = Seen::default();
    while seen.kills < kills {
        let data = folder.path().join(format!("killed-{}", seen.sessions));
        let events = session_under_fire(folder.path(), &data, kills, &mut moments, &mut seen);
        let disturbed = transcript(&events);
        for (place, expected) in undisturbed.iter().enumerate() {
            let found = disturbed.get(place).unwrap_or(&Value::Null);
            assert_eq!(found, expected, "seed {seed}, session {}, place {place}", seen.sessions);
        }
        assert_eq!(disturbed.len(), undisturbed.len(), "seed {seed}: {disturbed:#?}");
        seen.sessions += 1;
    }
    let survivors_until = Instant::now() + GONE_WITHIN;
    while !seen.survivors.is_empty() && Instant::now() < survivors_until {
        seen.survivors.retain(|pid, started| start_of(*pid).as_deref() == Some(started));
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{seen}, seed {seed}");
    assert!(seen.survivors.is_empty(), "sandboxes outlived their server: {:?}", seen.survivors);
    assert!(seen.rerun <= seen.kills, "a kill cost more than one step: {seen}, seed {seed}");
    assert!(
        seen.resumed.len() * 3 >= usize::try_from(kills).unwrap(),
        "too few lives did a step: {seen}"
    );
    let slowest = seen.resumed.iter().max().unwrap();
    assert!(*slowest < RESUMED_WITHIN, "resuming took {slowest:?}, seed {seed}");
}

/// What the kills did.
#[derive(Default)]
struct Seen {
    sessions: usize,
    kills: u64,
    /// Kills that interrupted a step, as its next attempt shows.
    rerun: u64,
    /// From the start of each process to its first step.
    resumed: Vec<Duration>,
    /// Processes of killed servers, by id, with their start times.
    survivors: BTreeMap<u32, String>,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut resumed = self.resumed.clone();
        resumed.sort();
        let at = |part: usize| {
            resumed.get((resumed.len() * part / 100).min(resumed.len().saturating_sub(1)))
        };
        write!(
            f,
            "{} kills over {} sessions of {STEPS} steps: every transcript equal, {} steps re-run, \
             first step after a start: median {:.0?}, slowest {:.0?} ({} lives)",
            self.kills,
            self.sessions,
            self.rerun,
            at(50).copied().unwrap_or_default(),
            at(100).copied().unwrap_or_default(),
            resumed.len(),
        )
    }
}

/// Each step leaves a file of its own and reads what the earlier ones left, so that a lost, doubled
/// or reordered step shows in what the next one says.
fn write_script(folder: &Path) {
    let mut turns: Vec<Value> = (1..=STEPS)
        .map(|n| {
            let command = format!("sleep {STEP_SECONDS}; echo {n} > {n:02}; cat * | tr '\\n' ' '");
            json!({ "blocks": [
                { "type": "text", "text": format!("step {n}") },
                { "type": "tool_use", "name": "bash", "input": { "command": command } },
            ]})
        })
        .collect();
    turns.push(json!({ "blocks": [{ "type": "text", "text": "finished" }] }));
    fs::write(folder.join("crash.json"), Value::from(turns).to_string()).unwrap();
}

fn start(folder: &Path, data: &Path) -> Dev {
    let root = folder.to_str().unwrap();
    Dev::start(data, &["--workers", "8"], &[("TAILSTEP_SCRIPT_ROOT", root)]).unwrap()
}

fn reference(folder: &Path) -> Vec<Value> {
    let dev = start(folder, &folder.join("undisturbed"));
    let session = dev.session("scripted/crash.json").unwrap();
    dev.say(&session, "go").unwrap();
    transcript(&dev.rest(&session, Duration::from_secs(60)).unwrap())
}

/// One session, with kills until it is done or there were enough; its events.
fn session_under_fire(
    folder: &Path,
    data: &Path,
    kills: u64,
    moments: &mut Random,
    seen: &mut Seen,
) -> Vec<Value> {
    let mut dev = start(folder, data);
    let session = dev.session("scripted/crash.json").unwrap();
    dev.say(&session, "go").unwrap();
    let mut first_life = true;
    let mut barren_lives = 0;
    loop {
        let last = seen.kills >= kills;
        let life_ms = match barren_lives {
            BARREN_LIVES_MAX.. => LONG_LIFE_MS,
            _ => moments.below(LIFE_MS_MAX),
        };
        if last {
            dev.rest(&session, Duration::from_secs(60)).unwrap();
        } else {
            std::thread::sleep(Duration::from_millis(life_ms));
        }
        let over = last || is_idle(&dev, &session);
        let family = descendants(dev.pid());
        if !over {
            dev.signal(Signal::KILL);
            dev.wait(Duration::from_secs(5)).unwrap();
            seen.kills += 1;
            seen.survivors.extend(family);
        }
        barren_lives = if note_steps(&dev, first_life, seen) == 0 { barren_lives + 1 } else { 0 };
        if over {
            return dev.events(&session).unwrap();
        }
        first_life = false;
        dev = start(folder, data);
    }
}

/// Takes the steps of one life down; answers how many there were.
fn note_steps(dev: &Dev, first_life: bool, seen: &mut Seen) -> usize {
    // Everything that a killed process wrote is in the pipe; its reader needs a moment.
    std::thread::sleep(Duration::from_millis(5));
    let steps = dev.steps();
    if let Some((at, _)) = steps.first().filter(|_| !first_life) {
        seen.resumed.push(at.saturating_duration_since(dev.started));
    }
    let lost =
        steps.iter().filter_map(|(_, step)| step["attempt"].as_u64()).map(|n| n.saturating_sub(1));
    seen.rerun += lost.sum::<u64>();
    steps.len()
}

fn is_idle(dev: &Dev, session: &str) -> bool {
    dev.ok("GET", &format!("/v1/sessions/{session}"), None).unwrap()["status"] == "idle"
}

fn calls(transcript: &[Value]) -> usize {
    transcript.iter().filter(|event| event["type"] == "agent.tool_use").count()
}

/// The processes below `pid`, with their start times.
fn descendants(pid: u32) -> BTreeMap<u32, String> {
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|id: u32| Some((id, stat(id)?.get(1)?.parse().ok()?)))
        .collect();
    let mut found = BTreeMap::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for (id, _) in processes.iter().filter(|(_, of)| *of == parent) {
            if let Some(started) = start_of(*id) {
                found.insert(*id, started);
                parents.push(*id);
            }
        }
    }
    found
}

/// When the process started; `None` once it is gone, or dead and only not collected by its parent.
fn start_of(pid: u32) -> Option<String> {
    let fields = stat(pid)?;
    (fields.first()? != "Z").then(|| fields.get(19).cloned())?
}

/// The fields of `/proc/PID/stat` behind the program's name; the parent is the second.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    u64::from_le_bytes(bytes) >> 40
}

/// Splitmix64: the same moments for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
