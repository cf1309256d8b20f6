//! The cluster of a simulation: nodes of known hardware.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use nvlink_planner::Name;
use nvlink_topology::{
    Fabric, Graph, Interconnect, Invalid,
    descriptor::Capacity,
    multi_node,
    profile::{self, Profile},
};

use crate::trace::Job;

/// The most nodes of a cluster.
const MOST_NODES: u32 = 10_000;
/// Compute trays of a rack of GB200 NVL72: 18 × 4 GPUs share one NVLink fabric.
const TRAYS: u32 = 18;

/// How many nodes of which profile, as in `dgx-h100=4,a100-pcie-pairs=8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec(Vec<(&'static Profile, u32)>);

/// Why a text describes no cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCluster {
    /// A part is not `PROFILE=COUNT`.
    #[error("{0:?} is not PROFILE=COUNT: use for example dgx-h100=4,a100-pcie-pairs=8")]
    Syntax(String),
    /// There is no such profile.
    #[error("unknown profile {name:?}: use {known}", known = profile::names().join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A profile is named twice.
    #[error("{0} is there twice: add up the counts")]
    Twice(&'static str),
    /// Too many nodes.
    #[error("more than {MOST_NODES} nodes")]
    TooMany,
}

impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self
            .0
            .iter()
            .map(|(profile, count)| format!("{}={count}", profile.name));
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for ClusterSpec {
    type Err = BadCluster;

    fn from_str(text: &str) -> Result<Self, BadCluster> {
        let mut spec: Vec<(&'static Profile, u32)> = Vec::new();
        for part in text.split(',') {
            let syntax = || BadCluster::Syntax(part.chars().take(64).collect());
            let (name, count) = part.split_once('=').ok_or_else(syntax)?;
            let (name, count) = (name.trim(), count.trim());
            let profile = profile::profile(name).ok_or_else(|| BadCluster::Unknown {
                name: name.chars().take(64).collect(),
            })?;
            let count = count.parse().ok().filter(|&count: &u32| count > 0);
            let count = count.ok_or_else(syntax)?;
            if spec.iter().any(|(known, _)| known.name == profile.name) {
                return Err(BadCluster::Twice(profile.name));
            }
            spec.push((profile, count));
        }
        let nodes = spec
            .iter()
            .try_fold(0_u32, |sum, (_, count)| sum.checked_add(*count));
        match nodes {
            Some(nodes) if nodes <= MOST_NODES => Ok(Self(spec)),
            _ => Err(BadCluster::TooMany),
        }
    }
}

/// The nodes of a simulation.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub(crate) spec: ClusterSpec,
    /// The hardware of the nodes.
    pub(crate) kinds: Vec<Kind>,
    /// The nodes.
    pub(crate) nodes: Vec<Node>,
    largest_domain: usize,
}

/// The hardware of a node.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) graph: Arc<Graph>,
    pub(crate) interconnect: Interconnect,
    pub(crate) network: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Name,
    /// Its position in [`Cluster::kinds`].
    pub(crate) kind: usize,
    pub(crate) fabric: Option<Fabric>,
}

/// What a job asks for in terms of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Demand {
    pub(crate) pods: u32,
    /// GPUs of each pod.
    pub(crate) gpus: u32,
}

impl Cluster {
    /// Builds the nodes. All of them are in one zone, and none names a rack.
    ///
    /// # Errors
    /// Never for the profiles of [`profile::profiles`].
    pub fn new(spec: &ClusterSpec) -> Result<Self, Invalid> {
        let mut cluster = Self {
            spec: spec.clone(),
            kinds: Vec::new(),
            nodes: Vec::new(),
            largest_domain: 1,
        };
        for &(profile, count) in &spec.0 {
            let kind = cluster.kinds.len();
            let document = profile.node(profile.name)?.spec;
            cluster.kinds.push(Kind {
                graph: Arc::new(Graph::new(&document)?),
                interconnect: document.interconnect().unwrap_or(Interconnect::Pcie),
                network: Capacity::of(&document).inter_node,
            });
            let width = (count - 1).to_string().len();
            let fabric = document.domains.iter().find_map(|one| one.fabric.clone());
            for number in 0..count {
                // The profile names one rack; further nodes are in further racks.
                let fabric = fabric.clone().map(|fabric| Fabric {
                    clique: fabric.clique + number / TRAYS,
                    ..fabric
                });
                cluster.nodes.push(Node {
                    name: format!("{}-{number:0width$}", profile.name).into(),
                    kind,
                    fabric,
                });
            }
        }
        cluster.largest_domain = cluster.largest_domain();
        Ok(cluster)
    }

    fn largest_domain(&self) -> usize {
        let domains = self.kinds.iter().flat_map(|kind| kind.graph.domains());
        let within = domains.map(|(_, gpus)| gpus.len()).max().unwrap_or(1);
        let mut fabrics: BTreeMap<String, usize> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(fabric) = &node.fabric {
                *fabrics.entry(fabric.id()).or_default() += self.graph(at).len();
            }
        }
        fabrics.into_values().max().unwrap_or(1).max(within)
    }

    pub(crate) fn graph(&self, node: usize) -> &Graph {
        &self.kinds[self.nodes[node].kind].graph
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of GPUs.
    #[must_use]
    pub fn gpus(&self) -> usize {
        (0..self.nodes.len())
            .map(|node| self.graph(node).len())
            .sum()
    }

    /// Reports whether some NVLink domain has this many GPUs.
    pub(crate) fn has_domain_of(&self, gpus: u32) -> bool {
        gpus as usize <= self.largest_domain
    }

    /// Returns the pods of a job: one if a node can hold it, else the fewest equal ones
    /// that the empty cluster can hold. `None` if it cannot hold the job.
    pub(crate) fn demand(&self, job: &Job) -> Option<Demand> {
        let held = |gpus: u32| -> usize {
            let sizes = (0..self.nodes.len()).map(|node| self.graph(node).len());
            sizes.map(|size| size / gpus as usize).sum()
        };
        if job.gpus as usize > self.gpus() {
            return None;
        }
        let pods = (1..=job.gpus).filter(|pods| job.gpus.is_multiple_of(*pods));
        let mut demands = pods.map(|pods| Demand {
            pods,
            gpus: job.gpus / pods,
        });
        demands.find(|demand| held(demand.gpus) >= demand.pods as usize)
    }

    /// Returns the empty nodes as the search for gangs sees them.
    pub(crate) fn candidates(&self) -> Vec<multi_node::Node<'_>> {
        let mut candidates = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let kind = &self.kinds[node.kind];
            candidates.push(multi_node::Node {
                name: &node.name,
                graph: &kind.graph,
                free: kind.graph.all(),
                interconnect: kind.interconnect,
                fabric: node.fabric.as_ref(),
                rack: None,
                zone: Some(ZONE),
                network_bytes_per_second: kind.network,
                slow: false,
            });
        }
        candidates
    }
}

/// The zone of all nodes.
pub(crate) const ZONE: &str = "zone";
