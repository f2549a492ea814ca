//! Everything comes to rest, and a dead worker's session goes on soon.

use tailstep_core::event::Event;
use tailstep_runtime::ports::Log;

use super::Checker;
use crate::{
    plan::Profile,
    truth::{Truth, Written},
    world::World,
};

/// A queue hop, a few calls, and a worker that is started anew.
const HOP_MS: u64 = 3_000;

/// What is not at rest, for the report.
pub async fn unrest(world: &World) -> String {
    let mut what = Vec::new();
    world.with(|state| {
        for (key, truth) in state.truths.iter().filter(|(_, truth)| !truth.is_resting()) {
            let session = &truth.session;
            what.push(format!("{key} is stuck at #{}: {:?}", session.seq, session.phase));
        }
        what.push(format!("{} people are done", state.notes.users_done));
    });
    what.push(format!("{} messages are under way", world.queue.len()));
    for script in &world.plan.scripts {
        if let Ok(Some(head)) = world.log.head(&script.key).await {
            what.push(format!(
                "the head of {} is at #{}, {:?}, due {:?}",
                script.key, head.last_seq, head.status, head.due_at_ms
            ));
        }
    }
    format!("no rest: {}", what.join("; "))
}

pub(super) fn check(world: &World) {
    if world.plan.profile == Profile::CrashOnly {
        recovery(world);
    }
}

/// Where workers die and nothing else happens, the next record comes within two leases and a hop of
/// the last death: one lease until the message is back, one until its taker knows.
fn recovery(world: &World) {
    let bound_ms = 2 * world.plan.limits.lease_ms + HOP_MS;
    let state = world.state();
    let mut late = Vec::new();
    for crash in &state.notes.crashes {
        let Some(truth) = state.truths.get(&crash.key) else { continue };
        let Some((before, next)) = around(truth, crash.at_ms) else { continue };
        // A message that nothing was done with is hidden for the queue's whole visibility time, or
        // until the sweeper sees to it; the window is one call wide.
        let early = state
            .notes
            .crashes
            .iter()
            .filter(|other| other.key == crash.key)
            .any(|other| other.early && (crash.at_ms..=next.at_ms).contains(&other.at_ms));
        let last_ms = state
            .notes
            .crashes
            .iter()
            .filter(|other| other.key == crash.key && other.at_ms <= next.at_ms)
            .map(|other| other.at_ms)
            .max();
        let took_ms = next.at_ms - last_ms.unwrap_or(crash.at_ms);
        if !early && !waits_or_works(before, next) && took_ms > bound_ms {
            late.push(format!("{}: after {took_ms} ms, record #{}", crash.key, next.record.seq));
        }
    }
    drop(state);
    for what in late {
        world.violate(Checker::Liveness, || format!("a dead worker's session stood still: {what}"));
    }
}

/// The records before and after that moment, if the session had something to do.
fn around(truth: &Truth, at_ms: u64) -> Option<(&Written, &Written)> {
    let next = truth.written.iter().position(|written| written.at_ms > at_ms)?;
    Some((truth.written.get(next.checked_sub(1)?)?, truth.written.get(next)?))
}

/// Nothing stood still there: the session had come to rest, or the next record is what another worker
/// was busy with.
fn waits_or_works(before: &Written, next: &Written) -> bool {
    let seq = before.record.seq;
    let rests = before.record.events.iter().any(|event| {
        matches!(event, Event::TurnEnded(_) | Event::Created(_) | Event::Ended(_))
            || matches!(event, Event::ModelFailed(failed) if failed.retry_at_ms.is_some())
    });
    let outcome = next.record.events.iter().any(|event| {
        matches!(event, Event::ModelAnswered(answered) if answered.intent <= seq)
            || matches!(event, Event::ModelFailed(failed) if failed.intent <= seq)
            || matches!(event, Event::ToolFinished(finished)
                if finished.intent.is_some_and(|intent| intent <= seq))
    });
    rests || outcome
}
