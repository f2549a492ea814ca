//! Changes as a patch that people read and `git apply` takes.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    path::Path,
    time::{Duration, Instant},
};

use similar::TextDiff;

use super::{change::Change, root::Root, tree::Leaf};
use crate::style::{Paint, visible};

/// A longer file is named, not shown: nobody reads its difference line by line.
const SHOWN_BYTES_MAX: u64 = 1 << 20;

/// After this long a line diff settles for a coarser answer.
const DIFF_TIME: Duration = Duration::from_secs(2);

/// Lines around a change, as every diff tool has it.
const CONTEXT_LINES: usize = 3;

/// Writes `changes` as a unified diff. `before` and `after` are the folders that hold the contents.
///
/// # Errors
/// When a content cannot be read, or `out` takes no more.
pub(crate) fn write_patch(
    out: &mut dyn Write,
    changes: &[Change],
    before: &Root,
    after: &Root,
    paint: Paint,
) -> io::Result<()> {
    for change in changes {
        let old = content(before, &change.path, change.before.as_ref())?;
        let new = content(after, &change.path, change.after.as_ref())?;
        for line in header(change) {
            writeln!(out, "{}", paint.bold(&line))?;
        }
        write_body(out, change, &old, &new, paint)?;
    }
    Ok(())
}

enum Content {
    Absent,
    Text(String),
    /// Not text, or too long to show.
    Other,
}

fn content(root: &Root, path: &Path, leaf: Option<&Leaf>) -> io::Result<Content> {
    Ok(match leaf {
        None => Content::Absent,
        Some(Leaf::Link { target }) => Content::Text(target.to_string_lossy().into_owned()),
        Some(Leaf::File { bytes, .. }) if *bytes > SHOWN_BYTES_MAX => Content::Other,
        Some(Leaf::File { .. }) => {
            let mut content = Vec::new();
            root.file(path)?.take(SHOWN_BYTES_MAX + 1).read_to_end(&mut content)?;
            match String::from_utf8(content) {
                Ok(text) if !text.contains('\0') => Content::Text(text),
                Ok(_) | Err(_) => Content::Other,
            }
        }
    })
}

/// The lines above the difference, in the form that git writes.
fn header(change: &Change) -> Vec<String> {
    let (a, b) = (name("a/", &change.path), name("b/", &change.path));
    let mut lines = vec![format!("diff --git {a} {b}")];
    match (&change.before, &change.after) {
        (None, Some(new)) => lines.push(format!("new file mode {}", mode(new))),
        (Some(old), None) => lines.push(format!("deleted file mode {}", mode(old))),
        (Some(old), Some(new)) if mode(old) != mode(new) => {
            lines.push(format!("old mode {}", mode(old)));
            lines.push(format!("new mode {}", mode(new)));
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
    lines
}

fn write_body(
    out: &mut dyn Write,
    change: &Change,
    old: &Content,
    new: &Content,
    paint: Paint,
) -> io::Result<()> {
    let a = match old {
        Content::Absent => "/dev/null".to_owned(),
        Content::Text(_) | Content::Other => name("a/", &change.path),
    };
    let b = match new {
        Content::Absent => "/dev/null".to_owned(),
        Content::Text(_) | Content::Other => name("b/", &change.path),
    };
    if matches!(old, Content::Other) || matches!(new, Content::Other) {
        if same_bytes(change) {
            return Ok(());
        }
        return writeln!(out, "Binary files {a} and {b} differ");
    }
    let text = |content: &Content| match content {
        Content::Text(text) => text.clone(),
        Content::Absent | Content::Other => String::new(),
    };
    let (old, new) = (text(old), text(new));
    if old == new {
        return Ok(());
    }
    let diff = TextDiff::configure()
        .deadline(Instant::now() + DIFF_TIME)
        .diff_lines(old.as_str(), new.as_str());
    let text = diff.unified_diff().context_radius(CONTEXT_LINES).header(&a, &b).to_string();
    for line in text.lines() {
        writeln!(out, "{}", coloured(line, paint))?;
    }
    Ok(())
}

/// Only on a terminal are lines changed: a file's control characters must not steer it, but a patch
/// in a pipe has to be exact.
fn coloured(line: &str, paint: Paint) -> String {
    if !paint.is_on() {
        return line.to_owned();
    }
    let line = visible(line);
    match line.as_bytes().first() {
        _ if line.starts_with("--- ") || line.starts_with("+++ ") => paint.bold(&line),
        Some(b'+') => paint.green(&line),
        Some(b'-') => paint.red(&line),
        Some(b'@') => paint.cyan(&line),
        Some(_) | None => line,
    }
}

fn same_bytes(change: &Change) -> bool {
    match (&change.before, &change.after) {
        (Some(Leaf::File { sha256: old, .. }), Some(Leaf::File { sha256: new, .. })) => old == new,
        (Some(_) | None, Some(_) | None) => false,
    }
}

fn mode(leaf: &Leaf) -> &'static str {
    match leaf {
        Leaf::File { executable: true, .. } => "100755",
        Leaf::File { executable: false, .. } => "100644",
        Leaf::Link { .. } => "120000",
    }
}

/// The path behind `prefix`, quoted as git does when it holds anything that could mislead.
fn name(prefix: &str, path: &Path) -> String {
    let path = path.to_string_lossy();
    let plain = |c: char| !c.is_control() && c != '"' && c != '\\';
    if path.chars().all(plain) {
        return format!("{prefix}{path}");
    }
    let mut quoted = format!("\"{prefix}");
    for c in path.chars() {
        match c {
            c if plain(c) => quoted.push(c),
            '"' | '\\' => quoted.extend(['\\', c]),
            _ => {
                for byte in c.to_string().bytes() {
                    // Writing to a String cannot fail.
                    let _ = write!(quoted, "\\{byte:03o}");
                }
            }
        }
    }
    quoted.push('"');
    quoted
}
