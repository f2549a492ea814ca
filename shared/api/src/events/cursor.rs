//! Where a page of events ends.

use tailstep_core::{
    ids::{Position, Seq},
    model::Usage,
};

use super::body::Place;
use crate::{error::ApiError, page::Scope};

/// The last event of a page, and what the next one cannot find out cheaply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) place: Place,
    /// The session's total at the edge of record `place.seq` where the next page begins to read:
    /// before it in ascending order, after it in descending order.
    pub(super) usage: Usage,
    /// Waiting messages: up to this one (ascending) or from this one (descending) they were listed.
    pub(super) waiting: Option<Position>,
}

/// On the wire: place, usage, waiting message.
type Numbers = ((Seq, u16, u16), (u64, u64, u64, u64), Option<(Seq, u16)>);

impl Cursor {
    pub(super) fn encode(&self, scope: &Scope<'_>) -> String {
        let Self { place, usage, waiting } = self;
        let numbers: Numbers = (
            (place.seq, place.event, place.nth),
            (
                usage.input_tokens,
                usage.output_tokens,
                usage.cache_read_input_tokens,
                usage.cache_write_input_tokens,
            ),
            waiting.map(|at| (at.seq, at.event)),
        );
        // Numbers always encode.
        scope.cursor(&serde_json::to_string(&numbers).unwrap_or_default())
    }

    pub(super) fn decode(scope: &Scope<'_>, text: &str) -> Result<Self, ApiError> {
        let place = scope.place(text)?;
        let numbers: Numbers = serde_json::from_str(&place)
            .map_err(|_| ApiError::invalid("page: not a cursor of this list"))?;
        let ((seq, event, nth), (input, output, read, write), waiting) = numbers;
        Ok(Self {
            place: Place { seq, event, nth },
            usage: Usage {
                input_tokens: input,
                output_tokens: output,
                cache_read_input_tokens: read,
                cache_write_input_tokens: write,
            },
            waiting: waiting.map(|(seq, event)| Position::event(seq, event)),
        })
    }
}
