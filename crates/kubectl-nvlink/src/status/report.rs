//! The report of `status`: classes, domains and the queue. Pure, and the same for people and
//! programs.

use std::collections::BTreeMap;

use nvlink_planner::{Millis, Name};
use serde::Serialize;

use super::{
    node::{Domain, Node, Sets},
    state::State,
    waiting::{ElsewhereRow, QueueRow},
    words,
};

/// What a report shows.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Show only the queue's pods of this namespace; `None`: of all.
    pub namespace: Option<String>,
    /// Show only this class.
    pub class: Option<String>,
    /// The most rows of each table; 0: all.
    pub limit: usize,
}

/// Classes, domains and the queue. A key that is not known is absent.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When the cluster was read.
    pub time: String,
    /// The namespace of the pods; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ClassRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domains: Option<Vec<DomainRow>>,
    /// Number of domains that the limit hides.
    pub more_domains: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Vec<QueueRow>>,
    /// Number of jobs that wait and that the limit hides.
    pub more_jobs: usize,
    /// Pods with GPUs that wait, but not in the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<ElsewhereRow>,
    /// Number of these pods that the limit hides.
    pub more_elsewhere: usize,
    /// What could not be read, and what is missing because of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A class.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassRow {
    pub name: String,
    /// Why the class cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// GPUs of its nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u32>,
    /// Jobs that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<usize>,
    /// GPUs that they ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_gpus: Option<u32>,
    /// The most GPUs that are free in one domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_free: Option<u32>,
    /// Why its pods get none of the GPUs of its nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_driver: Option<String>,
}

/// A domain on one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRow {
    pub node: String,
    /// Its id; absent for GPUs without NVLink between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The fabric, if the domain spans nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    pub gpus: usize,
    /// Absent if nobody reports who holds its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u32>,
    /// GPUs that no pod holds, and that no job can get.
    #[serde(skip_serializing_if = "is_zero")]
    pub unavailable: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub broken: u32,
    /// Whether no job may start on the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub out: bool,
    pub held_by: Vec<HolderRow>,
}

/// A pod that holds GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderRow {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// Number of GPUs in the domain.
    pub gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// When it is expected to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<String>,
    /// Where that comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<String>,
    /// Whether its priority is lower than that of the job that waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lower_priority: bool,
    #[serde(skip)]
    pub(super) until: Option<Millis>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Returns the report.
#[must_use]
pub fn status(state: &State<'_>, query: &Query) -> Status {
    let wanted = |class: &str| query.class.as_deref().is_none_or(|only| only == class);
    let all = state.rows();
    let classes = state.objects.classes.known().map(|_| {
        let names = state.classes.keys().filter(|name| wanted(name));
        names
            .map(|name| class_row(state, name, all.as_deref()))
            .collect()
    });
    let domains = state.objects.topologies.known().map(|_| {
        let nodes = state.nodes.iter().filter(|(_, node)| {
            query.class.is_none() || node.classes.iter().any(|class| wanted(class))
        });
        let rows = nodes
            .flat_map(|(name, node)| node.domains.iter().map(move |domain| (name, node, domain)));
        rows.collect::<Vec<_>>()
    });
    let queue = all.map(|rows| {
        let shown = |row: &QueueRow| {
            let only = query.namespace.as_deref();
            only.is_none_or(|only| only == row.namespace) && wanted(&row.class)
        };
        rows.into_iter().filter(shown).collect::<Vec<_>>()
    });
    let elsewhere = elsewhere(state, query);
    let limit = if query.limit == 0 {
        usize::MAX
    } else {
        query.limit
    };
    let more = |number: Option<usize>| number.unwrap_or(0).saturating_sub(limit);
    Status {
        time: words::stamp(state.now),
        namespace: query.namespace.clone(),
        classes,
        more_domains: more(domains.as_ref().map(Vec::len)),
        domains: domains.map(|rows| {
            let rows = rows.into_iter().take(limit);
            let row = |(name, node, domain): (&String, &Node, &Domain)| {
                let classes = node.classes.iter().filter(|class| wanted(class));
                let sets = Sets::of_any(classes.filter_map(|class| state.class(class)));
                state.domain_row(name, (node, domain), &sets, None)
            };
            rows.map(row).collect()
        }),
        more_jobs: more(queue.as_ref().map(Vec::len)),
        queue: queue.map(|rows| rows.into_iter().take(limit).collect()),
        more_elsewhere: elsewhere.len().saturating_sub(limit),
        elsewhere: elsewhere.into_iter().take(limit).collect(),
        notes: notes(state, query),
    }
}

/// Returns the pods that wait elsewhere and that the query asks for.
fn elsewhere(state: &State<'_>, query: &Query) -> Vec<ElsewhereRow> {
    let wanted = |class: &str| query.class.as_deref().is_none_or(|only| only == class);
    let rows = state.elsewhere().filter(|row| {
        let only = query.namespace.as_deref();
        let class = row.class.as_deref().map_or(query.class.is_none(), wanted);
        only.is_none_or(|only| only == row.namespace) && class
    });
    rows.collect()
}

