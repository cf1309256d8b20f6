//! From the command line to an exit status.

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use kubectl_nvlink::check;
use nvlink_api::{crd, yaml};
use nvlink_runtime::{flags, log, stdout::print, tls};
use serde_json::json;

use crate::{
    args::{Cli, Command, RegistrationArgs},
    drain, policies, registration, serve,
};

/// Runs the program. Returns 0 for success, 1 for failure, 2 for wrong usage.
#[must_use]
pub fn run() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(hint) = args.get(1).and_then(|word| moved(word.to_str()?)) {
        log::last_words(&hint);
        return ExitCode::from(2);
    }
    let cli = Cli::try_parse_from(&args)
        .unwrap_or_else(|error| flags::naming_variable(error, &Cli::command(), &args).exit());
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            log::last_words(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns where a command is that people may look for here.
fn moved(command: &str) -> Option<String> {
    let known = ["status", "explain", "simulate"].contains(&command);
    known.then(|| {
        format!(
            "error: nvlink-webhook has no command {command}: run `kubectl nvlink {command}`; docs/queue.md says how to install kubectl-nvlink"
        )
    })
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(args) => serving(serve::serve(*args)),
        Command::Controller(args) => serving(serve::control(*args)),
        Command::Crds => {
            let documents = crd::documents().context("cannot generate the CRDs")?;
            print(&yaml::write(&documents)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Policies(args) => {
            tls::install_provider();
            let task = match (args.diff, args.check, args.index) {
                (true, ..) => policies::Task::Diff,
                (false, true, _) => policies::Task::Check,
                (false, false, true) => policies::Task::Index,
                (false, false, false) => policies::Task::Print,
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
        Command::Registration(args) => {
            print(&yaml::write(&[json!(configuration(args)?)])?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs a long-running command.
fn serving(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    tls::install_provider();
    let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
    let ended = runtime.block_on(command);
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
