//! The check of a neutral request.

use tailstep_core::{
    content::Content,
    model::{Message, ModelRequest, Part, Role},
};

use super::{Fault, Ledger, at};
use crate::calls;

/// Whether every provider would take `request`: what `ModelRequest` promises, checked.
///
/// # Errors
/// The first fault, with its place.
pub fn validate_messages(request: &ModelRequest) -> Result<(), String> {
    if request.output_tokens_max == 0 {
        return Err("output_tokens_max: must be above 0".to_owned());
    }
    for (index, tool) in request.tools.iter().enumerate() {
        if !calls::is_name(&tool.name) {
            return Err(format!("tools.{index}: `{}` is no tool name", tool.name));
        }
        if request.tools.iter().take(index).any(|other| other.name == tool.name) {
            return Err(format!("tools.{index}: `{}` is defined twice", tool.name));
        }
        if !tool.input_schema.is_object() {
            return Err(format!("tools.{index}: the input schema is not an object"));
        }
    }
    let mut ledger = Ledger::default();
    let mut expected = Role::User;
    for (index, message) in request.messages.iter().enumerate() {
        let place = || format!("messages.{index}");
        if message.role != expected {
            return Err(format!("messages.{index}: roles do not alternate from the user on"));
        }
        at(place, self::message(message, &mut ledger))?;
        expected = match message.role {
            Role::User => Role::Assistant,
            Role::Assistant => Role::User,
        };
    }
    if request.messages.is_empty() {
        return Err("messages: none".to_owned());
    }
    at(|| "messages".to_owned(), ledger.close())
}

fn message(message: &Message, ledger: &mut Ledger) -> Result<(), Fault> {
    if message.parts.is_empty() {
        return Err("an empty message".to_owned());
    }
    let mut spoken = false;
    for (index, part) in message.parts.iter().enumerate() {
        let place = || format!("parts.{index}");
        at(place, self::part(message.role, part, &mut spoken, ledger))?;
    }
    match message.role {
        Role::User => ledger.close(),
        Role::Assistant => Ok(()),
    }
}

/// `spoken`: whether the user's own words have begun, behind which no result may come.
fn part(role: Role, part: &Part, spoken: &mut bool, ledger: &mut Ledger) -> Result<(), Fault> {
    match (part, role) {
        (Part::Content(content), _) => {
            *spoken = true;
            shown(content)
        }
        (Part::ToolUse { id, input, .. }, Role::Assistant) => {
            if !input.is_object() {
                return Err(format!("the input of tool use `{id}` is not an object"));
            }
            ledger.call(id)
        }
        (Part::ToolResult { id, content, .. }, Role::User) => {
            if *spoken {
                return Err(format!("the result of `{id}` comes behind other content"));
            }
            if content.is_empty() {
                return Err(format!("the result of `{id}` is empty"));
            }
            content.iter().try_for_each(shown)?;
            ledger.result(id)
        }
        (Part::Opaque { raw, .. }, Role::Assistant) if raw.is_object() => Ok(()),
        (Part::Opaque { .. }, Role::Assistant) => {
            Err("an opaque block is not an object".to_owned())
        }
        (Part::Opaque { .. }, Role::User) => Err("an opaque block of the user's".to_owned()),
        (Part::ToolUse { .. }, Role::User) => Err("a tool use of the user's".to_owned()),
        (Part::ToolResult { .. }, Role::Assistant) => {
            Err("a tool result of the model's".to_owned())
        }
    }
}

