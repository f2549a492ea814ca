//! What a part of the log must know of the part before it: whether a turn was on, and what had been
//! used up. Both are found without reading the whole log: the first from the records just before,
//! the second carried along in cursors or counted back from the session's total.

use std::collections::{BTreeMap, BTreeSet};

use tailstep_core::{
    content::Content,
    event::{Event, Input},
    ids::{Position, Seq, SessionKey},
    model::Usage,
    record::Record,
    session::{Effect, Phase, Session},
};
use tailstep_runtime::{
    error::RuntimeError,
    load::{read, read_one},
    ports::Log,
};

/// Records read at once while looking back. The first batch is nearly always enough: only messages
/// and late outcomes tell nothing about the turn.
const LOOK_BACK: [u64; 3] = [4, 32, 256];

/// Where the session stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    /// No turn is on, or it waits for people or workers outside.
    Idle,
    /// In a turn, between model calls.
    Busy,
    /// A model call failed and will be tried again.
    Rescheduled,
    /// A model call is under way: the place of its intent.
    Asking(Position),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) stand: Stand,
    pub(super) usage: Usage,
}

impl Past {
    pub(super) fn of_session(session: &Session) -> Self {
        let stand = match &session.phase {
            Phase::Idle | Phase::Ended { .. } => Stand::Idle,
            Phase::Turn(turn) => match &turn.open {
                Some(open) => match open.effect {
                    // An intent is the only event of its record.
                    Effect::Model => Stand::Asking(Position::event(open.intent, 0)),
                    Effect::Tool { .. } => Stand::Busy,
                },
                // Until the model is asked again, as in the log.
                None if !turn.waiting.is_empty() => Stand::Idle,
                None if turn.retry_at_ms.is_some() => Stand::Rescheduled,
                None => Stand::Busy,
            },
        };
        Self { stand, usage: session.usage }
    }

    /// Moves on over `event` at `place`.
    pub(super) fn pass(&mut self, place: Position, event: &Event) {
        if let Some(stand) = stand_after(place, event) {
            self.stand = stand;
        }
        self.usage.add(&usage_of(event));
    }
}

/// `None` when the event says nothing about it.
fn stand_after(place: Position, event: &Event) -> Option<Stand> {
    match event {
        Event::Created(_) | Event::ActionRequired(_) | Event::TurnEnded(_) | Event::Ended(_) => {
            Some(Stand::Idle)
        }
        Event::ModelStarted(_) => Some(Stand::Asking(place)),
        Event::ModelFailed(failed) if failed.retry_at_ms.is_some() => Some(Stand::Rescheduled),
        Event::ModelFailed(_)
        | Event::ModelAnswered(_)
        | Event::ToolStarted(_)
        | Event::ToolFinished(_) => Some(Stand::Busy),
        Event::Received(_) | Event::Fenced(_) => None,
    }
}

/// What the session's total grows by.
fn usage_of(event: &Event) -> Usage {
    match event {
        Event::ModelAnswered(answered) => answered.answer.usage,
        Event::ModelFailed(failed) => failed.failure.usage,
        Event::Fenced(fenced) => fenced.usage,
        Event::Created(_)
        | Event::Received(_)
        | Event::ModelStarted(_)
        | Event::ToolStarted(_)
        | Event::ToolFinished(_)
        | Event::ActionRequired(_)
        | Event::TurnEnded(_)
        | Event::Ended(_) => Usage::default(),
    }
}

/// `total` as it was before `records`.
pub(super) fn usage_before(total: Usage, records: &[Record]) -> Usage {
    let mut left = total;
    for event in records.iter().flat_map(|record| &record.events) {
        let used = usage_of(event);
        left = Usage {
            input_tokens: left.input_tokens.saturating_sub(used.input_tokens),
            output_tokens: left.output_tokens.saturating_sub(used.output_tokens),
            cache_read_input_tokens: left
                .cache_read_input_tokens
                .saturating_sub(used.cache_read_input_tokens),
            cache_write_input_tokens: left
                .cache_write_input_tokens
                .saturating_sub(used.cache_write_input_tokens),
        };
    }
    left
}

