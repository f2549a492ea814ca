//! One step: load, decide, record the intent, have the effect, record the outcome, wake, and let the
//! caller acknowledge. At most one effect an invocation, in this order, whatever the queue delivers.

mod effect;
mod keeper;

use std::time::{Duration, Instant};

use tailstep_core::{
    decide::{Action, decide, given_up},
    event::{Event, Fenced},
    ids::{Seq, SessionKey, sha256_hex},
    model::Usage,
    session::{Effect, Open},
};

use self::{
    effect::{Ended, run},
    keeper::Lost,
};
use crate::{
    Runtime,
    error::RuntimeError,
    load::{Loaded, load},
    ports::{Delivery, Observed, Projection, Wake},
    record::{head_of, record, record_decision},
    work,
};

/// Turns of the loop in one invocation. Each lost race or bookkeeping record takes one.
const ROUNDS_MAX: usize = 64;

/// What one invocation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub key: SessionKey,
    /// The session's last record when the step ended.
    pub seq: Seq,
    pub action: StepAction,
    pub attempt: u32,
    pub outcome: StepOutcome,
    /// Time in the effect, by this worker's clock.
    pub effect_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepAction {
    /// There was nothing to do.
    Rest,
    /// It is too early.
    Wait,
    /// Another worker is at it; a later message looks at its lease.
    Watch,
    Model,
    Tool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    Done,
    /// The attempt lost the session; its outcome was kept for audit only.
    Fenced,
    /// The holder could not renew its lease and stopped of itself.
    LeaseLost,
}

