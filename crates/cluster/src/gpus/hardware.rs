//! Graphs, and answers about them. Nodes with the same graph share one, and each question
//! about it is answered once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvlink_topology::{
    BrokenGpus, GpuSet, Graph, NodeTopologySpec, Pattern, Scope,
    memo::{Answer, Found, Look, Memo, Question},
};

/// How many answers a graph keeps, which bounds their memory to about 1.6 MB; beyond it, all are
/// found again.
const KEPT: usize = 4096;

/// The graph of a node, and what was asked about it.
#[derive(Debug)]
pub struct Hardware {
    graph: Option<Arc<Graph>>,
    memo: Mutex<Memo>,
}

/// The number of the one graph that a memo knows.
const ONLY: u32 = 0;

/// What a pod needs on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Number of GPUs.
    pub gpus: usize,
    /// The pattern of the communication between them.
    pub pattern: Pattern,
    /// How close they must be.
    pub scope: Scope,
    /// What happens with GPUs that are marked as broken.
    pub broken_gpus: BrokenGpus,
}

impl Hardware {
    /// Returns the graph; `None` if the source does not see NVLink: a job would look worse
    /// than it is.
    #[must_use]
    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_deref()
    }

    /// Returns a handle to the same graph.
    #[must_use]
    pub fn shared_graph(&self) -> Option<Arc<Graph>> {
        self.graph.clone()
    }

    /// Returns the best possible cost on the empty node divided by the cost on `gpus`, in
    /// (0, 1]; `None` if the graph does not tell. A pattern for another number of GPUs (the
    /// shape of a gang) counts as all-reduce, as it does in the exporter.
    #[must_use]
    pub fn quality(&self, gpus: &[u32], pattern: Pattern) -> Option<f64> {
        self.held(gpus, pattern).map(|found| found.quality)
    }

    /// Returns the cost of `gpus` in their best order, seconds per byte of payload; `None` if the
    /// graph does not tell. A pattern for another number of GPUs counts as all-reduce, as for
    /// [`Hardware::quality`].
    #[must_use]
    pub fn cost(&self, gpus: &[u32], pattern: Pattern) -> Option<f64> {
        self.held(gpus, pattern).map(|found| found.cost)
    }

    /// Returns the best order of GPUs that are held.
    fn held(&self, gpus: &[u32], pattern: Pattern) -> Option<Arc<Found>> {
        let held = self.graph.as_deref()?.set(gpus).ok()?;
        let of = |pattern| {
            let question = Question {
                gpus: held.len(),
                pattern,
                scope: Scope::default(),
                free: held,
                broken: GpuSet::EMPTY,
                broken_gpus: BrokenGpus::default(),
            };
            self.ask(question, || true)?.ok()
        };
        of(pattern).or_else(|| of(Pattern::default()))
    }

    /// Returns the best GPUs for `job` among those that are `free`, of which `broken` are
    /// marked as broken. `None` if there is no graph, or if the answer is not known yet and
    /// `may_search` says no.
    pub fn place(
        &self,
        job: &Job,
        free: GpuSet,
        broken: GpuSet,
        may_search: impl FnOnce() -> bool,
    ) -> Option<Answer> {
        let question = Question {
            gpus: job.gpus,
            pattern: job.pattern,
            scope: job.scope,
            free,
            broken,
            broken_gpus: job.broken_gpus,
        };
        self.ask(question, may_search)
    }

    fn ask(&self, question: Question, may_search: impl FnOnce() -> bool) -> Option<Answer> {
        let graph = self.graph.as_deref()?;
        let mut may_search = Some(may_search);
        loop {
            let look = self.memo().look(ONLY, question);
            let open = match look {
                Look::Known(answer) => return Some(answer),
                Look::Open(open) => open,
            };
            if may_search.take().is_some_and(|may_search| !may_search()) {
                return None;
            }
            // Not under the lock: the search on a large node takes long.
            let found = open.search(graph);
            self.memo().learn(ONLY, open, found);
        }
    }

    fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The graphs of all nodes, each kept once while a node has it.
#[derive(Debug, Default)]
pub struct Hardwares(Vec<Weak<Hardware>>);

impl Hardwares {
    /// Returns the hardware of a node.
    pub(super) fn of(&mut self, spec: &NodeTopologySpec) -> Arc<Hardware> {
        let graph = spec.knows_nvlink().then(|| graph(spec)).flatten();
        let graph = graph.map(Arc::new);
        self.0.retain(|one| one.strong_count() > 0);
        let mut all = self.0.iter().filter_map(Weak::upgrade);
        if let Some(same) = all.find(|one| one.graph == graph) {
            return same;
        }
        let new = Arc::new(Hardware {
            graph,
            memo: Mutex::new(Memo::new(KEPT)),
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
        assert_eq!(second.memo().len(), 3);
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
