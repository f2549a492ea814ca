//! One run: a seed, a world, everybody acts, faults stop, and the checkers look.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tailstep_core::{
    context::Context,
    ids::SessionKey,
    model::{Message, Part},
};
use tailstep_runtime::{planted::plant, ports::Log};

use crate::{
    bug::Bug,
    cast,
    check::{self, Checker, Violation},
    fault::Fault,
    notes::Notes,
    plan::{Plan, Profile},
    truth::Truth,
    world::{World, pass_ms},
};

/// Within this time after the faults have stopped everything must have come to rest. Twice the queue's
/// longest visibility time (a worker may die with a message that the faults made come late), and room
/// for the longest wait before a model call is tried again.
const REST_MS_MAX: u64 = 4 * 3_600_000;

pub struct Outcome {
    pub plan: Plan,
    pub violations: Vec<Violation>,
    pub notes: Notes,
    /// Bodies of all records, in order.
    pub logs: BTreeMap<SessionKey, Vec<Bytes>>,
    pub conversations: BTreeMap<SessionKey, Vec<Message>>,
    pub trace: Vec<String>,
    /// How long the run was, in its own time.
    pub took_ms: u64,
}

/// Runs `seed` with `bug` planted, if any. Equal arguments give equal outcomes, byte for byte.
pub fn run(seed: u64, bug: Option<Bug>, traced: bool) -> Outcome {
    let plan = Plan::of(seed, bug);
    let mut outcome = play(plan, bug, traced);
    if outcome.plan.profile != Profile::Wild && outcome.violations.is_empty() {
        let calm = play(outcome.plan.undisturbed(), None, false);
        compare(&mut outcome, &calm);
    }
    outcome
}

fn play(plan: Plan, bug: Option<Bug>, traced: bool) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { panic!("this machine gives no timer to tokio") };
    plant(bug.and_then(Bug::in_runtime));
    let outcome = runtime.block_on(act(plan, bug, traced));
    drop(runtime);
    plant(None);
    outcome
}

async fn act(plan: Plan, bug: Option<Bug>, traced: bool) -> Outcome {
    let world = World::new(plan, bug, traced);
    for _ in 0..world.plan.workers {
        tokio::spawn(cast::workers(world.clone()));
    }
    if world.plan.nets.sweeper {
        tokio::spawn(cast::sweeper(world.clone()));
    }
    tokio::spawn(cast::noise(world.clone()));
    for script in world.plan.scripts.clone() {
        tokio::spawn(cast::session(world.clone(), script));
    }
    let chaos_ms = world.plan.chaos_ms;
    while world.now_ms() < chaos_ms && !is_quiet(&world).await {
        pass_ms(500).await;
    }
    world.calm_down();
    let calm_ms = world.now_ms();
    let mut tick_ms = 50;
    while !is_quiet(&world).await {
        if world.now_ms() > calm_ms + REST_MS_MAX {
            let what = check::unrest(&world).await;
            world.violate(Checker::Liveness, || what);
            break;
        }
        pass_ms(tick_ms).await;
        tick_ms = (tick_ms * 2).min(20_000);
    }
    check::all(&world).await;
    outcome(&world)
}

/// Everybody has said what they had to say, every session rests, no worker is at work, no message is
/// under way, and lists show the sessions as they are.
async fn is_quiet(world: &Arc<World>) -> bool {
    let people: usize = world.plan.scripts.iter().map(|script| script.senders.len()).sum();
    let rest = world.with(|state| {
        state.notes.users_done == people
            && state.truths.len() == world.plan.scripts.len()
            && state.truths.values().all(Truth::is_resting)
    });
    let at_work = world.actors().iter().any(|worker| worker.held().is_some());
    rest && !at_work
        && world.queue.is_empty()
        && (!world.plan.nets.sweeper || heads_are_current(world).await)
}

/// Nothing is left for the sweeper: every head shows its session as it is, and none is due. A fenced
/// outcome changes nothing but the account, so that nobody comes to repair a head for it.
async fn heads_are_current(world: &Arc<World>) -> bool {
    let none_due = world.log.due(u64::MAX, 1).await.is_ok_and(|due| due.is_empty());
    if !none_due || !world.with(|state| state.due_for_ever.is_empty()) {
        return false;
    }
    for script in &world.plan.scripts {
        let last = world.with(|state| state.truths.get(&script.key).map_or(0, Truth::shown_seq));
        let head = world.log.head(&script.key).await;
        if !head.is_ok_and(|head| head.is_some_and(|head| head.last_seq >= last)) {
            return false;
        }
    }
    true
}

fn outcome(world: &World) -> Outcome {
    let took_ms = world.now_ms();
    let mut state = world.state();
    let mut logs = BTreeMap::new();
    let mut conversations = BTreeMap::new();
    for (key, truth) in &state.truths {
        logs.insert(key.clone(), truth.written.iter().map(|w| w.body.clone()).collect());
        let request = Context::of(truth.records()).request(&world.plan.limits);
        conversations.insert(key.clone(), request.map(|r| r.messages.to_vec()).unwrap_or_default());
    }
    Outcome {
        plan: world.plan.clone(),
        violations: std::mem::take(&mut state.violations),
        notes: std::mem::take(&mut state.notes),
        logs,
        conversations,
        trace: std::mem::take(&mut state.trace),
        took_ms,
    }
}

/// The oracle: the same people and the same model, and nothing went wrong.
fn compare(outcome: &mut Outcome, calm: &Outcome) {
    let told = outcome.plan.on(Fault::HandsLost) || outcome.plan.on(Fault::HandsUnavailable);
    assert!(!told, "a run with failing hands cannot be compared");
    for (key, expected) in &calm.conversations {
        let found = outcome.conversations.get(key);
        if found != Some(expected) {
            let what = difference(expected, found.map(Vec::as_slice).unwrap_or_default());
            let what = format!("{key}: not the conversation of an undisturbed run: {what}");
            outcome.violations.push(Violation { checker: Checker::Oracle, what });
        }
    }
    if !calm.violations.is_empty() {
        outcome.violations.extend(calm.violations.iter().cloned());
    }
}

fn difference(expected: &[Message], found: &[Message]) -> String {
    let parts = |messages: &[Message]| -> Vec<Part> {
        messages.iter().flat_map(|message| message.parts.clone()).collect()
    };
    let (expected, found) = (parts(expected), parts(found));
    let at = expected.iter().zip(&found).take_while(|(a, b)| a == b).count();
    format!("block {at} is {:?} instead of {:?}", found.get(at), expected.get(at))
}
