//! What the broker refuses, as the sandbox reads it: one line that says that this is policy and what
//! would change it.

/// Stands for no answer at all.
pub(crate) const GONE: u16 = 0;

/// A refused request or a cut connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) why: String,
}

impl Refusal {
    /// The policy forbids it.
    pub(crate) fn policy(why: impl Into<String>) -> Self {
        Self { status: 403, why: why.into() }
    }

    /// It is not a request that the broker understands.
    pub(crate) fn malformed(why: impl Into<String>) -> Self {
        Self { status: 400, why: why.into() }
    }

    /// A limit is reached.
    pub(crate) fn limit(why: impl Into<String>) -> Self {
        Self { status: 429, why: why.into() }
    }

    /// The other side failed, or answered what may not be passed on.
    pub(crate) fn origin(why: impl Into<String>) -> Self {
        Self { status: 502, why: why.into() }
    }

    /// One side closed its connection: nothing was decided.
    pub(crate) fn gone() -> Self {
        Self { status: GONE, why: "the connection was closed".to_owned() }
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    fn line(&self) -> String {
        let start = match self.status {
            403 | 429 => "refused by the sandbox's network policy",
            502 | 504 => "the sandbox's network proxy got no usable answer",
            _ => "refused by the sandbox's network proxy",
        };
        // It goes into a status line as well: nothing but printable ASCII.
        let why = self.why.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
        format!("{start}: {}", why.take(600).collect::<String>())
    }

    /// The whole response. The reason stands in the status line too, because clients show that, and not
    /// the body, when a `CONNECT` fails.
    pub(crate) fn response(&self) -> String {
        let line = self.line();
        format!(
            "HTTP/1.1 {} {line}\r\ncontent-type: text/plain; charset=utf-8\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{line}\n",
            self.status,
            line.len() + 1
        )
    }
}

/// `text` as a decision shows it: printable, and cut.
pub(crate) fn shown(text: &str, chars_max: usize) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_twice() {
        let refusal = Refusal::policy("a.invalid\r\nX: y is not on the allow-list");
        let response = refusal.response();
        let line =
            "refused by the sandbox's network policy: a.invalid??X: y is not on the allow-list";
        assert!(response.starts_with(&format!("HTTP/1.1 403 {line}\r\n")), "{response}");
        assert!(response.ends_with(&format!("\r\n\r\n{line}\n")), "{response}");
        assert_eq!(response.split("\r\n\r\n").count(), 2);
    }
}
