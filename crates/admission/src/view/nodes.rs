//! Nodes, and counts of a class's nodes by what fits on them.

use std::{collections::BTreeMap, sync::Arc};

use nvlink_api::class::Class;
use nvlink_topology::{BrokenGpus, labels};

use super::{Labels, View};

/// The known facts about a node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    name: Arc<str>,
    labels: Option<Labels>,
    /// Parsed from the labels once, not at each change of a class.
    size: Option<u32>,
    healthy_size: Option<u32>,
    bandwidth: u32,
    /// The classes whose taint it has.
    pub(super) tainted: Vec<String>,
    /// The free GPUs, if known.
    pub(super) free: Option<Free>,
    /// MIG splits one of its GPUs.
    pub(super) mig: bool,
}

/// Node label of NVIDIA's feature discovery: how pods share the node's GPUs.
const SHARING: &str = "nvidia.com/gpu.sharing-strategy";
/// Node label of NVIDIA's feature discovery: under which resources its slices are. It says nothing
/// about whether there are any.
const MIG_STRATEGY: &str = "nvidia.com/mig.strategy";

/// The highest number of free GPUs in one domain of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    pub all: u32,
    /// Without those that are marked as broken.
    pub healthy: u32,
}

impl Node {
    /// Returns a node of which only the name is known.
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            labels: None,
            size: None,
            healthy_size: None,
            bandwidth: 0,
            tainted: Vec::new(),
            free: None,
            mig: false,
        }
    }

    pub(super) fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    pub(super) fn set_labels(&mut self, labels: Option<Labels>) {
        let number = |key: &str| labels.as_ref()?.get(key)?.parse().ok();
        self.size = number(labels::DOMAIN_SIZE);
        self.healthy_size = number(labels::HEALTHY_DOMAIN_SIZE);
        self.bandwidth = number(labels::BANDWIDTH).unwrap_or(0);
        self.labels = labels;
    }

    pub(super) fn is_known(&self) -> bool {
        self.labels.is_some() || self.free.is_some() || self.mig
    }

    pub(super) fn matches(&self, selector: &[(String, String)]) -> bool {
        self.labels.as_ref().is_some_and(|labels| {
            selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        })
    }

    /// Returns the number of GPUs in the largest domain that `class` may use; `None` if it is not
    /// published.
    fn size(&self, class: &Class) -> Option<u32> {
        match class.broken_gpus {
            BrokenGpus::Avoid => self.healthy_size,
            _ => self.size,
        }
    }

    /// Returns the domain that the whole node is in, and the number of its GPUs that `class` may
    /// use; `None` if the node is in several domains, or too slow for the class.
    pub(super) fn domain(&self, class: &Class) -> Option<(&str, u32)> {
        let id = self.labels.as_ref()?.get(labels::DOMAIN)?;
        let size = self.size(class)?;
        (self.bandwidth >= class.min_bandwidth.unwrap_or(0)).then_some((id, size))
    }

    /// Returns the node's bandwidth and name if it is too slow for `class`; `None` if its domains
    /// are not published.
    pub(super) fn slower(&self, class: &Class) -> Option<(u32, Arc<str>)> {
        let slow = self.size(class).is_some() && self.bandwidth < class.min_bandwidth?;
        slow.then(|| (self.bandwidth, Arc::clone(&self.name)))
    }

    /// Reports whether the node has at least the bandwidth `least`, also if its GPUs are broken;
    /// `None` if its domains are not published.
    pub(super) fn is_fast(&self, least: u32) -> Option<bool> {
        self.size.map(|size| size > 0 && self.bandwidth >= least)
    }

    /// Returns what fits on the node, if requests for whole GPUs may get parts of them there. With the
    /// strategy `mixed`, slices are under resources of their own.
    pub(super) fn cut(&self, class: &Class) -> Option<Fit> {
        let label = |key: &str| Some(self.labels.as_ref()?.get(key)?.as_str());
        let shared = !matches!(label(SHARING), None | Some("none" | ""));
        let split = self.mig && label(MIG_STRATEGY) != Some("mixed");
        (shared || split).then(|| Fit {
            size: self.size(class).unwrap_or(0),
            bandwidth: self.bandwidth,
            free: None,
        })
    }

    /// Returns what fits on the node of the pods of `class`; `None` if its domains are not
    /// published.
    pub(super) fn fit(&self, class: &Class) -> Option<Fit> {
        Some(Fit {
            size: self.size(class)?,
            bandwidth: self.bandwidth,
            free: self.free.map(|free| match class.broken_gpus {
                BrokenGpus::Avoid => free.healthy,
                _ => free.all,
            }),
        })
    }
}

