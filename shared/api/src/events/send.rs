//! What users say to a session.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
};
use serde::Serialize;
use tailstep_core::{
    event::{Event, Input},
    ids::SessionKey,
    limits::input::EVENTS_MAX,
};
use tailstep_runtime::ingress;

use super::{content, view};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, json, read_body},
    error::ApiError,
    fields::Fields,
    repeat, sessions,
};

/// What later stages of the protocol let a client send.
const LATER: [&str; 5] = [
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.tool_result",
    "user.define_outcome",
    "system.message",
];

#[derive(Serialize)]
struct Body {
    data: Vec<Box<serde_json::value::RawValue>>,
}

pub(crate) async fn send(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    request: Request,
) -> Answer {
    if !sessions::is_id(&id) {
        return Err(ApiError::not_found("session", &id));
    }
    let (parts, body) = request.into_parts();
    let body = read_body(body).await?;
    let inputs = read(Fields::of_body(&body)?)?;
    let key = SessionKey::new(caller.tenant.as_str(), id.as_str());
    let request = repeat::send_id(&api, &caller, &parts.headers, &key, &body).await?;
    let sent = ingress::send(&api.app.runtime, &key, &inputs, Some(&request)).await?;
    let places = sent.places();
    let at_ms = sent.record.at_ms;
    let received = sent.record.events.into_iter().filter_map(|event| match event {
        Event::Received(received) => Some(received.input),
        Event::Created(_)
        | Event::ModelStarted(_)
        | Event::ModelAnswered(_)
        | Event::ModelFailed(_)
        | Event::ToolStarted(_)
        | Event::ToolFinished(_)
        | Event::TurnEnded(_)
        | Event::Fenced(_)
        | Event::Ended(_) => None,
    });
    let data = received
        .zip(places)
        .map(|(input, place)| view::received(place, at_ms, input).render(&id))
        .collect::<Result<_, _>>()?;
    json(&Body { data })
}

/// Reads the body: all of its events, or none.
fn read(mut fields: Fields) -> Result<Vec<Input>, ApiError> {
    let events = fields.list("events")?.ok_or_else(|| fields.error("events", "is required"))?;
    fields.finish()?;
    if events.is_empty() || events.len() > EVENTS_MAX {
        return Err(ApiError::invalid(format!(
            "events: must hold 1 to {EVENTS_MAX} events, not {}",
            events.len()
        )));
    }
    events
        .into_iter()
        .enumerate()
        .map(|(index, event)| input(Fields::of(event, format!("events[{index}]"))?))
        .collect()
}

fn input(mut event: Fields) -> Result<Input, ApiError> {
    let kind = event.required_text("type")?;
    let input = match kind.as_str() {
        "user.message" => Input::Message { content: content::read(&mut event)? },
        "user.interrupt" => {
            event.unsupported("session_thread_id", "threads are")?;
            Input::Interrupt
        }
        kind if LATER.contains(&kind) => {
            return Err(ApiError::unsupported(&event.name("type"), &format!("{kind} is")));
        }
        _ => {
            return Err(event.error(
                "type",
                "not an event that can be sent; this version takes user.message and \
                 user.interrupt",
            ));
        }
    };
    event.finish()?;
    Ok(input)
}
