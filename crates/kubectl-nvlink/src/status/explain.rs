//! The report of `explain`: why a pod waits, or why it is where it is. Pure.

use nvlink_admission::{decide::Together, view::GangRoom};
use nvlink_api::{crd::domain_class::Mapping, pod};
use nvlink_planner::{Action, Deadline, Explanation, Job, Millis, Name, OnTimeout};
use nvlink_queue::{Life, notice::REFUSED};
use nvlink_topology::{Scope, labels};
use serde::Serialize;
use serde_json::Value;

use super::{
    help::{self, Help},
    node::Sets,
    pod as stage,
    report::{DomainRow, HolderRow},
    state::{Pod, State},
    waiting::EtaRow,
    words,
};

/// The most domains that are shown.
const DOMAINS: usize = 8;

/// A pod, and why it waits or is where it is. A key that does not apply, or is not known, is
/// absent.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// When the cluster was read.
    pub time: String,
    pub namespace: String,
    pub pod: String,
    /// `waiting`, `gated` (by others), `released`, `bound`, `running`, `ended`, `deleting`.
    pub state: &'static str,
    /// The state in one sentence.
    pub summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// GPUs of the pod.
    pub gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<Gang>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<i64>,
    /// Why it waits, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it waits, or is where it is, as sentences.
    pub messages: Vec<String>,
    /// Its position among the jobs of its class, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Jobs ahead of it that will use its GPUs before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<EtaRow>,
    /// What its start depends on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub eta_from: Vec<String>,
    /// When it stops waiting, and what happens then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineRow>,
    /// The domains that could hold it, and what holds each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainRow>,
    /// Number of domains that are not shown.
    #[serde(skip_serializing_if = "is_none")]
    pub more_domains: usize,
    /// Where it is expected to start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expected_on: Vec<SeatRow>,
    /// Pods of lower priority that hold GPUs of domains that could hold it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lower_priority: Vec<HolderRow>,
    /// Changes with which it would start earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<Vec<Help>>,
    /// What the webhook decided at its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Value>,
    /// Where the queue put it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Value>,
    /// What chooses its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Devices>,
    /// What could not be read, and what is missing because of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What chooses the GPUs of a pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// `devices.mapping` of its class.
    pub mapping: &'static str,
    /// How sure it is which GPUs it gets.
    pub certainty: &'static str,
}

impl From<Mapping> for Devices {
    fn from(mapping: Mapping) -> Self {
        Self {
            mapping: mapping.into_str(),
            certainty: mapping.certainty(),
        }
    }
}

/// The gang of a pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    pub name: String,
    /// Number of pods that start together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Number of its pods that exist.
    pub pods: usize,
    /// How far apart they may be.
    pub scope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// What is odd about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
}

/// The end of a job's waiting.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadlineRow {
    pub at: String,
    /// `Reject` or `Spread`.
    pub then: &'static str,
    #[serde(skip)]
    pub(super) millis: Millis,
}

/// Where a pod of the job is expected to start.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SeatRow {
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Indices of its GPUs in rank order.
    pub gpus: Vec<u32>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_none(number: &usize) -> bool {
    *number == 0
}

/// The pod does not exist, or may not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// It does not exist.
    #[error("pod {0} does not exist: kubectl get pods -n {1}")]
    Absent(String, String),
    /// It has no pods with GPUs.
    #[error("{0} {1} does not exist, or has no pods with GPUs: kubectl get pods -n {2}")]
    Empty(String, String, String),
    /// Pods cannot be read.
    #[error("{0}")]
    Hidden(String),
}

