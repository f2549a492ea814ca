//! Nothing is done in vain: calls and messages are bounded by what made them necessary.

use tailstep_core::event::Event;

use super::Checker;
use crate::{fault::Fault, plan::Profile, world::World};

pub(super) fn check(world: &World) {
    for what in effects(world).into_iter().chain(messages(world)) {
        world.violate(Checker::Economy, || what);
    }
}

/// Each effect that was begun comes to an outcome in the log, or its step did not end well. Where
/// workers die and nothing else happens, each death costs at most one effect.
fn effects(world: &World) -> Option<String> {
    let state = world.state();
    let notes = &state.notes;
    let recorded: usize = state.truths.values().map(|truth| truth.count(is_outcome)).sum();
    let made = notes.model_calls.len() + notes.tool_runs.len();
    let fenced = ["step model fenced", "step tool fenced"].map(|step| notes.reached.get(step));
    let lost = match world.plan.profile {
        Profile::CrashOnly => notes.worker_deaths,
        Profile::Faithful | Profile::Wild => {
            let fenced: u64 = fenced.into_iter().flatten().sum();
            notes.worker_deaths + notes.step_errors + notes.leases_lost + fenced
        }
    };
    (made as u64 > recorded as u64 + lost).then(|| {
        format!("{made} effects for {recorded} outcomes, with {lost} steps that did not end well")
    })
}

/// A message is sent for each one taken; more come only from outside and from failures.
fn messages(world: &World) -> Option<String> {
    let state = world.state();
    let notes = &state.notes;
    let count = |fault| notes.faults.get(&fault).copied().unwrap_or(0);
    let chains = notes.message_sources
        + notes.redeliveries
        + notes.step_errors
        + notes.leases_lost
        + count(Fault::AckFails)
        + count(Fault::WorkerCrash)
        // Each worker may have sent the next message and not yet acknowledged its own.
        + world.plan.workers as u64;
    let records: u64 = state.truths.values().map(|truth| truth.session.seq).sum();
    let leases = world.now_ms() / world.plan.limits.lease_ms + 2;
    if notes.messages_live_max > chains {
        let live = notes.messages_live_max;
        return Some(format!("{live} messages at once, {chains} are accounted for"));
    }
    let most = records + chains * leases;
    (notes.deliveries > most)
        .then(|| format!("{} messages taken, {most} can be accounted for", notes.deliveries))
}

fn is_outcome(event: &Event) -> bool {
    matches!(event, Event::ModelAnswered(_) | Event::ModelFailed(_))
        || matches!(event, Event::ToolFinished(finished) if finished.intent.is_some())
}