/// Says what could not be read, and what is odd.
fn notes(state: &State<'_>, query: &Query) -> Vec<String> {
    let mut notes = state.notes.clone();
    notes.extend(unreadable(state));
    if let (Some(class), Some(known)) = (&query.class, state.objects.classes.known())
        && !known.keys().any(|(_, name)| name == class)
    {
        notes.push(format!(
            "class {class} does not exist: kubectl get domainclasses"
        ));
    }
    notes
}

/// Names the nodes whose NodeTopology cannot be used.
fn unreadable(state: &State<'_>) -> Option<String> {
    let mut odd = state
        .nodes
        .iter()
        .filter_map(|(name, node)| Some((name, node.unreadable()?)));
    let (name, why) = odd.next()?;
    let others = match odd.count() {
        0 => String::new(),
        others => format!(", nor those of {others} more nodes"),
    };
    Some(format!(
        "the NodeTopology of node {name} cannot be used ({why}){others}"
    ))
}

fn class_row(state: &State<'_>, name: &str, rows: Option<&[QueueRow]>) -> ClassRow {
    let class = state.classes.get(name);
    let nodes = || {
        let nodes = state.nodes.values();
        nodes.filter(|node| node.classes.iter().any(|one| one == name))
    };
    // Selectors match labels of Nodes.
    let known = state.objects.nodes.known().is_some();
    let topologies = state.objects.topologies.known().is_some();
    let known_pods = state.objects.namespace.is_none() && state.objects.pods.known().is_some();
    let waiting = rows.filter(|_| known_pods).map(|rows| {
        rows.iter()
            .filter(|row| row.class == name)
            .collect::<Vec<_>>()
    });
    let usable = class.and_then(|class| class.as_ref().ok());
    let sets = Sets::of_any(usable.into_iter());
    let mut together: BTreeMap<&str, u32> = BTreeMap::new();
    let mut largest = 0;
    for (node, domain) in nodes().flat_map(Node::each_domain) {
        let free = node.free_in(domain, &sets).unwrap_or(0);
        let free = match (&domain.fabric, domain.id.is_empty()) {
            (Some(fabric), _) => {
                let sum = together.entry(fabric).or_default();
                *sum += free;
                *sum
            }
            // A GPU without NVLink is a set of one.
            (None, true) => free.min(1),
            (None, false) => free,
        };
        largest = free.max(largest);
    }
    let plan = state.plan.as_ref();
    let no_driver = plan
        .zip(usable)
        .and_then(|(plan, class)| plan.lacks_driver(class));
    let can_get = |free: u32| if no_driver.is_some() { 0 } else { free };
    ClassRow {
        name: name.to_owned(),
        broken: class.and_then(|class| class.as_ref().err().cloned()),
        nodes: known.then(|| nodes().count()),
        gpus: known.then(|| nodes().map(|node| node.capacity).sum()),
        free: (known && (topologies || known_pods))
            .then(|| can_get(nodes().filter_map(|node| node.free(&sets)).sum())),
        waiting: waiting.as_ref().map(Vec::len),
        waiting_gpus: waiting.map(|rows| rows.iter().map(|row| row.gpus).sum()),
        largest_free: (known && topologies).then_some(can_get(largest)),
        no_driver,
    }
}

impl State<'_> {
    /// Returns the row of a domain. Its GPUs are free for jobs that use nodes in one of `sets`.
    /// `priority` is that of a job that waits for it.
    pub(super) fn domain_row(
        &self,
        name: &str,
        (node, domain): (&Node, &Domain),
        sets: &Sets,
        priority: Option<i32>,
    ) -> DomainRow {
        let holders = node
            .holders(domain)
            .map(|(pod, gpus)| self.holder_row(pod, gpus, priority));
        let mut held_by: Vec<HolderRow> = holders.collect();
        held_by.sort_by(|a, b| a.pod.cmp(&b.pod));
        let free = node.free_in(domain, sets);
        let held: u32 = held_by.iter().map(|one| one.gpus).sum();
        let all = u32::try_from(domain.gpus.len()).unwrap_or(u32::MAX);
        DomainRow {
            node: name.to_owned(),
            domain: Some(domain.id.clone()).filter(|id| !id.is_empty()),
            fabric: domain.fabric.clone(),
            gpus: domain.gpus.len(),
            free,
            unavailable: match (free, node.out) {
                (Some(free), false) => all.saturating_sub(free).saturating_sub(held),
                _ => 0,
            },
            broken: domain.broken,
            out: node.out,
            held_by,
        }
    }

    /// Returns a pod that holds GPUs.
    pub(super) fn holder_row(&self, id: &Name, gpus: u32, priority: Option<i32>) -> HolderRow {
        let pod = self.pods.get(id);
        let end = pod.and_then(|pod| pod.end);
        HolderRow {
            pod: id.to_string(),
            gpus,
            project: pod.map(|pod| pod.project.clone()),
            ends: end.map(|end| words::stamp(end.likely)),
            ends_by: end.map(|end| words::source(end.source)),
            lower_priority: pod
                .zip(priority)
                .is_some_and(|(pod, own)| pod.priority < own),
            until: end.map(|end| end.likely),
        }
    }
}
