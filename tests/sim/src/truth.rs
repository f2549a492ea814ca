//! The log as it really was written, kept apart from the store, and what must hold at each append.

use std::sync::Arc;

use bytes::Bytes;
use tailstep_core::{
    event::{Event, TurnEnd},
    ids::{BlobRef, Seq, SessionKey},
    record::Record,
    session::{Open, Session},
};
use tailstep_runtime::ports::{Entry, Head};
use tokio::sync::Notify;

use crate::{
    check::Checker,
    fault::Fault,
    notes::{ActorId, Life},
    world::World,
};

#[derive(Default)]
pub struct Truth {
    pub written: Vec<Written>,
    /// The fold of everything written.
    pub session: Session,
    /// The encoded fold after each record.
    pub snapshots: Vec<Bytes>,
    /// Projections as they were written.
    pub heads: Vec<Head>,
    pub grown: Arc<Notify>,
}

pub struct Written {
    pub record: Record,
    pub body: Bytes,
    pub at_ms: u64,
}

impl Truth {
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.written.iter().map(|written| &written.record)
    }

    /// The last record that a list has to show.
    pub fn shown_seq(&self) -> Seq {
        let fenced = |event: &Event| matches!(event, Event::Fenced(_));
        let shown = self.written.iter().rev().find(|w| !w.record.events.iter().all(fenced));
        shown.map_or(0, |written| written.record.seq)
    }

    /// How many events of the log are such.
    pub fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.records().flat_map(|record| &record.events).filter(|event| is(event)).count()
    }

    /// Nothing is under way and nobody waits for an answer.
    pub fn is_resting(&self) -> bool {
        self.session.is_ended() || (self.session.turn().is_none() && self.session.queued.is_empty())
    }
}

/// Takes note of an entry that the store has accepted from `actor`.
pub fn appended(world: &World, actor: ActorId, key: &SessionKey, entry: &Entry) {
    let record = match Record::decode(&entry.body) {
        Ok(record) => record,
        Err(error) => return world.violate(Checker::Safety, || format!("{key}: {error}")),
    };
    let now_ms = world.now_ms();
    let mut state = world.state();
    let truth = state.truths.entry(key.clone()).or_default();
    let next = truth.written.len() as u64 + 1;
    if record.seq != next || entry.seq != next {
        drop(state);
        return world.violate(Checker::Safety, || {
            format!("{key}: record {} was written where {next} is the next", entry.seq)
        });
    }
    let open = truth.session.open().cloned();
    let applied = truth.session.apply(&record);
    let after = After {
        open: truth.session.open().map(|open| open.intent),
        workspace: truth.session.workspace.clone(),
    };
    truth.snapshots.push(Bytes::from(serde_json::to_vec(&truth.session).unwrap_or_default()));
    truth.written.push(Written { record: record.clone(), body: entry.body.clone(), at_ms: now_ms });
    truth.grown.notify_waiters();
    for event in &record.events {
        state.notes.reach(name(event));
    }
    drop(state);
    let short = || record.events.iter().map(name).collect::<Vec<_>>().join(" + ");
    world.trace("log", || format!("{key} #{} by a{actor}: {}", record.seq, short()));
    if let Err(refused) = applied {
        world.violate(Checker::Safety, || format!("{key}: the log does not fold: {refused}"));
    }
    follow_attempts(world, actor, key, &record, open.as_ref(), after);
}

/// The session as a record left it.
struct After {
    open: Option<Seq>,
    workspace: Option<BlobRef>,
}

/// Attempts begin and end with records.
fn follow_attempts(
    world: &World,
    actor: ActorId,
    key: &SessionKey,
    record: &Record,
    open: Option<&Open>,
    after: After,
) {
    for event in &record.events {
        match event {
            Event::ModelStarted(_) | Event::ToolStarted(_) => {
                if let Some(open) = open {
                    check_taken_over(world, key, open);
                }
                if matches!(event, Event::ModelStarted(_)) {
                    check_patience(world, key);
                }
                begin(world, actor, key, record.seq, after.workspace.clone());
            }
            Event::ModelAnswered(answered) => {
                check_owner(world, actor, key, answered.intent);
                let serial = usize::try_from(answered.answer.usage.input_tokens).unwrap_or(0);
                check_call(world, key, serial, answered.intent);
            }
            Event::ModelFailed(failed) => {
                check_owner(world, actor, key, failed.intent);
                let notes = &mut world.state().notes;
                let asked = notes.asked_until_ms.get(&(key.clone(), failed.intent)).copied();
                notes.not_before_ms.insert(key.clone(), asked.unwrap_or(0));
            }
            Event::ToolFinished(finished) => {
                if let Some(intent) = finished.intent {
                    check_owner(world, actor, key, intent);
                }
            }
            Event::TurnEnded(_) => {
                world.state().notes.not_before_ms.remove(key);
            }
            Event::Created(_)
            | Event::Received(_)
            | Event::ActionRequired(_)
            | Event::Fenced(_)
            | Event::Ended(_) => {}
        }
    }
    // Whoever had the session and is not the one who wrote has lost it.
    if let Some(open) = open.filter(|open| after.open != Some(open.intent)) {
        let now_ms = world.now_ms();
        let mut state = world.state();
        if let Some(life) = state.notes.lives.get_mut(&(key.clone(), open.intent))
            && life.owner != actor
        {
            life.fenced_ms = Some(now_ms);
        }
    }
}