/// Handles one wake-up. On success the caller acknowledges the message; on an error it does not, and
/// the queue delivers it again.
///
/// `deadline` is when this worker will be stopped from outside, if it will be.
///
/// # Errors
/// When the log or the queue is out of reach, or the log is unreadable.
pub async fn step(
    runtime: &Runtime,
    delivery: &Delivery,
    deadline: Option<Instant>,
) -> Result<Report, RuntimeError> {
    let key = &delivery.wake.key;
    // From the start, and not only when the effect begins: a worker that dies in between would leave
    // its message hidden for the queue's whole visibility time, which is much longer than a lease.
    let (loaded, ()) = tokio::join!(
        load(runtime.log.as_ref(), key),
        keeper::hide(runtime, delivery, runtime.limits.lease_ms)
    );
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        // A message for a session that is gone has nothing left to say.
        Err(RuntimeError::NotFound { .. }) => return Ok(idle(key, 0, StepAction::Rest)),
        Err(error) => return Err(error),
    };
    let mut dead = None;
    for _ in 0..ROUNDS_MAX {
        let now_ms = runtime.clock.now_ms();
        #[cfg(feature = "planted-bugs")]
        let now_ms = crate::planted::now_ms(now_ms);
        let action = match dead {
            Some(intent) => given_up(&loaded.session, intent, now_ms, &runtime.limits),
            None => decide(&loaded.session, now_ms, &runtime.limits),
        };
        match action {
            Action::Rest => {
                repair(runtime, &loaded).await?;
                return Ok(idle(key, loaded.session.seq, StepAction::Rest));
            }
            Action::Wait { until_ms } => {
                repair(runtime, &loaded).await?;
                let wake = Wake::new(key.clone());
                runtime.queue.send(&wake, until_ms.saturating_sub(now_ms)).await?;
                return Ok(idle(key, loaded.session.seq, StepAction::Wait));
            }
            Action::Watch(open) => match watch(runtime, delivery, &loaded, &open).await? {
                Watched::Alive => return Ok(idle(key, loaded.session.seq, StepAction::Watch)),
                Watched::Dead => dead = Some(open.intent),
            },
            Action::Record(events) => {
                let follow = Projection::Follow;
                retry_refused(record_decision(runtime, &mut loaded, &events, follow).await)?;
            }
            Action::Start { intent, effect } => {
                // Before the intent: until there is one, a failure here costs no attempt.
                if effect == Effect::Model && loaded.session.is_self_hosted() {
                    work::call_for(runtime, &loaded).await?;
                }
                let intent = [intent];
                match record_decision(runtime, &mut loaded, &intent, Projection::Lag).await {
                    Ok(Some(_)) => {
                        return perform(runtime, delivery, loaded, effect, deadline).await;
                    }
                    // Somebody else was faster; look again at what is needed now.
                    Ok(None) => {}
                    Err(RuntimeError::Refused { .. }) => dead = None,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Err(RuntimeError::Contended { session: key.session.clone() })
}

fn idle(key: &SessionKey, seq: Seq, action: StepAction) -> Report {
    Report { key: key.clone(), seq, action, attempt: 0, outcome: StepOutcome::Done, effect_ms: 0 }
}

/// A refusal means that the session has moved on; the caller decides anew.
fn retry_refused<T>(result: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(RuntimeError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Brings a head that lags behind its session up to date, so that lists and the sweeper see it.
async fn repair(runtime: &Runtime, loaded: &Loaded) -> Result<(), RuntimeError> {
    let stored = loaded.head.as_ref().map(|head| head.last_seq);
    if stored.is_none_or(|seq| seq < loaded.session.seq) {
        let now_ms = runtime.clock.now_ms();
        let head = head_of(&loaded.key, &loaded.session, now_ms, &runtime.limits);
        runtime.log.project(&loaded.key, &head).await?;
    }
    Ok(())
}

enum Watched {
    Alive,
    Dead,
}

/// Is the holder of `open` alive? It is dead when its lease has not moved while this message waited
/// in the queue for a whole lease, by the queue's one clock; no two machines' clocks are compared. If
/// that is not known yet, another message is sent to find out.
async fn watch(
    runtime: &Runtime,
    delivery: &Delivery,
    loaded: &Loaded,
    open: &Open,
) -> Result<Watched, RuntimeError> {
    let lease = loaded.head.as_ref().and_then(|head| head.lease);
    if lease.is_some_and(|lease| lease.abandoned) {
        return Ok(Watched::Dead);
    }
    let version = lease.filter(|lease| lease.intent == open.intent).map_or(0, |l| l.version);
    let now = Observed { intent: open.intent, version };
    if delivery.wake.observed == Some(now) && delivery.waited_ms >= runtime.limits.lease_ms {
        return Ok(Watched::Dead);
    }
    let wake = Wake { observed: Some(now), ..Wake::new(loaded.key.clone()) };
    runtime.queue.send(&wake, runtime.limits.lease_ms).await?;
    Ok(Watched::Alive)
}

/// Has the effect whose intent is the session's last record, and records what came of it.
async fn perform(
    runtime: &Runtime,
    delivery: &Delivery,
    mut loaded: Loaded,
    effect: Effect,
    deadline: Option<Instant>,
) -> Result<Report, RuntimeError> {
    let started = tokio::time::Instant::now();
    let intent = loaded.session.seq;
    let attempt = loaded.session.open().map_or(0, |open| open.attempt);
    let margin = Duration::from_millis(runtime.limits.deadline_margin_ms);
    let own_deadline = deadline.and_then(|deadline| deadline.checked_sub(margin));
    let ended = tokio::select! {
        biased;
        ended = run(runtime, &loaded, effect, own_deadline) => ended?,
        lost = keeper::keep(runtime, delivery, loaded.clone()) => match lost? {
            Lost::Fenced => Ended::Stopped(StepOutcome::Fenced),
            Lost::CannotRenew => Ended::Stopped(StepOutcome::LeaseLost),
        },
    };
    let effect_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let outcome = match ended {
        Ended::Outcome(events) => {
            let outcome = settle(runtime, &mut loaded, intent, &events).await?;
            wake_next(runtime, &loaded).await?;
            outcome
        }
        Ended::Stopped(StepOutcome::LeaseLost) => {
            // Nobody else may have noticed; a later message sees whether the session moves.
            let wake = Wake::new(loaded.key.clone());
            runtime.queue.send(&wake, runtime.limits.lease_ms).await?;
            StepOutcome::LeaseLost
        }
        // Whoever fenced this attempt has woken the session.
        Ended::Stopped(outcome) => outcome,
    };
    Ok(Report {
        key: loaded.key,
        seq: loaded.session.seq,
        action: match effect {
            Effect::Model => StepAction::Model,
            Effect::Tool { .. } => StepAction::Tool,
        },
        attempt,
        outcome,
        effect_ms,
    })
}

/// Records an outcome; if its attempt was fenced meanwhile, records that instead.
async fn settle(
    runtime: &Runtime,
    loaded: &mut Loaded,
    intent: Seq,
    events: &[Event],
) -> Result<StepOutcome, RuntimeError> {
    match record(runtime, loaded, events, Projection::Follow).await {
        Ok(_) => return Ok(StepOutcome::Done),
        Err(RuntimeError::Refused { .. }) => {}
        Err(error) => return Err(error),
    }
    #[cfg(feature = "planted-bugs")]
    if let Some(events) =
        crate::planted::unfenced(loaded.session.open().map(|open| open.intent), events)
        && record(runtime, loaded, &events, Projection::Follow).await.is_ok()
    {
        return Ok(StepOutcome::Done);
    }
    let fenced = Event::Fenced(Fenced {
        intent,
        usage: usage_of(events),
        outcome_sha256: sha256_hex(&serde_json::to_vec(events).unwrap_or_default()),
    });
    retry_refused(record(runtime, loaded, &[fenced], Projection::Follow).await)?;
    Ok(StepOutcome::Fenced)
}

fn usage_of(events: &[Event]) -> Usage {
    let mut usage = Usage::default();
    for event in events {
        match event {
            Event::ModelAnswered(answered) => usage.add(&answered.answer.usage),
            Event::ModelFailed(failed) => usage.add(&failed.failure.usage),
            Event::Created(_)
            | Event::Received(_)
            | Event::ModelStarted(_)
            | Event::ToolStarted(_)
            | Event::ToolFinished(_)
            | Event::ActionRequired(_)
            | Event::TurnEnded(_)
            | Event::Fenced(_)
            | Event::Ended(_) => {}
        }
    }
    usage
}

/// Sends the next wake-up if the session needs one.
pub(crate) async fn wake_next(runtime: &Runtime, loaded: &Loaded) -> Result<(), RuntimeError> {
    let now_ms = runtime.clock.now_ms();
    #[cfg(feature = "planted-bugs")]
    let now_ms = crate::planted::now_ms(now_ms);
    let delay_ms = match decide(&loaded.session, now_ms, &runtime.limits) {
        Action::Rest => return Ok(()),
        Action::Wait { until_ms } => until_ms.saturating_sub(now_ms),
        Action::Watch(_) | Action::Record(_) | Action::Start { .. } => 0,
    };
    runtime.queue.send(&Wake::new(loaded.key.clone()), delay_ms).await?;
    Ok(())
}
