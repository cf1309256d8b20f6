//! Domains: the sets of GPUs that NVLink edges connect.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Domain, Edge, Fabric, Gpu};

/// Returns the maximal sets of two or more GPUs that `edges` connect, ordered by their
/// lowest GPU.
///
/// `fabric` returns the multi-node fabric of a GPU, if it is in one. A domain is part of
/// a fabric if all its GPUs are part of that fabric. Ids are unique in the cluster:
/// `NODE.N`, or `CLUSTER-UUID.CLIQUE`. Edges that name a GPU missing from `gpus` are
/// skipped.
///
/// A single GPU of a fabric is also a domain, because its peers are on other nodes. The
/// exception is a GPU whose links are all down: it reaches no peer. If a node has several
/// parts of one fabric that no edge connects, the largest part has the fabric's id (among
/// equals, the one with the lowest GPU). The others have `CLUSTER-UUID.CLIQUE-2`, `-3`
/// and so on, in the order of their lowest GPU.
#[must_use]
pub fn domains(
    node: &str,
    gpus: &[Gpu],
    edges: &[Edge],
    fabric: impl Fn(u32) -> Option<Fabric>,
) -> Vec<Domain> {
    let mut root: BTreeMap<u32, u32> = gpus.iter().map(|gpu| (gpu.index, gpu.index)).collect();
    for edge in edges {
        if let (Some(a), Some(b)) = (find(&root, edge.a), find(&root, edge.b)) {
            // The lower index is the root, so domains come in the order of their first GPU.
            root.insert(a.max(b), a.min(b));
        }
    }
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for gpu in gpus {
        if let Some(root) = find(&root, gpu.index) {
            members.entry(root).or_default().push(gpu.index);
        }
    }
    let cut_off: BTreeSet<u32> = gpus
        .iter()
        .filter(|gpu| is_cut_off(gpu))
        .map(|gpu| gpu.index)
        .collect();
    let mut parts = Vec::new();
    for mut gpus in members.into_values() {
        gpus.sort_unstable();
        gpus.dedup();
        let fabric = common(gpus.iter().map(|&gpu| fabric(gpu)));
        let alone = gpus.len() == 1;
        if !alone || (fabric.is_some() && !cut_off.contains(&gpus[0])) {
            parts.push((gpus, fabric));
        }
    }
    named(node, parts)
}

/// Reports whether the GPU's links are known and all down.
fn is_cut_off(gpu: &Gpu) -> bool {
    let links = gpu.links.as_ref();
    links.is_some_and(|links| links.iter().all(|link| !link.up))
}

/// Gives each part a unique id.
fn named(node: &str, parts: Vec<(Vec<u32>, Option<Fabric>)>) -> Vec<Domain> {
    let mut largest: BTreeMap<Fabric, usize> = BTreeMap::new();
    for (n, (gpus, fabric)) in parts.iter().enumerate() {
        if let Some(fabric) = fabric {
            let at = largest.entry(fabric.clone()).or_insert(n);
            if gpus.len() > parts[*at].0.len() {
                *at = n;
            }
        }
    }
    let mut local = 0_usize;
    let mut others: BTreeMap<Fabric, usize> = BTreeMap::new();
    let named = parts.into_iter().enumerate().map(|(n, (gpus, fabric))| {
        let id = match &fabric {
            None => {
                local += 1;
                format!("{node}.{}", local - 1)
            }
            Some(fabric) if largest.get(fabric) == Some(&n) => fabric.id(),
            Some(fabric) => {
                let other = others.entry(fabric.clone()).or_insert(1);
                *other += 1;
                format!("{}-{other}", fabric.id())
            }
        };
        Domain {
            id,
            gpus,
            fabric,
            faults: Vec::new(),
        }
    });
    named.collect()
}

fn find(root: &BTreeMap<u32, u32>, mut gpu: u32) -> Option<u32> {
    loop {
        let up = *root.get(&gpu)?;
        if up == gpu {
            return Some(gpu);
        }
        gpu = up;
    }
}

fn common(mut fabrics: impl Iterator<Item = Option<Fabric>>) -> Option<Fabric> {
    let first = fabrics.next()??;
    fabrics
        .all(|other| other.as_ref() == Some(&first))
        .then_some(first)
}

impl Fabric {
    /// Returns a fabric, or `None` if the UUID is all zero (as on an HGX board, whose
    /// fabric ends at the node).
    #[must_use]
    pub fn new(cluster_uuid: &str, clique: u32) -> Option<Self> {
        let means_something = cluster_uuid.chars().any(|c| c != '0' && c != '-');
        means_something.then(|| Self {
            cluster_uuid: cluster_uuid.to_owned(),
            clique,
        })
    }

    /// Returns `CLUSTER-UUID.CLIQUE`, the value of the label `nvidia.com/gpu.clique`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}.{}", self.cluster_uuid, self.clique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Via;

    fn gpus(indices: &[u32]) -> Vec<Gpu> {
        indices
            .iter()
            .map(|&index| Gpu {
                index,
                ..Gpu::default()
            })
            .collect()
    }

    fn edge(a: u32, b: u32) -> Edge {
        Edge {
            a,
            b,
            via: Via::Direct,
            links: 1,
            bytes_per_second: 1,
        }
    }

    #[test]
    fn edges_connect_gpus_to_domains_and_a_lone_gpu_is_in_none() {
        let edges = [edge(4, 5), edge(0, 2), edge(2, 3)];
        let found = domains("n", &gpus(&[5, 4, 3, 2, 1, 0]), &edges, |_| None);
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.id.as_str(), &one.gpus[..]))
            .collect();
        assert_eq!(found, [("n.0", &[0, 2, 3][..]), ("n.1", &[4, 5][..])]);
    }

    #[test]
    fn a_fabric_gives_the_same_id_on_each_node() {
        let fabric = Fabric::new("4b5c0000-0000-0000-0000-000000000001", 3);
        for node in ["a", "b"] {
            let found = domains(node, &gpus(&[0, 1]), &[edge(0, 1)], |_| fabric.clone());
            assert_eq!(found[0].id, "4b5c0000-0000-0000-0000-000000000001.3");
        }
        let alone = domains("c", &gpus(&[0]), &[], |_| fabric.clone());
        assert_eq!(alone.len(), 1, "its peers are on other nodes");
    }

    #[test]
    fn an_all_zero_cluster_is_no_fabric() {
        assert_eq!(Fabric::new("00000000-0000-0000-0000-000000000000", 0), None);
    }
}
