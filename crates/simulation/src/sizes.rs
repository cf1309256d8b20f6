//! The figures by the size of jobs: means hide who pays for what others gain.

use serde::Serialize;

use crate::summary::{Communication, Ran, Sorted, Waits};

/// Sizes of jobs that are summed up together, by the most GPUs of each.
const SIZES: [(&str, u32); 4] = [("1", 1), ("2-4", 4), ("5-8", 8), ("9+", u32::MAX)];

/// What the jobs of similar size got.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfSize {
    /// The numbers of GPUs: `1`, `2-4`, `5-8` or `9+`.
    pub gpus: &'static str,
    /// The number of jobs that ran.
    pub jobs: usize,
    /// From arrival to start.
    pub wait_seconds: Waits,
    /// Time for 1 GiB per GPU, over the jobs that communicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_seconds: Option<Communication>,
}

/// Returns the figures of each size that the jobs have, smallest first.
pub(crate) fn by_size(ran: &[Ran]) -> Vec<OfSize> {
    let least = [0].into_iter().chain(SIZES.map(|(_, most)| most));
    let sizes = SIZES.into_iter().zip(least);
    let of_size = |((gpus, most), before): ((&'static str, u32), u32)| {
        let jobs = || {
            ran.iter()
                .filter(|one| one.gpus > before && one.gpus <= most)
        };
        let waits = Sorted::of(jobs().map(Ran::wait))?;
        let communication = Sorted::of(jobs().filter_map(Ran::communication));
        Some(OfSize {
            gpus,
            jobs: jobs().count(),
            wait_seconds: Waits::of(&waits),
            communication_seconds: communication.as_ref().map(Communication::of),
        })
    };
    sizes.filter_map(of_size).collect()
}
