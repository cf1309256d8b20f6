//! Boards that the simulator lacks, as small recordings.

use serde_json::{Value, json};

pub(super) struct Board {
    /// Product name.
    pub(super) model: &'static str,
    pub(super) gpus: usize,
    /// Line rate of a link in MB/s, as in NVML.
    pub(super) rate: u64,
    pub(super) wiring: Wiring,
}

/// The far ends of the links.
pub(super) enum Wiring {
    /// From GPU to GPU: `(a, b, links)`.
    Direct(Vec<(usize, usize, usize)>),
    /// The number of links to each switch.
    Switches(&'static [usize]),
    /// The number of links to switches that the node cannot see.
    Hidden(usize),
    /// The number of links, all of them down.
    Inactive(usize),
}

/// Returns every pair of `gpus` GPUs, with `links` links each.
pub(super) fn mesh(gpus: usize, links: usize) -> Vec<(usize, usize, usize)> {
    let pairs = (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| (a, b)));
    pairs.map(|(a, b)| (a, b, links)).collect()
}

fn bus_id(gpu: usize) -> String {
    format!("00000000:{:02X}:00.0", 0x10 + gpu)
}

impl Board {
    /// Returns the recording of the board.
    pub(super) fn recording(&self) -> Value {
        let gpus: Vec<_> = (0..self.gpus).map(|gpu| self.gpu(gpu)).collect();
        json!({
            "apiVersion": "nvlink-domains.io/v1alpha1",
            "kind": "NodeTopology",
            "metadata": {"name": "gpu-1"},
            "spec": {"source": {"kind": "file"}, "gpus": gpus},
        })
    }

    fn gpu(&self, gpu: usize) -> Value {
        let links = self.remotes(gpu).into_iter().enumerate();
        let link = |(index, remote): (usize, Option<Value>)| match remote {
            None => json!({"index": index, "up": false}),
            Some(remote) => json!({
                "index": index,
                "up": true,
                "bytesPerSecond": self.rate * 1_000_000,
                "remote": remote,
            }),
        };
        json!({
            "index": gpu,
            "uuid": format!("GPU-00000000-0000-0000-0000-{gpu:012}"),
            "pciBusId": bus_id(gpu),
            "model": self.model,
            "numaNode": gpu * 2 / self.gpus,
            "links": links.map(link).collect::<Vec<_>>(),
        })
    }

    /// Returns the far end of each link of one GPU; `None` for a link that is down.
    fn remotes(&self, gpu: usize) -> Vec<Option<Value>> {
        match &self.wiring {
            Wiring::Direct(pairs) => {
                let mut remotes = Vec::new();
                for &(a, b, links) in pairs {
                    let peer = match gpu {
                        _ if gpu == a => b,
                        _ if gpu == b => a,
                        _ => continue,
                    };
                    let remote = json!({"kind": "gpu", "pciBusId": bus_id(peer)});
                    remotes.extend(vec![Some(remote); links]);
                }
                remotes
            }
            Wiring::Switches(links) => {
                let switch = |(n, &links): (usize, &usize)| {
                    let bus_id = format!("00000000:C{n}:00.0");
                    vec![Some(json!({"kind": "switch", "pciBusId": bus_id})); links]
                };
                links.iter().enumerate().flat_map(switch).collect()
            }
            Wiring::Hidden(links) => vec![Some(json!({"kind": "switch"})); *links],
            Wiring::Inactive(links) => vec![None; *links],
        }
    }
}
