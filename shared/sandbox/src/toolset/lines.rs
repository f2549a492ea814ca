//! Lines of a stream, each held only up to a bound, so that one giant line costs no memory.

use std::io::{self, BufRead};

pub(super) struct Lines<R> {
    from: R,
    line_bytes_max: usize,
}

pub(super) struct Line {
    /// With its line break, unless it was cut or is the last.
    pub(super) bytes: Vec<u8>,
    /// What the bound left out.
    pub(super) cut_bytes: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(from: R, line_bytes_max: usize) -> Self {
        Self { from, line_bytes_max }
    }

    /// The next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Line { bytes: Vec::new(), cut_bytes: 0 };
        let mut any = false;
        loop {
            let buffer = match self.from.fill_buf() {
                Ok([]) => return Ok(any.then_some(line)),
                Ok(buffer) => buffer,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(why) => return Err(why),
            };
            any = true;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.map_or(buffer.len(), |at| at + 1)];
            let room = self.line_bytes_max.saturating_sub(line.bytes.len()).min(part.len());
            line.bytes.extend_from_slice(&part[..room]);
            line.cut_bytes += (part.len() - room) as u64;
            let used = part.len();
            self.from.consume(used);
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_counted() {
        let mut lines = Lines::new(io::Cursor::new(b"ab\n\n0123456789\nend".to_vec()), 4);
        let mut seen = Vec::new();
        while let Some(Line { bytes, cut_bytes }) = lines.next().unwrap() {
            seen.push((String::from_utf8(bytes).unwrap(), cut_bytes));
        }
        let expected = [("ab\n", 0), ("\n", 0), ("0123", 7), ("end", 0)];
        assert_eq!(seen, expected.map(|(text, cut)| (text.to_owned(), cut)));
    }
}
