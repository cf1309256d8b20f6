//! What the links of a node join: from what each GPU says to the document. Pure.

use std::collections::BTreeMap;

use nvlink_topology::{
    Domain, Fabric, Gpu, Invalid, Link, NodeTopologySpec, Path, Remote, RemoteKind, Source,
    SourceKind, Via,
};

use super::raw::FabricInfo;
use crate::source::FabricState;

/// What one GPU says of itself.
#[derive(Clone, Debug)]
pub(super) struct GpuFacts {
    /// Index, ids, model, NUMA node, MIG. Its links are made from `links`.
    pub(super) gpu: Gpu,
    /// The links; `None` where they cannot be seen.
    pub(super) links: Option<Vec<LinkFacts>>,
    /// The fabric; `None` where the GPU or the driver knows none.
    pub(super) fabric: Option<FabricInfo>,
}

/// What a GPU says of one link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFacts {
    /// Its index on the GPU.
    pub(super) index: u32,
    /// It is up, or asleep; `None` where its state could not be read.
    pub(super) up: Option<bool>,
    /// Line rate.
    pub(super) bytes_per_second: Option<u64>,
    pub(super) far: FarEnd,
}

/// What a GPU says of the far end of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FarEnd {
    /// 0 a GPU, 2 a switch; `None` where the driver does not say.
    pub(super) device_type: Option<u32>,
    /// Address in NVML's spelling; `None` where it is not visible.
    pub(super) address: Option<String>,
    /// The driver answered, with the address that stands for "not visible
    /// from here".
    pub(super) hidden: bool,
    /// The kernel knows a switch at the address.
    pub(super) is_switch: bool,
    /// The driver failed to answer: what it did not say means nothing.
    pub(super) failed: bool,
}

/// Of a pair of GPUs: whether the driver lets them talk over NVLink, in its own
/// words where it does not. Absent where it does not say.
pub(super) type PeerStatus = BTreeMap<(u32, u32), Result<(), String>>;

const TYPE_GPU: u32 = 0;
const TYPE_SWITCH: u32 = 2;

impl FarEnd {
    /// What is there, if what the driver says is true.
    ///
    /// A link that is up and whose far end is not visible ends on a switch
    /// that is hidden from here (in containers, and always from Blackwell on),
    /// unless the driver says otherwise. Where the driver says nothing at all,
    /// nothing is known.
    fn kind(&self, own: Option<&str>, gpus: &[&str]) -> RemoteKind {
        let to_gpu = |address: &str| gpus.contains(&address);
        match (self.device_type, self.address.as_deref()) {
            (_, Some(address)) if Some(address) == own => RemoteKind::Unknown,
            (_, Some(address)) if to_gpu(address) => RemoteKind::Gpu,
            _ if self.failed => RemoteKind::Unknown,
            (Some(TYPE_SWITCH), _) => RemoteKind::Switch,
            (_, Some(_)) if self.is_switch => RemoteKind::Switch,
            (Some(TYPE_GPU), _) => RemoteKind::Gpu,
            (None | Some(0xff), None) if self.hidden => RemoteKind::Switch,
            _ => RemoteKind::Unknown,
        }
    }
}

/// The links of `facts` as the document has them; `gpus` are the addresses of
/// the node's GPUs. A link whose state could not be read is none of them: it
/// is not known to be down.
fn links(facts: &GpuFacts, gpus: &[&str]) -> Option<Vec<Link>> {
    let own = facts.gpu.pci_bus_id.as_deref();
    let link = |link: &LinkFacts| {
        let up = link.up?;
        Some(Link {
            index: link.index,
            up,
            bytes_per_second: link.bytes_per_second.filter(|_| up),
            remote: up.then(|| Remote {
                kind: link.far.kind(own, gpus),
                // A link to itself is a mistake of the system's tables.
                pci_bus_id: link.far.address.clone().filter(|far| Some(&**far) != own),
            }),
        })
    };
    Some(facts.links.as_ref()?.iter().filter_map(link).collect())
}

fn switch_links(gpu: &Gpu) -> usize {
    let on_switch = |link: &&Link| {
        let remote = link.remote.as_ref();
        link.up && remote.is_some_and(|remote| remote.kind == RemoteKind::Switch)
    };
    gpu.links.iter().flatten().filter(on_switch).count()
}

/// Pairs of GPUs with links to switches: those whose [`PeerStatus`] matters.
pub(super) fn switch_pairs(facts: &[GpuFacts]) -> Vec<(u32, u32)> {
    let gpus = gpus(facts);
    let on_switch = |gpu: &&Gpu| !gpu.mig_enabled && switch_links(gpu) > 0;
    let on_switch: Vec<_> = gpus.iter().filter(on_switch).map(|gpu| gpu.index).collect();
    let pairs = on_switch.iter().enumerate();
    pairs
        .flat_map(|(n, &a)| on_switch[n + 1..].iter().map(move |&b| (a, b)))
        .collect()
}

fn gpus(facts: &[GpuFacts]) -> Vec<Gpu> {
    let addresses: Vec<_> = facts
        .iter()
        .filter_map(|one| one.gpu.pci_bus_id.as_deref())
        .collect();
    let gpu = |one: &GpuFacts| Gpu {
        links: links(one, &addresses),
        ..one.gpu.clone()
    };
    facts.iter().map(gpu).collect()
}

