//! Secrets out of answers, while they stream.
//!
//! A value is found as it is, percent-encoded, with JSON's, JavaScript's or HTML's escapes (any mixture,
//! as far as each character is escaped once), in hexadecimal, and in base64 at any offset. What a server
//! does beyond that, such as reversing or packing a value, is not found; and because the possible
//! beginning of a value is held back, one who decides what a host sends, and when, could guess it byte
//! by byte. This guards against echoes, not against a host that works for the sandbox: give secrets to
//! hosts that do not hand credentials back.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use bytes::{Bytes, BytesMut};

/// What is looked for: the secrets of a broker, each with what stands in its place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns {
    patterns: Vec<Pattern>,
    /// Pairs of bytes with which a match can begin, at `256 * first + second`. Nearly all places of a
    /// text are left after one look here.
    pairs: Vec<bool>,
}

#[derive(Clone)]
struct Pattern {
    symbols: Vec<Symbol>,
    form: Form,
    placeholder: String,
    /// Bytes that can stand at each of the first places, as far as those before were not escaped.
    begins: [Vec<bool>; LOOKED_AT],
}

/// How many bytes are looked at before the whole pattern is.
const LOOKED_AT: usize = 3;

// The symbols spell the secret.
impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pattern").field("form", &self.form).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Byte for byte.
    Exact,
    /// Each symbol may be escaped.
    Escaped,
    /// Escaped, and with line breaks between symbols.
    Base64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Symbol {
    Byte(u8),
    /// A hexadecimal digit in either case.
    Digit(u8),
    /// Any character of base64: it holds bits of the secret and of a neighbour.
    Shared,
    /// The same at the end, where it may be missing.
    SharedEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    No,
    /// It depends on bytes that are not there yet.
    More,
    Yes(usize),
}

impl Patterns {
    pub(crate) fn new<'a>(secrets: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut patterns = Vec::new();
        for (value, placeholder) in secrets {
            let bytes: Vec<Symbol> = value.bytes().map(Symbol::Byte).collect();
            let hex = value.bytes().flat_map(|byte| {
                [byte >> 4, byte & 15]
                    .map(|digit| Symbol::Digit(b"0123456789abcdef"[digit as usize]))
            });
            let mut forms = vec![
                (Form::Exact, bytes.clone()),
                (Form::Escaped, bytes),
                (Form::Escaped, hex.collect()),
            ];
            forms.extend(base64_forms(value).into_iter().map(|symbols| (Form::Base64, symbols)));
            let made = forms.into_iter().map(|(form, symbols)| Pattern {
                begins: std::array::from_fn(|at| form.can_stand(symbols.get(at), at)),
                symbols,
                form,
                placeholder: placeholder.to_owned(),
            });
            patterns.extend(made);
        }
        let pairs = pairs(&patterns);
        Self { patterns, pairs }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// `text` without secrets.
    pub(crate) fn clean(&self, text: &[u8]) -> Vec<u8> {
        let mut scrubber = Scrubber::new(self);
        let mut clean = scrubber.push(text).to_vec();
        clean.extend_from_slice(&scrubber.finish());
        clean
    }

    fn at(&self, text: &[u8], end: End) -> (Found, &str) {
        if let [first, second, ..] = text
            && !self.pairs[usize::from(*first) * 256 + usize::from(*second)]
        {
            return (Found::No, "");
        }
        // The first pattern that does not say no decides, so that pieces make no difference.
        for pattern in &self.patterns {
            match pattern.at(text, end) {
                Found::No => {}
                found @ (Found::More | Found::Yes(_)) => return (found, &pattern.placeholder),
            }
        }
        (Found::No, "")
    }
}

/// The three ways in which base64 can hold `value`, in both alphabets.
fn base64_forms(value: &str) -> Vec<Vec<Symbol>> {
    let mut forms = Vec::new();
    for offset in 0..3 {
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(value.as_bytes());
        let bits = bytes.len() * 8;
        let (begin, end) = ((offset * 8).div_ceil(6), bits / 6);
        for spelt in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            let mut symbols = Vec::new();
            if offset > 0 {
                symbols.push(Symbol::Shared);
            }
            symbols.extend(spelt.as_bytes()[begin..end].iter().copied().map(Symbol::Byte));
            if bits % 6 != 0 {
                symbols.push(Symbol::SharedEnd);
            }
            if !forms.contains(&symbols) {
                forms.push(symbols);
            }
        }
    }
    forms
}

