//! The quality of placements. Nodes with the same graph share one, and each question
//! about it is answered once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use nvlink_topology::{Graph, NodeTopologySpec, Pattern, search};

/// How many answers a graph keeps: more than the sets of GPUs that can be held on a node
/// of 8, so that only large nodes are asked again.
const KEPT: usize = 4096;

/// The graph of a node, and what was asked about it.
#[derive(Debug)]
pub(super) struct Hardware {
    /// None if NVLink is not known: a job would look worse than it is.
    graph: Option<Graph>,
    known: Mutex<HashMap<Question, Option<f64>>>,
}

/// The GPUs that a container holds, and the pattern of its job.
type Question = (Vec<u32>, Pattern);

impl Hardware {
    /// Returns the best possible cost on the empty node divided by the cost on `gpus`, in
    /// (0, 1]; `None` if the graph does not tell. A pattern for another number of GPUs (the
    /// shape of a gang) counts as all-reduce, as it does in the exporter.
    pub(super) fn quality(&self, gpus: &[u32], pattern: Pattern) -> Option<f64> {
        let graph = self.graph.as_ref()?;
        let question = (gpus.to_vec(), pattern);
        if let Some(&answer) = self.known().get(&question) {
            return answer;
        }
        // Not under the lock: the search on a large node takes long.
        let held = graph.set(gpus).ok();
        let rate = |pattern| search::rate(graph, held?, graph.all(), pattern).ok();
        let rated = rate(pattern).or_else(|| rate(Pattern::default()));
        let answer = rated.map(|placement| placement.quality.node);
        let mut known = self.known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(question, answer);
        answer
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Question, Option<f64>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The graphs of all nodes, each kept once while a node has it.
#[derive(Debug, Default)]
pub(super) struct Judge(Vec<Weak<Hardware>>);

impl Judge {
    /// Returns the hardware of a node.
    pub(super) fn hardware(&mut self, spec: &NodeTopologySpec) -> Arc<Hardware> {
        let graph = spec.knows_nvlink().then(|| graph(spec)).flatten();
        self.0.retain(|one| one.strong_count() > 0);
        let mut all = self.0.iter().filter_map(Weak::upgrade);
        if let Some(same) = all.find(|one| one.graph == graph) {
            return same;
        }
        let new = Arc::new(Hardware {
            graph,
            known: Mutex::default(),
        });
        self.0.push(Arc::downgrade(&new));
        new
    }
}

/// Returns the graph, in which domains are numbered: their ids differ on each node.
fn graph(spec: &NodeTopologySpec) -> Option<Graph> {
    let mut spec = spec.clone();
    for (n, domain) in spec.domains.iter_mut().enumerate() {
        domain.id = n.to_string();
    }
    Graph::new(&spec).ok()
}
