//! The metrics of the queue, which only the leader has.

use prometheus_client::registry::Registry;

mod placement;
mod queue;

pub use placement::PlacementMetrics;
pub use queue::{Depth, Ended, QueueMetrics, Shape, Written};

/// The metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    queue: QueueMetrics,
    placements: PlacementMetrics,
}

impl Metrics {
    /// Registers them: those of placements stand beside the exporter's `nvlink_placement_…`.
    pub fn register(&self, registry: &mut Registry, of_placements: &mut Registry) {
        self.queue.register(registry);
        self.placements.register(of_placements);
    }

    /// Returns the metrics of the queue.
    #[must_use]
    pub fn queue(&self) -> &QueueMetrics {
        &self.queue
    }

    /// Returns the metrics of what became of the queue's placements.
    #[must_use]
    pub fn placements(&self) -> &PlacementMetrics {
        &self.placements
    }

    /// Brings the ages up to date.
    pub fn age(&self) {
        self.queue.age();
    }
}