/// Whether more can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Reached,
}

impl Pattern {
    /// A quick no.
    fn cannot_begin(&self, text: &[u8]) -> bool {
        for (byte, can) in text.iter().zip(&self.begins) {
            if !can[usize::from(*byte)] {
                return true;
            }
            if self.form.is_longer(*byte) {
                return false;
            }
        }
        false
    }

    fn at(&self, text: &[u8], end: End) -> Found {
        if self.cannot_begin(text) {
            return Found::No;
        }
        let mut at = 0;
        for symbol in &self.symbols {
            let found = match self.form {
                Form::Exact => one(symbol, &text[at..]),
                Form::Escaped => escaped(symbol, &text[at..]),
                Form::Base64 if at == 0 || *symbol == Symbol::SharedEnd => {
                    escaped(symbol, &text[at..])
                }
                Form::Base64 => {
                    at += breaks(&text[at..]);
                    escaped(symbol, &text[at..])
                }
            };
            match (found, symbol) {
                (Found::Yes(length), _) => at += length,
                (Found::More, _) if end == End::Open => return Found::More,
                (Found::More | Found::No, Symbol::SharedEnd) => {}
                (Found::More | Found::No, _) => return Found::No,
            }
        }
        Found::Yes(at)
    }
}

impl Form {
    /// Bytes that stand for one symbol together with those behind them, so that places cannot be
    /// counted any more.
    fn is_longer(self, byte: u8) -> bool {
        match self {
            Self::Exact => false,
            Self::Escaped => matches!(byte, b'%' | b'\\' | b'&'),
            Self::Base64 => matches!(byte, b'%' | b'\\' | b'&' | b'\r' | b'\n'),
        }
    }

    /// The bytes that `symbol`, at place `at`, can begin with. Without one every byte can.
    fn can_stand(self, symbol: Option<&Symbol>, at: usize) -> Vec<bool> {
        let Some(symbol) = symbol else { return vec![true; 256] };
        let plain = |byte| symbol.is(byte) || (byte == b'+' && symbol.is(b' '));
        let ends = *symbol == Symbol::SharedEnd;
        let longer = |byte| self.is_longer(byte) && (at > 0 || !matches!(byte, b'\r' | b'\n'));
        (0..=u8::MAX).map(|byte| ends || plain(byte) || longer(byte)).collect()
    }
}

fn pairs(patterns: &[Pattern]) -> Vec<bool> {
    let mut pairs = vec![false; 256 * 256];
    for Pattern { form, begins: [first, second, _], .. } in patterns {
        for (byte, _) in (0..=u8::MAX).zip(first).filter(|(_, can)| **can) {
            let row = &mut pairs[usize::from(byte) * 256..][..256];
            for (pair, can) in row.iter_mut().zip(second) {
                *pair |= *can || form.is_longer(byte);
            }
        }
    }
    pairs
}

impl Symbol {
    fn is(self, byte: u8) -> bool {
        match self {
            Self::Byte(wanted) => wanted == byte,
            Self::Digit(wanted) => wanted == byte.to_ascii_lowercase(),
            Self::Shared | Self::SharedEnd => {
                byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
            }
        }
    }
}

fn one(symbol: &Symbol, text: &[u8]) -> Found {
    match text.first() {
        None => Found::More,
        Some(byte) if symbol.is(*byte) => Found::Yes(1),
        Some(_) => Found::No,
    }
}

/// One line break, if one is there. Not two: events end with two, and must not be held back.
fn breaks(text: &[u8]) -> usize {
    match text {
        [b'\r', b'\n', ..] => 2,
        [b'\r' | b'\n', ..] => 1,
        _ => 0,
    }
}

