//! Nodes with fewer GPUs than their siblings, as the alert NvlinkGpusMissing finds them.

/// The fewest nodes that show how many GPUs are usual.
const WITNESSES: usize = 3;

/// Returns the usual number of GPUs of siblings, from the numbers of all of them: the median.
/// `None` if there is none, or if too few nodes have that number.
pub(super) fn usual(numbers: impl Iterator<Item = usize>) -> Option<usize> {
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    let middle = *numbers.get(numbers.len() / 2)?;
    let below = numbers[(numbers.len() - 1) / 2];
    let nodes = numbers.iter().filter(|gpus| **gpus == middle).count();
    (below == middle && nodes >= WITNESSES).then_some(middle)
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
    fn the_usual_number_is_the_median_that_three_nodes_have() {
        let of = |numbers: &[usize]| usual(numbers.iter().copied());
        assert_eq!(of(&[8, 8, 7, 8]), Some(8));
        assert_eq!(of(&[8, 8, 7]), None, "two are no witnesses");
        assert_eq!(of(&[8, 8, 8, 4, 4, 4]), None, "no node has the median");
        assert_eq!(of(&[4, 4, 8, 8, 8, 16, 16]), Some(8));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn sizes_of_virtual_machines_are_complete() {
        let lacking: Vec<_> = (0..=9).filter(|&gpus| lacks(gpus, 8)).collect();
        assert_eq!(lacking, [0, 3, 5, 6, 7]);
    }
}
