//! The RDMA devices of a node: which ones jobs use, and what is a GPU's share of them.

use crate::{Nic, NodeTopologySpec};

impl NodeTopologySpec {
    /// Returns the RDMA devices nearest to a GPU, which jobs use.
    ///
    /// A device to which all GPUs of a NUMA node are equally near is assumed to serve storage if the
    /// GPUs have nearer devices.
    #[must_use]
    pub fn nics_of_gpus(&self) -> Vec<&Nic> {
        let gpus = self.gpus.iter();
        let nearest = gpus.flat_map(|gpu| nearest(self, gpu.index));
        let nearest: Vec<&Nic> = nearest.collect();
        let serves = |nic: &&Nic| nearest.iter().any(|one| std::ptr::eq(*one, *nic));
        self.nics.iter().filter(serves).collect()
    }
}

impl Nic {
    /// Returns the rate in one direction, bytes per second: 0 while it is down; `None` if it is not known.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        if self.down {
            Some(0)
        } else {
            self.bytes_per_second
        }
    }
}

/// Returns the slowest GPU's share of the RDMA devices, in bytes per second: of those nearest to it, or of all
/// if a GPU has no nearest device. A GPU whose nearest devices are all down joins those that use the fastest
/// other one. `None` if all are down.
pub(crate) fn rate(spec: &NodeTopologySpec) -> Option<u64> {
    let nearest: Vec<Vec<&Nic>> = spec
        .gpus
        .iter()
        .map(|gpu| nearest(spec, gpu.index))
        .collect();
    if nearest.iter().any(Vec::is_empty) {
        let all: Option<Vec<u64>> = spec.nics.iter().map(Nic::rate).collect();
        let sum = all?.into_iter().fold(0, u64::saturating_add);
        let share = sum.checked_div(spec.gpus.len() as u64);
        return share.filter(|share| *share > 0);
    }
    let with = |nic: &Nic, more: usize| Some(nic.rate()? / (nic.gpus.len() + more) as u64);
    let other = || {
        let shares = spec.nics_of_gpus();
        let shares: Option<Vec<u64>> = shares.into_iter().map(|nic| with(nic, 1)).collect();
        shares?.into_iter().max().filter(|share| *share > 0)
    };
    let of_gpu = |nics: &Vec<&Nic>| {
        let shares: Option<Vec<u64>> = nics.iter().map(|nic| with(nic, 0)).collect();
        match shares?.into_iter().fold(0, u64::saturating_add) {
            0 => other(),
            share => Some(share),
        }
    };
    let shares: Option<Vec<u64>> = nearest.iter().map(of_gpu).collect();
    shares?.into_iter().min()
}

/// Returns the RDMA devices near a GPU that it shares with the fewest others; none if no device is near it.
fn nearest(spec: &NodeTopologySpec, gpu: u32) -> Vec<&Nic> {
    let near = || spec.nics.iter().filter(|nic| nic.gpus.contains(&gpu));
    let fewest = near().map(|nic| nic.gpus.len()).min();
    near()
        .filter(|nic| Some(nic.gpus.len()) == fewest)
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::{Nic, NodeTopologySpec, profile};

    const GIGA: u64 = 1_000_000_000;

    fn board() -> NodeTopologySpec {
        let board = profile::profile("dgx-h100").unwrap();
        board.spec("n", &board.damage())
    }

    #[test]
    fn a_gpu_without_its_nic_shares_those_of_the_others() {
        let mut spec = board();
        assert_eq!(super::rate(&spec), Some(50 * GIGA));
        let name = spec.nics_of_gpus()[3].name.clone();
        let nic = |spec: &mut NodeTopologySpec, change: fn(&mut Nic)| {
            let mut nics = spec.nics.iter_mut();
            change(nics.find(|nic| nic.name == name).unwrap());
        };
        nic(&mut spec, |nic| nic.bytes_per_second = Some(25 * GIGA));
        assert_eq!(super::rate(&spec), Some(25 * GIGA), "it is slower");
        nic(&mut spec, |nic| nic.down = true);
        assert_eq!(super::rate(&spec), Some(25 * GIGA), "two share one");
        spec.nics.iter_mut().for_each(|nic| nic.down = true);
        assert_eq!(super::rate(&spec), None, "all are down");
    }

    #[test]
    fn fewer_nics_are_never_better() {
        // Two NICs for each pair of GPUs.
        let board = profile::profile("dgx-a100").unwrap();
        let mut spec = board.spec("n", &board.damage());
        let of_pair: Vec<_> = super::nearest(&spec, 0)
            .into_iter()
            .map(|nic| nic.name.clone())
            .collect();
        assert_eq!(of_pair.len(), 2);
        let mut before = super::rate(&spec);
        for name in of_pair {
            let mut nics = spec.nics.iter_mut();
            nics.find(|nic| nic.name == name).unwrap().down = true;
            let now = super::rate(&spec);
            assert!(now.is_some() && now < before, "{now:?} of {before:?}");
            before = now;
        }
    }

    #[test]
    fn only_nics_nearest_to_a_gpu_are_those_of_gpus() {
        let mut spec = board();
        let names: Vec<_> = spec.nics.iter().map(|nic| nic.name.clone()).collect();
        let storage = Nic {
            name: "storage".to_owned(),
            gpus: vec![0, 1, 2, 3],
            ..Nic::default()
        };
        spec.nics.push(storage);
        let serving = spec.nics_of_gpus();
        let serving: Vec<_> = serving.iter().map(|nic| nic.name.clone()).collect();
        assert!(!serving.contains(&"storage".to_owned()) && !serving.is_empty());
        assert!(serving.iter().all(|name| names.contains(name)));
        // A GPU without a near NIC does not hide those of others.
        let (index, all) = (spec.gpus[0].index, serving.len());
        spec.nics
            .iter_mut()
            .for_each(|nic| nic.gpus.retain(|gpu| *gpu != index));
        assert!(spec.nics_of_gpus().len() >= all - 1);
        for nic in &mut spec.nics {
            nic.gpus.clear();
        }
        assert!(spec.nics_of_gpus().is_empty());
    }
}
