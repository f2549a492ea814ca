//! Remembers what each call came to, so that a call delivered twice runs once.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::call::{Call, Reply};

/// Texts kept; older ones are forgotten, though not that their call ran.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Calls remembered at all: two a second for the longest life of a microVM, 8 hours.
const CALLS_MAX: usize = 57_600;

#[derive(Default)]
pub(super) struct Receipts {
    by_call: BTreeMap<String, Receipt>,
    /// Calls in the order they ran, oldest first.
    order: VecDeque<String>,
    /// How many of `order`'s first calls have lost their reply.
    forgotten: usize,
    text_bytes: usize,
}

struct Receipt {
    /// Of tool and input: the same id for something else is a caller's mistake.
    fingerprint: u64,
    reply: Option<Reply>,
}

impl Receipts {
    /// The answer to a call that has been seen before.
    pub(super) fn answer(&self, call: &Call) -> Option<Reply> {
        let receipt = self.by_call.get(&call.call_id)?;
        if receipt.fingerprint != fingerprint(call) {
            return Some(error(
                call,
                "this call id was used before with another tool or input; nothing was run",
            ));
        }
        Some(receipt.reply.clone().unwrap_or_else(|| {
            error(
                call,
                "this call ran before, and its result is no longer kept; it was not run again",
            )
        }))
    }

    pub(super) fn keep(&mut self, call: &Call, reply: &Reply) {
        self.text_bytes += reply.text.len();
        let receipt = Receipt { fingerprint: fingerprint(call), reply: Some(reply.clone()) };
        self.by_call.insert(call.call_id.clone(), receipt);
        self.order.push_back(call.call_id.clone());
        while self.text_bytes > TEXT_BYTES_MAX && self.forgotten + 1 < self.order.len() {
            let oldest = &self.order[self.forgotten];
            if let Some(reply) = self.by_call.get_mut(oldest).and_then(|kept| kept.reply.take()) {
                self.text_bytes -= reply.text.len();
            }
            self.forgotten += 1;
        }
        if self.order.len() > CALLS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            let reply = self.by_call.remove(&oldest).and_then(|receipt| receipt.reply);
            self.text_bytes -= reply.map_or(0, |reply| reply.text.len());
            self.forgotten = self.forgotten.saturating_sub(1);
        }
    }
}

fn error(call: &Call, text: &str) -> Reply {
    Reply {
        call_id: call.call_id.clone(),
        text: text.to_owned(),
        is_error: true,
        truncated_bytes: 0,
        timed_out: false,
    }
}

fn fingerprint(call: &Call) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&call.tool, &call.input).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: usize, input: &str) -> Call {
        Call { call_id: id.to_string(), tool: "bash".into(), input: input.into(), timeout_ms: 0 }
    }

    fn reply(id: usize, bytes: usize) -> Reply {
        Reply { text: "x".repeat(bytes), is_error: false, ..error(&call(id, ""), "") }
    }

    #[test]
    fn texts_are_bounded_and_ids_outlive_them() {
        let mut receipts = Receipts::default();
        for id in 0..20 {
            receipts.keep(&call(id, "{}"), &reply(id, 1 << 20));
        }
        assert!(receipts.text_bytes <= TEXT_BYTES_MAX);
        let oldest = receipts.answer(&call(0, "{}")).unwrap();
        assert!(oldest.is_error && oldest.text.contains("no longer kept"), "{}", oldest.text);
        assert_eq!(receipts.answer(&call(19, "{}")).unwrap(), reply(19, 1 << 20));
        let other = receipts.answer(&call(19, "{ }")).unwrap();
        assert!(other.text.contains("another tool or input"), "{}", other.text);
        assert_eq!(receipts.answer(&call(20, "{}")), None);
    }
}
