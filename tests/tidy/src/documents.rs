//! What the documents say about the tree.

use std::collections::BTreeSet;

/// A reader has this long.
pub const README_LINES_MIN: usize = 60;
pub const README_LINES_MAX: usize = 160;

/// Whether the README is too short to help or too long to be read.
pub fn readme_size(readme: &str) -> Option<String> {
    let lines = readme.lines().count();
    (!(README_LINES_MIN..=README_LINES_MAX).contains(&lines)).then(|| {
        format!("README.md has {lines} lines; {README_LINES_MIN} to {README_LINES_MAX} are right")
    })
}

/// Targets that `text` tells the reader to make and the Makefile does not have. Only what is marked as
/// code counts: in prose, "make sense" is no command.
pub fn missing_targets(text: &str, makefile: &str) -> Vec<String> {
    let has: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with([' ', '\t', '#', '.']))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(targets, _)| targets.split_whitespace())
        .collect();
    let mut missing = BTreeSet::new();
    for code in code_of(text) {
        let mut words = code.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if word != "make" {
                continue;
            }
            while let Some(target) = words.peek() {
                let is_target = target.starts_with(|c: char| c.is_ascii_lowercase())
                    && target.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
                if !is_target {
                    break;
                }
                if !has.contains(target) {
                    missing.insert(format!("`make {target}` is named and does not exist"));
                }
                words.next();
            }
        }
    }
    missing.into_iter().collect()
}

/// Paths that `text` names, in code marks, below one of the folders in `roots`, and that do not exist.
pub fn missing_paths(text: &str, roots: &[&str], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut missing = BTreeSet::new();
    for code in code_of(text) {
        for word in code.split_whitespace() {
            let word = word.trim_matches(|c: char| ",;:()".contains(c));
            let path = word.split(['#', '*', '<', '{']).next().unwrap_or(word);
            // A pattern such as `functions/*` stands for its folder.
            let whole = path.len() == word.len();
            let path = if whole { path } else { path.rsplit_once('/').map_or("", |(dir, _)| dir) };
            let below = roots.iter().any(|root| {
                path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            if below && !exists(path.trim_end_matches('/')) {
                missing.insert(format!("`{word}` is named and does not exist"));
            }
        }
    }
    missing.into_iter().collect()
}

/// Tests that `text` names, in code marks, as `file::function`, and that are not there; `source` gives a
/// file's text.
pub fn missing_tests(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut missing = BTreeSet::new();
    for code in code_of(text) {
        let Some((file, function)) = code.split_once("::") else { continue };
        if !file.ends_with(".rs") {
            continue;
        }
        let there = source(file).is_some_and(|text| text.contains(&format!("fn {function}(")));
        if !there {
            missing.insert(format!("`{code}` is named and does not exist"));
        }
    }
    missing.into_iter().collect()
}

/// What stands between backquotes, and the lines of fenced blocks.
fn code_of(text: &str) -> Vec<&str> {
    let mut code = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            // Comments of a shell are prose.
            code.push(line.split(" #").next().unwrap_or(line));
        } else {
            code.extend(line.split('`').skip(1).step_by(2));
        }
    }
    code
}