/// Explains the pod `name`.
///
/// # Errors
/// When it is not known.
pub fn explain(state: &mut State<'_>, namespace: &str, name: &str) -> Result<Explained, Unknown> {
    if let Some(why) = &state.objects.pods.hidden {
        return Err(Unknown::Hidden(why.clone()));
    }
    let absent = || Unknown::Absent(words::clean(name), words::clean(namespace));
    let pod = state.pod(namespace, name).ok_or_else(absent)?;
    let mut this = about(state, pod);
    match pod.life.clone() {
        Life::Waiting { .. } => {
            let job = pod.job();
            wait(state, &job, &mut this);
        }
        life => stage::describe(state, pod, &life, &mut this),
    }
    Ok(this)
}

/// Explains a pod of the owner `name` of this kind, which is in lower case: one that waits, if any does.
///
/// # Errors
/// When none is known.
pub fn explain_owner(
    state: &mut State<'_>,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Explained, Unknown> {
    let pod = state.pod_of(namespace, kind, name);
    let Some(pod) = pod.map(|pod| pod.name.clone()) else {
        let [name, namespace] = [name, namespace].map(words::clean);
        return Err(match &state.objects.pods.hidden {
            Some(why) => Unknown::Hidden(why.clone()),
            None => Unknown::Empty(kind.to_owned(), name, namespace),
        });
    };
    explain(state, namespace, &pod)
}

/// Returns what is known of a pod in each state.
fn about(state: &State<'_>, pod: &Pod<'_>) -> Explained {
    let json = |key| {
        let text = pod::metadata(pod.value, "annotations", key).and_then(Value::as_str);
        text.and_then(|text| serde_json::from_str::<Value>(text).ok())
    };
    let member = pod.member.as_ref();
    Explained {
        time: words::stamp(state.now),
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        class: pod.class().map(str::to_owned),
        project: pod.class().map(|_| pod.project.clone()),
        gpus: pod.gpus,
        scope: member.map(|member| member.scope.to_string()),
        pattern: member.map(|member| member.pattern.to_string()),
        gang: gang(state, pod),
        decision: json(labels::DECISION),
        placement: pod.placement(),
        devices: devices(state, pod),
        notes: state.notes.clone(),
        ..Explained::default()
    }
}

fn devices(state: &State<'_>, pod: &Pod<'_>) -> Option<Devices> {
    let holds = pod.gpus > 0 && pod.life.is_live();
    let class = state.class(pod.class().filter(|_| holds)?)?;
    Some(class.mapping.into())
}

fn gang(state: &State<'_>, pod: &Pod<'_>) -> Option<Gang> {
    let own = pod.member.as_ref()?.gang.as_ref()?;
    let job = pod.job();
    let pods = state
        .pods
        .values()
        .filter(|other| other.life.is_live() && other.job() == job);
    let members: Vec<_> = pods.filter_map(|pod| pod.member.as_ref()).collect();
    let whole = nvlink_queue::assemble(&members);
    let doubts = whole.doubts.iter().map(ToString::to_string);
    Some(Gang {
        name: own.name.clone(),
        size: own.size,
        pods: members.len(),
        scope: pod.member.as_ref()?.gang_scope.to_string(),
        rank: own.rank,
        doubts: doubts.chain(hardware(state, pod)).collect(),
    })
}

/// Returns that the nodes of its class can never hold a gang, which the queue says of those that
/// wait there, or that its pods communicate over the network where one pod would not.
fn hardware(state: &State<'_>, pod: &Pod<'_>) -> Option<String> {
    let member = pod.member.as_ref()?;
    let class = state.class(pod.class()?)?;
    let nodes = || {
        let nodes = state.nodes.values();
        nodes.filter(|node| node.classes.contains(&class.name))
    };
    nodes().next()?;
    let queued = class.queue.is_some();
    let kept = queued || pod::metadata(pod.value, "labels", labels::GANG).is_some();
    let pods = Together {
        class,
        pods: member.gang.as_ref()?.size,
        gpus: member.gpus,
        pattern: member.pattern,
        scope: kept.then_some(member.gang_scope),
        queued,
    };
    let room = GangRoom::of(nodes().map(|node| node.whole(class)), member.gpus);
    let never = pods.never(&room).filter(|_| !pods.queued);
    never.or_else(|| pods.apart(&room))
}

