//! What earlier collections of a directory know, so that unchanged files are not read again.

use std::collections::BTreeMap;

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use tailstep_core::{files::FileContent, ids::UnixMs};

/// A file whose last change is younger than this when it is read may change again without a new time
/// stamp: the kernel stamps with a clock of up to 10 ms, and some file systems keep coarser ones.
const RACY_MS: u64 = 2_000;

/// Files by path, as the last collection met them. A cache: an empty one costs time only. Its JSON
/// form is for the caller to keep; one of an older version may be thrown away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Known {
    files: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    signs: Signs,
    /// When the collection that read it began.
    read_at_ms: UnixMs,
    content: FileContent,
    collected_at_ms: UnixMs,
}

/// What of a file changes when its bytes do. Only the kernel sets `changed_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signs {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl Signs {
    pub(super) fn of(stat: &Stat) -> Self {
        let ns =
            |seconds: i64, nanoseconds: i128| i128::from(seconds) * 1_000_000_000 + nanoseconds;
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size_bytes: size_bytes(stat),
            modified_ns: ns(stat.st_mtime, i128::from(stat.st_mtime_nsec)),
            changed_ns: ns(stat.st_ctime, i128::from(stat.st_ctime_nsec)),
        }
    }

    /// A change after `at_ms` would not surely show.
    fn is_racy(&self, at_ms: UnixMs) -> bool {
        self.changed_ns >= i128::from(at_ms.saturating_sub(RACY_MS)) * 1_000_000
    }
}

/// The logical size.
pub(super) fn size_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

impl Known {
    /// The bytes of the file at `path`, if it is surely the one that was read.
    pub(super) fn unchanged(&self, path: &str, signs: &Signs) -> Option<&FileContent> {
        let entry = self.files.get(path)?;
        (entry.signs == *signs && !signs.is_racy(entry.read_at_ms)).then_some(&entry.content)
    }

    /// When these bytes were first seen at `path`.
    pub(super) fn first_seen_ms(&self, path: &str, content: &FileContent) -> Option<UnixMs> {
        let entry = self.files.get(path)?;
        (entry.content.sha256 == content.sha256).then_some(entry.collected_at_ms)
    }

    /// Notes a file that was read, or that is as it was when it was.
    pub(super) fn note(
        &mut self,
        old: &Self,
        path: &str,
        signs: Signs,
        content: &FileContent,
        times: (UnixMs, UnixMs),
    ) {
        let (now_ms, collected_at_ms) = times;
        let read_at_ms = match old.files.get(path) {
            Some(entry) if old.unchanged(path, &signs).is_some() => entry.read_at_ms,
            Some(_) | None => now_ms,
        };
        let entry = Entry { signs, read_at_ms, content: content.clone(), collected_at_ms };
        self.files.insert(path.to_owned(), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(changed_ms: u64) -> Signs {
        let at = i128::from(changed_ms) * 1_000_000;
        Signs { device: 1, inode: 2, size_bytes: 3, modified_ns: at, changed_ns: at }
    }

    #[test]
    fn only_what_was_quiet_when_it_was_read_is_taken_over() {
        let content = FileContent { size_bytes: 3, sha256: "x".into(), chunks: Vec::new() };
        let mut known = Known::default();
        known.note(&Known::default(), "f", signs(1_000), &content, (10_000, 10_000));
        assert_eq!(known.unchanged("f", &signs(1_000)), Some(&content));
        assert_eq!(known.unchanged("f", &signs(1_001)), None, "it changed");
        assert_eq!(known.unchanged("g", &signs(1_000)), None, "it is another one");
        // Read within the doubtful time after its last change, it is read once more later.
        let mut racy = Known::default();
        racy.note(&Known::default(), "f", signs(9_000), &content, (10_000, 10_000));
        assert_eq!(racy.unchanged("f", &signs(9_000)), None);
        let mut again = Known::default();
        again.note(&racy, "f", signs(9_000), &content, (20_000, 10_000));
        assert_eq!(again.unchanged("f", &signs(9_000)), Some(&content));
        assert_eq!(again.first_seen_ms("f", &content), Some(10_000));
    }
}
