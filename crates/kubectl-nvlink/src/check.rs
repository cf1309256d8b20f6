//! Asks the API server about pods, by dry run, and reports whether the webhook answered.
//!
//! The first pod names a class that does not exist. Only the webhook refuses it for that reason, so
//! the result depends neither on classes nor on nodes.

mod answer;
mod uncalled;

use std::process::ExitCode;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use nvlink_runtime::{
    client::{self, Limits},
    stdout::print,
};

use self::answer::Answer;
use crate::args::CheckArgs;

/// A class that does not exist.
const NO_CLASS: &str = "nvlink-webhook-check-no-such-class";

/// Why the check did not succeed.
enum Failed {
    /// The webhook did not answer, or refused a pod that it should admit.
    Webhook(String),
    /// The API server did not answer, or did not get as far as the webhook.
    Unknown(String),
}

/// Checks the webhook and prints the result. The exit status is 1 if the webhook did not answer as
/// it should, and 2 if nothing is known about it.
///
/// # Errors
/// When the result cannot be printed.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let checked = runtime.block_on(check(args));
    runtime.shutdown_background();
    let (reason, status) = match checked {
        Ok(result) => {
            print(&result)?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(Failed::Webhook(reason)) => (reason, 1),
        Err(Failed::Unknown(reason)) => (reason, 2),
    };
    eprintln!("error: {reason}");
    Ok(ExitCode::from(status))
}

/// Returns what the webhook answered, in words.
async fn check(args: &CheckArgs) -> Result<String, Failed> {
    let namespace = &args.namespace;
    let client = client::connect_to(args.kubeconfig.choice(), Limits::default()).await;
    let client = client.map_err(|error| {
        let reason = client::reason(&error);
        Failed::Unknown(format!("no access to the cluster: {reason}"))
    })?;
    match ask(&client, namespace, NO_CLASS).await? {
        // Somebody created the class.
        Answer::Decided(_) => {}
        Answer::Refused(said) if said.starts_with("rule unknown-class:") => {}
        Answer::Refused(said) => {
            return Err(Failed::Webhook(format!(
                "the webhook answers, but it should refuse the pod because class {NO_CLASS:?} does not exist: {said}"
            )));
        }
        Answer::Admitted => {
            return Err(Failed::Webhook(uncalled::why(&client, namespace).await));
        }
    }
    let answers = format!(
        "the webhook answers: it refuses a pod in namespace {namespace} that names a class that does not exist\n"
    );
    match &args.class {
        None => Ok(answers),
        Some(class) => Ok(answers + &decided(&client, namespace, class).await?),
    }
}

/// Returns the decision on a pod that names `class`, in words.
async fn decided(client: &Client, namespace: &str, class: &str) -> Result<String, Failed> {
    let failed = match ask(client, namespace, class).await? {
        Answer::Decided(decision) if decision.class == class => return Ok(format!("{decision}\n")),
        Answer::Decided(other) => {
            format!("the webhook answers, but not with class {class:?}: {other}")
        }
        Answer::Refused(said) => {
            format!("the webhook answers, and refuses a pod that names class {class:?}: {said}")
        }
        Answer::Admitted => format!(
            "the webhook answers, but class {class:?} is not for pods that request {}; devices.resourceName in its spec names its resource: kubectl get domainclass {class} -o yaml",
            answer::RESOURCE
        ),
    };
    Err(Failed::Webhook(failed))
}

/// Asks the API server about a pod that names `class`. The pod is not created.
async fn ask(client: &Client, namespace: &str, class: &str) -> Result<Answer, Failed> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pod = answer::pod(class).map_err(|error| Failed::Unknown(error.to_string()))?;
    Answer::new(api.create(&params, &pod).await, namespace)
}
