//! A request's line and headers, read strictly (RFC 9112): what two parsers could read in two ways is
//! refused.

use std::time::Duration;

use tailstep_core::limits::egress::{HEAD_BYTES_MAX, HEADERS_MAX};
use tokio::{
    io::AsyncRead,
    time::{Instant, timeout_at},
};

use crate::{refusal::Refusal, stream::Inbound};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) method: String,
    /// Printable ASCII.
    pub(crate) target: String,
    pub(crate) version: Version,
    /// Names in lower case; values without the space around them.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
}

/// How a request's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Zero when there is no body.
    Length(u64),
    Chunked,
}

impl Head {
    /// Reads a whole head, its empty line included.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let text = bytes.strip_suffix(b"\r\n\r\n").ok_or_else(|| wrong("the head has no end"))?;
        let mut lines = split_lines(text)?.into_iter();
        let line = lines.next().ok_or_else(|| wrong("there is no request line"))?;
        let line = std::str::from_utf8(line).map_err(|_| wrong("the request line is not ASCII"))?;
        let mut parts = line.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong("the request line is not METHOD TARGET VERSION"));
        };
        let plain = |b: u8| b.is_ascii_uppercase() || b == b'-';
        if method.is_empty() || method.len() > 32 || !method.bytes().all(plain) {
            return Err(wrong("the method is not a word in upper case"));
        }
        if target.is_empty() || !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("the target is not printable ASCII"));
        }
        let version = match version {
            "HTTP/1.1" => Version::Http11,
            "HTTP/1.0" => Version::Http10,
            _ => return Err(wrong("only HTTP/1.1 and HTTP/1.0 are spoken here").with_status(505)),
        };
        let headers = lines.map(header).collect::<Result<Vec<_>, _>>()?;
        if headers.len() > HEADERS_MAX {
            return Err(wrong("there are too many headers").with_status(431));
        }
        Ok(Self { method: method.to_owned(), target: target.to_owned(), version, headers })
    }

    /// Its size, without what only delimits.
    pub(crate) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.method.len() + self.target.len() + headers.sum::<usize>()
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_slice())
    }

    /// The words of a list header, in lower case.
    pub(crate) fn words(&self, name: &str) -> Vec<String> {
        self.all(name)
            .flat_map(|value| value.split(|b| *b == b','))
            .map(|word| String::from_utf8_lossy(word).trim().to_ascii_lowercase())
            .filter(|word| !word.is_empty())
            .collect()
    }

    /// The one `Host`; `None` is allowed by HTTP/1.0 only.
    pub(crate) fn host(&self) -> Result<Option<&str>, Refusal> {
        let mut hosts = self.all("host");
        match (hosts.next(), hosts.next()) {
            (None, _) if self.version == Version::Http10 => Ok(None),
            (Some(host), None) => std::str::from_utf8(host)
                .map(Some)
                .map_err(|_| wrong("the Host header is not ASCII")),
            (None, _) => Err(wrong("there is no Host header")),
            (Some(_), Some(_)) => Err(wrong("there are two Host headers")),
        }
    }

    pub(crate) fn framing(&self) -> Result<Framing, Refusal> {
        let mut lengths = self.all("content-length");
        let mut codings = self.all("transfer-encoding");
        match (lengths.next(), codings.next()) {
            (Some(_), Some(_)) => Err(wrong("there are both Content-Length and Transfer-Encoding")),
            (None, None) => Ok(Framing::Length(0)),
            (Some(length), None) => {
                let digits = std::str::from_utf8(length).unwrap_or_default();
                let plain = !digits.is_empty()
                    && digits.len() <= 18
                    && digits.bytes().all(|b| b.is_ascii_digit());
                match (digits.parse(), lengths.next()) {
                    (Ok(length), None) if plain => Ok(Framing::Length(length)),
                    _ => Err(wrong("Content-Length is not one number")),
                }
            }
            (None, Some(coding)) => {
                let plain = coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
                if plain && self.version == Version::Http11 {
                    Ok(Framing::Chunked)
                } else {
                    Err(wrong("Transfer-Encoding is not just chunked, in HTTP/1.1"))
                }
            }
        }
    }
}

fn wrong(why: &str) -> Refusal {
    Refusal::malformed(why)
}

/// Lines end with CR LF, and neither stands anywhere else.
fn split_lines(text: &[u8]) -> Result<Vec<&[u8]>, Refusal> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| matches!(b, b'\r' | b'\n')) {
        if rest.get(at..at + 2) != Some(b"\r\n") {
            return Err(wrong("a line break is not CR LF"));
        }
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    lines.push(rest);
    Ok(lines)
}

fn header(line: &[u8]) -> Result<(String, Vec<u8>), Refusal> {
    let colon = line.iter().position(|b| *b == b':');
    let (name, value) = match colon {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => return Err(wrong("a header has no colon")),
    };
    // A folded line or a space before the colon ends here, too.
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(token) {
        return Err(wrong("a header's name is not a word"));
    }
    let value = value.trim_ascii();
    if value.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err(wrong("a header has a control character"));
    }
    let name = name.iter().map(|b| char::from(b.to_ascii_lowercase())).collect();
    Ok((name, value.to_vec()))
}

/// How long to wait for a head: for its first byte, and from there to its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadTimes {
    pub(crate) first_ms: u64,
    pub(crate) rest_ms: u64,
}

/// Reads one head; `None` when the client closed or stayed silent instead.
pub(crate) async fn read_head<R: AsyncRead + Unpin>(
    inbound: &mut Inbound<R>,
    times: HeadTimes,
) -> Result<Option<Head>, Refusal> {
    let after = |ms: u64| Instant::now() + Duration::from_millis(ms);
    if inbound.buffer.is_empty() {
        match timeout_at(after(times.first_ms), inbound.fill()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) | Err(_) => return Ok(None),
        }
    }
    let deadline = after(times.rest_ms);
    // What was looked at is not looked at again: a head may come in byte by byte.
    let mut seen = 0;
    loop {
        if let Some(end) = head_end(&inbound.buffer, seen)? {
            let head = inbound.buffer.split_to(end);
            return Head::parse(&head).map(Some);
        }
        seen = inbound.buffer.len();
        match timeout_at(deadline, inbound.fill()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Err(wrong("the connection ended within a head")),
            Err(_) => {
                return Err(wrong("the head of the request took too long").with_status(408));
            }
        }
    }
}

/// Where the head ends, if it is all there. The first `seen` bytes hold no end.
fn head_end(buffer: &[u8], seen: usize) -> Result<Option<usize>, Refusal> {
    let there = &buffer[..buffer.len().min(HEAD_BYTES_MAX)];
    if there.first() == Some(&0x16) {
        return Err(wrong("this proxy is spoken to in plain HTTP, not in TLS"));
    }
    let from = seen.saturating_sub(3).min(there.len());
    let mut before = 0;
    for (at, byte) in there.iter().enumerate().skip(from) {
        if *byte == b'\n' {
            if before != b'\r' && (at > from || at == 0) {
                return Err(wrong("a line break is not CR LF"));
            }
            if there[..=at].ends_with(b"\r\n\r\n") {
                return Ok(Some(at + 1));
            }
        }
        before = *byte;
    }
    if buffer.len() >= HEAD_BYTES_MAX {
        let why = format!("the head of the request has more than {HEAD_BYTES_MAX} bytes");
        return Err(wrong(&why).with_status(431));
    }
    Ok(None)
}

#[cfg(test)]
#[path = "head/tests.rs"]
mod tests;
