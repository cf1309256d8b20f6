//! Finds the NVLinks that a node should have but that are down, and the GPUs that it should
//! have but that do not answer.

use crate::{Domain, Gpu, Link, NodeTopologySpec, RemoteKind, SourceKind, Via, generation};

/// Returns the number of links that should be up but are not.
///
/// The expected number is the maximum among the node's GPUs of the same model, and at least
/// the number of the model's SXM board (so a node whose whole fabric is down is reported).
/// In a virtual machine the board's number applies only if the machine has the whole board:
/// one of eight H100 correctly has no links there, and two have all of them or none.
///
/// Bridges of cards are optional: a card without a single link is one without a bridge, also
/// beside cards that have one, unless a link that is down names the device to which it led
/// ([`crate::Link::remote`]).
///
/// Returns `None` if the links are unknown, if the GPU may correctly have none, and for GPUs
/// split by MIG, whose links the driver reports as down.
#[must_use]
pub fn missing_links(gpu: &Gpu, gpus: &[Gpu]) -> Option<u64> {
    let up = |gpu: &Gpu| {
        let links = gpu.links.as_ref().filter(|_| !gpu.mig_enabled)?;
        Some(links.iter().filter(|link| link.up).count() as u64)
    };
    let active = up(gpu)?;
    let known = |link: &Link| {
        let remote = link.remote.as_ref();
        remote.is_some_and(|remote| remote.kind != RemoteKind::Unknown)
    };
    let leads = |link: &&Link| link.up || known(link);
    let own = gpu.links.iter().flatten().filter(leads).count() as u64;
    let wired = gpu.model.as_deref().and_then(generation::board_links);
    if own == 0 && wired.is_none() {
        return None;
    }
    let siblings = gpus
        .iter()
        .filter(|other| other.model == gpu.model)
        .filter_map(up);
    let alike = gpus.iter().filter(|other| other.model == gpu.model).count();
    let is_whole = |model: &&str| !gpu.virtual_machine || alike >= generation::board_gpus(model);
    let model = gpu.model.as_deref().filter(is_whole);
    let board = model.and_then(generation::board_links).map(u64::from);
    let expected = siblings
        .chain(board)
        .max()
        .map_or(own, |most| most.max(own));
    (expected > 0).then(|| expected.saturating_sub(active))
}

/// Returns the number of links that each GPU of `domain` on this node lacks; 0 if one of them lacks
/// none, and for a domain with fewer than two GPUs of which that is known.
///
/// Behind switches, it is a switch or its cables that all GPUs of the domain have in common. Where
/// links lead from GPU to GPU, each missing link is a fault of the two GPUs at its ends, so the number
/// is 0.
#[must_use]
pub fn shared_missing_links(domain: &Domain, spec: &NodeTopologySpec) -> u64 {
    let gpus = spec.gpus.iter();
    let gpus = gpus.filter(|gpu| domain.gpus.contains(&gpu.index));
    shared(domain, spec, gpus.map(|gpu| missing_links(gpu, &spec.gpus)))
}

/// Returns the same of the GPUs of `domain`, which lack so many links each.
fn shared(
    domain: &Domain,
    spec: &NodeTopologySpec,
    missing: impl Iterator<Item = Option<u64>>,
) -> u64 {
    let mut edges = spec.edges.iter();
    let switched = edges
        .any(|edge| matches!(edge.via, Via::Switch | Via::Fabric) && domain.gpus.contains(&edge.a));
    let known: Vec<u64> = missing.flatten().collect();
    let least = known.iter().min().filter(|_| switched && known.len() > 1);
    least.copied().unwrap_or(0)
}

/// Returns for each GPU of `spec`, in their order, the number of links that should be up but are not,
/// without those that [all GPUs of its domain lack](shared_missing_links). `None` as of
/// [`missing_links`].
#[must_use]
pub fn own_missing_links(spec: &NodeTopologySpec) -> Vec<Option<u64>> {
    let missing = spec.gpus.iter().map(|gpu| missing_links(gpu, &spec.gpus));
    let mut own: Vec<Option<u64>> = missing.collect();
    for domain in &spec.domains {
        let inside = |n: &usize| domain.gpus.contains(&spec.gpus[*n].index);
        let inside: Vec<usize> = (0..own.len()).filter(inside).collect();
        let shared = shared(domain, spec, inside.iter().map(|&n| own[n]));
        for n in inside {
            own[n] = own[n].map(|missing| missing.saturating_sub(shared));
        }
    }
    own
}

