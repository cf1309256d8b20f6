//! Which pods must be near a waiting pod, and which must not: its required pod affinity and
//! anti-affinity, by which the scheduler binds it. Tekton requires all pods of a TaskRun's workspace to be
//! on the node of a pod that it places first. Pure.
//!
//! Two things are not seen, and lead to a pod that the scheduler refuses: the anti-affinity of other pods
//! against a waiting one, and the labels of namespaces (a `namespaceSelector` stands for all of them).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use nvlink_api::pod;
use nvlink_planner::Name;
use serde_json::Value;

use super::{
    Feed,
    demand::{Demand, holds},
    node::Node,
};
use crate::Life;

/// The labels of a pod.
pub(super) type Labels = BTreeMap<String, String>;

/// The most demands that depend on where pods are. Of more, the terms are not read: anybody can write
/// them, and each is compared with all pods.
const MOST_TIED: usize = 128;
/// The most labels, values and namespaces in the terms of a pod. Of one with more, none is read.
const MOST_PARTS: usize = 64;
/// The most characters of a selector that are shown.
const MOST_SHOWN: usize = 200;

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    node: Name,
    labels: Arc<Labels>,
}

impl Standing {
    /// Reads `pod`; `None` if it is on no node, or has ended.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        let node = Life::of(pod).node().map(Name::from)?;
        Some(Self {
            node,
            labels: Arc::new(labels_of(pod)),
        })
    }
}

fn labels_of(pod: &Value) -> Labels {
    let labels = pod::entries(pod, &["metadata", "labels"]);
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    labels.collect()
}

/// A required term of a waiting pod.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    /// The namespaces of the pods; `None`: all.
    namespaces: Option<BTreeSet<String>>,
    selector: Value,
    /// The label of nodes whose value is the same near such a pod.
    key: String,
}

impl Term {
    fn of(term: &Value, own: &str) -> Self {
        let named = pod::list(term, &["namespaces"]);
        let mut named: BTreeSet<String> = named
            .filter_map(|one| Some(one.as_str()?.to_owned()))
            .collect();
        let all = term.get("namespaceSelector").is_some_and(Value::is_object);
        if named.is_empty() {
            named.insert(own.to_owned());
        }
        Self {
            namespaces: (!all).then_some(named),
            selector: term.get("labelSelector").cloned().unwrap_or_default(),
            key: pod::text(term, &["topologyKey"]).to_owned(),
        }
    }

    /// Returns how many labels, values and namespaces it has.
    fn parts(&self) -> usize {
        let values = pod::list(&self.selector, &["matchExpressions"])
            .map(|one| 1 + pod::list(one, &["values"]).count());
        let named = self.namespaces.iter().flatten().count();
        named + pod::entries(&self.selector, &["matchLabels"]).count() + values.sum::<usize>()
    }

    fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        let within = self.namespaces.as_ref();
        within.is_none_or(|names| names.contains(namespace)) && matches(&self.selector, labels)
    }
}

/// Reports whether a selector of labels matches, as in Kubernetes: no selector matches nothing.
pub(super) fn matches(selector: &Value, labels: &Labels) -> bool {
    let value = |key: &str| labels.get(key).map(String::as_str);
    let mut equal = pod::entries(selector, &["matchLabels"]);
    let mut others = pod::list(selector, &["matchExpressions"]);
    selector.is_object()
        && equal.all(|(key, wanted)| value(key) == wanted.as_str())
        && others.all(|one| holds(one, value(pod::text(one, &["key"]))))
}

/// What the required terms of a waiting pod say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ties {
    near: Vec<Term>,
    apart: Vec<Term>,
    /// The pod is one that its own terms select, so the first one may go anywhere.
    selects_itself: bool,
}

