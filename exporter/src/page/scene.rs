//! The data of the page, with indices for its parts.

use std::collections::BTreeMap;

use nvlink_source::LinkCounters;
use nvlink_source::Reading;
use nvlink_topology::{Allocation, Gpu, NodeTopologySpec, RemoteKind, missing_links};

use super::{html::mark, lane::Lane};
use crate::{placement::Judged, snapshot::View};
use nvlink_history::load::LinkLoad;

/// A view that has data, and indices into it.
pub(super) struct Scene<'a> {
    pub(super) view: &'a View,
    pub(super) data: &'a Reading,
    pub(super) jobs: Vec<Job<'a>>,
    /// Whether the rates of the links need one more reading: there is one so far.
    pub(super) measuring: bool,
    counters: BTreeMap<(u32, u32), &'a LinkCounters>,
    loads: BTreeMap<(u32, u32), &'a LinkLoad>,
    /// Addresses of the switches, in ascending order.
    switches: Vec<&'a str>,
}

/// A container that holds GPUs.
pub(super) struct Job<'a> {
    /// The mark on its GPUs: `A`, `B`, ….
    pub(super) mark: String,
    pub(super) held: &'a Allocation,
    pub(super) judged: Option<&'a Judged>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(view: &'a View, data: &'a Reading) -> Self {
        let links = data.topology.spec.gpus.iter().flat_map(|gpu| &gpu.links);
        let remotes = links.flatten().filter_map(|link| link.remote.as_ref());
        let switches = remotes.filter(|remote| remote.kind == RemoteKind::Switch);
        let mut switches: Vec<_> = switches
            .filter_map(|remote| remote.pci_bus_id.as_deref())
            .collect();
        switches.sort_unstable();
        switches.dedup();
        let loads = view.snapshot.iter().flat_map(|snapshot| &snapshot.loads);
        let counters = data.counters.iter();
        Self {
            view,
            data,
            jobs: jobs(view, data),
            measuring: measuring(view, data),
            counters: counters.map(|one| ((one.gpu, one.link), one)).collect(),
            loads: loads.map(|one| ((one.gpu, one.link), one)).collect(),
            switches,
        }
    }

    pub(super) fn spec(&self) -> &'a NodeTopologySpec {
        &self.data.topology.spec
    }

    /// Returns the number of links that should be up and are not; 0 if it is not known.
    pub(super) fn missing(&self, gpu: &Gpu) -> u64 {
        let known = self.data.is_read(gpu.index);
        let missing = known.then(|| missing_links(gpu, &self.spec().gpus));
        missing.flatten().unwrap_or_default()
    }

    /// Returns the links of a GPU; empty if they are not known.
    pub(super) fn lanes(&self, gpu: &'a Gpu) -> Vec<Lane<'a>> {
        let wanted = self.missing(gpu) > 0;
        let lane = |link: &'a nvlink_topology::Link| {
            let at = (gpu.index, link.index);
            Lane {
                link,
                counters: self.counters.get(&at).copied(),
                load: self.loads.get(&at).copied(),
                wanted,
                measuring: self.measuring && self.counters.get(&at).is_some_and(|one| counts(one)),
            }
        };
        gpu.links.iter().flatten().map(lane).collect()
    }

    /// Returns a short name of the device at the other end: `GPU 4`, `S2`, `switch`, `?`.
    pub(super) fn remote(&self, lane: &Lane<'_>) -> Option<String> {
        let name = match lane.remote()? {
            (RemoteKind::Switch, Some(bus)) => match self.switches.binary_search(&bus) {
                Ok(n) => format!("S{n}"),
                Err(_) => "switch".to_owned(),
            },
            (RemoteKind::Switch, None) => "switch".to_owned(),
            (RemoteKind::Gpu, Some(bus)) => match self.gpu_at(bus) {
                Some(gpu) => format!("GPU {gpu}"),
                None => "GPU".to_owned(),
            },
            (RemoteKind::Gpu, None) => "GPU".to_owned(),
            (RemoteKind::Unknown, _) => "?".to_owned(),
        };
        Some(name)
    }

    fn gpu_at(&self, bus: &str) -> Option<u32> {
        let short = |bus: &str| bus.to_ascii_lowercase().trim_start_matches('0').to_owned();
        let is_here = |gpu: &&Gpu| {
            let address = gpu.pci_bus_id.as_deref();
            address.is_some_and(|address| short(address) == short(bus))
        };
        self.spec().gpus.iter().find(is_here).map(|gpu| gpu.index)
    }

    /// Returns the jobs that hold a GPU.
    pub(super) fn jobs_on(&self, gpu: u32) -> impl Iterator<Item = &Job<'a>> {
        self.jobs
            .iter()
            .filter(move |job| job.held.gpus.contains(&gpu))
    }

    /// Reports whether the exporter queries which containers hold which GPUs.
    pub(super) fn asks_for_jobs(&self) -> bool {
        let placements = self.view.placements.as_ref();
        placements.is_some_and(|one| one.health.is_some())
    }

    /// Reports whether it is known which containers hold which GPUs.
    pub(super) fn knows_jobs(&self) -> bool {
        let placements = self.view.placements.as_ref();
        let status = placements.map_or(&self.data.topology.status, |one| &one.status);
        status.is_some()
    }
}

fn counts(link: &LinkCounters) -> bool {
    link.transmit_bytes.is_some() || link.receive_bytes.is_some()
}

/// Reports whether bytes are counted and no rate is known yet.
fn measuring(view: &View, data: &Reading) -> bool {
    let loads = view.snapshot.iter().flat_map(|snapshot| &snapshot.loads);
    let rate = |one: &LinkLoad| {
        one.transmit_bytes_per_second
            .or(one.receive_bytes_per_second)
            .is_some()
    };
    data.counters.iter().any(counts) && !loads.into_iter().any(rate)
}

/// Returns the judged placements; if there are none, the allocations without judgement.
fn jobs<'a>(view: &'a View, data: &'a Reading) -> Vec<Job<'a>> {
    let placements = view.placements.as_deref();
    let judged = placements.map(|one| &one.judged[..]).unwrap_or_default();
    let status = placements.map_or(&data.topology.status, |one| &one.status);
    let held: Vec<_> = match judged.is_empty() {
        false => judged
            .iter()
            .map(|one| (&one.allocation, Some(one)))
            .collect(),
        true => status
            .iter()
            .flat_map(|status| &status.allocations)
            .map(|held| (held, None))
            .collect(),
    };
    let job = |(n, (held, judged))| Job {
        mark: mark(n),
        held,
        judged,
    };
    held.into_iter().enumerate().map(job).collect()
}