/// Returns the number of GPUs that the node's board has and that do not answer, lost ones
/// ([`NodeTopologySpec::lost`]) included: also those that have been gone since the boot.
///
/// Only machines with NVSwitches have a verdict. Their boards have a known number of GPUs
/// ([`generation::switched_sizes`]), and the links of the GPUs that are left are all up, so that
/// nothing else shows the loss. Where the links lead from GPU to GPU, [`missing_links`] shows it.
///
/// Returns `None` if the number is not known: in a virtual machine, which may have a part of the
/// board (the driver says so, [`Gpu::virtual_machine`]), for sources that do not know whether
/// the node is one, for GPUs of several models, and for products without such boards.
#[must_use]
pub fn missing_gpus(spec: &NodeTopologySpec) -> Option<u64> {
    let model = spec.gpus.first()?.model.as_deref()?;
    let is_alike = |gpu: &Gpu| gpu.model.as_deref() == Some(model) && !gpu.virtual_machine;
    if !knows_machine(spec) || !spec.gpus.iter().all(is_alike) {
        return None;
    }
    let links = spec.gpus.iter().flat_map(|gpu| gpu.links.iter().flatten());
    let mut remotes = links.filter_map(|link| link.remote.as_ref());
    if !remotes.any(|remote| remote.kind == RemoteKind::Switch) {
        return None;
    }
    let there = spec.gpus.len();
    let sizes = generation::switched_sizes(model).iter();
    let board = sizes.copied().find(|&size| size >= there)?;
    Some((board - there) as u64)
}

