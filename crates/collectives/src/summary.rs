//! Results in a container's termination message: a benchmark in a pod hands them to the
//! exporter of its node without rights, storage or network.
//!
//! The kubelet keeps at most 4096 bytes of `/dev/termination-log` in the pod's status
//! (Kubernetes, "Determine the Reason for Pod Failure").

use std::collections::BTreeMap;

use nvlink_topology::PathClass;
use serde::{Deserialize, Serialize};

use super::{
    Collective, Run,
    run::{Device, Failure, Known, Level, Measured, Origin, Row, SizeClass, short},
    verdict::Report,
};

/// The size of the largest message that the kubelet keeps, in bytes.
pub const MOST_BYTES: usize = 4096;
/// The maximum length of a failure's text, in characters.
const MOST_TEXT: usize = 200;
/// The maximum number of PCI addresses: those of one node.
const MOST_ADDRESSES: usize = 16;
/// The format of this version.
const VERSION: u32 = 1;

/// The content of the message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    /// The format, under a name that no other message has.
    nvlink_collectives: u32,
    runs: Vec<Short>,
    /// Number of runs for which there was no room.
    #[serde(default, skip_serializing_if = "is_none_left_out")]
    left_out: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none_left_out(number: &u32) -> bool {
    *number == 0
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Short {
    collective: Collective,
    gpus: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<PathClass>,
    /// Whether NVSwitches add up the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nvls: Option<Known<bool>>,
    /// PCI addresses of the GPUs of a run on one node, by which the exporter finds the paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pci: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    levels: BTreeMap<SizeClass, Level>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    setup_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

/// Returns the message of the runs whose collective and number of GPUs are known: as many
/// of the first ones as there is room for.
#[must_use]
pub fn write(reports: &[Report]) -> String {
    let runs: Vec<Short> = reports.iter().filter_map(Short::new).collect();
    let all = runs.len();
    let mut message = Message {
        nvlink_collectives: VERSION,
        runs,
        left_out: 0,
    };
    loop {
        // Writing these types as JSON never fails.
        let text = serde_json::to_string(&message).unwrap_or_default();
        if text.len() <= MOST_BYTES || message.runs.pop().is_none() {
            return text;
        }
        message.left_out = u32::try_from(all - message.runs.len()).unwrap_or(u32::MAX);
    }
}

/// Returns the runs of a message; `None` if it is another one.
#[must_use]
pub fn read(text: &str) -> Option<Vec<Run>> {
    let message = (text.len() <= MOST_BYTES).then(|| serde_json::from_str::<Message>(text).ok());
    let message = message.flatten()?;
    let known = message.nvlink_collectives == VERSION;
    known.then(|| message.runs.into_iter().map(Short::run).collect())
}

impl Short {
    fn new(report: &Report) -> Option<Self> {
        let (run, place) = (&report.placed.run, &report.placed.place);
        let one_node = place.nodes.as_ref().is_some_and(|nodes| nodes.value == 1);
        let addresses = run.devices.iter().filter(|_| one_node);
        let failure = run.failure.clone().map(|failure| Failure {
            text: short(&failure.text, MOST_TEXT),
            ..failure
        });
        Some(Self {
            collective: run.collective.as_ref()?.value,
            gpus: place.gpus.as_ref()?.value,
            nodes: place.nodes.as_ref().map(|nodes| nodes.value),
            model: place.model.as_ref().map(|model| model.value.clone()),
            path: place.path.as_ref().map(|path| path.value),
            nvls: run.nvls.clone(),
            pci: addresses
                .take(MOST_ADDRESSES)
                .map(|one| one.pci.clone())
                .collect(),
            levels: report.kept.levels.clone(),
            setup_seconds: run.setup_seconds,
            failure,
        })
    }

    /// Returns the run as far as the message describes it: one row for each size class.
    fn run(self) -> Run {
        let from = Origin::Output;
        let model = self.model.unwrap_or_default();
        let device = |(rank, pci)| Device {
            rank,
            pci,
            model: model.clone(),
            ..Device::default()
        };
        let gbps = |level: &Level| level.bytes_per_second as f64 / 1e9;
        let row = |level: &Level| Row {
            size: level.size,
            root: -1,
            out_of_place: Measured::new(level.seconds * 1e6, gbps(level), gbps(level), None),
            measurements: 1,
            ..Row::default()
        };
        Run {
            line: 1,
            collective: Some(Known::new(self.collective, from)),
            ranks: Some(Known::new(self.gpus, from)),
            nodes: self.nodes.map(|value| Known { value, from }),
            path: self.path.map(|value| Known { value, from }),
            nvls: self.nvls,
            devices: match self.pci.is_empty() {
                // The model is known without addresses, too.
                true => vec![device((0, String::new()))],
                false => (0..).zip(self.pci).map(device).collect(),
            },
            rows: self.levels.values().map(row).collect(),
            setup_seconds: self.setup_seconds,
            failure: self.failure,
            ..Run::default()
        }
    }
}
