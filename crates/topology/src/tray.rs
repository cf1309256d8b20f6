//! The place of a node in a rack whose trays form one NVLink fabric.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A compute tray of a rack: the place of a node, as the driver reports it
/// (`nvmlDeviceGetPlatformInfo`, which `nvidia-smi -q` prints as platform info).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Tray {
    /// Serial number of the chassis, which is the rack.
    pub chassis: String,
    /// Which of the compute trays of the chassis it is, from 0 on. Switch trays do not count.
    pub index: u8,
    /// The slot of the chassis. Switch trays count.
    pub slot: u8,
}

/// Returns the indices of the compute trays of a fabric that has `nodes` nodes when it is complete, but
/// none of `there`, ascending. `None` if they are not known: a node does not report its tray, two report
/// the same one, the fabric spans several chassis, or an index is not below `nodes`.
#[must_use]
pub fn away<'a>(
    there: impl IntoIterator<Item = Option<&'a Tray>>,
    nodes: usize,
) -> Option<Vec<u8>> {
    let mut seen = BTreeSet::new();
    let mut chassis: Option<&str> = None;
    for tray in there {
        let tray = tray?;
        let same = *chassis.get_or_insert(&tray.chassis) == tray.chassis;
        if !same || usize::from(tray.index) >= nodes || !seen.insert(tray.index) {
            return None;
        }
    }
    chassis?;
    let all = 0..u8::try_from(nodes).ok()?;
    Some(all.filter(|index| !seen.contains(index)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tray(chassis: &str, index: u8) -> Option<Tray> {
        Some(Tray {
            chassis: chassis.to_owned(),
            index,
            slot: index + 1,
        })
    }

    fn of(trays: &[Option<Tray>], nodes: usize) -> Option<Vec<u8>> {
        away(trays.iter().map(Option::as_ref), nodes)
    }

    #[test]
    fn the_trays_that_no_node_reports_are_away() {
        let there = [tray("a", 2), tray("a", 0), tray("a", 3)];
        assert_eq!(of(&there, 6), Some(vec![1, 4, 5]));
        let all: Vec<_> = (0..18).map(|index| tray("a", index)).collect();
        assert_eq!(of(&all, 18), Some(vec![]));
    }

    #[test]
    fn nothing_is_said_of_trays_that_do_not_fit_together() {
        assert_eq!(of(&[], 18), None, "no node, no chassis");
        assert_eq!(of(&[tray("a", 0), None], 18), None, "one is not known");
        assert_eq!(of(&[tray("a", 0), tray("b", 1)], 18), None, "two chassis");
        assert_eq!(of(&[tray("a", 1), tray("a", 1)], 18), None, "the same tray");
        assert_eq!(of(&[tray("a", 4)], 4), None, "more trays than nodes");
        assert_eq!(of(&[tray("a", 4)], 1_000), None, "no such chassis");
    }
}
