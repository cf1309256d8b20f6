//! The cluster as the page shows it: groups of nodes, who holds what, what still fits.
//! Pure: from the state of the mirror to values that rendering needs.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use nvlink_cluster::{
    gpus::{Holding, Node, Published, id},
    mirror::{Pod, State},
};
use nvlink_topology::{Fabric, Interconnect, Tray, labels, tray};
use serde::Serialize;

use super::{order, queue::Queue, siblings};

/// Placements below this share of the best need attention, as on the exporter's page.
pub(super) const POOR: f64 = 0.7;

/// The whole cluster at one point in time.
#[derive(Debug)]
pub struct Board {
    pub(super) groups: Vec<Group>,
    pub(super) totals: Totals,
    /// The pods that wait in the queue.
    pub(super) queue: Queue,
    /// How old the nodes are; `None` if they have not all been read yet.
    pub(super) age: Option<Duration>,
    /// Whether classes and projects of pods are known and current.
    pub(super) knows_pods: bool,
}

/// Nodes of one fabric, or nodes of the same hardware.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) kind: Kind,
    pub(super) rows: Vec<Row>,
    pub(super) totals: Totals,
    /// The number of GPUs of the whole fabric, if the label of a node says it.
    pub(super) expected: Option<usize>,
    /// The trays of the rack that no node reports, ascending, as far as known.
    pub(super) away: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A domain that spans nodes.
    Fabric(Fabric),
    /// Nodes whose domains end at the node, by model and interconnect.
    Hardware(String, Option<Interconnect>),
    /// Nodes whose NodeTopology cannot be parsed.
    Unreadable,
}

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) published: Arc<Published>,
    /// What it published before, if what it publishes now cannot be used.
    pub(super) earlier: Option<Arc<Published>>,
    pub(super) place: Place,
    pub(super) jobs: Vec<Job>,
    /// The GPUs that nobody holds, ascending; `None` if it is not known who holds them.
    open: Option<Vec<u32>>,
    /// The number of GPUs that the other nodes of the group have, if it has fewer.
    pub(super) usual: Option<usize>,
}

/// Where a node is, by its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub rack: Option<String>,
    pub zone: Option<String>,
    /// What its label says of how many GPUs its fabric has ([`labels::FABRIC_GPUS`]).
    pub fabric_gpus: Option<String>,
}

impl Place {
    /// Returns how many GPUs its fabric has; an error is a label that says no number.
    fn fabric_gpus(&self) -> Option<Result<usize, &str>> {
        let text = self.fabric_gpus.as_deref()?;
        let gpus = labels::fabric_gpus(text).and_then(|gpus| usize::try_from(gpus).ok());
        Some(gpus.ok_or(text))
    }
}

/// A container that holds GPUs: the allocation of the same number, judged.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    /// Best possible cost on the empty node over the cost; `None` if it is not known.
    pub(super) quality: Option<f64>,
    pub(super) pod: Option<Arc<Pod>>,
    /// Its pod has ended, which its exporter does not report yet: it holds nothing.
    over: bool,
}

impl PartialEq for Row {
    /// What a node published is compared by identity: it is replaced when it changes.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.published, &other.published)
            && self.jobs == other.jobs
            && self.open == other.open
            && self.place == other.place
            && self.usual == other.usual
            && self.name == other.name
    }
}

/// Sums over nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Totals {
    pub(super) nodes: usize,
    pub(super) gpus: usize,
    pub(super) free: usize,
    /// GPUs of which it is not known whether they are free.
    pub(super) unknown: usize,
    /// By size, the number of nodes with so many free GPUs in one domain, and not more.
    pub(super) largest_free_sets: BTreeMap<usize, usize>,
    /// GPUs of the largest domain of a node.
    pub(super) largest_domain: usize,
    /// Nodes with missing links, with GPUs that are marked as broken or lost, or without some of
    /// their GPUs.
    pub(super) broken_nodes: usize,
    pub(super) unreadable: usize,
    pub(super) poor_placements: usize,
}

