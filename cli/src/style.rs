//! How text looks: colour where a terminal shows it, and control characters made visible.

use std::io::IsTerminal;

/// Puts colours on text, or leaves it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Colour,
}

impl Paint {
    /// Colour if `stream` is a terminal and neither `NO_COLOR` nor `TERM=dumb` says otherwise.
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if stream.is_terminal() && !no_colour && !dumb { Self::Colour } else { Self::Plain }
    }

    pub(crate) fn is_on(self) -> bool {
        self == Self::Colour
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// `text` without any character that could steer a terminal: models and tools write these lines.
/// Line breaks and tabs stay.
pub(crate) fn visible(text: &str) -> String {
    // Bidirectional controls can make a line read as something it is not.
    let steers = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_made_visible() {
        assert_eq!(visible("a\tb\nc é"), "a\tb\nc é");
        assert_eq!(visible("\x1b[2J\r\u{202e}x"), "\\u{1b}[2J\\u{d}\\u{202e}x");
    }

    #[test]
    fn plain_paint_changes_nothing() {
        assert_eq!(Paint::Plain.red("x"), "x");
        assert_eq!(Paint::Colour.red("x"), "\x1b[31mx\x1b[0m");
    }
}
