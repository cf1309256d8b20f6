//! Graphs, and answers about them. Nodes with the same graph share one, and each question
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
pub struct Hardware {
    graph: Option<Graph>,
    known: Mutex<HashMap<Question, Option<f64>>>,
}

/// The GPUs that a container holds, and the pattern of its job.
type Question = (Vec<u32>, Pattern);

impl Hardware {
    /// Returns the graph; `None` if the source does not see NVLink: a job would look worse
    /// than it is.
    #[must_use]
    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    /// Returns the best possible cost on the empty node divided by the cost on `gpus`, in
    /// (0, 1]; `None` if the graph does not tell. A pattern for another number of GPUs (the
    /// shape of a gang) counts as all-reduce, as it does in the exporter.
    #[must_use]
    pub fn quality(&self, gpus: &[u32], pattern: Pattern) -> Option<f64> {
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
pub(super) struct Hardwares(Vec<Weak<Hardware>>);

impl Hardwares {
    /// Returns the hardware of a node.
    pub(super) fn of(&mut self, spec: &NodeTopologySpec) -> Arc<Hardware> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns four GPUs of which `a` and 2 to 3 are bridged by four links.
    fn spec(node: &str, a: (u32, u32)) -> NodeTopologySpec {
        let gpus: Vec<_> = (0..4).map(|index| json!({ "index": index })).collect();
        let edge = |(a, b): (u32, u32)| json!({"a": a, "b": b, "via": "direct", "links": 4, "bytesPerSecond": 50_000_000_000_u64});
        let spec =
            json!({"source": {"kind": "file"}, "gpus": gpus, "edges": [edge(a), edge((2, 3))]});
        let mut spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
        spec.complete(node).unwrap();
        spec
    }

    #[test]
    fn nodes_with_the_same_graph_share_it_and_its_answers() {
        let mut hardwares = Hardwares::default();
        let first = hardwares.of(&spec("n1", (0, 1)));
        let second = hardwares.of(&spec("n2", (0, 1)));
        assert!(Arc::ptr_eq(&first, &second));
        let other = hardwares.of(&spec("n3", (1, 2)));
        assert!(!Arc::ptr_eq(&first, &other));
        let all_reduce = Pattern::default();
        assert_eq!(first.quality(&[0, 1], all_reduce), Some(1.0));
        let across = first.quality(&[1, 2], all_reduce).unwrap();
        assert!(across < 0.7, "{across}");
        let shape = "tp=8".parse().unwrap();
        assert_eq!(first.quality(&[1, 2], shape), Some(across), "of a gang");
        assert_eq!(second.known().len(), 3);
        assert_eq!(first.quality(&[9], all_reduce), None);
        drop((first, second));
        hardwares.of(&spec("n4", (1, 2)));
        assert_eq!(hardwares.0.len(), 1, "the graph of no node is forgotten");
    }

    #[test]
    fn without_known_links_nothing_is_judged() {
        let spec = json!({"source": {"kind": "sysfs"}, "gpus": [{"index": 0}, {"index": 1}]});
        let spec = serde_json::from_value(spec).unwrap();
        let hardware = Hardwares::default().of(&spec);
        assert_eq!(hardware.quality(&[0, 1], Pattern::default()), None);
    }
}
