//! Media types: by the end of a name, and whether one may stand in a header.

/// What is not known.
pub(super) const BYTES: &str = "application/octet-stream";

const LENGTH_MAX: usize = 127;

/// By ending: what agents leave for people and people give to agents. Clients look at the bytes if
/// they care; nothing is rendered on this word alone.
const KINDS: [(&str, &str); 34] = [
    ("7z", "application/x-7z-compressed"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("diff", "text/x-diff"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("patch", "text/x-diff"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tsv", "text/tab-separated-values"),
    ("txt", "text/plain"),
    ("wav", "audio/wav"),
    ("webp", "image/webp"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("zip", "application/zip"),
];

pub(super) fn of_name(name: &str) -> &'static str {
    let Some((stem, ending)) = name.rsplit_once('.') else { return BYTES };
    if stem.is_empty() {
        return BYTES;
    }
    let ending = ending.to_ascii_lowercase();
    let found = KINDS.binary_search_by(|(known, _)| (*known).cmp(&ending));
    found.map_or(BYTES, |at| KINDS[at].1)
}

/// A type and a subtype of the characters that the grammar of tokens has (RFC 9110, §5.6.2), without
/// parameters.
pub(super) fn is_plain(kind: &str) -> bool {
    let token = |part: &str| {
        let extra = |b: u8| b"!#$&^_.+-".contains(&b);
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || extra(b))
    };
    kind.len() <= LENGTH_MAX
        && kind.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_kinds() {
        assert!(KINDS.is_sorted());
        for (name, kind) in [
            ("report.PDF", "application/pdf"),
            ("a.tar.gz", "application/gzip"),
            (".json", BYTES),
            ("noending", BYTES),
            ("x.", BYTES),
            ("x.unknown", BYTES),
        ] {
            assert_eq!(of_name(name), kind, "{name}");
        }
        assert!(KINDS.iter().all(|(_, kind)| is_plain(kind)));
        for bad in ["", "text", "text/", "/plain", "a/b/c", "a/b;c=d", "a/b\r\nx: y", "tëxt/plain"]
        {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
