//! What must hold when a run has come to rest. What must hold at every moment is checked where it
//! happens (`truth`, `ports`).

mod economy;
mod liveness;
mod safety;

use tailstep_core::{
    content::text_of,
    event::{Event, Input, Received},
};

use crate::{truth::Truth, world::World};

pub use liveness::unrest;

/// Who saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// The log is a log, and what was accepted is in it.
    Safety,
    /// A provider would have refused the request.
    Request,
    /// The conversation is that of an undisturbed run.
    Oracle,
    /// Everything comes to rest, and soon enough.
    Liveness,
    /// Nothing is done in vain.
    Economy,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub checker: Checker,
    pub what: String,
}

pub async fn all(world: &World) {
    safety::check(world).await;
    liveness::check(world);
    economy::check(world);
}

/// Texts of the messages in a log, in order.
fn messages(truth: &Truth) -> Vec<String> {
    let text = |event: &Event| {
        let Event::Received(Received { input: Input::Message { content }, .. }) = event else {
            return None;
        };
        Some(text_of(content).trim().to_owned())
    };
    truth.records().flat_map(|record| &record.events).filter_map(text).collect()
}