fn begin(world: &World, actor: ActorId, key: &SessionKey, intent: Seq, workspace: Option<BlobRef>) {
    let troubles = world.state().notes.troubles(actor);
    let life = Life {
        troubles,
        owner: actor,
        sign_ms: world.now_ms(),
        gap_ms_max: 0,
        over: false,
        fenced_ms: None,
        workspace,
    };
    world.state().notes.lives.insert((key.clone(), intent), life);
}

/// Nobody starts an attempt for an effect whose owner is alive. An owner that beats is safe whatever
/// else happens to it, because an observer must have waited for a whole lease without a beat; an owner
/// that nothing has happened to is safe because it beats.
fn check_taken_over(world: &World, key: &SessionKey, open: &Open) {
    let now_ms = world.now_ms();
    let state = world.state();
    let Some(life) = state.notes.lives.get(&(key.clone(), open.intent)) else { return };
    let owner = life.owner;
    let alive = !life.over && !state.notes.is_dead(owner);
    let beating = life.gap_ms_max.max(now_ms - life.sign_ms) < world.plan.limits.lease_ms;
    let healthy = state.notes.troubles(owner) == life.troubles;
    drop(state);
    if alive && (beating || healthy) && world.plan.nets.lease {
        world.violate(Checker::Economy, || {
            format!("{key}: attempt #{} was taken over, its owner a{owner} is at work", open.intent)
        });
    }
}

/// A model call that failed is not begun again before the time that its provider asked for.
fn check_patience(world: &World, key: &SessionKey) {
    let not_before_ms =
        world.with(|state| state.notes.not_before_ms.get(key).copied().unwrap_or(0));
    // Two machines' clocks may be apart by twice the skew, and each may have jumped as far.
    let skewed = world.plan.on(Fault::ClockSkew) || world.plan.on(Fault::ClockStep);
    let slack_ms = if skewed { 4 * world.plan.skew_ms_max } else { 0 };
    let early_ms = not_before_ms.saturating_sub(world.now_ms() + slack_ms);
    if early_ms > 0 {
        world.violate(Checker::Economy, || {
            format!("{key}: a model call begins {early_ms} ms before its provider allows it")
        });
    }
}

/// An outcome is written by whoever wrote the intent: anything else is a fence that did not hold.
fn check_owner(world: &World, actor: ActorId, key: &SessionKey, intent: Seq) {
    let owner = world.state().notes.lives.get(&(key.clone(), intent)).map(|life| life.owner);
    if owner != Some(actor) {
        world.violate(Checker::Safety, || {
            format!("{key}: a{actor} wrote the outcome of attempt #{intent} of {owner:?}")
        });
    }
}

/// The answer in the log is that of a call which was made for this very attempt.
fn check_call(world: &World, key: &SessionKey, serial: usize, intent: Seq) {
    let state = world.state();
    let made = state.notes.model_calls.get(serial).map(|call| (call.key.clone(), call.intent));
    drop(state);
    if made != Some((key.clone(), intent)) {
        world.violate(Checker::Safety, || {
            format!(
                "{key}: answer {serial} stands for attempt #{intent}, but was made for {made:?}"
            )
        });
    }
}

/// A projection is to be written: its snapshot must be the fold at its place.
pub fn projecting(world: &World, key: &SessionKey, head: &Head) {
    let mut state = world.state();
    let Some(truth) = state.truths.get_mut(key) else { return };
    let at = usize::try_from(head.last_seq).unwrap_or(0).wrapping_sub(1);
    let right = truth.snapshots.get(at).is_some_and(|snapshot| *snapshot == head.snapshot);
    truth.heads.push(head.clone());
    drop(state);
    if !right {
        world.violate(Checker::Safety, || {
            format!("{key}: the snapshot at record {} is not the fold of the log", head.last_seq)
        });
    }
}

/// What the coverage report calls an event.
fn name(event: &Event) -> String {
    match event {
        Event::Created(_) => "created".to_owned(),
        Event::Received(_) => "received".to_owned(),
        Event::ModelStarted(started) if started.attempt > 1 => "model_started again".to_owned(),
        Event::ModelStarted(_) => "model_started".to_owned(),
        Event::ModelAnswered(_) => "model_answered".to_owned(),
        Event::ModelFailed(failed) if failed.retry_at_ms.is_none() => {
            "model_failed for good".to_owned()
        }
        Event::ModelFailed(_) => "model_failed".to_owned(),
        Event::ToolStarted(started) if started.attempt > 1 => "tool_started again".to_owned(),
        Event::ToolStarted(_) => "tool_started".to_owned(),
        Event::ToolFinished(finished) => {
            format!("tool_finished {:?}", finished.result.origin).to_lowercase()
        }
        Event::TurnEnded(ended) => match &ended.reason {
            TurnEnd::Completed => "turn_ended completed".to_owned(),
            TurnEnd::Interrupted { .. } => "turn_ended interrupted".to_owned(),
            TurnEnd::Refused { .. } => "turn_ended refused".to_owned(),
            TurnEnd::Failed { .. } => "turn_ended failed".to_owned(),
            TurnEnd::Limit { limit } => format!("turn_ended {limit:?}").to_lowercase(),
        },
        Event::ActionRequired(_) => "action_required".to_owned(),
        Event::Fenced(_) => "fenced".to_owned(),
        Event::Ended(_) => "ended".to_owned(),
    }
}
