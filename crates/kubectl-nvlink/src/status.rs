//! `status` and `explain`: the queue and the domains, with the rights of whoever asks.
//!
//! [`Objects`] are what could be read, [`State`] is what they say, and the reports are values that
//! are printed as text, JSON or YAML. All of that is pure; `read` and `follow` ask the API server.
//! Where all of the cluster can be read, the planner is the same as that of the queue's leader.
//! Elsewhere the reports show what the leader wrote into the pods.

mod explain;
mod explain_text;
mod follow;
mod help;
mod node;
mod objects;
mod plan;
mod pod;
mod read;
mod report;
mod state;
mod table;
mod text;
mod variant;
mod waiting;
mod words;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use anyhow::Context;
use k8s_openapi::jiff::Timestamp;
use nvlink_runtime::{
    client::{self, Limits},
    stdout::print,
};
use serde::Serialize;

pub use self::{
    explain::{Explained, Unknown, explain, explain_owner},
    objects::{Kind, Objects},
    report::{Query, Status, status},
    state::State,
};
use nvlink_api::yaml;

use crate::args::{ExplainArgs, Format, StatusArgs};

/// The width where there is no terminal, columns.
const WIDTH: usize = 80;

/// Prints the report of `status`.
///
/// # Errors
/// When the API server does not answer, or the report cannot be printed.
pub(crate) fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let client = connect(&args.cluster).await?;
        let namespace = namespace(&args.cluster, &client);
        let objects = read::objects(&client, &namespace).await;
        let objects = objects.map_err(|error| read::unanswered(&error))?;
        let query = Query {
            namespace: (!args.all_namespaces).then_some(namespace),
            class: args.class.clone(),
            limit: args.limit,
        };
        let render = |objects: &Objects| {
            let state = State::new(objects, Timestamp::now());
            let report = status(&state, &query);
            shown(&report, args.output, |width| report.text(width))
        };
        if args.watch {
            return follow::follow(&client, objects, render).await;
        }
        print(&render(&objects)?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints the report of `explain`. The exit status is 1 if the pod is not known.
///
/// # Errors
/// When the API server does not answer, or the report cannot be printed.
pub(crate) fn run_explain(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let client = connect(&args.cluster).await?;
        let (owner, word) = (&args.pod.owner, args.pod.namespace.clone());
        let named = word.clone().filter(|_| owner.is_none());
        let namespace = named.unwrap_or_else(|| namespace(&args.cluster, &client));
        let unanswered = |error| read::unanswered(&error);
        let mut objects = read::objects(&client, &namespace)
            .await
            .map_err(unanswered)?;
        if owner.is_none() {
            let read = read::pod(&client, &namespace, &args.pod.name, &mut objects).await;
            read.map_err(unanswered)?;
        }
        read::rights(&client, &namespace, &mut objects).await;
        let mut state = State::new(&objects, Timestamp::now());
        let name = &args.pod.name;
        let report = match owner {
            // A namespace may be called like a kind.
            Some(kind) => explain_owner(&mut state, &namespace, kind, name).or_else(|unknown| {
                let word = word.unwrap_or_default();
                explain(&mut state, &word, name).map_err(|_| unknown)
            }),
            None => explain(&mut state, &namespace, name),
        }?;
        print(&shown(&report, args.output, |width| report.text(width))?)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    ended
}

async fn connect(args: &crate::args::ClusterArgs) -> anyhow::Result<kube::Client> {
    let client = client::connect_to(args.kubeconfig.choice(), Limits::default()).await;
    client.map_err(|error| anyhow::anyhow!("no access to the cluster: {}", client::reason(&error)))
}

fn namespace(args: &crate::args::ClusterArgs, client: &kube::Client) -> String {
    let context = || client.default_namespace().to_owned();
    args.namespace.clone().unwrap_or_else(context)
}

/// Returns a report in the wanted format. `text` gets the width; `None` for no limit.
fn shown(
    report: &impl Serialize,
    format: Format,
    text: impl Fn(Option<usize>) -> String,
) -> anyhow::Result<String> {
    Ok(match format {
        Format::Table => text(Some(width())),
        Format::Wide => text(None),
        Format::Json => serde_json::to_string_pretty(report)? + "\n",
        Format::Yaml => yaml::write(&[serde_json::to_value(report)?])?,
    })
}

/// Returns the width of the output, columns.
fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns
        .and_then(|text| text.parse().ok())
        .filter(|&columns| columns > 0);
    let terminal = || {
        let size = io::stdout()
            .is_terminal()
            .then(terminal_size::terminal_size);
        size.flatten().map(|(width, _)| usize::from(width.0))
    };
    columns.or_else(terminal).unwrap_or(WIDTH)
}
