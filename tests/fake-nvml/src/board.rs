//! The board: a recording, and the properties of its GPUs' model.

use std::{collections::BTreeMap, fs, path::Path};

use nvlink_topology::{Gpu, NodeTopology, PathClass, Remote, RemoteKind, Tray};

use crate::{
    config::{BoardSpec, Config, Counter, GpuOptions, LinkOptions},
    generation::Generation,
};

/// The data from which calls are answered.
pub(crate) struct Board {
    pub(crate) config: Config,
    pub(crate) cards: Vec<Card>,
    /// PCIe class between two positions, the lower one first.
    pub(crate) classes: BTreeMap<(usize, usize), PathClass>,
    /// Positions joined by NVLink, the lower one first.
    pub(crate) edges: Vec<(usize, usize)>,
    /// Cluster UUID and clique, if the fabric spans nodes.
    pub(crate) fabric: Option<(String, u32)>,
    /// Its place in the rack.
    pub(crate) tray: Option<Tray>,
}

pub(crate) struct Card {
    pub(crate) gpu: Gpu,
    pub(crate) generation: Generation,
    pub(crate) ports: Vec<Port>,
    pub(crate) options: GpuOptions,
}

/// One link of a GPU.
pub(crate) struct Port {
    /// As field 165: 0 inactive, 1 active, 2 asleep.
    pub(crate) state: u32,
    /// Line rate in MB/s.
    pub(crate) megabytes_per_second: Option<u32>,
    pub(crate) remote: Option<Remote>,
    /// Position and link number of the far end.
    pub(crate) peer: Option<(usize, u32)>,
    pub(crate) options: LinkOptions,
}

impl Board {
    /// Reads the file at `path`, and the recording that it names.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read(path).map_err(|error| error.to_string())?;
        let mut config: Config =
            serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let document = match &mut config.board {
            BoardSpec::Here(document) => (**document).clone(),
            BoardSpec::File(path) => {
                let text =
                    fs::read(&*path).map_err(|error| format!("{}: {error}", path.display()))?;
                serde_json::from_slice(&text)
                    .map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        Self::new(config, document)
    }

    fn new(config: Config, mut document: NodeTopology) -> Result<Self, String> {
        let position: BTreeMap<u32, usize> = document
            .spec
            .gpus
            .iter()
            .enumerate()
            .map(|(position, gpu)| (gpu.index, position))
            .collect();
        let pair = |a: u32, b: u32| Some((*position.get(&a)?, *position.get(&b)?));
        let path = |path: &nvlink_topology::Path| Some((pair(path.a, path.b)?, path.class));
        let classes = document.spec.paths.iter().filter_map(path);
        let classes = classes
            .filter(|(_, class)| *class != PathClass::Nvlink)
            .collect();
        let name = document.metadata.name.clone();
        let completed = document.spec.complete(&name);
        completed.map_err(|error| error.to_string())?;
        let spec = document.spec;
        let edges = spec.edges.iter();
        let edges = edges.filter_map(|edge| pair(edge.a, edge.b)).collect();
        let mut fabrics = spec.domains.into_iter().filter_map(|domain| domain.fabric);
        let fabric = fabrics.next().map(|one| (one.cluster_uuid, one.clique));
        let card = |(position, gpu)| Card::new(&config, position, gpu);
        let mut cards: Vec<Card> = spec.gpus.into_iter().enumerate().map(card).collect();
        join(&mut cards);
        Ok(Self {
            config,
            cards,
            classes,
            edges,
            fabric,
            tray: spec.tray,
        })
    }

    /// Returns the positions of the listed GPUs, in NVML's order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = usize> {
        (0..self.cards.len()).filter(|position| !self.config.removed.contains(position))
    }
}

impl Card {
    fn new(config: &Config, position: usize, gpu: Gpu) -> Self {
        let options = config.gpus.get(&position).cloned().unwrap_or_default();
        let model = gpu.model.as_deref().unwrap_or_default();
        let links = gpu.links.iter().flatten();
        let port = |link: &nvlink_topology::Link| {
            let mine = options.links.get(&link.index).cloned().unwrap_or_default();
            // The links of a GPU with MIG enabled are reported as down.
            let up = link.up && !gpu.mig_enabled;
            Port {
                state: mine.state.unwrap_or(up.into()),
                megabytes_per_second: link.bytes_per_second.map(|rate| (rate / 1_000_000) as u32),
                remote: link.remote.clone(),
                peer: None,
                options: mine,
            }
        };
        Self {
            generation: Generation::of(model),
            ports: links.map(port).collect(),
            gpu,
            options,
        }
    }

    pub(crate) fn bus_id(&self) -> &str {
        self.gpu.pci_bus_id.as_deref().unwrap_or_default()
    }

    pub(crate) fn model(&self) -> &str {
        self.gpu.model.as_deref().unwrap_or_default()
    }

    pub(crate) fn counts(&self, counter: Counter) -> bool {
        let given = self.options.counters.as_deref();
        let counters = given.unwrap_or(self.generation.counters());
        counters.contains(&counter)
    }

    /// Returns the links that are active or asleep.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| port.state != 0)
    }
}

impl Port {
    /// Reports whether the far end is not a GPU: a switch, or a device that is hidden
    /// from the node.
    pub(crate) fn ends_on_switch(&self) -> bool {
        self.remote
            .as_ref()
            .is_some_and(|remote| remote.kind != RemoteKind::Gpu)
    }
}

/// Sets the far end of each link: the n-th link from one GPU to another is the n-th link
/// in the other direction.
fn join(cards: &mut [Card]) {
    let ends_on = |card: &Card, bus_id: &str| -> Vec<u32> {
        let ends_there = |port: &Port| {
            let remote = port.remote.as_ref();
            let address = remote.and_then(|remote| remote.pci_bus_id.as_deref());
            address.is_some_and(|address| address.eq_ignore_ascii_case(bus_id))
        };
        let ports = card.ports.iter().enumerate();
        let found = ports.filter(|(_, port)| ends_there(port));
        found.map(|(link, _)| link as u32).collect()
    };
    for a in 0..cards.len() {
        for b in (0..cards.len()).filter(|&b| b != a) {
            let there = ends_on(&cards[a], cards[b].bus_id());
            let back = ends_on(&cards[b], cards[a].bus_id());
            for (from, to) in there.into_iter().zip(back) {
                cards[a].ports[from as usize].peer = Some((b, to));
            }
        }
    }
}