impl Board {
    /// Returns the board of `state` at `now`; `place` returns where a node is.
    #[must_use]
    pub fn new(state: &State, place: impl Fn(&str) -> Place, now: Instant) -> Self {
        let mut groups: BTreeMap<Kind, Vec<Row>> = BTreeMap::new();
        for (name, published) in state.gpus.topologies() {
            let row = Row {
                name: name.to_string(),
                published: Arc::clone(published),
                earlier: state.gpus.earlier(name).cloned(),
                open: state.occupancy(name).and_then(|seen| seen.free),
                place: place(name),
                jobs: jobs(name, published, state),
                usual: None,
            };
            groups.entry(Kind::of(published)).or_default().push(row);
        }
        let mut totals = Totals::default();
        let seen: HashSet<Tray> = groups
            .values()
            .flatten()
            .filter_map(Row::any_tray)
            .collect();
        let groups = groups.into_iter();
        let groups: Vec<Group> = groups
            .map(|(kind, rows)| Group::new(kind, rows, &seen))
            .collect();
        groups.iter().for_each(|group| totals.join(&group.totals));
        Self {
            groups,
            totals,
            queue: Queue::new(state),
            age: state.topologies.age(now),
            knows_pods: state.of_pods.age(now) == Some(Duration::ZERO),
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.groups.iter().flat_map(|group| &group.rows)
    }

    /// Returns a node by name.
    pub(super) fn row(&self, name: &str) -> Option<&Row> {
        self.rows().find(|row| row.name == name)
    }
}

/// Compares the numbers of GPUs of nodes that are siblings.
fn compare(rows: &mut [Row]) {
    let gpus = |row: &Row| row.node().map(|node| node.gpus.len());
    let usual = siblings::usual(rows.iter().filter_map(gpus));
    for row in rows {
        let gpus = gpus(row);
        row.usual = usual.filter(|&usual| gpus.is_some_and(|gpus| siblings::lacks(gpus, usual)));
    }
}

fn jobs(node: &str, published: &Published, state: &State) -> Vec<Job> {
    let Ok(known) = published else {
        return Vec::new();
    };
    let held = known.allocations.iter().flatten();
    let job = held.map(|one| {
        let holding = Holding {
            id: id(&one.namespace, &one.pod),
            uid: one.pod_uid.clone(),
        };
        let pod = state.said(node, &holding);
        let pod = pod.filter(|pod| pod.class.is_some()).cloned();
        let pattern = pod.as_ref().and_then(|pod| pod.pattern);
        Job {
            over: state.is_over(node, &holding),
            quality: known
                .hardware
                .quality(&one.gpus, pattern.unwrap_or_default()),
            pod,
        }
    });
    job.collect()
}

impl Group {
    /// Returns a group; the rows of a rack are in the order of its trays, others in that of their names.
    /// Trays that are `seen` on any node, such as one whose GPUs left the fabric, are not away.
    fn new(kind: Kind, mut rows: Vec<Row>, seen: &HashSet<Tray>) -> Self {
        let place = |row: &Row| row.tray().map(|tray| (tray.chassis.clone(), tray.index));
        rows.sort_by(|a, b| order::natural(&a.name, &b.name));
        rows.sort_by_cached_key(place);
        compare(&mut rows);
        let mut totals = Totals::default();
        rows.iter().for_each(|row| totals.add(row));
        let expected = rows.iter().filter_map(|row| row.place.fabric_gpus()?.ok());
        let mut group = Self {
            expected: expected.max().filter(|_| matches!(kind, Kind::Fabric(_))),
            kind,
            rows,
            totals,
            away: Vec::new(),
        };
        let trays = group.rows.iter().map(Row::tray);
        let away = group.expected_nodes().map(|nodes| tray::away(trays, nodes));
        let chassis = group.rows.first().and_then(Row::tray);
        let chassis = chassis.map(|tray| tray.chassis.as_str());
        let elsewhere = seen.iter().filter(|tray| Some(&*tray.chassis) == chassis);
        let elsewhere: BTreeSet<u8> = elsewhere.map(|tray| tray.index).collect();
        group.away = away.flatten().unwrap_or_default();
        group.away.retain(|index| !elsewhere.contains(index));
        group
    }

