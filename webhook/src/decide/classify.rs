//! How a job communicates, where it does not say so.

use nvlink_topology::Pattern;

use super::Intent;

/// The pattern of a pod with `gpus` GPUs, and whether it is a guess.
///
/// Data parallel training is what most jobs of several GPUs do, and its ring
/// suffers most from one slow link: a wrong guess costs least.
pub(super) fn pattern(intent: &Intent, gpus: u32) -> (Pattern, bool) {
    match intent.pattern {
        Some(said) => (said, false),
        None if gpus >= 2 || intent.gang.is_some() => (Pattern::AllReduce, true),
        None => (Pattern::None, false),
    }
}
