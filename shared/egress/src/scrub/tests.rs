use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use proptest::prelude::*;

use super::*;

const VALUE: &str = "sk-l1ve/aB+c=\"d&e%41 f>?~";
const MARK: &str = "<PLACEHOLDER>";

fn patterns() -> Patterns {
    Patterns::new([(VALUE, MARK)].into_iter())
}

#[track_caller]
fn gone(text: &str) {
    let patterns = patterns();
    let whole = patterns.clean(format!("before {text} after").as_bytes());
    let whole = String::from_utf8(whole).unwrap();
    assert_eq!(whole, format!("before {MARK} after"), "{text}");
    // The same in pieces of every size.
    for size in 1..text.len() {
        let mut scrubber = Scrubber::new(&patterns);
        let mut found = Vec::new();
        for piece in format!("before {text} after").as_bytes().chunks(size) {
            found.extend_from_slice(&scrubber.push(piece));
        }
        found.extend_from_slice(&scrubber.finish());
        assert_eq!(String::from_utf8(found).unwrap(), whole, "{text} in pieces of {size}");
    }
}

fn each(change: impl Fn(u8) -> String) -> String {
    VALUE.bytes().map(change).collect()
}

#[test]
fn every_usual_spelling_is_found() {
    gone(VALUE);
    gone(&each(|b| format!("%{b:02X}")));
    gone(&each(|b| format!("%{b:02x}")));
    let reserved = |b: u8| !b.is_ascii_alphanumeric();
    gone(&each(|b| if reserved(b) { format!("%{b:02X}") } else { char::from(b).to_string() }));
    gone(&each(|b| match b {
        b' ' => "+".to_owned(),
        b if reserved(b) => format!("%{b:02X}"),
        b => char::from(b).to_string(),
    }));
    gone(&VALUE.replace('"', "\\\"").replace('/', "\\/"));
    gone(&each(|b| format!("\\u{b:04x}")));
    gone(&each(|b| format!("\\x{b:02x}")));
    gone(&each(|b| format!("{b:02X}")));
    gone(&each(|b| format!("{b:02x}")));
    let html = VALUE.replace('&', "&amp;").replace('"', "&quot;").replace('>', "&gt;");
    gone(&html);
    gone(&html.replace("&quot;", "&#34;"));
    gone(&html.replace("&quot;", "&#x22;"));
}

#[test]
fn base64_is_found_at_every_offset() {
    let patterns = patterns();
    for before in ["", "u", "us", "use", "user:", "user::"] {
        for after in ["", "x", "xy", "xyz"] {
            let plain = format!("{before}{VALUE}{after}");
            for spelt in [STANDARD.encode(&plain), URL_SAFE.encode(&plain)] {
                let broken: String = spelt
                    .as_bytes()
                    .chunks(8)
                    .map(|line| format!("{}\r\n", String::from_utf8_lossy(line)))
                    .collect();
                for text in [spelt.clone(), spelt.replace('+', "%2B"), broken] {
                    let clean = String::from_utf8(patterns.clean(text.as_bytes())).unwrap();
                    assert!(clean.contains(MARK), "{before}…{after}: {clean}");
                    // What is left is no more than the neighbours.
                    let rest = clean.replace(MARK, "");
                    let rest = rest.trim_end_matches(['=', '\r', '\n']).len();
                    assert!(rest <= (before.len() + after.len()).div_ceil(3) * 4 + 2, "{clean}");
                }
            }
        }
    }
}

#[test]
fn everything_else_passes_unchanged() {
    let patterns = patterns();
    for text in ["", "sk-l1ve", "sk-l1ve/aB+c=\"d&e%41 f>?", "%", "\\", "&", "&amp", "%7", "\\u00"]
    {
        assert_eq!(patterns.clean(text.as_bytes()), text.as_bytes(), "{text}");
    }
    let none = Patterns::default();
    assert_eq!(none.clean(VALUE.as_bytes()), VALUE.as_bytes());
}

#[test]
fn events_are_not_held_back() {
    let patterns = patterns();
    let mut scrubber = Scrubber::new(&patterns);
    assert_eq!(scrubber.push(b"data: hello\n\n"), "data: hello\n\n");
}

#[test]
fn patterns_are_not_printed() {
    let printed = format!("{:?}", patterns());
    assert!(!printed.contains("115") && !printed.contains("sk"), "{printed}");
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        parts in prop::collection::vec("[a-z%&\\\\+/]{0,6}|sk-l1ve/aB|VALUE|%7", 0..8),
        sizes in prop::collection::vec(1usize..9, 1..20),
    ) {
        let text = parts.concat().replace("VALUE", VALUE);
        let patterns = patterns();
        let whole = patterns.clean(text.as_bytes());
        let mut scrubber = Scrubber::new(&patterns);
        let (mut found, mut rest) = (Vec::new(), text.as_bytes());
        for size in sizes.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(size.min(rest.len()));
            found.extend_from_slice(&scrubber.push(piece));
            rest = after;
        }
        found.extend_from_slice(&scrubber.finish());
        prop_assert_eq!(&found, &whole);
        prop_assert!(!whole.windows(VALUE.len()).any(|window| window == VALUE.as_bytes()));
    }
}

/// One of the ways in which servers spell a byte.
fn spelt(byte: u8, way: u8) -> String {
    match way {
        0 => format!("%{byte:02x}"),
        1 => format!("%{byte:02X}"),
        2 => format!("\\u{byte:04x}"),
        3 => format!("\\x{byte:02X}"),
        4 => format!("&#{byte};"),
        5 => format!("&#x{byte:x};"),
        _ => char::from(byte).to_string(),
    }
}

proptest! {
    #[test]
    fn any_mixture_of_spellings_is_found(
        value in "[A-Za-z0-9/+=_.-]{8,30}",
        ways in prop::collection::vec(0u8..12, 30),
        before in "[ -~]{0,20}",
        after in "[ -~]{0,20}",
        offset in 0usize..4,
    ) {
        let patterns = Patterns::new([(value.as_str(), MARK)].into_iter());
        let mixed: String = value.bytes().zip(&ways).map(|(byte, way)| spelt(byte, *way)).collect();
        let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
        let base64 = STANDARD.encode(format!("{}{value}{after}", &"abc"[..offset.min(3)]));
        for form in [value.clone(), mixed, hex, base64] {
            let text = format!("{before}\n{form}\n{after}");
            let clean = String::from_utf8(patterns.clean(text.as_bytes())).unwrap();
            prop_assert!(clean.contains(MARK), "{} in {}", form, clean);
            prop_assert!(!clean.contains(&value), "{}", clean);
        }
    }
}
