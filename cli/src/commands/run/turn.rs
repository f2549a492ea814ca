//! One turn, from the user's message until the session rests again.

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time;

use crate::{
    api::{Api, Event, Events},
    show::{Form, Spinner, TICK, going_on},
    signals::Stop,
};

/// How it came out; later ones weigh more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ended {
    Done,
    /// The session waits for a person: an approval, a higher budget, a merge by hand.
    NeedsAction,
    /// An error, a refusal, or the user's own interrupt.
    Failed,
    /// The user did not wait.
    GivenUp,
}

impl Ended {
    /// The exit status.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NeedsAction => 2,
            Self::Failed => 1,
            // As if the interrupt had ended the process.
            Self::GivenUp => 130,
        }
    }
}

/// Sends `task`, if there is one, and prints what happens until the session rests; `None` when there
/// is no task and it rests already.
///
/// # Errors
/// When the session does not exist or takes no message, or nobody reads what is printed.
pub(super) async fn follow_turn(
    api: &Api,
    session: &str,
    task: Option<&str>,
    form: Form,
    stop: &mut Stop,
) -> anyhow::Result<Option<Ended>> {
    // First the stream, then the message: nothing is missed.
    let events = api.follow(session).await?;
    let message = match task {
        Some(task) => Some(say(api, session, task).await?),
        None if is_at_rest(api, session).await? => return Ok(None),
        None => None,
    };
    let turn = Turn { message, interrupted: false };
    follow(api, session, events, turn, form, stop).await.map(Some)
}

/// Sends a user's message; answers its id.
async fn say(api: &Api, session: &str, task: &str) -> anyhow::Result<String> {
    let message = json!({
        "type": "user.message", "content": [{ "type": "text", "text": task }],
    });
    let path = format!("/v1/sessions/{session}/events");
    let sent = api.post(&path, &json!({ "events": [message] })).await?;
    match sent["data"][0]["id"].as_str() {
        Some(id) => Ok(id.to_owned()),
        None => bail!("the API answered without the message's id"),
    }
}

async fn is_at_rest(api: &Api, session: &str) -> anyhow::Result<bool> {
    let session = api.get(&format!("/v1/sessions/{session}")).await?;
    Ok(matches!(session["status"].as_str(), Some("idle" | "terminated")))
}

struct Turn {
    /// The message that the turn has to take up before it can count as this one.
    message: Option<String>,
    interrupted: bool,
}

async fn follow(
    api: &Api,
    session: &str,
    mut events: Events,
    mut turn: Turn,
    form: Form,
    stop: &mut Stop,
) -> anyhow::Result<Ended> {
    let mut spinner = Spinner::new(form.is_watched());
    let mut ticks = time::interval(TICK);
    loop {
        tokio::select! {
            biased;
            () = stop.asked() => {
                if turn.interrupted {
                    return Ok(Ended::GivenUp);
                }
                turn.interrupted = true;
                spinner.clear();
                eprintln!("interrupting; once more to leave at once");
                let interrupt = json!({ "events": [{ "type": "user.interrupt" }] });
                api.post(&format!("/v1/sessions/{session}/events"), &interrupt).await?;
            }
            event = events.next() => {
                let Some(event) = event? else { return Ok(Ended::Failed) };
                spinner.clear();
                form.print(&event)?;
                if let Some(what) = going_on(&event) {
                    spinner.now(what);
                }
                if let Some(ended) = turn.take(&event) {
                    return Ok(ended);
                }
            }
            _ = ticks.tick(), if spinner.is_watched() => spinner.draw(),
        }
    }
}

impl Turn {
    /// How the turn ended, if `event` ends it.
    fn take(&mut self, event: &Event) -> Option<Ended> {
        let fields = &event.fields;
        match event.kind.as_str() {
            "user.message" if !fields["processed_at"].is_null() => {
                if self.message.as_deref() == fields["id"].as_str() {
                    self.message = None;
                }
                None
            }
            "session.status_terminated" | "session.deleted" => Some(Ended::Failed),
            "session.status_idle" if self.interrupted => Some(Ended::Failed),
            // An earlier turn's end: the message is still to come.
            "session.status_idle" if self.message.is_some() => None,
            "session.status_idle" => Some(reason(&fields["stop_reason"])),
            _ => None,
        }
    }
}

fn reason(stop_reason: &Value) -> Ended {
    match stop_reason["type"].as_str() {
        Some("end_turn") => Ended::Done,
        Some("requires_action" | "budget_reached") => Ended::NeedsAction,
        Some(_) | None => Ended::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::event;

    #[track_caller]
    fn check(turn: &mut Turn, json: &str, expected: Option<Ended>) {
        assert_eq!(turn.take(&event(json).unwrap()), expected, "{json}");
    }

    fn idle(reason: &str) -> String {
        format!(r#"{{"type":"session.status_idle","stop_reason":{{"type":"{reason}"}}}}"#)
    }

    #[test]
    fn each_reason_has_its_status() {
        for (name, ended) in [
            ("end_turn", Ended::Done),
            ("requires_action", Ended::NeedsAction),
            ("budget_reached", Ended::NeedsAction),
            ("retries_exhausted", Ended::Failed),
            ("refusal", Ended::Failed),
            ("some_future_reason", Ended::Failed),
        ] {
            let mut turn = Turn { message: None, interrupted: false };
            check(&mut turn, &idle(name), Some(ended));
        }
        let mut turn = Turn { message: None, interrupted: true };
        check(&mut turn, &idle("end_turn"), Some(Ended::Failed));
        check(&mut turn, r#"{"type":"session.status_terminated"}"#, Some(Ended::Failed));
    }

    #[test]
    fn the_end_of_an_earlier_turn_is_not_this_ones() {
        let mut turn = Turn { message: Some("sevt_1".to_owned()), interrupted: false };
        check(&mut turn, r#"{"type":"user.message","id":"sevt_1","processed_at":null}"#, None);
        check(&mut turn, &idle("end_turn"), None);
        check(&mut turn, r#"{"type":"user.message","id":"sevt_1","processed_at":"2026"}"#, None);
        check(&mut turn, &idle("end_turn"), Some(Ended::Done));
    }
}
