//! A smaller run of the simulator, and the proof that its checkers see what they are for.

use tests_sim::{
    hunt::{hunt_all, survey},
    run::run,
};

/// Few enough for a build without optimisation.
const SEEDS: u64 = 150;

#[test]
fn seeds_are_clean() {
    let (coverage, failures) = survey(1, SEEDS);
    assert_eq!(coverage.seeds, SEEDS);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    for (bug, caught) in hunt_all() {
        match caught {
            Some(caught) => {
                eprintln!("{bug:?}: seed {}, {:?}: {}", caught.seed, caught.checker, caught.what);
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in 1..=30 {
        let (one, two) = (run(seed, None, true), run(seed, None, true));
        assert!(one.logs.values().any(|log| !log.is_empty()), "seed {seed} wrote nothing");
        assert_eq!(one.logs, two.logs, "seed {seed}");
        assert_eq!(one.trace, two.trace, "seed {seed}");
    }
    assert_ne!(run(1, None, false).logs, run(2, None, false).logs);
}
