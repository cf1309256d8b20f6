//! The PCIe paths between GPUs.

use std::collections::BTreeMap;

use nvlink_topology::{Path, PathClass, bandwidth};
use nvml_wrapper::Device;

use super::{
    error::Trouble,
    failures::{Answer, Failures, Told, detail},
    gpu::Answered,
    raw,
};
use crate::pci::LinkRate;

/// The PCIe class of each pair of GPUs, by their keys. Queried once while the library
/// is loaded: each pair needs a walk through the PCI tree, and a running machine is
/// not rewired.
#[derive(Debug, Default)]
pub(super) struct Ancestors(BTreeMap<(String, String), Option<PathClass>>);

impl Ancestors {
    /// Returns the path between each pair of `gpus` for which the driver reports the class.
    ///
    /// # Errors
    /// When the library is lost.
    pub(super) fn paths(
        &mut self,
        gpus: &[(Device<'_>, Answered)],
        told: &mut Told,
    ) -> Result<Vec<Path>, Trouble> {
        let mut paths = Vec::new();
        for (n, (from, a)) in gpus.iter().enumerate() {
            let mut failures = Failures::default();
            for (to, b) in &gpus[n + 1..] {
                let class = self.class((from, a), (to, b), &mut failures)?;
                paths.extend(class.map(|class| path(a, b, class)));
            }
            told.add(a.facts.gpu.index, &failures);
        }
        Ok(paths)
    }

    fn class(
        &mut self,
        (from, a): (&Device<'_>, &Answered),
        (to, b): (&Device<'_>, &Answered),
        failures: &mut Failures,
    ) -> Result<Option<PathClass>, Trouble> {
        let pair = (a.key.clone(), b.key.clone());
        if let Some(class) = self.0.get(&pair) {
            return Ok(*class);
        }
        // This call also fails if the driver does not understand the machine's PCI
        // tree. The graph does not need it.
        let call = detail("nvmlDeviceGetTopologyCommonAncestor");
        let class = match failures.ask(call, raw::common_ancestor(from, to)) {
            Ok(Answer::Given(level)) => class_of_level(level),
            Ok(Answer::Unknown) => None,
            // The next reading of a lost GPU reports it.
            Ok(Answer::Failed) | Err(Trouble::Gpu(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.0.insert(pair, class);
        Ok(class)
    }
}

/// Returns the class of an NVML topology level.
fn class_of_level(level: u32) -> Option<PathClass> {
    match level {
        // Two GPUs on one board are connected by a switch on that board.
        0 | 10 => Some(PathClass::Pix),
        20 => Some(PathClass::Pxb),
        30 => Some(PathClass::Phb),
        40 => Some(PathClass::Node),
        50 => Some(PathClass::Sys),
        _ => None,
    }
}

/// Returns the path between two GPUs, which is as fast as the slower slot.
fn path(a: &Answered, b: &Answered, class: PathClass) -> Path {
    let slowest = a.pcie.zip(b.pcie).map(|(a, b)| LinkRate {
        generation: a.generation.min(b.generation),
        lanes: a.lanes.min(b.lanes),
    });
    let indices = (a.facts.gpu.index, b.facts.gpu.index);
    Path {
        a: indices.0.min(indices.1),
        b: indices.0.max(indices.1),
        class,
        bytes_per_second: match slowest {
            Some(rate) => rate.bytes_per_second(class),
            None => bandwidth::assumed(class),
        },
        assumed: slowest.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_the_classes_of_topo_m() {
        let classes = [0, 10, 20, 30, 40, 50, 60].map(class_of_level);
        use PathClass::*;
        let wanted = [
            Some(Pix),
            Some(Pix),
            Some(Pxb),
            Some(Phb),
            Some(Node),
            Some(Sys),
            None,
        ];
        assert_eq!(classes, wanted);
    }
}
