//! The log is a log, and what was accepted is in it once.

use std::collections::BTreeMap;

use tailstep_core::{
    context::Context,
    event::Event,
    ids::{Position, SessionKey},
    model::{Block, Stop},
    record::Record,
    session::Session,
};
use tailstep_runtime::ports::Log;

use super::{Checker, messages};
use crate::{request::refuse, truth::Truth, world::World};

pub(super) async fn check(world: &World) {
    for script in &world.plan.scripts {
        let stored = world.log.read(&script.key, 0, usize::MAX).await.unwrap_or_default();
        let state = world.state();
        let Some(truth) = state.truths.get(&script.key) else { continue };
        let same = stored.len() == truth.written.len()
            && stored.iter().zip(&truth.written).all(|(entry, written)| entry.body == written.body);
        let mut wrong = log(&script.key, truth);
        if !same {
            wrong.push("a record is not what was written first".to_owned());
        }
        wrong.extend(inputs(&script.key, truth, &state.notes.sent));
        wrong.extend(charges(truth));
        drop(state);
        for what in wrong {
            world.violate(Checker::Safety, || format!("{}: {what}", script.key));
        }
    }
}

fn log(key: &SessionKey, truth: &Truth) -> Vec<String> {
    let mut wrong = Vec::new();
    match Session::fold(truth.records()) {
        Ok(session) if session == truth.session => {}
        Ok(_) => wrong.push("the fold of the log differs from the fold on the way".to_owned()),
        Err(refused) => wrong.push(format!("the log does not fold: {refused}")),
    }
    if !truth.is_resting() {
        return wrong;
    }
    let messages = Context::of(truth.records()).request(&Default::default());
    let messages = messages.map(|request| request.messages.to_vec()).unwrap_or_default();
    if let Some(what) = (!messages.is_empty()).then(|| refuse(&messages)).flatten() {
        wrong.push(format!("the conversation is refused: {what}"));
    }
    for (call, results) in results(truth.records()) {
        if results != 1 {
            wrong.push(format!("{call:?} of {key} has {results} results"));
        }
    }
    wrong
}

/// How many results each call has; calls of refused answers are not part of the conversation.
fn results<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeMap<Position, u32> {
    let mut results = BTreeMap::new();
    for record in records {
        for (index, event) in record.events.iter().enumerate() {
            match event {
                Event::ModelAnswered(answered) => {
                    if matches!(answered.answer.stop, Stop::Refusal { .. }) {
                        continue;
                    }
                    for (part, block) in answered.answer.blocks.iter().enumerate() {
                        if matches!(block, Block::ToolUse { .. } | Block::BrokenToolUse { .. }) {
                            let call = Position {
                                part: u16::try_from(part + 1).unwrap_or(u16::MAX),
                                ..Position::event(record.seq, u16::try_from(index).unwrap_or(0))
                            };
                            results.insert(call, 0);
                        }
                    }
                }
                Event::ToolFinished(finished) => *results.entry(finished.call).or_default() += 1,
                Event::Created(_)
                | Event::Received(_)
                | Event::ModelStarted(_)
                | Event::ModelFailed(_)
                | Event::ToolStarted(_)
                | Event::ActionRequired(_)
                | Event::TurnEnded(_)
                | Event::Fenced(_)
                | Event::Ended(_) => {}
            }
        }
    }
    results
}

/// What was accepted is there once, what was not is there at most once, and each sender's messages
/// stand in the order in which they were sent.
fn inputs(key: &SessionKey, truth: &Truth, sent: &[crate::notes::Sent]) -> Vec<String> {
    let mut wrong = Vec::new();
    let found = messages(truth);
    for (index, text) in found.iter().enumerate() {
        if found[..index].contains(text) {
            wrong.push(format!("the message {text:?} is there twice"));
        }
    }
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for sent in sent.iter().filter(|sent| sent.key == *key) {
        for text in &sent.messages {
            match found.iter().position(|found| found == text) {
                None => wrong.push(format!("the accepted message {text:?} is missing")),
                Some(at) => {
                    let before = last.insert(&sent.sender, at);
                    if before.is_some_and(|before| before > at) {
                        wrong.push(format!("the message {text:?} overtook one before it"));
                    }
                }
            }
        }
    }
    wrong
}

/// Every model call that was started has come to an account: answered, failed, known from a fenced
/// outcome, or counted as a possible charge.
fn charges(truth: &Truth) -> Option<String> {
    if truth.session.open().is_some() {
        return None;
    }
    let started = truth.count(|event| matches!(event, Event::ModelStarted(_)));
    let accounted = truth.count(|event| {
        matches!(event, Event::ModelAnswered(_) | Event::ModelFailed(_))
            || matches!(event, Event::Fenced(fenced) if fenced.usage != Default::default())
    });
    let possible = usize::try_from(truth.session.possible_charges).unwrap_or(usize::MAX);
    (started != accounted + possible).then(|| {
        format!("{started} model calls were started, {accounted} accounted, {possible} possible")
    })
}
