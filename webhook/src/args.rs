//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use kubectl_nvlink::args::{CheckArgs, ExemptArgs};
use nvlink_admission::decide::Settings;
use nvlink_api::class::syntax::is_label_key;

mod extender;
mod policies;
mod web;

pub use extender::ExtenderArgs;
pub use policies::PoliciesArgs;
pub use web::WebArgs;

use crate::{certificate::pki::SecretName, registration::WebhookTarget};

/// Places GPU pods in NVLink domains, at admission.
///
/// People use `kubectl nvlink` to see the queue and the domains.
/// Flags of what a Deployment runs can also be given as environment variables.
#[derive(Debug, Parser)]
#[command(name = "nvlink-webhook", version, max_term_width = 100)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the webhook: answer the API server's admission reviews, and serve the queue.
    ///
    /// Needs a kubeconfig, or the service account of a pod, with the rights that
    /// docs/access-reference.md explains. Accepts requests once it has read all classes, nodes and
    /// namespaces.
    #[command(after_help = "\
Examples:
  nvlink-webhook serve --ca-secret nvlink-system/webhook-ca --service nvlink-system/nvlink-webhook
  nvlink-webhook serve --tls-cert tls.crt --tls-key tls.key --ca-file ca.crt \\
    --service nvlink-system/nvlink-webhook
  nvlink-webhook serve --tls-cert tls.crt --tls-key tls.key      registered by hand: see registration")]
    Serve(Box<ServeArgs>),
    /// Run what `serve --without-controller` leaves out: the queue, the registration with the API
    /// server, and the conditions of classes.
    ///
    /// One replica leads and serves the queue; each maintains the registration. The only port is that
    /// of metrics and probes. Needs a kubeconfig, or the service account of a pod, with the rights
    /// that docs/access-reference.md explains.
    #[command(after_help = "\
Example:
  nvlink-webhook controller --ca-secret nvlink-system/webhook-ca \\
    --service nvlink-system/nvlink-webhook")]
    Controller(Box<ControllerArgs>),
    /// Print the CRDs.
    #[command(after_help = "Example:\n  nvlink-webhook crds | kubectl apply --server-side -f -")]
    Crds,
    /// Print the MutatingWebhookConfiguration.
    ///
    /// While the webhook is down, pods that name a class are refused; other GPU pods are admitted
    /// unchecked. For pods without GPUs and for changes of pods, the API server calls the webhook
    /// only if a rule applies, such as those on tolerations, nodeName, claims and labels of
    /// nvlink-domains.io.
    #[command(after_help = "\
Examples:
  nvlink-webhook registration --service nvlink-system/nvlink-webhook --ca-file ca.crt > hook.yaml
  nvlink-webhook registration --url https://127.0.0.1:8443 --ca-file ca.crt")]
    Registration(RegistrationArgs),
    /// Print the ValidatingAdmissionPolicies, or compare them with a cluster's.
    ///
    /// They protect restricted classes even while the webhook is down. Install the CRDs first:
    /// without them, the policies refuse every pod. Exit status with --check and --diff: 1, the
    /// cluster's policies differ or are missing; 2, the cluster does not answer.
    #[command(after_help = "\
