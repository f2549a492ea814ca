//! What users say to a session.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
};
use serde::Serialize;
use tailstep_core::{
    event::Input,
    ids::{Position, SessionKey},
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
const LATER: [&str; 4] =
    ["user.tool_confirmation", "user.custom_tool_result", "user.define_outcome", "system.message"];

/// What is said of an id that names no call; the same words, whatever it names instead.
pub(crate) const NO_CALL: &str =
    "names no call of this session; give the id of an agent.tool_use event";

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
    let inputs = read(Fields::of_body(&body)?, &id)?;
    if caller.scope.is_bound() {
        sessions::visible(&api, &caller, &id).await?;
        results_only(&inputs)?;
    }
    let key = SessionKey::new(caller.tenant.as_str(), id.as_str());
    let request = repeat::send_id(&api, &caller, &parts.headers, &key, &body).await?;
    let sent = ingress::send(&api.app.runtime, &key, &inputs, Some(&request)).await?;
    let data = sent
        .inputs
        .into_iter()
        .map(|sent| view::received(&id, sent.place, sent.at_ms, sent.input).render(&id))
        .collect::<Result<_, _>>()?;
    json(&Body { data })
}

/// A worker answers calls; what people say and stop is not its business.
fn results_only(inputs: &[Input]) -> Result<(), ApiError> {
    let is_result = |input: &Input| matches!(input, Input::ToolResult { .. });
    match inputs.iter().position(|input| !is_result(input)) {
        None => Ok(()),
        Some(index) => Err(ApiError::forbidden(format!(
            "events[{index}].type: a worker's key or token sends user.tool_result only"
        ))),
    }
}

/// Reads the body: all of its events, or none.
fn read(mut fields: Fields, session: &str) -> Result<Vec<Input>, ApiError> {
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
        .map(|(index, event)| input(Fields::of(event, format!("events[{index}]"))?, session))
        .collect()
}

fn input(mut event: Fields, session: &str) -> Result<Input, ApiError> {
    let kind = event.required_text("type")?;
    let input = match kind.as_str() {
        "user.message" => Input::Message { content: content::read(&mut event)? },
        "user.interrupt" => {
            event.unsupported("session_thread_id", "threads are")?;
            Input::Interrupt
        }
        "user.tool_result" => {
            event.unsupported("session_thread_id", "threads are")?;
            let id = event.required_text("tool_use_id")?;
            let call = Position::from_event_id(&id, session);
            let call = call.ok_or_else(|| event.error("tool_use_id", NO_CALL))?;
            let content = content::read_result(&mut event)?;
            Input::ToolResult { call, content, is_error: event.flag("is_error")?.unwrap_or(false) }
        }
        kind if LATER.contains(&kind) => {
            return Err(ApiError::unsupported(&event.name("type"), &format!("{kind} is")));
        }
        _ => {
            return Err(event.error(
                "type",
                "not an event that can be sent; this version takes user.message, user.interrupt \
                 and user.tool_result",
            ));
        }
    };
    event.finish()?;
    Ok(input)
}
