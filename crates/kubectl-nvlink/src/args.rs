//! The command line.

use clap::{Args, Parser, Subcommand};
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
    /// Shows the nodes, free GPUs and waiting jobs of each class, the pods on the GPUs of each
    /// domain, and the position, expected start (ETA) and reason of each waiting job.
    ///
    /// If you may list pods of all namespaces, nodes, nodetopologies and domainclasses, it computes
    /// the plan of the queue. Otherwise it shows what the queue wrote into your pods.
    ///
    /// Reasons: Insufficient (too few GPUs are free in one place), Fragmented (enough are free on a
    /// node, but not together), Resources (not enough CPU or memory beside free GPUs), Behind (the
    /// free ones are for jobs ahead), Quota (the project uses its quota), Better (a better place is
    /// worth the wait), Incomplete (pods of the gang are missing or gated), Silent (the nodes do
    /// not report), Refused (the API server refuses to start it), Unaccepted (its class has an
    /// error), Growing (a node must be added), Impossible (not even an empty node can run it),
    /// Spreads (the same, but it starts without a common domain at its timeout), Starting (its GPUs
    /// are free now), Timeout (its time in the queue is over).
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
    /// For a pod that waits: the reason, its position, its expected start and place, the domains that
    /// could hold it, and what would help: fewer GPUs, a wider scope, another class. For a pod that
    /// runs: its GPUs, how good they are, and the decisions that led there. For a pod in no queue:
    /// what else it waits for.
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
    /// Accepts pods and objects with pod templates: Jobs, Deployments, JobSets, PyTorchJobs,
    /// RayClusters and so on; other documents pass through unchanged. A template is judged as the pod
    /// that its controller would create. The policies are stricter: also without a class, they
    /// refuse devices that a pod names by hand, and NVIDIA's runtime without a GPU. Decisions and reasons go to stderr. Exit status 1: a pod is
    /// refused; with --strict, also if no node can hold it. 2: an input cannot be read.
    #[command(after_help = "\
Examples:
  What would change in a job, with the classes of a file:
    kubectl nvlink preview -f job.yaml --cluster class.yaml -o diff
  In CI, fail if a job would be refused, or, with --strict, if no node can hold its pods:
    kubectl nvlink preview -f jobs/ --cluster cluster.yaml --strict -o text \\
      --allow-use high-throughput
  Before you restrict a class, what would be refused, and what admits it:
    kubectl get daemonsets,deployments,statefulsets,jobs,pods -A -o yaml \\
      | kubectl nvlink preview -f - --cluster cluster.yaml --restrict high-throughput -o text
  A pod that the runner of a GitLab job created:
    kubectl get pod runner-x -o yaml | kubectl nvlink preview -f - --cluster cluster.yaml \\
      --user system:serviceaccount:gitlab-runners:gitlab-runner

What --cluster needs:
  kubectl get domainclasses,nodetopologies,nodes,namespaces -o yaml > cluster.yaml

--allow-use assumes the right to use a restricted class. Ask the API server about it, with a pod or
a service account:
  kubectl create --dry-run=server --as USER -f pod.yaml
  kubectl auth can-i use domainclasses.nvlink-domains.io/CLASS -n NAMESPACE \\
    --as system:serviceaccount:NAMESPACE:ACCOUNT")]
    Preview(Box<PreviewArgs>),
    /// Ask the API server about a pod, by dry run, and report whether the webhook answers.
    ///
    /// The webhook must refuse a pod with an unknown class; with --class, a second pod must get that
    /// class. Nothing is created. Needs the right to create pods in the namespace. Exit status 1: the
    /// webhook is not registered, does not answer, or refuses the class; 2: the API server does not
    /// answer. The message says what to do.
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
    /// A virtual clock runs the same jobs on simulated nodes under each policy: nvlink-domains, the
    /// queue of the webhook; spread, kube-scheduler's LeastAllocated and any free GPUs of the node;
    /// packed, MostAllocated and the lowest indices; aligned, the nodes of packed and the best free
    /// GPUs of the node. It prints waits, communication times for 1 GiB per GPU, and placement
    /// quality. Exit status 1: the trace is invalid.
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(SimulateArgs),
}

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Also check that a pod gets this class.
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
    /// Namespaces whose pods are not checked, besides kube-system: the webhook's own namespace and
    /// those of the platform's daemons, such as gpu-operator.
    ///
    /// Name only existing namespaces: without the policies, anyone who may create one of that
    /// name can create unchecked pods in it.
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
            let shared = ["exempt_namespaces"];
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                assert!(arg.get_env().is_none() || shared.contains(&id), "{id}");
            }
        }
    }
}
