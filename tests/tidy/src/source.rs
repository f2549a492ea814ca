//! Sizes, single call sites, and what must not stand in a file.

use crate::tree::File;

/// A file longer than this is split; 400 lines without tests is the aim.
pub const FILE_LINES_MAX: usize = 600;
pub const FILE_LINES_AIM: usize = 400;

/// A function's main only wires.
pub const MAIN_LINES_MAX: usize = 60;

/// Each effect is started, and each record is written, in one place of the runtime.
pub const SINGLE_CALLS: &[&str] = &[".model.call(", ".hands.execute(", ".log.append("];

/// Rust files that are too long.
pub fn too_long(files: &[File]) -> Vec<String> {
    let long = files.iter().filter(|file| file.is_rust()).filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > FILE_LINES_MAX)
            .then(|| format!("{} has {lines} lines, split it below {FILE_LINES_MAX}", file.path))
    });
    long.collect()
}

/// Rust files whose own code, without the tests at the end, is beyond the aim.
pub fn beyond_the_aim(files: &[File]) -> Vec<String> {
    let long = files.iter().filter(|file| file.is_rust() && !is_test(&file.path));
    let long = long.filter_map(|file| {
        let lines = code(&file.text).lines().count();
        (lines > FILE_LINES_AIM).then(|| format!("{}: {lines} lines of code", file.path))
    });
    long.collect()
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// The text before the test module.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// Mains of functions that do more than wire.
pub fn long_mains(files: &[File]) -> Vec<String> {
    let mains = files
        .iter()
        .filter(|file| file.path.starts_with("functions/") && file.path.ends_with("/main.rs"));
    let mut wrong = Vec::new();
    let mut count = 0;
    for file in mains {
        count += 1;
        let lines = file.text.lines().count();
        if lines > MAIN_LINES_MAX {
            wrong.push(format!(
                "{} has {lines} lines, a main has at most {MAIN_LINES_MAX}",
                file.path
            ));
        }
    }
    if count == 0 {
        wrong.push("there is no main of a function".to_owned());
    }
    wrong
}

/// Calls that the runtime makes in another number of places than one.
pub fn repeated_calls(files: &[File]) -> Vec<String> {
    let runtime: Vec<&File> = files
        .iter()
        .filter(|file| file.path.starts_with("shared/runtime/src/") && !is_test(&file.path))
        .collect();
    let mut wrong = Vec::new();
    for call in SINGLE_CALLS {
        let sites: Vec<&str> = runtime
            .iter()
            .flat_map(|file| {
                // The formatter may break a chain of calls over lines.
                let dense: String = code(&file.text).split_whitespace().collect();
                vec![file.path.as_str(); dense.matches(call).count()]
            })
            .collect();
        if sites.len() != 1 {
            wrong.push(format!("`{call}` is in {} places of the runtime: {sites:?}", sites.len()));
        }
    }
    wrong
}

/// Paths of the machine that this was written on.
pub fn machine_paths(files: &[File]) -> Vec<String> {
    // Put together here, so that this file does not find itself.
    let paths = ["/wo", "/ro", "/ro", "/.lib"];
    let rests = ["rk/", "ot/.cargo", "ot/.rustup", "rary/"];
    let forbidden: Vec<String> =
        paths.iter().zip(rests).map(|(path, rest)| format!("{path}{rest}")).collect();
    lines(files, |line| {
        forbidden.iter().find(|path| names(line, path)).map(|path| format!("holds {path}"))
    })
}

/// Whether `path` begins in `line`, and is not the middle of a longer one such as a route.
fn names(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.}{/".contains(c))
    })
}

/// `unsafe` outside the one crate that may use it.
pub fn unsafe_code(files: &[File]) -> Vec<String> {
    let rust: Vec<File> = files
        .iter()
        .filter(|file| file.is_rust() && !file.path.starts_with("shared/sandbox/"))
        .cloned()
        .collect();
    let word = concat!("uns", "afe");
    lines(&rust, |line| {
        let line = line.split("//").next().unwrap_or(line);
        let uses = [" {", " fn", " impl", " extern", "_code)"]
            .iter()
            .any(|after| line.contains(&format!("{word}{after}")));
        uses.then(|| format!("uses {word} code"))
    })
}

fn lines(files: &[File], wrong: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(what) = wrong(line) {
                found.push(format!("{}:{} {what}", file.path, number + 1));
            }
        }
    }
    found
}