Examples:
  nvlink-webhook policies | kubectl apply --server-side -f -
  nvlink-webhook policies --check
  nvlink-webhook policies --diff")]
    Policies(PoliciesArgs),
    /// Report whether the webhook answers, by a dry run: the same as `kubectl nvlink check`.
    ///
    /// `helm test` runs it. Exit status 1: the webhook is not registered, does not answer, or
    /// refuses the class; 2: the API server cannot be asked. The message says what to do.
    #[command(after_help = "Example:\n  nvlink-webhook check --namespace research")]
    Check(CheckArgs),
    /// Empty the queue before the webhook is removed, so that no pod waits forever.
    ///
    /// It deletes the registration and removes the gate from all pods that wait. The scheduler then
    /// places them on any nodes of their class. Pods of classes with the mapping Claim fail with the
    /// reason QueueRemoved. `helm uninstall` runs it. Needs the rights to list pods, to patch them
    /// and their status, to delete MutatingWebhookConfigurations and, with the policies, the verb
    /// `release` on domainclasses.nvlink-domains.io: an administrator has them. Exit status 1: a pod
    /// still waits, and the message says why.
    #[command(after_help = "Example:\n  nvlink-webhook drain")]
    Drain,
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address of the admission endpoint, over TLS.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_LISTEN",
        value_name = "ADDR",
        default_value = "0.0.0.0:8443"
    )]
    pub listen: SocketAddr,
    /// The certificate and the registration.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Seconds to serve after SIGTERM, until the Service removes this replica.
    #[arg(long, env = "NVLINK_WEBHOOK_DRAIN_SECONDS", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=600))]
    pub drain_seconds: u64,
    /// Leave the queue, the registration and the conditions of classes to `nvlink-webhook
    /// controller`.
    ///
    /// The process then waits until the controller fills the Secret of --ca-secret.
    #[arg(long, env = "NVLINK_WEBHOOK_WITHOUT_CONTROLLER")]
    pub without_controller: bool,
    /// The page of the cluster.
    #[command(flatten)]
    pub web: WebArgs,
    /// The scheduler extender.
    #[command(flatten)]
    pub extender: ExtenderArgs,
    /// What the controller does.
    #[command(flatten)]
    pub control: ControlArgs,
    /// What each process needs.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// Flags of `controller`.
#[derive(Debug, Args)]
#[group(id = "certificate", required = true, multiple = false, args = ["ca_secret", "ca_file"])]
pub struct ControllerArgs {
    /// The CA and the registration.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// What the controller does.
    #[command(flatten)]
    pub control: ControlArgs,
    /// What each process needs.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// Flags of what each process needs.
#[derive(Debug, Args)]
pub struct ProcessArgs {
    /// Address of /metrics, /livez and /readyz, over plain HTTP.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_ADMIN_LISTEN",
        value_name = "ADDR",
        default_value = "0.0.0.0:8080"
    )]
    pub admin_listen: SocketAddr,
    /// Node labels that stand for wider scopes.
    #[command(flatten)]
    pub scopes: ScopeArgs,
    /// What to log: a level, or a filter such as `nvlink=debug,kube=warn`.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,
    /// Format of log lines.
    #[arg(long, env = "NVLINK_WEBHOOK_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Node labels that stand for wider scopes.
#[derive(Clone, Debug, Args)]
pub struct ScopeArgs {
    /// Node label of the rack: a gang stays in one if possible, or always with its scope rack.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_RACK_LABEL",
        value_name = "KEY",
        value_parser = label_key,
        default_value = "topology.kubernetes.io/rack"
    )]
    pub rack_label: String,
    /// Node labels of the network between rack and zone, such as those of leaf and spine switches,
    /// nearest first: a gang gets the nodes that are nearest to each other.
    #[arg(
        long = "network-label",
        env = "NVLINK_WEBHOOK_NETWORK_LABELS",
        value_name = "KEY",
        value_delimiter = ',',
        value_parser = label_key
    )]
    pub network_labels: Vec<String>,
    /// Node label of the zone, likewise.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_ZONE_LABEL",
        value_name = "KEY",
        value_parser = label_key,
        default_value = "topology.kubernetes.io/zone"
    )]
    pub zone_label: String,
}

impl From<ScopeArgs> for Settings {
    fn from(args: ScopeArgs) -> Self {
        Self {
            rack_label: args.rack_label,
            network_labels: args.network_labels,
            zone_label: args.zone_label,
        }
    }
}

