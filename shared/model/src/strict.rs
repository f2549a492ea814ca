//! For tests: a model server that checks every request as strictly as the providers do, or more, and
//! plays scripted replies with faults; and the same check of a neutral request, without network.
//!
//! Only behind the feature `stub`, so that no deployed binary holds it. Tests of any crate can point
//! a base URL at a [`Stub`]; the simulator calls [`validate_messages`] on each request.

mod anthropic;
mod neutral;
mod openai;
mod render;
mod reply;
mod server;

pub use neutral::validate_messages;
pub use reply::Reply;
pub use server::{Recorded, Stub};

/// Where in a request something is wrong, and what: `messages.2.content.0: blank text block`.
type Fault = String;

/// Calls of one assistant message and the results that answer them, in whatever dialect. Both
/// providers demand: every call answered exactly once, in the very next turn, and no other answers.
#[derive(Debug, Default)]
struct Ledger {
    /// Every call's id so far; an id may name one call only.
    seen: std::collections::BTreeSet<String>,
    /// Calls that await their answer.
    open: Vec<String>,
}

impl Ledger {
    fn call(&mut self, id: &str) -> Result<(), Fault> {
        if id.is_empty() {
            return Err("a tool use without an id".to_owned());
        }
        if !self.seen.insert(id.to_owned()) {
            return Err(format!("tool use id `{id}` is used twice"));
        }
        self.open.push(id.to_owned());
        Ok(())
    }

    fn result(&mut self, id: &str) -> Result<(), Fault> {
        match self.open.iter().position(|open| open == id) {
            Some(place) => {
                self.open.remove(place);
                Ok(())
            }
            None if self.seen.contains(id) => {
                Err(format!("a second or late result for tool use `{id}`"))
            }
            None => Err(format!("a result for `{id}`, which no tool use asked for")),
        }
    }

    /// The turn that had to answer is over.
    fn close(&self) -> Result<(), Fault> {
        match self.open.first() {
            Some(id) => Err(format!("tool use `{id}` has no result in the next turn")),
            None => Ok(()),
        }
    }
}

/// Prefixes a fault with its place.
fn at<T>(place: impl FnOnce() -> String, checked: Result<T, Fault>) -> Result<T, Fault> {
    checked.map_err(|fault| format!("{}: {fault}", place()))
}
