//! Nodes whose graphs change again and again.
//!
//! Each new graph makes the planner search anew, for all kinds of jobs. Links of real machines
//! fail once, and come back after a reset; a graph that keeps changing is that of a broken link,
//! or of somebody who writes NodeTopologies.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use nvlink_cluster::seen::Nodes;
use nvlink_planner::{Availability, Millis, Name, NodeState};
use nvlink_topology::Graph;

use super::{Feed, writing::earlier};

/// A graph may change so often within [`WINDOW`]: a link fails, the node is drained and reset,
/// and once more.
const CHANGES: usize = 4;
/// Ten minutes, in milliseconds.
const WINDOW: Millis = 600_000;

/// The graph of a node, and when it changed.
#[derive(Debug)]
struct Known {
    graph: Arc<Graph>,
    /// The one that the planner knows.
    told: Arc<Graph>,
    /// The latest changes, at most one more than [`CHANGES`].
    changes: VecDeque<Millis>,
    unsteady: bool,
}

/// The graphs of all nodes.
#[derive(Debug, Default)]
pub(super) struct Graphs(HashMap<Name, Known>);

impl Known {
    /// Returns until when the node is taken to be silent.
    fn until(&self) -> Option<Millis> {
        let many = self.changes.len() > CHANGES;
        let first = self.changes.front().filter(|_| many)?;
        Some(first.saturating_add(WINDOW))
    }
}

impl Graphs {
    /// Reports whether the graph of a node changes again and again.
    pub(super) fn is_unsteady(&self, name: &Name) -> bool {
        self.0.get(name).is_some_and(|known| known.unsteady)
    }

    /// Takes over the state of a node at `now`. A node whose graph has changed too often is silent,
    /// and keeps the graph that the planner knows.
    fn settle(&mut self, name: &Name, state: &mut NodeState, now: Millis) {
        let Some(graph) = state.graph.clone() else {
            return;
        };
        let known = self.0.entry(name.clone()).or_insert_with(|| Known {
            graph: graph.clone(),
            told: graph.clone(),
            changes: VecDeque::new(),
            unsteady: false,
        });
        if known.graph != graph {
            known.graph = graph.clone();
            known.changes.push_back(now);
            if known.changes.len() > CHANGES + 1 {
                known.changes.pop_front();
            }
        }
        let unsteady = known.until().is_some_and(|until| now < until);
        if unsteady && !known.unsteady {
            tracing::warn!(
                node = %name,
                changes = CHANGES + 1,
                minutes = WINDOW / 60_000,
                "the graph of a node changes again and again; the queue starts no job there until it stays as it is"
            );
        }
        known.unsteady = unsteady;
        if !unsteady {
            known.told = graph;
            return;
        }
        state.graph = Some(known.told.clone());
        if state.availability == Availability::Ready {
            state.availability = Availability::Silent;
        }
    }
}

impl Feed {
    /// Returns what the planner is told of a node.
    pub(super) fn steady_state(&mut self, name: &Name, now: Millis) -> Option<NodeState> {
        let Some(mut state) = self.node_state(name) else {
            self.graphs.0.remove(name);
            return None;
        };
        self.graphs.settle(name, &mut state, now);
        Some(state)
    }

    /// Looks at the nodes again whose graphs have stayed as they are for long enough, and returns
    /// when to look next.
    pub fn calm(&mut self, now: Millis) -> Option<Millis> {
        let mut next = None;
        for (name, known) in self.graphs.0.iter().filter(|(_, known)| known.unsteady) {
            match known.until().filter(|&until| until > now) {
                Some(until) => next = earlier(next, until),
                None => {
                    self.changed.nodes.insert(name.clone());
                }
            }
        }
        next
    }

    /// Returns the nodes whose graphs change again and again, by the classes that queue; nothing
    /// if there are none.
    #[must_use]
    pub fn unsteady(&self) -> Nodes {
        let unsteady = self.graphs.0.iter().filter(|(_, known)| known.unsteady);
        let mut nodes: Vec<&Name> = unsteady.map(|(name, _)| name).collect();
        nodes.sort_unstable();
        let classes = self.classes.values();
        let queues = classes.filter_map(|class| class.as_ref().ok());
        let queues = queues.filter(|class| class.queue.is_some() && !nodes.is_empty());
        queues
            .map(|class| (class.name.clone(), self.of_class(class, &nodes)))
            .collect()
    }

    /// Moves the times by a jump of the clock.
    pub(super) fn graphs_jumped(&mut self, by: Millis) {
        for known in self.graphs.0.values_mut() {
            let changes = known.changes.iter_mut();
            changes.for_each(|at| *at = at.saturating_add(by));
        }
    }
}