/// Flags of what the controller does.
#[derive(Debug, Args)]
pub struct ControlArgs {
    /// Report whether the cluster's policies are those of `policies` with the same --exempt-namespace,
    /// as nvlink_webhook_policies_current and in the log. Needs the right to get them.
    #[arg(long, env = "NVLINK_WEBHOOK_CHECK_POLICIES")]
    pub check_policies: bool,
    /// Request nodes of an autoscaler for the queues of classes with placement.maxPlaceholderPods.
    ///
    /// Needs the rights to create and delete pods in the namespace of the Lease.
    #[arg(long, env = "NVLINK_WEBHOOK_PLACEHOLDERS")]
    pub placeholders: bool,
    /// The leader election.
    #[command(flatten)]
    pub lease: LeaseArgs,
}

/// Flags of the Lease with which replicas elect their leader.
#[derive(Debug, Args)]
pub struct LeaseArgs {
    /// Namespace of the leader's Lease. Needs the rights to get, create and update it.
    ///
    /// Default: the namespace of --ca-secret, else of the service account, else of the kubeconfig.
    #[arg(long, env = "NVLINK_WEBHOOK_LEASE_NAMESPACE", value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Name of the leader's Lease.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_LEASE_NAME",
        value_name = "NAME",
        default_value = nvlink_api::LEASE
    )]
    pub lease_name: String,
}

/// Flags of the certificate and of the registration.
#[derive(Debug, Args)]
#[group(id = "certificate", required = true, multiple = true, args = ["tls_cert", "ca_secret"])]
pub struct TlsArgs {
    /// Certificate chain, PEM. Read again when it changes.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "ca_secret"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Private key, PEM. Read again when it changes.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
    /// Days that certificates of the webhook's own CA are valid; renewed after two thirds.
    #[arg(long, env = "NVLINK_WEBHOOK_CERTIFICATE_DAYS", value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u16).range(1..=825))]
    pub certificate_days: u16,
    /// Answer only callers with a certificate of this CA, PEM. Read again when it changes.
    ///
    /// Without it, anyone who reaches the port can find out which users may use which class. See
    /// docs/operations.md for the API servers' AdmissionConfiguration.
    #[arg(long, env = "NVLINK_WEBHOOK_CLIENT_CA_FILE", value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// The CA and the registration.
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Flags of the CA that the API server trusts, and of the registration that says so.
#[derive(Debug, Args)]
pub struct TrustArgs {
    /// Secret of the webhook's own CA, used instead of certificate files.
    ///
    /// The first replica creates or fills it; each replica issues and renews its own certificate.
    /// Needs --service or --url, and the rights to get and update the Secret and, where it is
    /// missing, to create it.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_CA_SECRET",
        value_name = "NS/NAME",
        conflicts_with_all = ["ca_file"],
        requires = "target"
    )]
    pub ca_secret: Option<SecretName>,
    /// Seconds between two checks of the certificate files or the Secret.
    #[arg(long, env = "NVLINK_WEBHOOK_TLS_POLL_SECONDS", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub tls_poll_seconds: u64,
    /// Maintain the MutatingWebhookConfiguration for this Service, NAMESPACE/NAME or
    /// NAMESPACE/NAME:PORT.
    #[arg(long, env = "NVLINK_WEBHOOK_SERVICE", value_name = "NS/NAME", value_parser = service, group = "target")]
    pub service: Option<WebhookTarget>,
    /// Maintain the MutatingWebhookConfiguration for a webhook outside the cluster at this URL.
    #[arg(long, env = "NVLINK_WEBHOOK_URL", value_name = "URL", value_parser = url, group = "target")]
    pub url: Option<WebhookTarget>,
    /// CA of the certificate files for --service or --url, PEM. Read again when it changes.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_CA_FILE",
        value_name = "FILE",
        requires = "target"
    )]
    pub ca_file: Option<PathBuf>,
    /// Namespaces without rules.
    #[command(flatten)]
    pub exempt: ExemptArgs,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Flags of `registration`.