fn shown(content: &Content) -> Result<(), Fault> {
    if content.is_blank() { Err("a blank text block".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use tailstep_core::{model::ToolDefinition, raw::RawJson};

    use super::*;

    fn text(text: &str) -> Part {
        Part::Content(Content::text(text))
    }

    fn used(id: &str) -> Part {
        Part::ToolUse { id: id.into(), name: "bash".into(), input: RawJson::empty_object() }
    }

    fn result(id: &str) -> Part {
        Part::ToolResult { id: id.into(), content: vec![Content::text("ok")], is_error: false }
    }

    fn user(parts: Vec<Part>) -> Message {
        Message { role: Role::User, parts }
    }

    fn model(parts: Vec<Part>) -> Message {
        Message { role: Role::Assistant, parts }
    }

    fn request(messages: Vec<Message>) -> ModelRequest {
        ModelRequest {
            model: "scripted/echo".into(),
            effort: None,
            system: None,
            tools: Vec::new(),
            messages: messages.into(),
            output_tokens_max: 100,
        }
    }

    #[track_caller]
    fn check(messages: Vec<Message>, expect: Result<(), &str>) {
        let found = validate_messages(&request(messages));
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn messages() {
        let hi = || user(vec![text("hi")]);
        let ok = Ok(());
        check(vec![hi()], ok);
        check(
            vec![
                hi(),
                model(vec![text("a"), used("1"), used("2")]),
                user(vec![result("2"), result("1"), text("and")]),
            ],
            ok,
        );
        // A paused answer is sent back as it is.
        check(vec![hi(), model(vec![text("a")])], ok);

        check(vec![], Err("messages: none"));
        check(
            vec![model(vec![text("a")])],
            Err("messages.0: roles do not alternate from the user on"),
        );
        check(vec![hi(), hi()], Err("messages.1: roles do not alternate from the user on"));
        check(vec![user(vec![])], Err("messages.0: an empty message"));
        check(vec![user(vec![text(" \n")])], Err("messages.0: parts.0: a blank text block"));
        let blank =
            Part::ToolResult { id: "1".into(), content: vec![Content::text("")], is_error: true };
        check(
            vec![hi(), model(vec![used("1")]), user(vec![blank])],
            Err("messages.2: parts.0: a blank text block"),
        );
        let empty = Part::ToolResult { id: "1".into(), content: vec![], is_error: false };
        check(
            vec![hi(), model(vec![used("1")]), user(vec![empty])],
            Err("messages.2: parts.0: the result of `1` is empty"),
        );
        check(
            vec![hi(), model(vec![used("1")])],
            Err("messages: tool use `1` has no result in the next turn"),
        );
        check(
            vec![hi(), model(vec![used("1"), used("2")]), user(vec![result("1")])],
            Err("messages.2: tool use `2` has no result in the next turn"),
        );
        check(
            vec![hi(), model(vec![used("1")]), user(vec![result("1"), result("1")])],
            Err("messages.2: parts.1: a second or late result for tool use `1`"),
        );
        check(
            vec![user(vec![result("1")])],
            Err("messages.0: parts.0: a result for `1`, which no tool use asked for"),
        );
        check(
            vec![hi(), model(vec![used("1")]), user(vec![text("x"), result("1")])],
            Err("messages.2: parts.1: the result of `1` comes behind other content"),
        );
        check(
            vec![hi(), model(vec![used("1"), used("1")])],
            Err("messages.1: parts.1: tool use id `1` is used twice"),
        );
        let list = Part::ToolUse {
            id: "1".into(),
            name: "bash".into(),
            input: RawJson::parse("[]").unwrap(),
        };
        check(
            vec![hi(), model(vec![list])],
            Err("messages.1: parts.0: the input of tool use `1` is not an object"),
        );
        check(vec![user(vec![used("1")])], Err("messages.0: parts.0: a tool use of the user's"));
    }

    #[test]
    fn tools() {
        let tool = |name: &str| ToolDefinition {
            name: name.into(),
            description: String::new(),
            input_schema: RawJson::empty_object(),
        };
        let mut asked = request(vec![user(vec![text("hi")])]);
        asked.tools = vec![tool("a"), tool("b")];
        assert_eq!(validate_messages(&asked), Ok(()));
        asked.tools = vec![tool("a b")];
        assert_eq!(validate_messages(&asked), Err("tools.0: `a b` is no tool name".into()));
        asked.tools = vec![tool("a"), tool("a")];
        assert_eq!(validate_messages(&asked), Err("tools.1: `a` is defined twice".into()));
    }
}