impl View {
    /// Sets whether MIG splits a GPU of a node.
    pub fn set_mig(&mut self, name: &str, mig: bool) {
        if self.nodes.get(name).is_some_and(|node| node.mig) != mig {
            self.change_node(name, |node| std::mem::replace(&mut node.mig, mig) != mig);
        }
    }

    /// Reports whether a node of `class` may give parts of GPUs to requests for whole ones: MIG slices,
    /// or GPUs that pods share. `domain` is the size of the domain that the pod requires, if any.
    #[must_use]
    pub fn may_cut(&self, class: &Class, domain: Option<u32>) -> bool {
        let bandwidth = class.min_bandwidth.unwrap_or(0);
        let entry = self.classes.get(&class.name);
        entry.is_some_and(|entry| entry.cut.room(domain.unwrap_or(0), bandwidth).fitting > 0)
    }
}

/// What fits on a node. Most nodes of a cluster have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    size: u32,
    bandwidth: u32,
    free: Option<u32>,
}

impl Fit {
    pub(super) fn holds(self, gpus: u32, bandwidth: u32) -> bool {
        self.size >= gpus && self.bandwidth >= bandwidth
    }
}

/// Counts of a class's nodes by what fits on them.
#[derive(Clone, Debug, Default)]
pub(super) struct Fits(BTreeMap<Fit, usize>);

impl Fits {
    pub(super) fn add(&mut self, fit: Option<Fit>) {
        if let Some(fit) = fit {
            *self.0.entry(fit).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, fit: Option<Fit>) {
        if let Some(fit) = fit
            && let Some(count) = self.0.get_mut(&fit)
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&fit);
            }
        }
    }

    pub(super) fn room(&self, gpus: u32, bandwidth: u32) -> Room {
        let mut room = Room::default();
        for (fit, &count) in self.0.iter().filter(|(fit, _)| fit.bandwidth >= bandwidth) {
            room.nodes += count;
            room.largest = room.largest.max(fit.size);
            if fit.holds(gpus, bandwidth) {
                room.fitting += count;
                room.free += if fit.free.is_none_or(|free| free >= gpus) {
                    count
                } else {
                    0
                };
            }
        }
        room
    }
}

/// How a pod fits the nodes of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Nodes that fit the pod when they are empty.
    pub fitting: usize,
    /// Nodes of `fitting` whose GPUs are free now, as far as known.
    pub free: usize,
    /// Nodes of the class with its bandwidth whose domains are published.
    pub nodes: usize,
    /// GPUs in the largest domain of `nodes`.
    pub largest: u32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_that_avoids_broken_gpus_counts_only_the_healthy_ones() {
        let mut view = View::default();
        let mut classes = Vec::new();
        for (name, spec) in [
            ("any", json!({})),
            ("avoid", json!({"placement": {"brokenGpus": "Avoid"}})),
        ] {
            let class = Class::read(name, &spec).unwrap();
            view.set_class(name, Ok(class.clone()));
            classes.push(class);
        }
        let [any, avoid] = &classes[..] else {
            panic!("two classes");
        };
        let labels = |healthy: Option<u32>| -> Labels {
            let size = (labels::DOMAIN_SIZE.to_owned(), "8".to_owned());
            let healthy =
                healthy.map(|size| (labels::HEALTHY_DOMAIN_SIZE.to_owned(), size.to_string()));
            [size].into_iter().chain(healthy).collect()
        };
        let room = |fitting, free, largest| Room {
            fitting,
            free,
            nodes: 1,
            largest,
        };
        view.set_node("a", labels(Some(7)));
        let (all, healthy) = (4, 3);
        view.set_free("a", Some(Free { all, healthy }));
        assert_eq!(view.room(any, 4), room(1, 1, 8));
        assert_eq!(view.room(avoid, 4), room(1, 0, 7));
        assert_eq!(view.room(avoid, 8), room(0, 0, 7));
        view.set_node("a", labels(Some(8)));
        view.set_free("a", Some(Free { all, healthy: all }));
        assert_eq!(view.room(avoid, 4), room(1, 1, 8));
        // An exporter that marks no GPUs does not say which ones are healthy.
        view.set_node("a", labels(None));
        assert_eq!(view.room(avoid, 1), Room::default());
        assert_eq!(view.room(any, 4), room(1, 1, 8));
    }
}