#[derive(Debug, Args)]
#[group(id = "target", required = true, multiple = false, args = ["url", "service"])]
pub struct RegistrationArgs {
    /// Address of a webhook outside the cluster: `https://HOST:PORT`.
    #[arg(long, env = "NVLINK_WEBHOOK_URL", value_name = "URL", value_parser = url)]
    pub url: Option<WebhookTarget>,
    /// The webhook's Service: `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT`.
    #[arg(long, env = "NVLINK_WEBHOOK_SERVICE", value_name = "NS/NAME", value_parser = service)]
    pub service: Option<WebhookTarget>,
    /// The CA that signs the webhook's certificate, PEM.
    #[arg(long, env = "NVLINK_WEBHOOK_CA_FILE", value_name = "FILE")]
    pub ca_file: PathBuf,
    /// Namespaces without rules.
    #[command(flatten)]
    pub exempt: ExemptArgs,
}

fn label_key(text: &str) -> Result<String, String> {
    if is_label_key(text) {
        return Ok(text.to_owned());
    }
    Err("not a label key, such as topology.kubernetes.io/rack".to_owned())
}

fn url(text: &str) -> Result<WebhookTarget, String> {
    match text.strip_prefix("https://") {
        Some(rest) if !rest.is_empty() && !rest.contains(['?', '#', '@']) => {
            Ok(WebhookTarget::Url(text.to_owned()))
        }
        _ => Err("use https://HOST:PORT, without user, query or fragment".to_owned()),
    }
}

fn service(text: &str) -> Result<WebhookTarget, String> {
    let expected = || "use NAMESPACE/NAME or NAMESPACE/NAME:PORT".to_owned();
    let (namespace, rest) = text.split_once('/').ok_or_else(expected)?;
    let (name, port) = match rest.split_once(':') {
        Some((name, port)) => (
            name,
            port.parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(expected)?,
        ),
        None => (rest, 443),
    };
    let word = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if !word(namespace) || !word(name) {
        return Err(expected());
    }
    Ok(WebhookTarget::Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        // People give those of `preview`, `check` and `policies` by hand.
        let by_hand = ["check", "policies"];
        let app = Cli::command();
        let commands = app.get_subcommands();
        for command in commands.filter(|one| !by_hand.contains(&one.get_name())) {
            for arg in command
                .get_arguments()
                .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
            {
                let env = arg.get_env().and_then(std::ffi::OsStr::to_str);
                assert!(
                    env.is_some_and(|env| env.starts_with("NVLINK_WEBHOOK_")),
                    "{arg} has no variable"
                );
            }
        }
    }

    /// People run the example as it is, so its webhook must start in an exempt namespace.
    #[test]
    fn examples_start_in_the_exempt_namespace() {
        let mut cli = Cli::command();
        cli.build();
        let serve = cli.find_subcommand("serve").unwrap();
        let help = serve.get_after_help().unwrap().to_string();
        let example = help.lines().nth(1).unwrap().split_whitespace();
        let Command::Serve(args) = Cli::try_parse_from(example).unwrap().command else {
            panic!("{help}");
        };
        let exempt = &args.tls.trust.exempt.exempt_namespaces;
        let namespace = &args.tls.trust.ca_secret.as_ref().unwrap().namespace;
        assert_eq!(exempt, std::slice::from_ref(namespace));
        assert!(matches!(
            args.tls.trust.service,
            Some(WebhookTarget::Service { namespace: ref own, .. }) if own == namespace
        ));
    }

    #[test]
    fn targets() {
        assert!(url("http://h").is_err() && url("https://").is_err() && url("https://h:1").is_ok());
        for bad in ["name", "/name", "ns/", "ns/name:0", "ns/name:x", "ns/na me"] {
            assert!(service(bad).is_err(), "{bad}");
        }
        let target = WebhookTarget::Service {
            namespace: "ns".to_owned(),
            name: "n".to_owned(),
            port: 8443,
        };
        assert_eq!(service("ns/n:8443"), Ok(target));
    }
}
