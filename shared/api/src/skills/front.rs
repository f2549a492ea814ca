//! The front matter of a SKILL.md: its name, and when to use it. Of YAML only what people write
//! there: plain and quoted values, and folded ones.

use crate::error::ApiError;

const NAME_CHARS_MAX: usize = 64;

/// It goes into every prompt of every agent that has the skill.
const DESCRIPTION_CHARS_MAX: usize = 1_024;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Front {
    pub(super) name: String,
    pub(super) description: String,
}

/// Reads the front matter of `text`, and checks it.
pub(super) fn read(text: &str) -> Result<Front, ApiError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return Err(wrong(
            "must begin with front matter: a line `---`, name and description, `---`",
        ));
    }
    let mut matter = Vec::new();
    loop {
        match lines.next() {
            None => return Err(wrong("has front matter without an end; close it with `---`")),
            Some(line) if line.trim_end() == "---" => break,
            Some(line) => matter.push(line),
        }
    }
    let name = value(&matter, "name").ok_or_else(|| wrong("has no name in its front matter"))?;
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(is_plain) {
        return Err(wrong(&format!(
            "has a name that is not 1 to {NAME_CHARS_MAX} lower-case letters, digits and `-`"
        )));
    }
    let description = value(&matter, "description")
        .ok_or_else(|| wrong("has no description in its front matter"))?;
    let chars = description.chars().count();
    if description.trim().is_empty()
        || chars > DESCRIPTION_CHARS_MAX
        || description.chars().any(char::is_control)
    {
        return Err(wrong(&format!(
            "has a description that is not one text of 1 to {DESCRIPTION_CHARS_MAX} characters"
        )));
    }
    Ok(Front { name, description })
}

fn wrong(what: &str) -> ApiError {
    ApiError::invalid(format!("files[]: SKILL.md {what}"))
}

/// The value of a key at the margin.
fn value(lines: &[&str], key: &str) -> Option<String> {
    let at = lines.iter().position(|line| {
        line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
    })?;
    let (_, first) = lines.get(at)?.split_once(':')?;
    let first = first.trim();
    let folded = matches!(first, ">" | ">-" | ">+" | "|" | "|-" | "|+");
    // What is indented below goes on with the value.
    let rest = lines
        .iter()
        .skip(at + 1)
        .take_while(|line| line.trim().is_empty() || line.starts_with([' ', '\t']));
    let mut parts: Vec<&str> = if folded { Vec::new() } else { vec![first] };
    parts.extend(rest.map(|line| line.trim()).filter(|line| !line.is_empty()));
    let joined = parts.join(" ");
    let unquoted = match joined.as_bytes() {
        [b'"', .., b'"'] if joined.len() > 1 => {
            joined[1..joined.len() - 1].replace("\\\"", "\"").replace("\\\\", "\\")
        }
        [b'\'', .., b'\''] if joined.len() > 1 => joined[1..joined.len() - 1].replace("''", "'"),
        _ => joined,
    };
    Some(unquoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, description: &str) {
        let front = read(text).unwrap();
        assert_eq!((front.name.as_str(), front.description.as_str()), ("make-pdf", description));
    }

    #[test]
    fn values_are_read_as_people_write_them() {
        check("---\nname: make-pdf\ndescription: Makes: PDFs.\n---\n# Body", "Makes: PDFs.");
        check("\u{feff}---\r\nname: make-pdf\r\ndescription: A b.\r\n---\r\n", "A b.");
        check(
            "---\nlicense: MIT\nname: 'make-pdf'\ndescription: \"Say \\\"x\\\".\"\n---",
            "Say \"x\".",
        );
        check("---\nname: make-pdf\ndescription: >-\n  one\n  two\n\nother: x\n---", "one two");
        check("---\nmetadata:\n  name: inner\nname: make-pdf\ndescription: it's\n---", "it's");
        check("---\nname : make-pdf\ndescription: one\n  two\n---", "one two");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let long = format!("---\nname: a\ndescription: {}\n---", "x".repeat(1_025));
        for (text, says) in [
            ("", "must begin with front matter"),
            ("# Title", "must begin with front matter"),
            ("---\nname: a", "without an end"),
            ("---\ndescription: b\n---", "has no name"),
            ("---\nname: a\n---", "has no description"),
            ("---\nname: A b\ndescription: b\n---", "lower-case letters"),
            ("---\nname: ../up\ndescription: b\n---", "lower-case letters"),
            ("---\nname:\ndescription: b\n---", "lower-case letters"),
            ("---\nname: a\ndescription: \"\"\n---", "has a description that is not"),
            ("---\nname: a\ndescription: x\u{1b}[0m\n---", "has a description that is not"),
            (&long, "has a description that is not"),
        ] {
            let said = read(text).unwrap_err().body("r")["error"]["message"].to_string();
            assert!(said.contains("files[]: SKILL.md") && said.contains(says), "{said}");
        }
    }
}