/// Where the session stood before record `seq`.
pub(super) async fn stand_before(
    log: &dyn Log,
    key: &SessionKey,
    seq: Seq,
) -> Result<Stand, RuntimeError> {
    let mut end = seq.saturating_sub(1);
    let mut batches = LOOK_BACK.iter().chain(std::iter::repeat(&LOOK_BACK[2]));
    while end > 0 {
        let batch = batches.next().copied().unwrap_or(1).min(end);
        let records = read_range(log, key, end - batch + 1, end).await?;
        for record in records.iter().rev() {
            for (index, event) in record.events.iter().enumerate().rev() {
                if let Some(stand) = stand_after(place(record.seq, index), event) {
                    return Ok(stand);
                }
            }
        }
        end -= batch;
    }
    Ok(Stand::Idle)
}

/// The place of a record's event.
pub(super) fn place(seq: Seq, index: usize) -> Position {
    // `Session::apply` refuses records with more events than fit.
    Position::event(seq, u16::try_from(index).unwrap_or(u16::MAX))
}

/// Records `first` to `last`; fewer when the log ends before.
pub(super) async fn read_range(
    log: &dyn Log,
    key: &SessionKey,
    first: Seq,
    last: Seq,
) -> Result<Vec<Record>, RuntimeError> {
    let count = last.saturating_sub(first).saturating_add(1);
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let mut records = read(log, key, first.saturating_sub(1), limit).await?;
    records.retain(|record| record.seq <= last);
    Ok(records)
}

/// Users' messages by the place at which they were received.
#[derive(Debug, Default)]
pub(super) struct Messages(BTreeMap<Position, Vec<Content>>);

impl Messages {
    pub(super) fn add(&mut self, place: Position, content: Vec<Content>) {
        self.0.insert(place, content);
    }

    pub(super) fn take(&mut self, place: Position) -> Option<Vec<Content>> {
        self.0.remove(&place)
    }

    /// Fetches the messages that `records` take up and that came before them.
    pub(super) async fn fetch_for(
        &mut self,
        log: &dyn Log,
        key: &SessionKey,
        records: &[Record],
    ) -> Result<(), RuntimeError> {
        let Some(first) = records.first().map(|record| record.seq) else { return Ok(()) };
        let taken_up =
            records.iter().flat_map(|record| &record.events).flat_map(|event| match event {
                Event::ModelStarted(started) => started.inputs.as_slice(),
                Event::Created(_)
                | Event::Received(_)
                | Event::ModelAnswered(_)
                | Event::ModelFailed(_)
                | Event::ToolStarted(_)
                | Event::ToolFinished(_)
                | Event::ActionRequired(_)
                | Event::TurnEnded(_)
                | Event::Fenced(_)
                | Event::Ended(_) => &[],
            });
        let earlier: Vec<Position> = taken_up.copied().filter(|place| place.seq < first).collect();
        self.fetch(log, key, &earlier).await
    }

    /// Fetches the messages at `places` that are not held yet.
    pub(super) async fn fetch(
        &mut self,
        log: &dyn Log,
        key: &SessionKey,
        places: &[Position],
    ) -> Result<(), RuntimeError> {
        let missing = places.iter().filter(|place| !self.0.contains_key(place));
        let missing: BTreeSet<Seq> = missing.map(|place| place.seq).collect();
        for seq in missing {
            let record = read_one(log, key, seq).await?;
            for (index, event) in record.events.into_iter().enumerate() {
                let place = place(seq, index);
                if let Event::Received(received) = event
                    && let Input::Message { content } = received.input
                    && places.contains(&place)
                {
                    self.add(place, content);
                }
            }
        }
        Ok(())
    }
}
