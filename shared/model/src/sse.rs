//! Server-sent events out of bytes, wherever the network splits them.
//!
//! Follows the event stream format of the HTML standard, §9.2.6, with one leniency: when the body
//! ends in an orderly way, an event whose closing blank line is missing still counts, because servers
//! omit it after the last event.

/// Longest event, in bytes: far above any answer's block, far below what hurts.
const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One event's data. Its name and id are not kept: both providers repeat the name inside the data.
pub(crate) type Data = String;

/// Collects bytes up to the event boundary.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// The data lines of the event that has not ended yet.
    data: Option<Vec<u8>>,
    /// The last byte ended a line as CR, so that an LF right behind it is part of the same end.
    after_cr: bool,
    begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    TooLong,
    NotUtf8,
}

impl Splitter {
    /// Takes the next bytes in and returns the events that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Data>, Fault> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            if self.after_cr {
                self.after_cr = false;
                if first == b'\n' {
                    rest = &rest[1..];
                    continue;
                }
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let Some(end) = end else {
                self.line.extend_from_slice(rest);
                break;
            };
            self.line.extend_from_slice(&rest[..end]);
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            events.extend(self.end_line()?);
        }
        if self.held() > EVENT_BYTES_MAX { Err(Fault::TooLong) } else { Ok(events) }
    }

    /// The event that the orderly end of the body completes, if there is one.
    pub(crate) fn finish(mut self) -> Result<Option<Data>, Fault> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.end_line()
    }

    fn held(&self) -> usize {
        self.line.len() + self.data.as_ref().map_or(0, Vec::len)
    }

    fn end_line(&mut self) -> Result<Option<Data>, Fault> {
        let whole = std::mem::take(&mut self.line);
        let mut line = whole.as_slice();
        if !self.begun {
            self.begun = true;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return match self.data.take() {
                Some(data) => String::from_utf8(data).map(Some).map_err(|_| Fault::NotUtf8),
                None => Ok(None),
            };
        }
        // A line without a colon is a field name alone; one that begins with a colon is a comment,
        // which is a field without a name.
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        if &line[..colon] == b"data" {
            let value = line.get(colon + 1..).unwrap_or_default();
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}event: a\ndata: {\"t\":\"é🦀\"}\n\n: ping\r\n\r\nid: 7\r\ndata:one\r\n\
                          data: two\r\n\r\ndata\rdata:  x\r\revent: nothing\n\ndata: last\n\n";
    const EVENTS: [&str; 4] = ["{\"t\":\"é🦀\"}", "one\ntwo", "\n x", "last"];

    fn split(pieces: &[&[u8]]) -> Vec<Data> {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for piece in pieces {
            events.extend(splitter.push(piece).unwrap());
        }
        events.extend(splitter.finish().unwrap());
        events
    }

    #[test]
    fn every_split_gives_the_same_events() {
        let bytes = STREAM.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(split(&pieces), EVENTS, "split at {first} and {second}");
            }
        }
        for size in 1..20 {
            assert_eq!(split(&bytes.chunks(size).collect::<Vec<_>>()), EVENTS, "size {size}");
        }
    }

    #[test]
    fn an_orderly_end_closes_the_last_event() {
        assert_eq!(split(&[b"data: [DONE]"]), ["[DONE]"]);
        assert_eq!(split(&[b"data: [DONE]\n"]), ["[DONE]"]);
        assert_eq!(split(&[b"data: [DONE]\r"]), ["[DONE]"]);
        assert_eq!(split(&[b""]), [""; 0]);
    }

    #[test]
    fn what_is_no_text_or_too_long_is_a_fault() {
        assert_eq!(Splitter::default().push(b"data: \xff\n\n"), Err(Fault::NotUtf8));
        let long = vec![b'x'; EVENT_BYTES_MAX + 1];
        assert_eq!(Splitter::default().push(&long), Err(Fault::TooLong));
    }
}
