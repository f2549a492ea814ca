//! `sim`: runs seeds, then hunts the planted bugs; or replays one seed with its trace.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
    time::Instant,
};

use tests_sim::{
    bug::Bug,
    hunt::{Coverage, HUNT_SEEDS_MAX, hunt_all, survey},
    run::run,
};

const USAGE: &str = "usage: sim [--seeds N] [--start N] [--no-bugs]
       sim --seed N [--bug NAME]

  --seeds N    run N seeds (default: 2000, or what SEEDS says), then hunt the planted bugs
  --start N    begin at seed N (default: 1)
  --no-bugs    leave the planted bugs out
  --seed N     run one seed and show what happened
  --bug NAME   plant this bug in it";

/// From so many seeds on, a fault that never struck or an event that was never reached is an error.
const COVERAGE_SEEDS_MIN: u64 = 2_000;

fn main() -> ExitCode {
    let done = match options() {
        Ok(Options { seed: Some(seed), bug, .. }) => replay(seed, bug),
        Ok(options) => all(&options),
        Err(wrong) => {
            eprintln!("{wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the report cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug)]
struct Options {
    seeds: u64,
    start: u64,
    bugs: bool,
    seed: Option<u64>,
    bug: Option<Bug>,
}

fn options() -> Result<Options, String> {
    let seeds = std::env::var("SEEDS").ok().filter(|seeds| !seeds.is_empty());
    let seeds = seeds.map_or(Ok(2_000), |seeds| number("SEEDS", Some(&seeds)))?;
    let mut options = Options { seeds, start: 1, bugs: true, seed: None, bug: None };
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => options.seeds = number(arg, args.next())?,
            "--start" => options.start = number(arg, args.next())?,
            "--seed" => options.seed = Some(number(arg, args.next())?),
            "--no-bugs" => options.bugs = false,
            "--bug" => {
                let name = args.next().ok_or("--bug needs a name")?;
                let known = || Bug::ALL.iter().map(|bug| bug.name()).collect::<Vec<_>>().join(", ");
                let bug = Bug::ALL.iter().copied().find(|bug| bug.name() == name);
                options.bug =
                    Some(bug.ok_or_else(|| format!("no bug {name}; there are: {}", known()))?);
            }
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    if options.bug.is_some() && options.seed.is_none() {
        return Err("--bug needs --seed".to_owned());
    }
    Ok(options)
}

fn number(name: &str, text: Option<&String>) -> Result<u64, String> {
    let text = text.ok_or_else(|| format!("{name} needs a number"))?;
    text.parse().map_err(|_| format!("{name} needs a number, not {text:?}"))
}

fn replay(seed: u64, bug: Option<Bug>) -> io::Result<bool> {
    let outcome = run(seed, bug, true);
    let plan = &outcome.plan;
    let mut out = io::stdout().lock();
    for line in &outcome.trace {
        writeln!(out, "{line}")?;
    }
    let faults: Vec<&str> = plan.faults.iter().map(|fault| fault.name()).collect();
    writeln!(
        out,
        "\nseed {seed}, {:?}, {} workers, faults: {}",
        plan.profile,
        plan.workers,
        faults.join(" ")
    )?;
    writeln!(
        out,
        "{:?}, lease {} ms, visibility {} ms, slow tools {} ms",
        plan.nets, plan.limits.lease_ms, plan.visibility_ms, plan.slow_ms
    )?;
    for (key, log) in &outcome.logs {
        writeln!(out, "{key}: {} records", log.len())?;
    }
    for violation in &outcome.violations {
        writeln!(out, "{:?}: {}", violation.checker, violation.what)?;
    }
    if outcome.violations.is_empty() {
        writeln!(out, "nothing is wrong")?;
    }
    Ok(outcome.violations.is_empty())
}

fn all(options: &Options) -> io::Result<bool> {
    let started = Instant::now();
    let (coverage, failures) = survey(options.start, options.seeds);
    let took = started.elapsed();
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} seeds from {} in {:.1} s: {:.0} seeds/s, {:.0} days of virtual time",
        coverage.seeds,
        options.start,
        took.as_secs_f64(),
        coverage.seeds as f64 / took.as_secs_f64(),
        coverage.virtual_ms as f64 / 86_400_000.0
    )?;
    write!(out, "{}", table(&coverage))?;
    let mut good = failures.is_empty();
    for failure in &failures {
        writeln!(out, "FAILED seed {}, {:?}: {}", failure.seed, failure.checker, failure.what)?;
    }
    let holes = coverage.holes();
    if options.seeds >= COVERAGE_SEEDS_MIN && !holes.is_empty() {
        good = false;
        writeln!(out, "FAILED never happened: {}", holes.join(", "))?;
    }
    if options.bugs {
        good &= hunted(&mut out)?;
    }
    if let Some(first) = failures.first() {
        writeln!(out, "\nThe first failing seed:")?;
        drop(out);
        replay(first.seed, None)?;
    }
    Ok(good)
}

fn hunted(out: &mut impl io::Write) -> io::Result<bool> {
    writeln!(out, "planted bugs, each to be caught within {HUNT_SEEDS_MAX} seeds:")?;
    let mut good = true;
    for (bug, caught) in hunt_all() {
        match caught {
            Some(failure) => {
                let short: String = failure.what.chars().take(90).collect();
                let checker = format!("{:?}", failure.checker);
                writeln!(
                    out,
                    "  {:<26} seed {:>4}  {checker:<9} {short}",
                    bug.name(),
                    failure.seed
                )?;
            }
            None => {
                good = false;
                writeln!(out, "  {:<26} NOT CAUGHT", bug.name())?;
            }
        }
    }
    Ok(good)
}

fn table(coverage: &Coverage) -> String {
    let faults = coverage.faults.iter().map(|(fault, count)| (fault.name().to_owned(), *count));
    let reached = coverage.reached.iter().map(|(what, count)| (what.clone(), *count));
    let mut text = String::new();
    for (title, counts) in [
        ("faults injected", faults.collect::<Vec<_>>()),
        ("events and steps reached", reached.collect()),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{title}:");
        for row in counts.chunks(4) {
            let cells: Vec<String> =
                row.iter().map(|(name, count)| format!("{name:<22} {count:>8}")).collect();
            let _ = writeln!(text, "  {}", cells.join("   "));
        }
    }
    text
}
