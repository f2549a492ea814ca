//! Transcripts as they are, and logs as they were.

// A test fails by panicking, its helpers included.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use tailstep_core::{record::Record, session::Session};
use tests_golden::{
    cases::{Case, all},
    play::{lines, play},
    show::{decode, messages, status, transcript},
};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn log(case: &Case) -> Vec<bytes::Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(play(case)).unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

#[test]
fn transcripts_are_as_they_were() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for case in all() {
        let found = transcript(case.name, &log(&case)).unwrap();
        let path = folder("cases").join(format!("{}.txt", case.name));
        if update {
            fs::write(&path, &found).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        if found != expected {
            wrong.push(format!("{}\n{}", path.display(), difference(&expected, &found)));
        }
    }
    assert!(wrong.is_empty(), "run with UPDATE_GOLDEN=1 if this is right:\n{}", wrong.join("\n"));
}

fn difference(expected: &str, found: &str) -> String {
    let at = expected.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
    format!("line {}:\n  expected {}\n  found    {}", at + 1, line(expected), line(found))
}

#[test]
fn every_transcript_belongs_to_a_case() {
    let names: Vec<String> = all().iter().map(|case| format!("{}.txt", case.name)).collect();
    for file in fs::read_dir(folder("cases")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(names.contains(&name), "{name} belongs to no case");
    }
}

#[test]
fn a_case_plays_the_same_twice() {
    for case in all() {
        assert_eq!(log(&case), log(&case), "{}", case.name);
    }
}

/// What a log of format 1 folds to, by name.
fn statuses() -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder("logs/v1/statuses.txt")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, status)| (name.to_owned(), status.to_owned()))
        .collect()
}

fn verdict(log: &[Vec<u8>]) -> String {
    status(&Session::fold(&decode(log).unwrap()).unwrap())
}

fn old_log(name: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(folder("logs/v1").join(format!("{name}.jsonl"))).unwrap();
    text.lines().map(|line| line.as_bytes().to_vec()).collect()
}

#[test]
fn logs_of_format_1_are_read_for_ever() {
    if std::env::var_os("WRITE_LOGS").is_some() {
        write_missing_logs();
    }
    let statuses = statuses();
    assert!(statuses.len() >= 13, "old logs are missing: {statuses:?}");
    for (name, expected) in &statuses {
        let log = old_log(name);
        assert_eq!(verdict(&log), *expected, "{name}");
        for body in &log {
            assert_eq!(Record::decode(body).unwrap().format, 1, "{name}");
        }
        assert!(!messages(&decode(&log).unwrap()).is_empty(), "{name} shows the model nothing");
    }
    for file in fs::read_dir(folder("logs/v1")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".jsonl") {
            assert!(statuses.contains_key(name), "{name} has no line in statuses.txt");
        }
    }
}

#[test]
fn a_damaged_old_log_is_noticed() {
    let log = old_log("parallel_tools");
    let expected = &statuses()["parallel_tools"];
    let cut = &log[..log.len() - 1];
    assert_ne!(verdict(cut), *expected);
    let mut gap = log.clone();
    gap.remove(2);
    assert!(Session::fold(&decode(&gap).unwrap()).is_err());
    let mut bad = log;
    bad[1] = b"{\"v\":1}".to_vec();
    assert!(decode(&bad).is_err());
}

/// Never overwrites: an old log is what somebody once wrote.
fn write_missing_logs() {
    let mut statuses = statuses();
    for case in all() {
        let path = folder("logs/v1").join(format!("{}.jsonl", case.name));
        if path.exists() {
            continue;
        }
        let log = log(&case);
        fs::write(&path, lines(&log)).unwrap();
        let log: Vec<Vec<u8>> = log.iter().map(|body| body.to_vec()).collect();
        statuses.insert(case.name.to_owned(), verdict(&log));
    }
    let text: String =
        statuses.iter().map(|(name, status)| format!("{name}: {status}\n")).collect();
    fs::write(folder("logs/v1/statuses.txt"), text).unwrap();
}
