//! Nothing is done in vain: calls and messages are bounded by what made them necessary.

use tailstep_core::event::Event;

use super::Checker;
use crate::{fault::Fault, plan::Profile, world::World};

pub(super) fn check(world: &World) {
    for what in effects(world).into_iter().chain(messages(world)) {
        world.violate(Checker::Economy, || what);
    }
}

/// Where workers die and nothing else happens, each death costs at most one model call or tool run.
fn effects(world: &World) -> Option<String> {
    if world.plan.profile != Profile::CrashOnly {
        return None;
    }
    let state = world.state();
    let needed: usize = state
        .truths
        .values()
        .map(|truth| {
            truth.count(|event| match event {
                Event::ModelAnswered(_) | Event::ModelFailed(_) => true,
                Event::ToolFinished(finished) => finished.intent.is_some(),
                _ => false,
            })
        })
        .sum();
    let made = state.notes.model_calls.len() + state.notes.tool_runs.len();
    let deaths = state.notes.died_ms.len();
    (made > needed + deaths)
        .then(|| format!("{made} effects for {needed} outcomes, with {deaths} deaths"))
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
        + 2;
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
