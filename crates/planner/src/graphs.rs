//! The distinct graphs of the cluster. Nodes of equal GPUs share one.

use std::{collections::HashMap, sync::Arc};

use nvlink_topology::Graph;

use crate::Name;

/// The distinct graphs, by number.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    numbers: HashMap<Arc<Graph>, u32>,
    /// For each number its graph and how many nodes have it.
    graphs: Vec<(Arc<Graph>, u32)>,
    /// Numbers without a node, whose graphs are kept for nodes that come back.
    spare: Vec<u32>,
    /// Numbers without a graph.
    empty: Vec<u32>,
}

/// A node's graph.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) graph: Arc<Graph>,
    pub(crate) number: u32,
    /// The ids of the node's domains, in the graph's order.
    pub(crate) domains: Vec<Name>,
}

impl Graphs {
    /// The number of graphs without a node that are kept for nodes that come back.
    const KEPT: usize = 256;

    /// Returns the shared form of a node's graph. Without one, returns a graph of
    /// `capacity` GPUs of which nothing is known.
    pub(crate) fn share(&mut self, graph: Option<&Graph>, capacity: u32) -> Shared {
        let (graph, domains) = match graph {
            Some(graph) => (
                graph.unnamed(),
                graph.domains().map(|(id, _)| Name::from(id)).collect(),
            ),
            None => (Graph::unconnected(capacity as usize), Vec::new()),
        };
        let graph = Arc::new(graph);
        let number = match self.numbers.get(&graph) {
            Some(&number) => number,
            None => self.insert(&graph),
        };
        let entry = &mut self.graphs[number as usize];
        entry.1 += 1;
        if entry.1 == 1 {
            self.spare.retain(|&spare| spare != number);
        }
        Shared {
            graph: entry.0.clone(),
            number,
            domains,
        }
    }

    fn insert(&mut self, graph: &Arc<Graph>) -> u32 {
        let number = self.empty.pop().unwrap_or_else(|| {
            self.graphs.push((graph.clone(), 0));
            // There are at most as many graphs as nodes, and nodes have 32-bit numbers.
            u32::try_from(self.graphs.len() - 1).unwrap_or(u32::MAX)
        });
        self.graphs[number as usize] = (graph.clone(), 0);
        self.numbers.insert(graph.clone(), number);
        number
    }

    /// Gives back a node's graph.
    pub(crate) fn release(&mut self, number: u32) {
        let entry = &mut self.graphs[number as usize];
        entry.1 -= 1;
        if entry.1 == 0 {
            self.spare.push(number);
        }
    }

    /// Forgets the graphs without a node if they are many, and reports whether it did:
    /// their numbers will name other graphs.
    pub(crate) fn prune(&mut self) -> bool {
        if self.spare.len() <= Self::KEPT {
            return false;
        }
        for number in self.spare.drain(..) {
            self.numbers.remove(&self.graphs[number as usize].0);
            self.empty.push(number);
        }
        true
    }
}
