//! The command line.

use clap::{Args, Parser, Subcommand};
use nvlink_admission::decide::Settings;
use nvlink_api::class::syntax::is_namespace;

mod preview;
mod simulate;
mod status;

pub use preview::{Output, PreviewArgs};
pub use simulate::{ReportFormat, SimulateArgs};
pub use status::{ClusterArgs, ExplainArgs, Format, KubeconfigArgs, PodName, StatusArgs};

/// The queue and the NVLink domains of the cluster, and what admission would do.
///
/// `status`, `explain` and `check` use your kubeconfig and its rights. `preview` and `simulate` read
/// files and contact no cluster.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-nvlink",
    bin_name = "kubectl nvlink",
    version,
    max_term_width = 100
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show classes, domains and the queue.
    ///
    /// For each class its nodes, its free GPUs and the jobs that wait; for each domain what holds
    /// its GPUs; for each job that waits its position, its expected start (ETA) and the reason.
    ///
    /// It reads with the rights of your kubeconfig, and says what you may not read. Who may list
    /// pods of all namespaces, nodes, nodetopologies and domainclasses gets the plan of the queue,
    /// computed here. Others get what the queue wrote into their pods.
    ///
    /// Reasons: Insufficient (too few GPUs are free), Fragmented (enough are free, but not together),
    /// Resources (enough are free, but not with the CPU and memory that it requests), Behind (the
    /// free ones are for jobs ahead), Quota (the project holds all that it may), Better (a better
    /// place is worth the wait), Incomplete (pods of the gang are missing), Silent (the nodes do not
    /// report), Impossible (no node can run it, not even an empty one), Spreads (the same, but it starts
    /// without a common domain when its time in the queue is over), Starting (its GPUs are free
    /// now), Timeout (its time in the queue is over).
    #[command(after_help = "\
Examples:
  What waits in my namespace, and where is room?
    kubectl nvlink status
  The whole queue, with reasons as sentences:
    kubectl nvlink status --all-namespaces --output wide
  One class, redrawn when something changes:
    kubectl nvlink status --class high-throughput --watch
  For a script, the pods that are not expected to start within their time in the queue:
    kubectl nvlink status -o json | jq '.queue[] | select(.eta == null) | .pod'")]
    Status(StatusArgs),
    /// Explain why a pod waits, or why it is where it is.
    ///
    /// For a pod that waits: the reason, its position, when and where it is expected to start and
    /// what that depends on, the domains that could hold it and what holds each, and what would
    /// help: fewer GPUs, a wider scope, another class that you may use. For a pod that runs: the
    /// GPUs that it holds, how good they are, and the decisions that led there. For a pod that is
    /// in no queue: what else it waits for.
    ///
    /// Exit status 1: the pod does not exist, or you may not read it.
    #[command(after_help = "\
Examples:
  kubectl nvlink explain train-0
  kubectl nvlink explain job/train -n research
  kubectl nvlink explain research/train-0 -o json")]
    Explain(ExplainArgs),
    /// Show what admission would do to pods, from files alone, and fail if it refuses one.
    ///
    /// Accepts pods and objects with pod templates: Jobs, CronJobs, Deployments,
    /// JobSets, PyTorchJobs, RayClusters and so on; other documents pass through
    /// unchanged. For a template it decides on the pod that the controller would
    /// create, with the controller as the requesting user. It contacts no cluster.
    /// It prints each decision and its reason to stderr.
    /// Exit status 1: a pod is refused; with --strict, also if no node can hold it. 2: an input
    /// cannot be read.
    #[command(after_help = "\
Examples:
  What would change in a job, with the classes of a file:
    kubectl nvlink preview -f job.yaml --cluster class.yaml -o diff
  In CI, fail if a job would be refused:
    kubectl nvlink preview -f jobs/ --cluster cluster.yaml --allow-use high-throughput -o text
  The same, and fail also if a job would stay Pending because no node can hold its pods:
    kubectl nvlink preview -f jobs/ --cluster cluster.yaml --strict -o text
  Before you restrict a class, what would be refused, and what admits it:
    kubectl get daemonsets,deployments,statefulsets,jobs,pods -A -o yaml \\
      | kubectl nvlink preview -f - --cluster cluster.yaml --restrict high-throughput -o text
  A pod that the runner of a GitLab job created:
    kubectl get pod runner-x -o yaml | kubectl nvlink preview -f - --cluster cluster.yaml \\
      --user system:serviceaccount:gitlab-runners:gitlab-runner

Everything that decisions need from a cluster:
  kubectl get domainclasses,nodetopologies,nodes,namespaces -o yaml > cluster.yaml

