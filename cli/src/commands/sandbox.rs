//! `tailstep sandbox`: one command in a fresh sandbox, and what this host can isolate.

mod doctor;
mod run;
mod way_out;

use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run one command in a fresh sandbox that is gone afterwards
    Run(run::Args),
    /// Say which walls this host can put up, and what to change for more
    Doctor,
}

pub(crate) fn main(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::main(args),
        Command::Doctor => doctor::main(),
    }
}
