//! The planner of whoever asks: the same as that of the queue's leader, fed the same way, once.

use std::{collections::BTreeMap, sync::Arc};

use nvlink_admission::decide::Settings;
use nvlink_api::class::{Class, GPU};
use nvlink_cluster::gpus::{Claim, DeviceClass, Slice};
use nvlink_planner::{Job, Name, Planner, Round, Waiting};
use nvlink_queue::{
    Member,
    feed::{Feed, node::Node},
    notice::{About, Notice, Obstacle},
    placement::id,
    words,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{node::read as read_node, state::State};

/// The planner, and what it says now.
pub(super) struct Plan {
    pub(super) feed: Feed,
    pub(super) planner: Planner,
    pub(super) round: Round,
    /// Whether DeviceClasses and ResourceSlices may be read.
    sees_drivers: bool,
}

impl Plan {
    pub(super) fn new(state: &State<'_>, settings: &Settings) -> Self {
        let mut feed = Feed::new(settings.clone());
        for (name, class) in &state.classes {
            feed.class(name, Some(class.clone().map(Arc::new)));
        }
        for (name, node) in nodes(state) {
            feed.node(name, Some(node));
        }
        for (name, node) in &state.nodes {
            feed.topology(name, node.published());
        }
        for ((_, name), object) in &state.objects.slices.objects {
            feed.slice(
                name,
                parse(object.get("spec")).and_then(|spec| Slice::of(&spec)),
            );
        }
        for ((_, name), object) in &state.objects.device_classes.objects {
            feed.device_class(
                name,
                parse(object.get("spec")).map(|spec| DeviceClass::of(&spec)),
            );
        }
        for ((namespace, name), object) in &state.objects.claims.objects {
            feed.claim(
                &id(namespace, name),
                parse(Some(object)).and_then(|claim| Claim::of(&claim)),
            );
        }
        for (place, object) in &state.objects.owners {
            feed.object(place.clone(), Some(object.clone()));
        }
        for pod in state.objects.pods.objects.values() {
            feed.pod(pod.clone());
        }
        if !state.objects.has_all_pods() {
            unseen_pods(state).for_each(|pod| feed.pod(pod));
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
            sees_drivers: sees_drivers(state),
        }
    }

    /// Returns why a job waits, as a sentence without its end.
    pub(super) fn why(&self, waiting: &Waiting, job: &Job) -> String {
        let obstacle = self.feed.obstacle_to(&waiting.job, &waiting.reason);
        // `explain` shows doubts beside the gang.
        let shown = obstacle.filter(|it| match it {
            Obstacle::NoDriver(_) => self.sees_drivers,
            it => matches!(it, Obstacle::Gated(..)),
        });
        Notice::new(waiting, shown.as_ref()).why(
            About {
                class: &job.class,
                project: &job.project,
                reach: job.reach(),
                grows: self.grows(&waiting.job),
                spares: self
                    .member(&waiting.job)
                    .is_some_and(|member| member.spares),
            }
            .joining(self.feed.runs(&waiting.job)),
        )
    }

    /// Returns why the claims of a class get no GPUs, as far as that may be known.
    pub(super) fn lacks_driver(&self, class: &Class) -> Option<String> {
        let why = self.feed.lacks_driver(class)?;
        self.sees_drivers.then(|| why.to_string())
    }

    /// Returns the reason for which a job waits as one word.
    pub(super) fn word(&self, waiting: &Waiting) -> &'static str {
        words::word(&waiting.reason, self.grows(&waiting.job))
    }

    /// Reports whether nodes may be made for a job.
    fn grows(&self, job: &Name) -> bool {
        self.member(job).is_some_and(|member| member.grows)
    }

    /// Returns a pod of a job: in what is said of its class, all of them are alike.
    pub(super) fn member(&self, job: &Name) -> Option<&Member> {
        let mut pods = self.feed.pods_of(job);
        pods.find_map(|pod| self.feed.member(pod))
    }

    /// Returns the name of the set of nodes that meet what `pod` demands.
    pub(super) fn demand(&mut self, pod: &Value, now: nvlink_planner::Millis) -> Name {
        let name = self.feed.demand_of(pod);
        self.feed.flush(&mut self.planner, now);
        name
    }
}

fn sees_drivers(state: &State<'_>) -> bool {
    let mut read = [&state.objects.device_classes, &state.objects.slices].into_iter();
    read.all(|kind| kind.hidden.is_none())
}

/// Parses a part of an object of the API server.
pub(super) fn parse<T: DeserializeOwned>(part: Option<&Value>) -> Option<T> {
    T::deserialize(part?).ok()
}

/// Returns the nodes by name. Where they may not be read, their GPUs are those that their exporters
/// publish.
fn nodes<'s>(state: &'s State<'_>) -> impl Iterator<Item = (&'s str, Node)> {
    let read = state.objects.nodes.objects.iter();
    let read = read.map(|(key, object)| (key.1.as_str(), read_node(object)));
    let hidden = state.objects.nodes.hidden.is_some();
    let unseen = state.nodes.iter().filter(move |_| hidden);
    let unseen = unseen.map(|(name, node)| {
        let node = Node {
            allocatable: vec![(GPU.to_owned(), node.capacity)],
            ..Node::default()
        };
        (name.as_str(), node)
    });
    read.chain(unseen)
}

/// Returns the pods that may not be read, as far as the exporters of their nodes say what they hold.
fn unseen_pods(state: &State<'_>) -> impl Iterator<Item = Value> {
    let mut pods: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for (node, known) in &state.nodes {
        let report = known.known().and_then(|known| known.allocations.as_ref());
        for one in report.into_iter().flatten() {
            if !state.pods.contains_key(&id(&one.namespace, &one.pod)) {
                *pods.entry((node, &one.namespace, &one.pod)).or_default() += one.gpus.len();
            }
        }
    }
    let pod = |((node, namespace, name), gpus): ((&str, &str, &str), usize)| {
        json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "nodeName": node,
                "containers": [{"resources": {"limits": {GPU: gpus}}}],
            },
            "status": {"phase": "Running"},
        })
    };
    pods.into_iter().map(pod)
}