/// Explains a job that waits.
fn wait(state: &mut State<'_>, id: &Name, this: &mut Explained) {
    this.state = "waiting";
    let now = state.now;
    let known = state.plan.as_mut().and_then(|plan| {
        let job = plan.planner.waiting(id)?.clone();
        Some((job, plan.planner.explain(id, now)))
    });
    let class = this.class.clone().unwrap_or_default();
    let Some((job, explanation)) = known else {
        told(state, this);
        return;
    };
    this.waited_seconds = Some((now - job.created).max(0) / 1000);
    this.deadline = job.deadline.map(DeadlineRow::from);
    let Some(explanation) = explanation else {
        acts(state, id, &job, this);
        return;
    };
    let waiting = &explanation.waiting;
    this.position = Some(waiting.class_position);
    if is_refused(state, &job, this) {
        return;
    }
    let plan = state.plan.as_ref();
    this.reason = plan.map(|plan| plan.word(waiting).to_owned());
    this.messages = state
        .plan
        .iter()
        .map(|plan| plan.why(waiting, &job))
        .collect();
    this.summary = format!(
        "waits in the queue of class {class}: position {}",
        waiting.class_position
    );
    let eta = waiting.eta;
    this.eta = eta.map(|eta| EtaRow::new(eta.mean, Some(eta.upper), eta.at_least));
    this.before = explanation.before.iter().map(ToString::to_string).collect();
    expect(state, &job, &explanation, this);
    consider(state, &job, &explanation, this);
    // Nothing helps a gang whose pods do not exist.
    this.help = job.complete.then(|| help::find(state, id, &job, eta));
}

impl From<Deadline> for DeadlineRow {
    fn from(deadline: Deadline) -> Self {
        Self {
            at: words::stamp(deadline.at),
            millis: deadline.at,
            then: match deadline.then {
                OnTimeout::Reject => "Reject",
                OnTimeout::Spread => "Spread",
            },
        }
    }
}

/// Says what the leader wrote into a pod.
fn told(state: &State<'_>, this: &mut Explained) {
    let Some(pod) = state.pod(&this.namespace, &this.pod) else {
        return;
    };
    let row = state.told_row(pod);
    this.waited_seconds = row.waited_seconds;
    this.position = row.position;
    this.eta = row.eta;
    this.reason = Some(row.reason).filter(|word| word != "-");
    this.messages = vec![row.message];
    let class = this.class.as_deref().unwrap_or_default();
    this.summary = match row.position {
        Some(position) => format!("waits in the queue of class {class}: position {position}"),
        None => format!("waits in the queue of class {class}"),
    };
    this.deadline = row.deadline;
}

/// Says why the leader could not start a job that had its turn, and whether that is so.
fn is_refused(state: &State<'_>, job: &Job, this: &mut Explained) -> bool {
    let Some(why) = state.refused(job) else {
        return false;
    };
    this.reason = Some(REFUSED.to_owned());
    this.summary = "waits although it had its turn".to_owned();
    this.messages = vec![why.to_owned()];
    true
}

