//! Names as people are shown them.

/// Characters of a path that is shown.
const CHARS_MAX: usize = 256;

/// A path of any bytes as one printable line: what is not UTF-8, control characters and `\` are
/// escaped, and a long one is cut.
pub(super) fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    let mut chars = 0;
    for part in path.utf8_chunks() {
        for c in part.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_unprintable(c) => text.extend(c.escape_default()),
                c => text.push(c),
            }
            chars += 1;
            if chars == CHARS_MAX {
                text.push('…');
                return text;
            }
        }
        for byte in part.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
            chars += 1;
        }
    }
    text
}

/// Control characters, and those that change the order or place of their neighbours on a screen.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_printable_line() {
        for (path, want) in [
            (&b"dir/Plain \xc3\xa9"[..], "dir/Plain é"),
            (b"a\nb\x1b[31m", "a\\nb\\u{1b}[31m"),
            (b"bad\xff\xfe.txt", "bad\\xff\\xfe.txt"),
            (b"back\\slash", "back\\\\slash"),
            ("x\u{202e}txt.exe".as_bytes(), "x\\u{202e}txt.exe"),
        ] {
            assert_eq!(shown(path), want);
        }
        assert_eq!(shown(&[b'a'; 4_000]).chars().count(), CHARS_MAX + 1);
    }
}