    /// Returns the rows, and the numbers of the trays that are away, in the order of the rack.
    pub(super) fn places(&self) -> Vec<Result<&Row, u8>> {
        let away = self.away.iter().map(|&tray| Err(tray));
        let mut places: Vec<Result<&Row, u8>> = self.rows.iter().map(Ok).chain(away).collect();
        // Only where all rows are of one chassis is it known what is away.
        if !self.away.is_empty() {
            places.sort_by_key(|place| match place {
                Ok(row) => row.tray().map(|tray| tray.index),
                Err(tray) => Some(*tray),
            });
        }
        places
    }

    /// Returns the number of GPUs of the whole fabric, if it has fewer.
    pub(super) fn incomplete(&self) -> Option<usize> {
        self.expected
            .filter(|&expected| self.totals.gpus < expected)
    }

    /// Returns the number of nodes of the whole fabric, if all have as many GPUs as the largest.
    pub(super) fn expected_nodes(&self) -> Option<usize> {
        let nodes = self.rows.iter().filter_map(Row::node);
        let whole = nodes.map(|node| node.gpus.len() + node.lost.len() + node.missing);
        let most = whole.max()?;
        let expected = self.expected?;
        (expected.checked_rem(most) == Some(0)).then_some(expected / most)
    }
}

impl Kind {
    fn of(published: &Published) -> Self {
        let Ok(node) = published else {
            return Self::Unreadable;
        };
        match node.domains.iter().find_map(|one| one.fabric.clone()) {
            Some(fabric) => Self::Fabric(fabric),
            None => Self::Hardware(node.models().join(" + "), node.interconnect),
        }
    }

    /// Returns the title of the group.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Fabric(fabric) => format!(
                "NVLink fabric {}, clique {}",
                fabric.cluster_uuid, fabric.clique
            ),
            Self::Hardware(model, interconnect) => {
                let model = match model.as_str() {
                    "" => "GPUs of unknown model",
                    model => model,
                };
                let how = match interconnect {
                    Some(Interconnect::Nvswitch) => "NVSwitch",
                    Some(Interconnect::Nvlink) => "direct NVLink",
                    Some(Interconnect::Pcie) => "no NVLink",
                    None => "NVLink not known",
                };
                format!("{model}, {how}")
            }
            Self::Unreadable => "Nodes whose NodeTopology cannot be shown".to_owned(),
        }
    }
}

impl Row {
    /// Returns the GPUs that nobody holds and that are not marked as broken, ascending; `None` if it
    /// is not known who holds them.
    pub(super) fn free(&self) -> Option<Vec<u32>> {
        Some(self.node()?.healthy(self.open.as_ref()?))
    }

    /// Reports whether it is known that nobody holds a GPU.
    pub(super) fn is_open(&self, gpu: u32) -> bool {
        self.open.as_ref().is_some_and(|open| open.contains(&gpu))
    }

    /// Returns the highest number of free GPUs in one domain, as far as known.
    pub(super) fn largest_free_set(&self) -> Option<usize> {
        Some(self.node()?.largest_set(&self.free()?))
    }

    /// Returns its place in the rack, if its driver reports it.
    pub(super) fn tray(&self) -> Option<&Tray> {
        self.node()?.tray.as_ref()
    }

    /// The same, also of what it published before what cannot be used.
    fn any_tray(&self) -> Option<Tray> {
        let earlier = self.earlier.as_deref().and_then(|one| one.as_ref().ok());
        self.node().or(earlier)?.tray.clone()
    }

    pub(super) fn node(&self) -> Option<&Node> {
        self.published.as_ref().as_ref().ok()
    }