/// Says what the queue does now with a job that does not wait any more.
fn acts(state: &State<'_>, id: &Name, job: &Job, this: &mut Explained) {
    let actions = state.plan.iter().flat_map(|plan| &plan.round.actions);
    for action in actions {
        match action {
            Action::Release(release) if release.job == *id => {
                if is_refused(state, job, this) {
                    return;
                }
                this.reason = Some("Starting".to_owned());
                this.summary = "starts now".to_owned();
                let nodes = release.seats.iter().filter_map(|seat| seat.node.as_deref());
                let nodes: std::collections::BTreeSet<&str> = nodes.collect();
                let nodes: Vec<&str> = nodes.into_iter().collect();
                this.messages = vec![format!(
                    "its GPUs on {} are free: {}",
                    nodes.join(", "),
                    words::why(&release.why)
                )];
            }
            Action::Reject(reject) if reject.job == *id => {
                this.reason = Some("Timeout".to_owned());
                this.summary = "is rejected now".to_owned();
                this.messages = vec!["its time in the queue is over".to_owned()];
            }
            _ => {}
        }
    }
    if this.summary.is_empty() {
        this.summary = "waits in the queue".to_owned();
        this.messages = vec!["the queue does not take it: its class does not queue, or other pods of its gang block it".to_owned()];
    } else {
        this.messages.push(
            "if it does not go on within seconds, no replica of nvlink-webhook leads: see its logs"
                .to_owned(),
        );
    }
}

/// Says on what the start of a job depends.
fn expect(state: &State<'_>, job: &Job, explanation: &Explanation, this: &mut Explained) {
    this.expected_on = explanation
        .seats
        .iter()
        .map(|seat| SeatRow {
            pod: seat.pod.to_string(),
            node: seat.node.as_deref().map(str::to_owned),
            gpus: seat.gpus.clone(),
        })
        .collect();
    for holder in &explanation.holders {
        let gpus = u32::try_from(holder.gpus.len()).unwrap_or(0);
        let row = state.holder_row(&holder.pod, gpus, Some(job.priority));
        this.eta_from.push(match (row.until, &row.ends_by) {
            (Some(until), Some(by)) => {
                let ends = words::moment(until, state.now);
                format!("{} ends {ends}, by {by}", row.pod)
            }
            _ => format!(
                "{} has no known end: no expected-duration, time limit or past runs",
                row.pod
            ),
        });
    }
}

/// Lists the domains that could hold a job.
fn consider(state: &State<'_>, job: &Job, explanation: &Explanation, this: &mut Explained) {
    let asked = job.members.iter().map(|member| member.gpus);
    let asked: u32 = if job.members.len() == 1 {
        asked.sum()
    } else {
        asked.max().unwrap_or(1)
    };
    let here = |node: &str, gpus: &[u32]| {
        explanation.seats.iter().any(|seat| {
            seat.node.as_deref() == Some(node) && seat.gpus.iter().any(|gpu| gpus.contains(gpu))
        })
    };
    let sets = Sets::of_job(job);
    let nodes = state.nodes.iter();
    let nodes = nodes.filter(|(_, node)| node.room.as_ref().is_some_and(|room| room.is_for(job)));
    let mut rows: Vec<(bool, DomainRow)> = nodes
        .flat_map(|(name, node)| node.domains.iter().map(move |domain| (name, node, domain)))
        .filter(|(_, _, domain)| {
            let size = u32::try_from(domain.gpus.len()).unwrap_or(u32::MAX);
            let inside = !domain.id.is_empty() && (size >= asked || domain.fabric.is_some());
            inside || job.scope > Scope::NvlinkDomain || asked == 1
        })
        .map(|(name, node, domain)| {
            let row = state.domain_row(name, (node, domain), &sets, Some(job.priority));
            (here(name, &domain.gpus), row)
        })
        .collect();
    let holders = rows.iter().flat_map(|(_, row)| &row.held_by);
    let mut lower: Vec<HolderRow> = holders.filter(|one| one.lower_priority).cloned().collect();
    lower.sort_by(|a, b| (b.gpus, &a.pod).cmp(&(a.gpus, &b.pod)));
    lower.truncate(DOMAINS);
    this.lower_priority = lower;
    rows.sort_by_key(|(here, row)| {
        let free = std::cmp::Reverse(row.free.unwrap_or(0));
        (!here, free, row.node.clone(), row.domain.clone())
    });
    this.more_domains = rows.len().saturating_sub(DOMAINS);
    this.domains = rows.into_iter().take(DOMAINS).map(|(_, row)| row).collect();
}