/// The symbol as it is, or in one of the usual escapes.
fn escaped(symbol: &Symbol, text: &[u8]) -> Found {
    let found = match text {
        [b'%', rest @ ..] => number(symbol, rest, 16, 2, 1),
        [b'\\', b'u' | b'U', rest @ ..] => number(symbol, rest, 16, 4, 2),
        [b'\\', b'x' | b'X', rest @ ..] => number(symbol, rest, 16, 2, 2),
        [b'\\', byte, ..] if symbol.is(*byte) => Found::Yes(2),
        [b'\\'] => Found::More,
        [b'&', rest @ ..] => entity(symbol, rest),
        // Forms write a space so.
        [b'+', ..] if symbol.is(b' ') => Found::Yes(1),
        _ => Found::No,
    };
    match (one(symbol, text), found) {
        (_, Found::Yes(length)) => Found::Yes(length),
        // Undecided between an escape and the character itself: wait.
        (_, Found::More) => Found::More,
        (plain, Found::No) => plain,
    }
}

/// A number of exactly `digits` digits, behind `before` bytes.
fn number(symbol: &Symbol, text: &[u8], radix: u32, digits: usize, before: usize) -> Found {
    let there = text.len().min(digits);
    let hex = |byte: &u8| char::from(*byte).is_digit(radix);
    if !text[..there].iter().all(hex) {
        return Found::No;
    }
    if there < digits {
        return Found::More;
    }
    let text = std::str::from_utf8(&text[..digits]).unwrap_or_default();
    match u8::from_str_radix(text, radix) {
        Ok(byte) if symbol.is(byte) => Found::Yes(before + digits),
        Ok(_) | Err(_) => Found::No,
    }
}

/// HTML's entities, behind the ampersand.
fn entity(symbol: &Symbol, text: &[u8]) -> Found {
    const LENGTH_MAX: usize = 8;
    let Some(end) = text.iter().take(LENGTH_MAX).position(|byte| *byte == b';') else {
        return if text.len() < LENGTH_MAX { Found::More } else { Found::No };
    };
    let byte = match &text[..end] {
        b"amp" => Some(b'&'),
        b"lt" => Some(b'<'),
        b"gt" => Some(b'>'),
        b"quot" => Some(b'"'),
        b"apos" => Some(b'\''),
        [b'#', b'x' | b'X', digits @ ..] => parse(digits, 16),
        [b'#', digits @ ..] => parse(digits, 10),
        _ => None,
    };
    match byte {
        Some(byte) if symbol.is(byte) => Found::Yes(1 + end + 1),
        Some(_) | None => Found::No,
    }
}

fn parse(digits: &[u8], radix: u32) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Cleans one stream. It holds back only what may be the beginning of a secret.
#[derive(Debug)]
pub(crate) struct Scrubber<'a> {
    patterns: &'a Patterns,
    held: BytesMut,
}

impl<'a> Scrubber<'a> {
    pub(crate) fn new(patterns: &'a Patterns) -> Self {
        Self { patterns, held: BytesMut::new() }
    }

    pub(crate) fn push(&mut self, piece: &[u8]) -> Bytes {
        self.held.extend_from_slice(piece);
        self.sweep(End::Open)
    }

    /// The rest, at the end of the stream.
    pub(crate) fn finish(mut self) -> Bytes {
        self.sweep(End::Reached)
    }

    fn sweep(&mut self, end: End) -> Bytes {
        if self.patterns.is_empty() {
            return self.held.split().freeze();
        }
        let mut clean = BytesMut::with_capacity(self.held.len());
        // What was found clean and is not copied yet begins at `from`.
        let (mut from, mut at) = (0, 0);
        while at < self.held.len() {
            match self.patterns.at(&self.held[at..], end) {
                (Found::Yes(length), placeholder) => {
                    clean.extend_from_slice(&self.held[from..at]);
                    clean.extend_from_slice(placeholder.as_bytes());
                    at += length;
                    from = at;
                }
                (Found::More, _) if end == End::Open => break,
                (Found::More | Found::No, _) => at += 1,
            }
        }
        clean.extend_from_slice(&self.held[from..at]);
        let _ = self.held.split_to(at);
        clean.freeze()
    }
}

#[cfg(test)]
#[path = "scrub/tests.rs"]
mod tests;