    /// Returns the numbers of the jobs that hold a GPU.
    pub(super) fn holders(&self, gpu: u32) -> impl Iterator<Item = usize> {
        let held = self.node().and_then(|node| node.allocations.as_ref());
        let held = held.into_iter().flatten().enumerate();
        let held = held.filter(move |(_, one)| one.gpus.contains(&gpu));
        held.map(|(n, _)| n)
            .filter(|n| self.jobs.get(*n).is_some_and(|job| !job.over))
    }

    /// Returns the jobs below [`POOR`].
    pub(super) fn poor(&self) -> impl Iterator<Item = (usize, f64)> {
        let jobs = self.jobs.iter().enumerate();
        jobs.filter_map(|(n, job)| Some((n, job.quality.filter(|&one| one < POOR)?)))
    }

    /// Returns the GPUs that are broken, by what is broken.
    pub(super) fn broken(&self) -> BTreeMap<String, Vec<u32>> {
        let mut broken: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let Some(node) = self.node() else {
            return broken;
        };
        for gpu in &node.gpus {
            for words in gpu.broken() {
                broken.entry(words).or_default().push(gpu.index);
            }
        }
        for lost in &node.lost {
            broken
                .entry("lost".to_owned())
                .or_default()
                .push(lost.index);
        }
        broken
    }
}

impl Row {
    /// Returns its label of the size of its fabric, if that says no number.
    pub(super) fn unclear_size(&self) -> Option<&str> {
        self.place.fabric_gpus()?.err()
    }

    /// Returns in words which GPUs the node lacks by its board, or by its siblings.
    pub(super) fn lacking(&self) -> Option<String> {
        let node = self.node()?;
        let there = node.gpus.len();
        match (node.missing, self.usual) {
            (0, None) => None,
            (0, Some(usual)) => Some(format!("{there} of {} as on its siblings", gpus(usual))),
            (missing, _) => Some(format!("{there} of {} of its board", gpus(there + missing))),
        }
    }
}

fn gpus(number: usize) -> String {
    nvlink_runtime::words::count(number, "GPU")
}

impl Totals {
    fn add(&mut self, row: &Row) {
        self.nodes += 1;
        let Some(node) = row.node() else {
            self.unreadable += 1;
            return;
        };
        self.gpus += node.gpus.len();
        match row.free() {
            Some(free) => self.free += free.len(),
            None => self.unknown += node.gpus.len(),
        }
        if let Some(most) = row.largest_free_set().filter(|&most| most > 0) {
            *self.largest_free_sets.entry(most).or_default() += 1;
        }
        self.largest_domain = self.largest_domain.max(node.largest_domain());
        let broken = !row.broken().is_empty() || row.lacking().is_some();
        self.broken_nodes += usize::from(broken);
        self.poor_placements += row.poor().count();
    }

    fn join(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.gpus += other.gpus;
        self.free += other.free;
        self.unknown += other.unknown;
        for (size, nodes) in &other.largest_free_sets {
            *self.largest_free_sets.entry(*size).or_default() += nodes;
        }
        self.largest_domain = self.largest_domain.max(other.largest_domain);
        self.broken_nodes += other.broken_nodes;
        self.unreadable += other.unreadable;
        self.poor_placements += other.poor_placements;
    }

    /// Returns the number of nodes that can hold a job of `gpus` GPUs in one domain.
    pub(super) fn holding(&self, gpus: usize) -> usize {
        self.largest_free_sets.range(gpus..).map(|(_, n)| n).sum()
    }

    /// Returns the sizes of jobs worth a line, largest first: the largest domain, and
    /// powers of two below it.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let powers = std::iter::successors(Some(1_usize), |size| size.checked_mul(2));
        let mut sizes: BTreeSet<usize> = powers.take_while(|&n| n <= self.largest_domain).collect();
        if self.largest_domain > 0 {
            sizes.insert(self.largest_domain);
        }
        sizes.into_iter().rev().collect()
    }
}
