//! The tools that look for files: glob by name, grep by content.

use std::{
    io::BufReader,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

use globset::{GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::FileType;

use super::{
    Answer, Run,
    beneath::{Inner, PathError},
    files::is_binary,
    input::Fields,
    lines::{Line, Lines},
    output::Output,
    walk::{ENTRIES_MAX, Step, Walked, walk},
};

/// Paths that one glob shows (API reference §9).
const HITS_MAX: usize = 200;

/// How much of a matching line is shown (API reference §9).
const LINE_CHARS_MAX: usize = 2_000;

/// How much of a line is searched: more is no longer text that somebody wrote.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The longest a search may take (API reference §9).
const SEARCH_MAX: Duration = Duration::from_secs(30);

/// A compiled pattern may take this much memory; the regex crate's own default.
const PATTERN_BYTES_MAX: usize = 10 << 20;

pub(super) fn glob(run: &Run<'_>, mut fields: Fields) -> Result<Answer, String> {
    let pattern = fields.string("pattern")?;
    let (start_name, start) = start(run, &mut fields)?;
    fields.finish()?;
    let matcher = matcher(run, &pattern)?;
    run.root.directory(&start).map_err(|why| format!("path `{start_name}` {why}"))?;
    let deadline = run.deadline.min(Instant::now() + SEARCH_MAX);
    let (mut hits, mut more) = (Vec::new(), false);
    let walked = walk(
        run.root,
        &start,
        ENTRIES_MAX,
        &mut |path, kind| {
            if run.stop.asked() || Instant::now() >= deadline {
                return Step::Stop;
            }
            if is_git(path, kind) {
                return Step::Skip;
            }
            let relative = path.as_path().strip_prefix(start.as_path()).unwrap_or(path.as_path());
            if kind == FileType::Directory || !matcher.is_match(relative) {
                return Step::On;
            }
            if hits.len() == HITS_MAX {
                more = true;
                return Step::Stop;
            }
            hits.push(path.as_path().to_string_lossy().into_owned());
            Step::On
        },
        &mut |_, _| {},
    );
    let mut text = hits.join("\n");
    if hits.is_empty() {
        text = format!("no file matches `{pattern}`");
    }
    if more {
        text.push_str(&format!("\n[... more than {HITS_MAX} files match; narrow the pattern ...]"));
    } else {
        text.push_str(ending(walked));
    }
    Ok(Answer::whole(text))
}

pub(super) fn grep(run: &Run<'_>, mut fields: Fields) -> Result<Answer, String> {
    let pattern = fields.string("pattern")?;
    let (start_name, start) = start(run, &mut fields)?;
    fields.finish()?;
    let regex = RegexBuilder::new(&pattern)
        .size_limit(PATTERN_BYTES_MAX)
        .build()
        .map_err(|why| format!("pattern is not a regular expression: {why}"))?;
    let mut search = Search {
        run,
        regex,
        deadline: run.deadline.min(Instant::now() + SEARCH_MAX),
        found: 0,
        output: Output::new(run.output_bytes_max),
    };
    let walked = match run.root.read(&start) {
        Ok(_) => {
            search.file(&start);
            if search.over() { Walked::Stopped } else { Walked::Whole }
        }
        Err(PathError::IsDirectory) => search.directory(&start),
        Err(why) => return Err(format!("path `{start_name}` {why}")),
    };
    let found = search.found;
    let kept = search.output.finish();
    let mut text = kept.text;
    if found == 0 {
        text = format!("no line matches `{pattern}`");
    }
    text.push_str(ending(walked));
    Ok(Answer { text, truncated_bytes: kept.dropped_bytes, ..Answer::whole(String::new()) })
}

struct Search<'a> {
    run: &'a Run<'a>,
    regex: Regex,
    deadline: Instant,
    found: u64,
    output: Output,
}

impl Search<'_> {
    fn directory(&mut self, start: &Inner) -> Walked {
        let root = self.run.root;
        let mut visit = |path: &Inner, kind: FileType| {
            if self.over() {
                return Step::Stop;
            }
            if is_git(path, kind) {
                return Step::Skip;
            }
            if kind == FileType::RegularFile {
                self.file(path);
            }
            Step::On
        };
        walk(root, start, ENTRIES_MAX, &mut visit, &mut |_, _| {})
    }

    /// Searches one file; one that cannot be read is passed over, as it is by the shell's grep -s.
    fn file(&mut self, path: &Inner) {
        let Ok(file) = self.run.root.read(path) else { return };
        let mut lines = Lines::new(BufReader::with_capacity(64 << 10, file), LINE_BYTES_MAX);
        let mut number = 0u64;
        while let Ok(Some(Line { bytes, .. })) = lines.next() {
            number += 1;
            if (number == 1 && is_binary(&bytes)) || self.over() {
                return;
            }
            let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            if !self.regex.is_match(line) {
                continue;
            }
            self.found += 1;
            self.output.push(path.as_path().as_os_str().as_bytes());
            let mut shown = String::from_utf8_lossy(line);
            if let Some((cut, _)) = shown.char_indices().nth(LINE_CHARS_MAX) {
                shown = format!("{}...", &shown[..cut]).into();
            }
            self.output.push(format!(":{number}:{shown}\n").as_bytes());
        }
    }

    fn over(&self) -> bool {
        self.run.stop.asked() || Instant::now() >= self.deadline
    }
}

fn start(run: &Run<'_>, fields: &mut Fields) -> Result<(String, Inner), String> {
    let name = fields.optional_string("path")?.unwrap_or_else(|| ".".into());
    let shown: String = name.chars().take(200).collect();
    let path = run.root.resolve(&name).map_err(|why| format!("path `{shown}` {why}"))?;
    Ok((shown, path))
}

fn matcher(run: &Run<'_>, pattern: &str) -> Result<GlobMatcher, String> {
    // A pattern written with the workspace in front means the same without it.
    let absolute = Path::new(pattern).strip_prefix(run.shown).ok().and_then(Path::to_str);
    let relative = absolute.unwrap_or(pattern);
    if Path::new(relative).is_absolute() || relative.split('/').any(|part| part == "..") {
        return Err(format!("pattern `{pattern}` leads out of the workspace"));
    }
    let relative = relative.strip_prefix("./").unwrap_or(relative);
    GlobBuilder::new(relative)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|why| format!("pattern is not a glob: {why}"))
}

fn is_git(path: &Inner, kind: FileType) -> bool {
    kind == FileType::Directory && path.as_path().file_name().is_some_and(|name| name == ".git")
}

fn ending(walked: Walked) -> &'static str {
    match walked {
        Walked::Whole => "",
        Walked::Stopped => "\n[... the search ran out of time; narrow it with path ...]",
        Walked::Bounded => {
            "\n[... only the first 50000 entries were searched; narrow it with path ...]"
        }
    }
}