impl Ties {
    /// Reads `pod`; `None` if it has no such terms.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        let namespace = pod::text(pod, &["metadata", "namespace"]);
        let read = |kind: &str| {
            let path = [
                "spec",
                "affinity",
                kind,
                "requiredDuringSchedulingIgnoredDuringExecution",
            ];
            let terms = pod::list(pod, &path);
            terms
                .map(|term| Term::of(term, namespace))
                .collect::<Vec<_>>()
        };
        let (near, apart) = (read("podAffinity"), read("podAntiAffinity"));
        let parts: usize = near.iter().chain(&apart).map(Term::parts).sum();
        if near.is_empty() && apart.is_empty() || parts > MOST_PARTS {
            return None;
        }
        let labels = labels_of(pod);
        Some(Self {
            selects_itself: near.iter().all(|term| term.selects(namespace, &labels)),
            near,
            apart,
        })
    }

    /// Returns a text that is the same for equal ties only.
    pub(super) fn key(&self) -> String {
        format!("{self:?}")
    }

    /// Reports whether a node is near other pods than before.
    pub(super) fn differ(&self, before: Option<&Node>, now: Option<&Node>) -> bool {
        let value =
            |node: Option<&Node>, key: &str| node.and_then(|node| node.labels.get(key)).cloned();
        let mut keys = self.terms().map(|term| &term.key);
        keys.any(|key| value(before, key) != value(now, key))
    }

    fn terms(&self) -> impl Iterator<Item = &Term> {
        self.near.iter().chain(&self.apart)
    }
}

/// The pods on nodes, as far as waiting pods may have to be near them, or apart.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pods: HashMap<Name, Standing>,
    /// Equal labels are stored once: most pods are copies of each other.
    labels: HashSet<Arc<Labels>>,
}

impl Neighbours {
    /// Sets where a pod is, and returns what it was before if that changed.
    fn set(&mut self, id: &Name, now: Option<Standing>) -> Option<[Option<Standing>; 2]> {
        let now = now.map(|standing| Standing {
            labels: self.shared(standing.labels),
            ..standing
        });
        if self.pods.get(id) == now.as_ref() {
            return None;
        }
        let before = match now.clone() {
            Some(now) => self.pods.insert(id.clone(), now),
            None => self.pods.remove(id),
        };
        if self.labels.len() > 64 && self.labels.len() > 2 * self.pods.len() {
            self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        }
        Some([before, now])
    }

    fn shared(&mut self, labels: Arc<Labels>) -> Arc<Labels> {
        if let Some(known) = self.labels.get(&labels) {
            return Arc::clone(known);
        }
        self.labels.insert(Arc::clone(&labels));
        labels
    }

    /// Returns the nodes of the pods that all of these terms select.
    fn selected<'a>(&'a self, terms: &'a [Term]) -> impl Iterator<Item = &'a Name> {
        let pods = self.pods.iter().filter(move |(id, pod)| {
            let namespace = id.split_once('/').map_or("", |(namespace, _)| namespace);
            terms
                .iter()
                .all(|term| term.selects(namespace, &pod.labels))
        });
        pods.map(|(_, pod)| &pod.node)
    }

    /// Returns the values of nodes' labels that a pod with these ties needs, and those that it must not
    /// have.
    pub(super) fn near(&self, ties: &Ties, nodes: &BTreeMap<Name, Node>) -> Near {
        let value = |node: &Name, key: &str| nodes.get(node)?.labels.get(key).cloned();
        let first = ties.selects_itself && self.selected(&ties.near).next().is_none();
        let of = |term: &Term, selected: &mut dyn Iterator<Item = &Name>| {
            let values: HashSet<String> =
                selected.filter_map(|node| value(node, &term.key)).collect();
            (term.key.clone(), values)
        };
        let near = ties.near.iter().filter(|_| !first);
        let apart = ties.apart.iter();
        Near {
            near: near
                .map(|term| of(term, &mut self.selected(&ties.near)))
                .collect(),
            apart: apart
                .map(|term| of(term, &mut self.selected(std::slice::from_ref(term))))
                .collect(),
        }
    }

