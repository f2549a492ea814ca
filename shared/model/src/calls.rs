//! Tool calls, as far as the providers agree on them: which arguments can be run, and which ids and
//! names can be sent back.

use std::{borrow::Cow, fmt::Write};

use tailstep_core::{
    model::{Block, Broken},
    raw::RawJson,
};

/// Longest tool name that every provider takes.
const NAME_CHARS_MAX: usize = 64;

/// Whether the output limit ended the answer, so that the last arguments may be a beginning only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Whole,
    Cut,
}

/// The block for a call whose arguments came as `text`, pieces joined. Arguments that are an object
/// are kept byte for byte; none at all, or `null`, is the way to call a tool that takes none.
/// Nothing, in an answer that was cut, is a call that had no time to say what it wants.
pub(crate) fn block(id: String, name: String, text: String, output: Output) -> Block {
    let trimmed = text.trim();
    if trimmed.is_empty() && output == Output::Cut {
        return Block::BrokenToolUse { id, name, raw: text, reason: Broken::Cut };
    }
    if trimmed.is_empty() || trimmed == "null" {
        return Block::ToolUse { id, name, input: RawJson::empty_object() };
    }
    let reason = match RawJson::parse(&text) {
        Ok(input) if input.is_object() => return Block::ToolUse { id, name, input },
        Err(error) if error.is_eof() && output == Output::Cut => Broken::Cut,
        Ok(_) | Err(_) => Broken::Malformed,
    };
    Block::BrokenToolUse { id, name, raw: text, reason }
}

/// `id` as every provider takes it (letters, digits, `_` and `-`). Other characters, which some
/// servers use, become their code, so that different ids stay different.
pub(crate) fn id(id: &str) -> Cow<'_, str> {
    if !id.is_empty() && id.chars().all(is_plain) {
        return Cow::Borrowed(id);
    }
    let mut plain = String::from("id_");
    for c in id.chars() {
        if is_plain(c) {
            plain.push(c);
        } else {
            // Writing into a string cannot fail.
            let _ = write!(plain, "_{:x}_", u32::from(c));
        }
    }
    Cow::Owned(plain)
}

/// `name` as every provider takes it. A model can invent any name; the call is answered with an error,
/// but it stays in the conversation and must not make every later request invalid.
pub(crate) fn name(name: &str) -> Cow<'_, str> {
    if is_name(name) {
        return Cow::Borrowed(name);
    }
    let plain: String =
        name.chars().take(NAME_CHARS_MAX).map(|c| if is_plain(c) { c } else { '_' }).collect();
    Cow::Owned(if plain.is_empty() { "_".to_owned() } else { plain })
}

/// Whether every provider takes `name` as a tool's name.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_CHARS_MAX && name.chars().all(is_plain)
}

pub(crate) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, output: Output, expect: Result<&str, Broken>) {
        let found = block("i".into(), "n".into(), text.into(), output);
        let expect = match expect {
            Ok(input) => Block::ToolUse {
                id: "i".into(),
                name: "n".into(),
                input: RawJson::parse(input).unwrap(),
            },
            Err(reason) => {
                Block::BrokenToolUse { id: "i".into(), name: "n".into(), raw: text.into(), reason }
            }
        };
        assert_eq!(found, expect, "{text:?} {output:?}");
    }

    #[test]
    fn arguments() {
        use Broken::{Cut, Malformed};
        for text in ["", "  ", "null"] {
            check(text, Output::Whole, Ok("{}"));
        }
        check("", Output::Cut, Err(Cut));
        let odd = r#"{"z":1.00, "a":1e400,"a":"\ud83d","n":12345678901234567890123}"#;
        check(odd, Output::Whole, Ok(odd));
        check(odd, Output::Cut, Ok(odd));
        let begun = r#"{"path":"a","content":"xx"#;
        check(begun, Output::Cut, Err(Cut));
        check(begun, Output::Whole, Err(Malformed));
        check(r#"{"a":1]"#, Output::Cut, Err(Malformed));
        check(r#"{'a':1}"#, Output::Whole, Err(Malformed));
        check("[1]", Output::Whole, Err(Malformed));
        check("\"{}\"", Output::Whole, Err(Malformed));
        check("7", Output::Whole, Err(Malformed));
    }

    #[test]
    fn ids_and_names() {
        assert_eq!(id("toolu_01A-b"), "toolu_01A-b");
        assert_eq!(id("functions.bash:0"), "id_functions_2e_bash_3a_0");
        assert_eq!(id(""), "id_");
        assert_eq!(name("bash"), "bash");
        assert_eq!(name("a.b c"), "a_b_c");
        assert_eq!(name(""), "_");
        assert_eq!(name(&"x".repeat(100)).len(), 64);
        assert!(is_name("get_weather") && !is_name("get weather") && !is_name(""));
    }
}