/// Reports whether the source knows if the node is a virtual machine. The driver and the
/// simulator do, and so do recordings of them, which keep their kind.
fn knows_machine(spec: &NodeTopologySpec) -> bool {
    matches!(spec.source.kind, SourceKind::Nvml | SourceKind::Sim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Remote, profile::profile};

    /// Returns a node of `name` without the first `gone` of its GPUs.
    fn without(name: &str, gone: usize) -> NodeTopologySpec {
        let mut spec = profile(name).unwrap().node("n").unwrap().spec;
        spec.gpus.drain(..gone);
        spec
    }

    #[test]
    fn gpus_are_missing_on_boards_with_switches() {
        for (name, gone, expected) in [
            ("dgx-h100", 0, Some(0)),
            ("dgx-h100", 1, Some(1)),
            ("hgx-b200", 3, Some(3)),
            ("dgx-a100", 1, Some(1)),
            ("dgx2-v100", 0, Some(0)),
            ("dgx2-v100", 1, Some(1)),
            ("gb200-nvl72", 0, Some(0)),
            ("gb200-nvl72", 1, Some(1)),
            // A tray with a GPU for each CPU is complete with two.
            ("gb200-nvl72", 2, Some(0)),
            // Links from GPU to GPU: `missing_links` shows it.
            ("hgx-a100-4", 1, None),
            ("a100-pcie-pairs", 1, None),
            ("l40s", 1, None),
            ("dgx-h100", 8, None),
        ] {
            assert_eq!(
                missing_gpus(&without(name, gone)),
                expected,
                "{name} - {gone}"
            );
        }
    }

    #[test]
    fn the_board_says_nothing_of_virtual_machines_and_of_sources_that_do_not_know_them() {
        let spec = without("dgx-h100", 1);
        let mut machine = spec.clone();
        machine.gpus[3].virtual_machine = true;
        assert_eq!(missing_gpus(&machine), None);
        for kind in [SourceKind::File, SourceKind::Sysfs] {
            let mut other = spec.clone();
            other.source.kind = kind;
            assert_eq!(missing_gpus(&other), None, "{kind:?}");
        }
        let mut mixed = spec.clone();
        mixed.gpus[0].model = Some("NVIDIA H200".to_owned());
        assert_eq!(missing_gpus(&mixed), None);
    }

    fn gpu(model: &str, up: usize, down: usize) -> Gpu {
        let link = |n: usize| Link {
            index: n as u32,
            up: n < up,
            bytes_per_second: None,
            remote: None,
        };
        let links = Some((0..up + down).map(link).collect());
        Gpu {
            model: Some(model.to_owned()),
            links,
            ..Gpu::default()
        }
    }

    /// The model, each GPU's number of links up and down, and the expected missing links.
    type Case = (
        &'static str,
        &'static [(usize, usize)],
        &'static [Option<u64>],
    );

    #[test]
    fn the_expected_number_comes_from_siblings_and_from_the_board() {
        let cases: [Case; 8] = [
            (
                "NVIDIA H100 80GB HBM3",
                &[(18, 0), (16, 2)],
                &[Some(0), Some(2)],
            ),
            (
                "NVIDIA H100 80GB HBM3",
                &[(0, 18), (0, 18)],
                &[Some(18), Some(18)],
            ),
            (
                "NVIDIA H100 80GB HBM3",
                &[(18, 0), (0, 18)],
                &[Some(0), Some(18)],
            ),
            // Cards without a bridge beside cards with one.
            (
                "NVIDIA H200 NVL",
                &[(18, 0), (18, 0), (17, 1), (18, 0), (0, 18), (0, 18)],
                &[Some(0), Some(0), Some(1), Some(0), None, None],
            ),
            (
                "NVIDIA A100 80GB PCIe",
                &[(12, 0), (0, 12)],
                &[Some(0), None],
            ),
            ("NVIDIA A100 80GB PCIe", &[(0, 12), (0, 12)], &[None, None]),
            ("NVIDIA GH200 480GB", &[(0, 18)], &[None]),
            ("NVIDIA L40S", &[(0, 0)], &[None]),
        ];
        for (model, links, expected) in cases {
            let gpus: Vec<_> = links
                .iter()
                .map(|&(up, down)| gpu(model, up, down))
                .collect();
            let missing: Vec<_> = gpus.iter().map(|one| missing_links(one, &gpus)).collect();
            assert_eq!(missing, expected, "{model}");
        }
    }

    #[test]
    fn a_bridge_that_fails_is_missing_on_both_of_its_cards() {
        let mut gpus = vec![gpu("NVIDIA A100 80GB PCIe", 0, 12); 4];
        for link in gpus[..2]
            .iter_mut()
            .flat_map(|gpu| gpu.links.iter_mut().flatten())
        {
            link.remote = Some(Remote {
                kind: RemoteKind::Gpu,
                pci_bus_id: None,
            });
        }
        let missing: Vec<_> = gpus.iter().map(|one| missing_links(one, &gpus)).collect();
        assert_eq!(missing, [Some(12), Some(12), None, None]);
    }

    #[test]
    fn in_a_virtual_machine_the_number_of_the_board_applies_only_to_a_whole_board() {
        let missing = |model: &str, links: &[(usize, usize)]| {
            let in_machine = |&(up, down): &(usize, usize)| Gpu {
                virtual_machine: true,
                ..gpu(model, up, down)
            };
            let gpus: Vec<_> = links.iter().map(in_machine).collect();
            let missing = gpus.iter().map(|one| missing_links(one, &gpus));
            missing.collect::<Vec<_>>()
        };
        let h100 = "NVIDIA H100 80GB HBM3";
        assert_eq!(missing(h100, &[(0, 18)]), [None]);
        assert_eq!(missing(h100, &[(0, 18); 7]), [None; 7]);
        assert_eq!(missing(h100, &[(18, 0), (17, 1)]), [Some(0), Some(1)]);
        assert_eq!(missing(h100, &[(0, 18); 8]), [Some(18); 8]);
        assert_eq!(missing("NVIDIA GB200", &[(0, 18); 3]), [None; 3]);
        assert_eq!(missing("NVIDIA GB200", &[(0, 18); 4]), [Some(18); 4]);
    }

    #[test]
    fn mig_and_unknown_links_report_nothing() {
        let mut gpus = [
            gpu("NVIDIA H200", 18, 0),
            gpu("NVIDIA H200", 0, 18),
            Gpu::default(),
        ];
        gpus[1].mig_enabled = true;
        let missing: Vec<_> = gpus.iter().map(|one| missing_links(one, &gpus)).collect();
        assert_eq!(missing, [Some(0), None, None]);
    }
}
