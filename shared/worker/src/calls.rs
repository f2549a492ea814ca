//! Which calls of a session wait for this worker, as far as the events seen so far tell. Pure: events
//! may come twice and from two sources, and tell the same.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use tailstep_core::toolset;

use crate::events::Event;

#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The id of its event, by which it is answered.
    pub(crate) id: String,
    pub(crate) tool: String,
    /// JSON text.
    pub(crate) input: Box<RawValue>,
}

#[derive(Debug)]
struct Pending {
    call: Call,
    permission: Permission,
}

#[derive(Debug, PartialEq, Eq)]
enum Permission {
    Allowed,
    /// A person is asked first, or the permission is one that we do not know.
    Held,
}

/// What the session is about.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    seen: BTreeSet<String>,
    pending: Vec<Pending>,
    answered: BTreeSet<String>,
    confirmed: BTreeSet<String>,
    rests: bool,
    over: bool,
}

impl Calls {
    pub(crate) fn take(&mut self, event: Event) {
        // A message comes again when it is taken up, which is news.
        if event.kind != "user.message" && !self.seen.insert(event.id.clone()) {
            return;
        }
        // What a person decides about a call does not wake a session that rests.
        if event.kind != "user.tool_confirmation" {
            self.rests = false;
        }
        match event.kind.as_str() {
            "agent.tool_use" => self.called(event),
            "agent.tool_result" | "user.tool_result" => {
                let id = event.tool_use_id.unwrap_or_default();
                self.is_answered(&id);
            }
            "user.tool_confirmation" => self.decided(event),
            "session.status_idle" => {
                let reason = event.stop_reason.map(|reason| reason.kind).unwrap_or_default();
                self.rests = reason != "requires_action";
            }
            "session.status_terminated" | "session.deleted" => self.over = true,
            _ => {}
        }
    }

    fn called(&mut self, event: Event) {
        let (Some(tool), Some(input)) = (event.name, event.input) else { return };
        if self.answered.contains(&event.id) || !toolset::names().any(|known| known == tool) {
            return;
        }
        let permission = match event.evaluated_permission.as_deref() {
            None | Some("allow") => Permission::Allowed,
            Some("deny") => return,
            Some(_) if self.confirmed.contains(&event.id) => Permission::Allowed,
            Some(_) => Permission::Held,
        };
        let call = Call { id: event.id, tool, input };
        self.pending.push(Pending { call, permission });
    }

    fn decided(&mut self, event: Event) {
        let id = event.tool_use_id.unwrap_or_default();
        if event.result.as_deref() != Some("allow") {
            return self.is_answered(&id);
        }
        for pending in self.pending.iter_mut().filter(|pending| pending.call.id == id) {
            pending.permission = Permission::Allowed;
        }
        self.confirmed.insert(id);
    }

    /// The call needs nothing more from us.
    pub(crate) fn is_answered(&mut self, id: &str) {
        self.pending.retain(|pending| pending.call.id != id);
        self.answered.insert(id.to_owned());
    }

    /// Whether somebody has answered it, or it was abandoned.
    pub(crate) fn has_answer(&self, id: &str) -> bool {
        self.answered.contains(id)
    }

    /// The call to run next.
    pub(crate) fn next(&self) -> Option<&Call> {
        let allowed = |pending: &&Pending| pending.permission == Permission::Allowed;
        self.pending.iter().find(allowed).map(|pending| &pending.call)
    }

    /// The turn is over, and nothing has happened since.
    pub(crate) fn rests(&self) -> bool {
        self.rests
    }

    /// The session is over.
    pub(crate) fn are_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn after(events: &[Value]) -> Calls {
        let mut calls = Calls::default();
        for event in events {
            // As text, since raw JSON does not survive a value.
            calls.take(serde_json::from_str(&event.to_string()).unwrap());
        }
        calls
    }

    fn call(id: &str, tool: &str, permission: &str) -> Value {
        json!({"type": "agent.tool_use", "id": id, "name": tool, "input": {"a": 1},
            "evaluated_permission": permission})
    }

    fn result(id: &str, call: &str) -> Value {
        json!({"type": "user.tool_result", "id": id, "tool_use_id": call})
    }

    fn idle(id: &str, reason: &str) -> Value {
        json!({"type": "session.status_idle", "id": id, "stop_reason": {"type": reason}})
    }

    #[track_caller]
    fn check(events: &[Value], next: Option<&str>) {
        assert_eq!(after(events).next().map(|call| call.id.as_str()), next, "{events:?}");
    }

    #[test]
    fn a_call_waits_until_it_is_answered() {
        check(&[], None);
        check(&[call("a", "bash", "allow"), call("b", "read", "allow")], Some("a"));
        check(
            &[call("a", "bash", "allow"), call("b", "read", "allow"), result("r", "a")],
            Some("b"),
        );
        // From the list after the stream, or the stream after the list.
        check(&[result("r", "a"), call("a", "bash", "allow")], None);
        check(&[call("a", "bash", "allow"), result("r", "a"), call("a", "bash", "allow")], None);
        let abandoned = json!({"type": "agent.tool_result", "id": "r", "tool_use_id": "a"});
        check(&[call("a", "bash", "allow"), abandoned], None);
    }

    #[test]
    fn only_what_is_allowed_and_ours_runs() {
        check(&[call("a", "get_weather", "allow")], None);
        check(&[call("a", "bash", "deny")], None);
        check(&[call("a", "bash", "auto_tomorrow")], None);
        check(&[call("a", "bash", "ask")], None);
        check(&[call("a", "bash", "ask"), call("b", "bash", "allow")], Some("b"));
        let decided = |result: &str| {
            json!({"type": "user.tool_confirmation", "id": "c", "tool_use_id": "a",
                "result": result})
        };
        check(&[call("a", "bash", "ask"), decided("allow")], Some("a"));
        check(&[decided("allow"), call("a", "bash", "ask")], Some("a"));
        check(&[call("a", "bash", "ask"), decided("deny")], None);
        let without = json!({"type": "agent.tool_use", "id": "a", "name": "bash", "input": {}});
        check(&[without], Some("a"));
    }

    #[test]
    fn a_session_rests_from_its_turns_end_until_something_happens() {
        assert!(!after(&[]).rests());
        assert!(!after(&[idle("i", "requires_action")]).rests());
        assert!(after(&[idle("i", "end_turn")]).rests());
        assert!(after(&[idle("i", "retries_exhausted")]).rests());
        let message = json!({"type": "user.message", "id": "m"});
        assert!(!after(&[message.clone(), idle("i", "end_turn"), message]).rests());
        let running = json!({"type": "session.status_running", "id": "s"});
        assert!(after(&[running.clone(), idle("i", "end_turn"), running]).rests(), "seen before");
        assert!(after(&[json!({"type": "session.deleted", "id": "d"})]).are_over());
    }
}
