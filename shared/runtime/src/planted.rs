//! Bugs for the simulator to find: each takes one safeguard of the loop away, to show that a checker
//! would see it go. Compiled in with the feature `planted-bugs` only, which no shipped crate enables
//! (`tests/tidy` holds that), and asleep until a test plants one.

use std::cell::Cell;

use tailstep_core::{
    event::Event,
    ids::{Seq, UnixMs},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The model is shown the log as it was before the intent.
    ContextBeforeIntent,
    /// An outcome is taken for the attempt that is open, whoever made it.
    FenceRemoved,
    /// The time at which a failed call is to be tried again is ignored.
    RetryAtOnce,
    /// What was decided for one state of a session is recorded in whatever state it is in by then.
    DecisionKept,
    /// The log does not say which request an input came with.
    RequestNotRecorded,
}

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Plants `bug`, or takes out whatever was planted, for all that this thread does from now on.
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}

fn is(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// The time that a decision is made for.
pub(crate) fn now_ms(now_ms: UnixMs) -> UnixMs {
    if is(Planted::RetryAtOnce) { UnixMs::MAX / 2 } else { now_ms }
}

pub(crate) fn keeps_decisions() -> bool {
    is(Planted::DecisionKept)
}

/// The name of a request, as it is recorded.
pub(crate) fn request(request: Option<&str>) -> Option<&str> {
    request.filter(|_| !is(Planted::RequestNotRecorded))
}

/// The last record that the model is shown.
pub(crate) fn shown_seq(intent: Seq) -> Seq {
    if is(Planted::ContextBeforeIntent) { intent.saturating_sub(1) } else { intent }
}

/// The outcome of a fenced attempt, passed off as that of the open one.
pub(crate) fn unfenced(open: Option<Seq>, outcome: &[Event]) -> Option<Vec<Event>> {
    let open = open.filter(|_| is(Planted::FenceRemoved))?;
    let mut events = outcome.to_vec();
    for event in &mut events {
        match event {
            Event::ModelAnswered(answered) => answered.intent = open,
            Event::ModelFailed(failed) => failed.intent = open,
            Event::ToolFinished(finished) => finished.intent = Some(open),
            Event::Created(_)
            | Event::Received(_)
            | Event::ModelStarted(_)
            | Event::ToolStarted(_)
            | Event::ActionRequired(_)
            | Event::TurnEnded(_)
            | Event::Fenced(_)
            | Event::Ended(_) => {}
        }
    }
    Some(events)
}
