//! What a class says to the planner.

use nvlink_api::{class::Class, crd::domain_class::OnQueueTimeout};
use nvlink_planner::{self as planner, OnTimeout};

/// Returns the settings of a class that the planner goes by, but for how long its pods usually run.
#[must_use]
pub fn rules(class: &Class) -> planner::Class {
    let queue = class.queue.as_ref();
    planner::Class {
        max_gpus_per_project: queue.and_then(|queue| queue.max_gpus_per_project),
        broken: class.broken_gpus,
        one_host: class.shared_host,
        without_fabrics: class.without_fabrics(),
        waiting_factor: queue
            .and_then(|queue| queue.waiting_cost_percent)
            .map(|percent| f64::from(percent) / 100.0),
        usual_run: None,
    }
}

/// Returns what happens to a job of a class that has waited too long.
#[must_use]
pub const fn on_timeout(then: OnQueueTimeout) -> OnTimeout {
    match then {
        OnQueueTimeout::Reject => OnTimeout::Reject,
        OnQueueTimeout::Spread => OnTimeout::Spread,
    }
}
