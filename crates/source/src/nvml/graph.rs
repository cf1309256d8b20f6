//! Builds the document from what each GPU reports about its links. Pure functions.

use std::collections::BTreeMap;

use nvlink_topology::{
    Domain, Fabric, Gpu, Invalid, Link, NodeTopologySpec, Path, Remote, RemoteKind, Source,
    SourceKind, Tray, Via,
};

use super::raw::FabricInfo;
use crate::FabricState;

/// What one GPU reports about itself.
#[derive(Clone, Debug)]
pub(super) struct GpuFacts {
    /// Index, ids, model, NUMA node, MIG. Its links are built from `links`.
    pub(super) gpu: Gpu,
    /// The links; `None` if they are not visible.
    pub(super) links: Option<Vec<LinkFacts>>,
    /// The fabric; `None` if the GPU or the driver does not support fabrics.
    pub(super) fabric: Option<FabricInfo>,
    /// Its place in the rack; `None` if it is in none, or the driver does not report it.
    pub(super) tray: Option<Tray>,
}

/// What a GPU reports about one link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFacts {
    /// Its index on the GPU.
    pub(super) index: u32,
    /// It is up or asleep; `None` if its state could not be read.
    pub(super) up: Option<bool>,
    /// Line rate.
    pub(super) bytes_per_second: Option<u64>,
    pub(super) far: FarEnd,
}

/// What a GPU reports about the far end of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FarEnd {
    /// 0 is a GPU, 2 a switch; `None` if the driver does not report it.
    pub(super) device_type: Option<u32>,
    /// Address in NVML's spelling; `None` if it is not visible.
    pub(super) address: Option<String>,
    /// The driver answered with the address that means "not visible from here".
    pub(super) hidden: bool,
    /// The kernel has a switch at the address.
    pub(super) is_switch: bool,
    /// The driver failed to answer, so absent values mean nothing.
    pub(super) failed: bool,
}

/// For each pair of GPUs, whether the driver allows them to communicate over NVLink,
/// and its reason if not. Pairs for which the driver does not report this are absent.
pub(super) type PeerStatus = BTreeMap<(u32, u32), Result<(), String>>;

const TYPE_GPU: u32 = 0;
const TYPE_SWITCH: u32 = 2;

impl FarEnd {
    /// Returns the kind of the far end, as the driver reports it.
    ///
    /// If a link is up and its far end is not visible, it ends on a hidden switch
    /// (in containers, and always from Blackwell on), unless the driver reports
    /// something else. If the driver does not answer at all, the kind is unknown.
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

/// Returns the links of `facts` for the document; `gpus` are the addresses of the
/// node's GPUs. A link whose state could not be read is omitted: it is not known to
/// be down.
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
                // A link from a GPU to itself is an error in the system's tables.
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

/// Returns the pairs of GPUs with links to switches, for which [`PeerStatus`] matters.
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

/// Returns why two GPUs behind switches do not reach each other, or `None` if they
/// do. They reach each other unless the driver forbids it; from Hopper on, both must
/// also be registered with the same partition of the fabric.
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
        Some(Err(status)) => Some(format!(
            "the driver reports NVLink between them as \"{status}\""
        )),
        _ => None,
    }
}

/// Returns why the fabric does not carry the GPU's traffic, or `None` if it does.
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

/// Returns the hardware of the node `node`, with edges, paths and domains, and
/// warnings about it.
///
/// `from` is the origin of the data; `peers` has the status of the pairs of
/// [`switch_pairs`]; `paths` are the known PCIe paths.
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
    let kind = SourceKind::Nvml;
    let mut spec = NodeTopologySpec {
        paths: paths.clone(),
        domains: fabrics(facts),
        tray: tray(facts),
        ..NodeTopologySpec::of(Source { kind, from }, gpus)
    };
    odd.extend(spec.complete(node)?);
    let refused = |a: u32, b: u32| matches!(judged.get(&(a, b)), Some(Some(_)));
    let all = spec.edges.len();
    spec.edges
        .retain(|edge| edge.via == Via::Direct || !refused(edge.a, edge.b));
    if spec.edges.len() < all {
        // Some pairs behind switches are separated, which the links do not show.
        spec.paths = paths;
        spec.domains = fabrics(facts);
        spec.complete(node)?;
    }
    Ok((spec, odd))
}

/// Each pair behind switches, with the reason why it is separated, if it is.
type Judged = BTreeMap<(u32, u32), Option<String>>;

fn judge(facts: &[GpuFacts], pairs: &[(u32, u32)], peers: &PeerStatus) -> Judged {
    let of = |index: u32| facts.iter().find(|one| one.gpu.index == index);
    pairs
        .iter()
        .filter_map(|&(a, b)| Some(((a, b), obstacle(of(a)?, of(b)?, peers))))
        .collect()
}

/// Sets the far ends of links to unknown for GPUs that reach no other GPU over their
/// switches, and returns a warning for each of these GPUs.
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
        // Its own problem first, then the reason of a pair. If its peers are on other
        // nodes or missing, only its own problem counts.
        let others = || mine().flatten().next().cloned();
        let Some(reason) = unregistered(facts).or_else(others) else {
            continue;
        };
        odd.push(format!(
            "GPU {index} has {links} NVLinks up to switches but reaches no GPU of this node over \
             them: {reason}"
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

/// Returns the tray that GPUs report; `None` if none does, or they report different ones.
fn tray(facts: &[GpuFacts]) -> Option<Tray> {
    let mut trays = facts.iter().filter_map(|one| one.tray.as_ref());
    let first = trays.next()?;
    trays.all(|tray| tray == first).then(|| first.clone())
}

/// Returns the multi-node fabrics with their GPUs, as `complete` needs them.
fn fabrics(facts: &[GpuFacts]) -> Vec<Domain> {
    let mut fabrics: BTreeMap<Fabric, Vec<u32>> = BTreeMap::new();
    for one in facts.iter().filter(|one| !one.gpu.mig_enabled) {
        if let Some(fabric) = one.fabric.as_ref().and_then(FabricInfo::multi_node) {
            fabrics.entry(fabric).or_default().push(one.gpu.index);
        }
    }
    let domain = |(fabric, gpus)| Domain {
        gpus,
        fabric: Some(fabric),
        ..Domain::default()
    };
    fabrics.into_iter().map(domain).collect()
}

#[cfg(test)]
mod tests;