/// Why two GPUs behind switches do not reach each other, if they do not: the
/// driver must allow it where it says anything, and from Hopper on both must be
/// registered with the same partition of the fabric.
fn obstacle(a: &GpuFacts, b: &GpuFacts, peers: &PeerStatus) -> Option<String> {
    let (a, b) = match a.gpu.index < b.gpu.index {
        true => (a, b),
        false => (b, a),
    };
    if let Some(reason) = unregistered(a).or_else(|| unregistered(b)) {
        return Some(reason);
    }
    if let (Some(one), Some(other)) = (&a.fabric, &b.fabric)
        && one.progress().is_some()
        && other.progress().is_some()
        && !one.reaches(other)
    {
        return Some("they are in different partitions of the fabric".to_owned());
    }
    match peers.get(&(a.gpu.index, b.gpu.index)) {
        Some(Err(status)) => Some(format!("the driver says of NVLink between them: {status}")),
        _ => None,
    }
}

/// Why the fabric does not carry the GPU's traffic, if it does not.
fn unregistered(facts: &GpuFacts) -> Option<String> {
    let state = facts.fabric.as_ref()?.progress()?;
    let index = facts.gpu.index;
    match state {
        FabricState::Completed => None,
        FabricState::NotStarted => Some(format!(
            "GPU {index} is not registered with the fabric (is the fabric manager running?)"
        )),
        FabricState::InProgress => Some(format!(
            "the registration of GPU {index} with the fabric is in progress"
        )),
        FabricState::Failed => Some(format!(
            "the registration of GPU {index} with the fabric failed"
        )),
    }
}

/// The hardware of the node `node`, with edges, paths and domains, and what is
/// odd about it.
///
/// `from` says what it was read from; `peers` is asked for the pairs of
/// [`switch_pairs`]; `paths` are the ways over PCIe that are known.
///
/// # Errors
/// When the driver contradicts itself.
pub(super) fn spec(
    node: &str,
    from: String,
    facts: &[GpuFacts],
    peers: &PeerStatus,
    paths: Vec<Path>,
) -> Result<(NodeTopologySpec, Vec<String>), Invalid> {
    let mut gpus = gpus(facts);
    let pairs = switch_pairs(facts);
    let judged = judge(facts, &pairs, peers);
    let mut odd = unusable(facts, &mut gpus, &judged);
    let mut spec = NodeTopologySpec {
        source: Source {
            kind: SourceKind::Nvml,
            from,
        },
        gpus,
        edges: Vec::new(),
        paths: paths.clone(),
        domains: fabrics(facts),
        nics: Vec::new(),
    };
    odd.extend(spec.complete(node)?);
    let refused = |a: u32, b: u32| matches!(judged.get(&(a, b)), Some(Some(_)));
    let all = spec.edges.len();
    spec.edges
        .retain(|edge| edge.via == Via::Direct || !refused(edge.a, edge.b));
    if spec.edges.len() < all {
        // Some pairs of the switches are apart: the links alone do not tell.
        spec.paths = paths;
        spec.domains = fabrics(facts);
        spec.complete(node)?;
    }
    Ok((spec, odd))
}

/// Each pair behind switches with what keeps it apart, if anything does.
type Judged = BTreeMap<(u32, u32), Option<String>>;

fn judge(facts: &[GpuFacts], pairs: &[(u32, u32)], peers: &PeerStatus) -> Judged {
    let of = |index: u32| facts.iter().find(|one| one.gpu.index == index);
    pairs
        .iter()
        .filter_map(|&(a, b)| Some(((a, b), obstacle(of(a)?, of(b)?, peers))))
        .collect()
}

/// Marks the links of GPUs that reach nobody through their switches as leading
/// nowhere known, and says so.
fn unusable(facts: &[GpuFacts], gpus: &mut [Gpu], judged: &Judged) -> Vec<String> {
    let mut odd = Vec::new();
    for (facts, gpu) in facts.iter().zip(gpus) {
        let links = switch_links(gpu);
        if links == 0 || gpu.mig_enabled {
            continue;
        }
        let index = gpu.index;
        let mine = || {
            let ours = judged
                .iter()
                .filter(|((a, b), _)| *a == index || *b == index);
            ours.map(|(_, obstacle)| obstacle)
        };
        if mine().any(Option::is_none) {
            continue;
        }
        // Its own trouble first, then what keeps it from another. Where its
        // peers are on other nodes, or not there, its own word counts alone.
        let others = || mine().flatten().next().cloned();
        let Some(reason) = unregistered(facts).or_else(others) else {
            continue;
        };
        odd.push(format!(
            "GPU {index} has {links} NVLinks up to switches and reaches no GPU of this node over them: {reason}"
        ));
        for remote in gpu
            .links
            .iter_mut()
            .flatten()
            .filter_map(|l| l.remote.as_mut())
        {
            if remote.kind == RemoteKind::Switch {
                remote.kind = RemoteKind::Unknown;
            }
        }
    }
    odd
}

/// The multi-node fabrics with their GPUs, as `complete` wants them.
fn fabrics(facts: &[GpuFacts]) -> Vec<Domain> {
    let mut fabrics: BTreeMap<Fabric, Vec<u32>> = BTreeMap::new();
    for one in facts.iter().filter(|one| !one.gpu.mig_enabled) {
        if let Some(fabric) = one.fabric.as_ref().and_then(FabricInfo::multi_node) {
            fabrics.entry(fabric).or_default().push(one.gpu.index);
        }
    }
    let domain = |(fabric, gpus)| Domain {
        id: String::new(),
        gpus,
        fabric: Some(fabric),
    };
    fabrics.into_iter().map(domain).collect()
}

#[cfg(test)]
mod tests;
