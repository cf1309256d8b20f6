//! Nodes with fewer GPUs than their siblings.

use std::collections::BTreeMap;

/// The fewest nodes that show how many GPUs are usual.
const WITNESSES: usize = 3;

/// Returns the usual number of GPUs of siblings, from the numbers of all of them: the one that
/// more than half of them have. `None` if there is none, or if too few nodes have it.
pub(super) fn usual(numbers: impl Iterator<Item = usize>) -> Option<usize> {
    let mut nodes: BTreeMap<usize, usize> = BTreeMap::new();
    numbers.for_each(|gpus| *nodes.entry(gpus).or_default() += 1);
    let all: usize = nodes.values().sum();
    let (gpus, nodes) = nodes.into_iter().max_by_key(|(_, nodes)| *nodes)?;
    (nodes >= WITNESSES && 2 * nodes > all).then_some(gpus)
}

/// Reports whether a node with `gpus` GPUs lacks some, where `usual` is the usual number. 1, 2, 4
/// and so on are the sizes of virtual machines, into which the fabric manager divides a board.
pub(super) fn lacks(gpus: usize, usual: usize) -> bool {
    gpus < usual && !gpus.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_number_is_that_of_most_nodes() {
        let of = |numbers: &[usize]| usual(numbers.iter().copied());
        assert_eq!(of(&[8, 8, 7, 8]), Some(8));
        assert_eq!(of(&[8, 8, 7]), None, "two are no witnesses");
        assert_eq!(of(&[8, 8, 8, 4, 4, 4]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn sizes_of_virtual_machines_are_complete() {
        let lacking: Vec<_> = (0..=9).filter(|&gpus| lacks(gpus, 8)).collect();
        assert_eq!(lacking, [0, 3, 5, 6, 7]);
    }
}