No file holds the right to use a restricted class: --allow-use assumes it. Where the webhook or
its policies are installed, ask the API server about a pod and about a service account:
  kubectl create --dry-run=server --as USER -f pod.yaml
  kubectl auth can-i use domainclasses.nvlink-domains.io/CLASS -n NAMESPACE \\
    --as system:serviceaccount:NAMESPACE:ACCOUNT")]
    Preview(Box<PreviewArgs>),
    /// Ask the API server about a pod, by dry run, and report whether the webhook answers.
    ///
    /// The pod names a class that does not exist, so the webhook must refuse it; with --class, a
    /// second pod must get that class. Nothing is created. The pods request one nvidia.com/gpu
    /// each. Needs a kubeconfig, or the service account of a pod, with the right to create pods in
    /// the namespace. `helm test` runs the same check as `nvlink-webhook check`. Exit status 1: the webhook is not registered, does not
    /// answer, or refuses the class; 2: the API server cannot be asked. The message says what to
    /// do.
    #[command(after_help = "\
Examples:
  Does the webhook answer?
    kubectl nvlink check
  What does a pod of a team get that names a class?
    kubectl nvlink check --class high-throughput --namespace research
  With the chart:
    helm test nvlink-domains --namespace nvlink-system")]
    Check(CheckArgs),
    /// Replay a trace of jobs, with the queue and with what clusters do without it.
    ///
    /// A virtual clock runs the same jobs under each policy, on simulated nodes:
    /// nvlink-domains, the queue of the webhook; spread, kube-scheduler's LeastAllocated and any
    /// free GPUs of the node, as device plugins hand them out; packed, MostAllocated and the
    /// lowest indices; aligned, the nodes of packed and the best free GPUs of the node. It prints
    /// waits, communication times for 1 GiB per GPU by the cost model, and placement quality. It
    /// contacts no cluster. Exit status 1: the trace is invalid.
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(SimulateArgs),
}

/// Node labels that stand for wider scopes.
#[derive(Clone, Debug, Args)]
pub struct ScopeArgs {
    /// Node label that names the rack: the pods of a gang are within one value of it if they can, or must be with the gang scope rack.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_RACK_LABEL",
        value_name = "KEY",
        default_value = "topology.kubernetes.io/rack"
    )]
    pub rack_label: String,
    /// Node label that names the zone, likewise.
    #[arg(
        long,
        env = "NVLINK_WEBHOOK_ZONE_LABEL",
        value_name = "KEY",
        default_value = "topology.kubernetes.io/zone"
    )]
    pub zone_label: String,
}

impl From<ScopeArgs> for Settings {
    fn from(args: ScopeArgs) -> Self {
        Self {
            rack_label: args.rack_label,
            zone_label: args.zone_label,
        }
    }
}

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Class that a pod must get; without it, only whether the webhook answers is checked.
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,
    /// Namespace of the pods; not an exempt one.
    #[arg(
        short,
        long,
        value_name = "NAME",
        value_parser = namespace,
        default_value = "default"
    )]
    pub namespace: String,
    /// Which cluster.
    #[command(flatten)]
    pub kubeconfig: KubeconfigArgs,
}

/// Namespaces without rules: the same for `serve`, `registration`, `policies` and `preview`.
#[derive(Clone, Debug, Args)]
pub struct ExemptArgs {
    /// Namespaces whose pods are not checked, in addition to kube-system: those of the platform's
    /// own daemons, such as gpu-operator, and the webhook's own namespace.
    ///
    /// Name only namespaces that exist: if the policies are not installed, anybody who may create
    /// a namespace of such a name can create unchecked pods in it (`nvlink-webhook serve` logs
    /// a warning). If the webhook does not run in nvlink-system, set this to the namespace that it
    /// runs in.
    ///
    /// Once there is a restricted class, daemons that use GPUs without the device plugin (drivers,
    /// device plugins, dcgm-exporter, nvlink-exporter) are refused in all other namespaces. The
    /// label nvlink-domains.io/webhook=ignore on a namespace has the same effect as this flag.
    #[arg(
        long = "exempt-namespace",
        env = "NVLINK_WEBHOOK_EXEMPT_NAMESPACES",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = namespace,
        default_value = "nvlink-system"
    )]
    pub exempt_namespaces: Vec<String>,
}

fn namespace(text: &str) -> Result<String, String> {
    if is_namespace(text) {
        return Ok(text.to_owned());
    }
    Err("not a namespace name: use at most 63 lower-case letters, digits and '-'".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            // What it shares with `nvlink-webhook`, which a Deployment starts, has variables there.
            let shared = ["exempt_namespaces", "rack_label", "zone_label"];
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                assert!(arg.get_env().is_none() || shared.contains(&id), "{id}");
            }
        }
    }
}
