//! The `tailstep` command: what a user types and sees. It wires the local ports, the model router and
//! the API into one process, and owns what is printed.
//!
//! **Architecture invariant:** it decides nothing about a session; it talks to sessions through the
//! same public API as everybody else.

mod api;
mod commands;
mod engine;
mod home;
mod logging;
mod show;
mod signals;
mod style;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs AI agents step by step, durably, on this machine.
#[derive(Debug, Parser)]
#[command(name = "tailstep", version, propagate_version = true)]
#[command(after_help = "Try it without any account: tailstep run --model scripted/echo \"hello\"")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and run sessions, all in this process
    Dev(commands::dev::Args),
    /// Run one session and print what happens
    Run(commands::run::Args),
    /// List the sessions of a data directory
    Sessions(commands::sessions::Args),
    /// Print what happened in a session
    Logs(commands::logs::Args),
    /// Run the tools of sessions that a server elsewhere leads
    Worker(commands::worker::Args),
    /// Run one command in a fresh sandbox, or see what this host can isolate
    #[command(subcommand)]
    Sandbox(commands::sandbox::Command),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let done = match command {
        Command::Dev(args) => commands::dev::main(&args),
        Command::Run(args) => commands::run::main(&args),
        Command::Sessions(args) => commands::sessions::main(&args),
        Command::Logs(args) => commands::logs::main(&args),
        Command::Worker(args) => commands::worker::main(&args),
        Command::Sandbox(command) => commands::sandbox::main(&command),
    };
    done.unwrap_or_else(|error| {
        if !is_closed_pipe(&error) {
            // One line, cause behind cause.
            eprintln!("tailstep: {error:#}");
        }
        ExitCode::FAILURE
    })
}

/// Whoever read our output has left (`| head`): they know, and nobody is there to be told.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
