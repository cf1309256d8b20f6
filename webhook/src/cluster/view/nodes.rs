//! Nodes, and how many of each kind a class has.

use std::collections::BTreeMap;

use nvlink_topology::labels;

use super::Labels;

/// What is known about a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    labels: Option<Labels>,
    /// Read from the labels once, not at each change of a class.
    size: Option<u32>,
    bandwidth: u32,
    /// The classes whose taint it has.
    pub(super) tainted: Vec<String>,
    /// Most free GPUs in one domain, if somebody says.
    pub(super) free: Option<u32>,
}

impl Node {
    pub(super) fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    pub(super) fn set_labels(&mut self, labels: Option<Labels>) {
        let number = |key: &str| labels.as_ref()?.get(key)?.parse().ok();
        self.size = number(labels::DOMAIN_SIZE);
        self.bandwidth = number(labels::BANDWIDTH).unwrap_or(0);
        self.labels = labels;
    }

    pub(super) fn is_known(&self) -> bool {
        self.labels.is_some() || self.free.is_some()
    }

    pub(super) fn matches(&self, selector: &[(String, String)]) -> bool {
        self.labels.as_ref().is_some_and(|labels| {
            selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        })
    }

    /// The domain that all of it lies in, and how many GPUs it brings;
    /// `None` where it lies in several, or is slower than `least`.
    pub(super) fn domain(&self, least: Option<u32>) -> Option<(&str, u32)> {
        let id = self.labels.as_ref()?.get(labels::DOMAIN)?;
        let size = self.size?;
        (self.bandwidth >= least.unwrap_or(0)).then_some((id, size))
    }

    /// What fits on it; `None` where no domains were published.
    pub(super) fn fit(&self) -> Option<Fit> {
        Some(Fit {
            size: self.size?,
            bandwidth: self.bandwidth,
            free: self.free,
        })
    }
}

/// What fits on a node: few nodes of a cluster differ in it.
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
#[derive(Debug, Default)]
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
    /// Nodes that can hold it when empty.
    pub fitting: usize,
    /// Those of them that have the GPUs free now, as far as is known.
    pub free: usize,
    /// Nodes of the class with its bandwidth that have published their domains.
    pub nodes: usize,
    /// GPUs in the largest domain among them.
    pub largest: u32,
}