    /// Returns what a waiting pod must be near to, if that is on no node.
    pub(super) fn lacks(&self, ties: &Ties) -> Option<String> {
        let alone = !ties.selects_itself && !ties.near.is_empty();
        if !alone || self.selected(&ties.near).next().is_some() {
            return None;
        }
        let shown = ties.near.iter().map(|term| shown(&term.selector));
        let shown = shown.collect::<Vec<_>>().join(" and ");
        Some(shown.chars().take(MOST_SHOWN).collect())
    }
}

/// Returns a selector as kubectl writes it.
fn shown(selector: &Value) -> String {
    let equal = pod::entries(selector, &["matchLabels"]);
    let equal = equal.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let others = pod::list(selector, &["matchExpressions"]).map(ToString::to_string);
    equal.chain(others).collect::<Vec<_>>().join(",")
}

/// The values of nodes' labels that a pod needs, by label, and those that it must not have.
#[derive(Debug, Default)]
pub(super) struct Near {
    near: Vec<(String, HashSet<String>)>,
    apart: Vec<(String, HashSet<String>)>,
}

impl Near {
    /// Reports whether a node has such labels.
    pub(super) fn is_met(&self, node: &Node) -> bool {
        let has = |(key, values): &(String, HashSet<String>)| {
            node.labels
                .get(key)
                .is_some_and(|value| values.contains(value))
        };
        self.near.iter().all(has) && !self.apart.iter().any(has)
    }
}

impl Feed {
    /// Returns a demand whose ties are read: there are not too many of such demands.
    pub(super) fn bounded(&self, demand: Demand) -> Demand {
        let known = demand.ties.is_none() || self.demands.name(&demand).is_some();
        match known || self.demands.tied().count() < MOST_TIED {
            true => demand,
            false => demand.untied(),
        }
    }

    /// Sets where a pod is. What waits to be near it, or apart, is planned anew.
    pub(super) fn stand(&mut self, id: &Name, now: Option<Standing>) {
        let Some(change) = self.neighbours.set(id, now) else {
            return;
        };
        let namespace = id.split_once('/').map_or("", |(namespace, _)| namespace);
        let selects = |term: &Term| {
            let mut moved = change.iter().flatten();
            moved.any(|pod| term.selects(namespace, &pod.labels))
        };
        let tied = self.demands.tied();
        let changed = tied.filter(|(_, ties)| ties.terms().any(selects));
        let changed: Vec<Name> = changed.map(|(name, _)| name.clone()).collect();
        self.stale.extend(changed);
    }

    /// Finds out anew what depends on where pods are, and which nodes and jobs that changes.
    pub(super) fn retie(&mut self) {
        let stale = std::mem::take(&mut self.stale);
        if stale.is_empty() {
            return;
        }
        let mut near = HashMap::new();
        for (name, ties) in self.demands.tied() {
            let before = self.near.remove(name);
            let before = match before {
                Some(before) if !stale.contains(name) => {
                    near.insert(name.clone(), before);
                    continue;
                }
                before => before,
            };
            let now = self.neighbours.near(ties, &self.nodes);
            let changed = self.nodes.iter().filter(|(_, node)| {
                before
                    .as_ref()
                    .is_none_or(|before| before.is_met(node) != now.is_met(node))
            });
            self.changed
                .nodes
                .extend(changed.map(|(name, _)| name.clone()));
            near.insert(name.clone(), now);
        }
        self.near = near;
        let tied = self.pods.values();
        let tied = tied.filter(|pod| pod.demand.as_ref().is_some_and(|name| stale.contains(name)));
        let jobs: Vec<Name> = tied.filter_map(|pod| pod.job.clone()).collect();
        self.changed.jobs.extend(jobs);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(text: &str) -> Labels {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn a_selector_matches_as_in_kubernetes() {
        for (selector, of, matched) in [
            (json!(null), "a=1", false),
            (json!({}), "a=1", true),
            (json!({"matchLabels": {"a": "1"}}), "a=1,b=2", true),
            (json!({"matchLabels": {"a": "2"}}), "a=1", false),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}),
                "a=1",
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}),
                "b=1",
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
                "b=1",
                false,
            ),
        ] {
            assert_eq!(matches(&selector, &labels(of)), matched, "{selector}");
        }
    }
}
