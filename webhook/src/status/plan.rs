//! The planner of whoever asks: the same as that of the queue's leader, fed the same way, once.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nvlink_planner::{Name, Planner, Round};
use serde_json::Value;

use super::state::State;
use crate::{
    decide::Settings,
    queue::feed::{Claim, DeviceClass, Feed, Slice, id, node::Node},
};

/// The planner, and what it says now.
pub(super) struct Plan {
    pub(super) feed: Feed,
    pub(super) planner: Planner,
    pub(super) round: Round,
}

impl Plan {
    pub(super) fn new(state: &State<'_>, settings: &Settings) -> Self {
        let mut feed = Feed::new(settings.clone());
        for (name, class) in &state.classes {
            feed.class(name, Some(class.clone().map(Arc::new)));
        }
        for ((_, name), object) in &state.objects.nodes.objects {
            let metadata = object.get("metadata").cloned().unwrap_or_default();
            let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
            let part = |key: &str| object.get(key).unwrap_or(&Value::Null);
            let node = Node::of(metadata, part("spec"), part("status"));
            feed.node(name, Some(node));
        }
        for (name, node) in &state.nodes {
            feed.topology(name, node.published());
        }
        for ((_, name), object) in &state.objects.slices.objects {
            feed.slice(name, object.get("spec").and_then(Slice::of));
        }
        for ((_, name), object) in &state.objects.device_classes.objects {
            feed.device_class(name, object.get("spec").map(DeviceClass::of));
        }
        for ((namespace, name), object) in &state.objects.claims.objects {
            feed.claim(&id(namespace, name), Claim::of(object));
        }
        for (place, object) in &state.objects.owners {
            feed.object(place.clone(), Some(object.clone()));
        }
        for pod in state.objects.pods.objects.values() {
            feed.pod(pod.clone());
        }
        // Those that may not be read.
        for place in feed.wanted() {
            feed.object(place, None);
        }
        let mut planner = Planner::default();
        feed.flush(&mut planner, state.now);
        let round = planner.round(state.now);
        Self {
            feed,
            planner,
            round,
        }
    }

    /// Returns the name of the set of nodes that meet what `pod` demands.
    pub(super) fn demand(&mut self, pod: &Value, now: nvlink_planner::Millis) -> Name {
        let name = self.feed.demand_of(pod);
        self.feed.flush(&mut self.planner, now);
        name
    }
}
