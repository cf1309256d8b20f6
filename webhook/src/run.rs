//! From the command line to an exit status.

use std::{ffi::OsString, path::Path, process::ExitCode};

use anyhow::Context;
use clap::Parser;
use nvlink_api::{crd, yaml};
use nvlink_runtime::{flags, log, tls};
use serde_json::json;

use crate::{
    args::{Cli, Command, Plugin, RegistrationArgs, Show},
    check, drain, policies, preview, registration, serve, simulate, status,
    stdout::print,
};

/// Runs the program. Returns 0 for success, 1 for failure, 2 for wrong usage.
#[must_use]
pub fn run() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let done = if is_plugin(args.first()) {
        show(parsed::<Plugin>(&args).command)
    } else {
        dispatch(parsed(&args))
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            log::last_words(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Reports whether kubectl runs the program as `kubectl nvlink`.
fn is_plugin(program: Option<&OsString>) -> bool {
    let stem = program.and_then(|program| Path::new(program).file_stem());
    stem.is_some_and(|stem| stem == "kubectl-nvlink")
}

fn parsed<C: Parser>(args: &[OsString]) -> C {
    C::try_parse_from(args)
        .unwrap_or_else(|error| flags::naming_variable(error, &C::command(), args).exit())
}

fn show(command: Show) -> anyhow::Result<ExitCode> {
    tls::install_provider();
    match command {
        Show::Status(args) => status::run(args),
        Show::Explain(args) => status::run_explain(args),
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(args) => {
            tls::install_provider();
            let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
            let ended = runtime.block_on(serve::serve(*args));
            // Neither a file on a dead mount nor the log may block the exit.
            runtime.shutdown_background();
            log::finish();
            if let Err(error) = &ended {
                // `kubectl describe pod` shows it.
                drop(std::fs::write(
                    "/dev/termination-log",
                    format!("{error:#}\n"),
                ));
            }
            ended.map(|()| ExitCode::SUCCESS)
        }
        Command::Preview(args) => preview::run(&args),
        Command::Crds => {
            let documents = crd::documents().context("cannot generate the CRDs")?;
            print(&yaml::write(&documents)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Policies(args) => {
            tls::install_provider();
            let task = match (args.diff, args.check) {
                (true, _) => policies::Task::Diff,
                (false, true) => policies::Task::Check,
                (false, false) => policies::Task::Print,
            };
            policies::run(task, &args.site())
        }
        Command::Check(args) => {
            tls::install_provider();
            check::run(&args)
        }
        Command::Drain => {
            tls::install_provider();
            drain::run()
        }
        Command::Simulate(args) => {
            simulate::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Show(command) => show(command),
        Command::Registration(args) => {
            print(&yaml::write(&[json!(configuration(args)?)])?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn configuration(
    args: RegistrationArgs,
) -> anyhow::Result<k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration> {
    let target = args
        .url
        .or(args.service)
        .context("set --url or --service")?;
    let path = args.ca_file;
    let ca = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(
        ca.windows(11).any(|window| window == b"-----BEGIN "),
        "{} is not a PEM file",
        path.display()
    );
    Ok(registration::registration(
        &target,
        &args.exempt.exempt_namespaces,
        &ca,
    ))
}
