//! The subcommands.

mod calibration;
mod device_plugin;
mod ingest;
mod inspect;
mod patience;
mod place;
mod record;
mod serve;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use nvlink_runtime::{log, stdout};
use nvlink_source::{Opener, Reading, calibrated};

use crate::{
    args::{self, Command, LogFormat, SourceArgs, UnpublishArgs},
    metrics, publish,
};
use nvlink_history::marks::Marks;

/// Runs the program. The exit status is 0, 1 for bad input or a failure, or 2 for bad usage.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match args::parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to stdout and is not an error.
            let status = if error.use_stderr() { 2 } else { 0 };
            drop(error.print());
            return ExitCode::from(status);
        }
    };
    let result = match cli.command {
        Command::Serve(args) => serve::serve(&args),
        Command::Topology(args) => inspect::topology(&args),
        Command::Record(args) => record::record(&args),
        Command::Place(args) => place::place(&args),
        Command::Ingest(args) => ingest::ingest(&args),
        Command::Calibration(args) => calibration::calibration(&args),
        Command::DevicePlugin(args) => device_plugin::device_plugin(&args),
        Command::Metrics => print(&metrics::reference()),
        Command::Unpublish(args) => unpublish(&args),
    };
    match result {
        Ok(()) => {
            log::finish();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let text = told(&error).replace(char::is_control, " ");
            log::last_words(&format!("nvlink-exporter: {text}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the error and its causes, except causes that the text already contains.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    text
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(stdout::print(text)?)
}

fn read(args: &SourceArgs) -> anyhow::Result<Reading> {
    if let Some(path) = &args.calibration {
        // Whoever names a file wants an error; only `serve` goes on without it.
        calibrated::load(path).with_context(|| path.display().to_string())?;
    }
    let mut reading = opener(args).open()?.read(Duration::ZERO)?;
    Marks::default().observe(&mut reading);
    Ok(reading)
}

fn opener(args: &SourceArgs) -> Opener {
    Opener::new(args.source.clone(), args.node_name.clone()).calibrated(args.calibration.clone())
}

/// Reads the source once, and prints its warnings.
fn read_and_warn(args: &SourceArgs) -> anyhow::Result<Reading> {
    let reading = read(args)?;
    for warning in &reading.warnings {
        warn(warning);
    }
    for unread in &reading.unread {
        warn(&unread.reason);
    }
    Ok(reading)
}

/// Prints a warning on one line. Control characters are replaced, because parts
/// of the text come from the driver and from files. A closed standard error is
/// not a failure.
fn warn(warning: &str) {
    let warning = warning.replace(char::is_control, " ");
    say(&format!("warning: {warning}"));
}

/// Prints a line about the command itself.
fn say(line: &str) {
    drop(writeln!(io::stderr(), "nvlink-exporter: {line}"));
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    // Answers come from memory: more threads would only cost more memory.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn unpublish(args: &UnpublishArgs) -> anyhow::Result<()> {
    crate::log::start(LogFormat::Text);
    let Some(node) = args.node_name.as_ref().filter(|_| !args.all) else {
        let nodes = runtime()?.block_on(async {
            let client = publish::client().await?;
            publish::unpublish_all(&client).await
        })?;
        let count = nodes.len();
        return print(&format!(
            "removed what was published about {count} nodes; an exporter that still runs publishes it again\n"
        ));
    };
    let existed = runtime()?.block_on(async {
        let client = publish::client().await?;
        publish::unpublish(&client, node).await
    })?;
    print(&if existed {
        format!(
            "removed what was published about Node {node}; an exporter that still runs publishes it again\n"
        )
    } else {
        format!("there is no Node {node}, and nothing is published about it\n")
    })
}
