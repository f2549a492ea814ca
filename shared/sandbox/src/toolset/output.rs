//! Output of a command, kept within a bound whatever it prints: its first and its last bytes, with
//! a count of what lies between. Terminal control sequences are taken out on the way.

use std::collections::VecDeque;

/// The beginning and the end of a stream.
pub(crate) struct Output {
    head: Vec<u8>,
    head_max: usize,
    tail: VecDeque<u8>,
    tail_max: usize,
    dropped: u64,
    ansi: Ansi,
}

/// What was kept, as text.
pub(crate) struct Kept {
    pub(crate) text: String,
    pub(crate) dropped_bytes: u64,
}

impl Output {
    /// Keeps at most `bytes_max` bytes, half of them from the beginning.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let head_max = bytes_max / 2;
        Self {
            head: Vec::new(),
            head_max,
            tail: VecDeque::new(),
            tail_max: bytes_max - head_max,
            dropped: 0,
            ansi: Ansi::Text,
        }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let run = self.ansi.text_run(bytes);
            self.keep(&bytes[..run]);
            bytes = &bytes[run..];
            let Some((first, rest)) = bytes.split_first() else { return };
            self.ansi = self.ansi.next(*first);
            bytes = rest;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.head_max - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        // Only the last `tail_max` bytes of a run can matter, so a giant run costs no more.
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(self.tail_max));
        let overflow = (self.tail.len() + rest.len()).saturating_sub(self.tail_max);
        self.tail.drain(..overflow);
        self.dropped += (skipped.len() + overflow) as u64;
        self.tail.extend(rest);
    }

    /// The kept text. A gap is cut at characters and named in the text.
    pub(crate) fn finish(self) -> Kept {
        let Self { mut head, tail, dropped, .. } = self;
        let mut tail = Vec::from(tail);
        if dropped == 0 {
            head.append(&mut tail);
            return Kept { text: text(head), dropped_bytes: 0 };
        }
        let whole = match std::str::from_utf8(&head) {
            Err(cut) if cut.error_len().is_none() => cut.valid_up_to(),
            Ok(_) | Err(_) => head.len(),
        };
        let mut dropped_bytes = dropped + (head.len() - whole) as u64;
        head.truncate(whole);
        let stray = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        dropped_bytes += stray as u64;
        let tail = text(tail.split_off(stray));
        let head = text(head);
        let text = format!("{head}\n[... {dropped_bytes} bytes of output left out ...]\n{tail}");
        Kept { text, dropped_bytes }
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|invalid| String::from_utf8_lossy(invalid.as_bytes()).into_owned())
}

/// Where the stream stands within a terminal control sequence (ECMA-48).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ansi {
    Text,
    Escape,
    /// After `ESC [`, up to a byte of 0x40..=0x7e.
    Control,
    /// After `ESC ]` and its kind, up to BEL or `ESC \`.
    String,
    StringEscape,
    /// After `ESC (` and its kind: one more byte.
    Charset,
}

impl Ansi {
    /// How many of `bytes` are plain text from here on.
    fn text_run(self, bytes: &[u8]) -> usize {
        match self {
            Self::Text => bytes.iter().position(|byte| *byte == 0x1b).unwrap_or(bytes.len()),
            Self::Escape | Self::Control | Self::String | Self::StringEscape | Self::Charset => 0,
        }
    }

    fn next(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Text, 0x1b) | (Self::Escape | Self::Control, 0x1b) => Self::Escape,
            (Self::Escape, b'[') => Self::Control,
            (Self::Escape, b']' | b'P' | b'X' | b'^' | b'_') => Self::String,
            (Self::Escape, 0x20..=0x2f) => Self::Charset,
            (Self::Control, 0x40..=0x7e) | (Self::String, 0x07) => Self::Text,
            // A line break ends a sequence that was never finished: binary output holds stray
            // escapes, and they must not swallow the rest of it.
            (Self::Control | Self::String, b'\n') => Self::Text,
            (Self::Control, _) => Self::Control,
            (Self::String, 0x1b) => Self::StringEscape,
            (Self::String, _) => Self::String,
            (Self::Text | Self::Escape | Self::StringEscape | Self::Charset, _) => Self::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes_max: u64, chunks: &[&[u8]], text: &str, dropped_bytes: u64) {
        let mut output = Output::new(bytes_max);
        for chunk in chunks {
            output.push(chunk);
        }
        let kept = output.finish();
        assert_eq!((kept.text.as_str(), kept.dropped_bytes), (text, dropped_bytes));
    }

    #[test]
    fn short_output_is_whole() {
        check(100, &[b"one\n", b"two\n"], "one\ntwo\n", 0);
        check(8, &[b"12345678"], "12345678", 0);
        check(100, &["gr\u{fc}n".as_bytes()], "gr\u{fc}n", 0);
        check(100, &[b"a\xffb"], "a\u{fffd}b", 0);
    }

    #[test]
    fn long_output_keeps_both_ends() {
        let gap = |n: u64| format!("\n[... {n} bytes of output left out ...]\n");
        check(8, &[b"abcdefghijklmnop"], &format!("abcd{}mnop", gap(8)), 8);
        check(8, &[b"abc", b"def", b"ghijk", b"l"], &format!("abcd{}ijkl", gap(4)), 4);
        check(4, &[b"ab", &[b'x'; 100_000], b"yz"], &format!("ab{}yz", gap(100_000)), 100_000);
        // A two-byte character across each cut goes wholly into the gap.
        check(6, &["ab\u{fc}cdef\u{fc}gh".as_bytes()], &format!("ab{}gh", gap(8)), 8);
    }

    #[test]
    fn control_sequences_are_removed_even_when_split() {
        check(100, &[b"\x1b[1;31mred\x1b[0m"], "red", 0);
        check(100, &[b"a\x1b", b"[3", b"2mb"], "ab", 0);
        check(100, &[b"\x1b]0;title\x07x\x1b]8;;http://e\x1b\\link"], "xlink", 0);
        check(100, &[b"\x1b(Bok\x1b=ok"], "okok", 0);
        check(100, &[b"\x1b[never finished\nnext"], "ever finished\nnext", 0);
        check(100, &[b"\x1b]never finished\nnext"], "next", 0);
    }
}
