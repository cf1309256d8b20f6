//! From the command line to an exit status.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use nvlink_runtime::{flags, log, tls};

use crate::{
    args::{Cli, Command},
    check, preview, simulate, status,
};

/// Runs the program. Returns 0 for success, 1 for failure, 2 for wrong usage.
#[must_use]
pub fn run() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let cli = Cli::try_parse_from(&args)
        .unwrap_or_else(|error| flags::naming_variable(error, &Cli::command(), &args).exit());
    tls::install_provider();
    dispatch(cli.command).unwrap_or_else(|error| {
        log::last_words(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Status(args) => status::run(args),
        Command::Explain(args) => status::run_explain(args),
        Command::Preview(args) => preview::run(&args),
        Command::Simulate(args) => simulate::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args),
    }
}
