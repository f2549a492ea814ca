//! What a provider refuses. Every request of every run is held against it.

use std::collections::BTreeSet;

use tailstep_core::model::{Message, Part, Role};

/// Says what is wrong with a request's messages, if anything is.
pub fn refuse(messages: &[Message]) -> Option<String> {
    if messages.first().map(|first| first.role) != Some(Role::User) {
        return Some("the first message is not the user's".to_owned());
    }
    let mut seen = BTreeSet::new();
    let mut owed: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if index > 0 && messages[index - 1].role == message.role {
            return Some(format!("messages {index} and the one before have the same role"));
        }
        if message.parts.is_empty() {
            return Some(format!("message {index} is empty"));
        }
        let wrong = match message.role {
            Role::User => user(message, &mut owed),
            Role::Assistant => assistant(message, &mut owed, &mut seen),
        };
        if let Some(wrong) = wrong {
            return Some(format!("message {index}: {wrong}"));
        }
    }
    (!owed.is_empty()).then(|| format!("calls without a result: {owed:?}"))
}

fn assistant<'a>(
    message: &'a Message,
    owed: &mut Vec<&'a str>,
    seen: &mut BTreeSet<&'a str>,
) -> Option<String> {
    for part in &message.parts {
        match part {
            Part::Content(content) if content.is_blank() => return Some("a blank text".to_owned()),
            Part::Content(_) | Part::Opaque { .. } => {}
            Part::ToolUse { id, input, .. } => {
                if !seen.insert(id) {
                    return Some(format!("the call id {id} is used twice"));
                }
                if !input.is_object() {
                    return Some(format!("the arguments of {id} are not an object"));
                }
                owed.push(id);
            }
            Part::ToolResult { .. } => return Some("a result from the assistant".to_owned()),
        }
    }
    None
}

fn user<'a>(message: &'a Message, owed: &mut Vec<&'a str>) -> Option<String> {
    let mut others = false;
    for part in &message.parts {
        match part {
            Part::Content(content) if content.is_blank() => return Some("a blank text".to_owned()),
            Part::Content(_) => others = true,
            Part::ToolResult { id, content, .. } => {
                if others {
                    return Some("a result stands behind other content".to_owned());
                }
                let Some(at) = owed.iter().position(|owed| owed == id) else {
                    return Some(format!("a result for {id}, which is not owed"));
                };
                owed.remove(at);
                if content.is_empty() || content.iter().any(|block| block.is_blank()) {
                    return Some(format!("the result of {id} is blank"));
                }
            }
            Part::ToolUse { .. } => return Some("a call from the user".to_owned()),
            Part::Opaque { .. } => return Some("a provider's block from the user".to_owned()),
        }
    }
    (!owed.is_empty()).then(|| format!("calls without a result: {owed:?}"))
}

/// The blocks of a conversation in a row; a later request has to begin with an earlier one's.
pub fn blocks(messages: &[Message]) -> Vec<(Role, Part)> {
    let each = |message: &Message| {
        let role = message.role;
        message.parts.iter().map(move |part| (role, part.clone())).collect::<Vec<_>>()
    };
    messages.iter().flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    use tailstep_core::{content::Content, raw::RawJson};

    use super::*;

    fn text(role: Role, text: &str) -> Message {
        Message { role, parts: vec![Part::Content(Content::text(text))] }
    }

    fn call(id: &str) -> Part {
        Part::ToolUse { id: id.into(), name: "bash".into(), input: RawJson::empty_object() }
    }

    fn result(id: &str) -> Part {
        Part::ToolResult { id: id.into(), content: vec![Content::text("ok")], is_error: false }
    }

    #[test]
    fn refuses_what_a_provider_refuses() {
        let user = || text(Role::User, "hello");
        let calls = |ids: &[&str]| Message {
            role: Role::Assistant,
            parts: ids.iter().map(|id| call(id)).collect(),
        };
        let results = |ids: &[&str]| Message {
            role: Role::User,
            parts: ids.iter().map(|id| result(id)).collect(),
        };
        assert_eq!(refuse(&[user(), calls(&["a", "b"]), results(&["b", "a"])]), None);
        let bad: [(&str, Vec<Message>); 9] = [
            ("nothing", vec![]),
            ("assistant first", vec![text(Role::Assistant, "hi")]),
            ("same role twice", vec![user(), user()]),
            ("blank", vec![text(Role::User, " ")]),
            ("no result", vec![user(), calls(&["a"])]),
            ("result missing", vec![user(), calls(&["a", "b"]), results(&["a"])]),
            ("result twice", vec![user(), calls(&["a"]), results(&["a", "a"])]),
            ("result of nothing", vec![user(), text(Role::Assistant, "hi"), results(&["a"])]),
            (
                "id used twice",
                vec![user(), calls(&["a"]), results(&["a"]), calls(&["a"]), results(&["a"])],
            ),
        ];
        for (what, messages) in bad {
            assert!(refuse(&messages).is_some(), "{what} is accepted");
        }
    }
}
