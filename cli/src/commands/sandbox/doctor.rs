//! `tailstep sandbox doctor`: puts up every wall that this host allows, and says what is missing.

use std::{fs, process::ExitCode};

use anyhow::{Context, bail};
use tailstep_sandbox::{
    Spec, Strictness,
    program::{End, Exited, Program, Workspace, run},
};

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    let mut spec = Spec::new("");
    spec.strictness = Strictness::BestEffort;
    let argv = vec!["/bin/true".into()];
    let program = Program { argv, directory: None, workspace: Workspace::None };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("kernel   {}", release.trim());
    let mut whole = false;
    let end = run(&spec, &program, |layers, _| {
        for active in &layers.active {
            println!("stands   {active}");
        }
        for missing in &layers.missing {
            println!("missing  {missing}");
        }
        whole = layers.missing.is_empty();
    });
    let end = end.context("sandboxes cannot be made on this host")?;
    if end != End::Exited(Exited::Code(0)) {
        bail!("a sandbox was made, but /bin/true did not run in it: {end:?}");
    }
    if whole {
        println!("every wall stands: `tailstep sandbox run --strict` works here");
    } else {
        println!("sandboxes can be made here, but not with --strict");
    }
    Ok(ExitCode::SUCCESS)
}
