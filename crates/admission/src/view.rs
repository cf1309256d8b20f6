//! The data that decisions use: classes, namespace defaults and nodes, indexed so
//! that a decision costs the same for ten nodes and for ten thousand.
//!
//! Watches change it object by object; a decision borrows it for microseconds. It
//! is a plain value, which tests and `preview` fill directly.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::Value;

use nvlink_api::{
    class::{Broken, Class},
    crd::access::GrantedIn,
};

mod domains;
mod guarded;
mod nodes;
mod shared;
mod slow;

use domains::Domains;
pub use domains::GangRoom;
pub use guarded::Guarded;
use nodes::{Fits, Node};
pub use nodes::{Free, Room};
pub use shared::SharedView;
pub use slow::Fastest;
use slow::Slow;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Classes, namespace defaults and nodes.
#[derive(Clone, Debug, Default)]
pub struct View {
    classes: BTreeMap<String, Entry>,
    /// Classes that claim pods: highest precedence first, then by name.
    claiming: Vec<Arc<Class>>,
    /// Restricted classes, by name.
    restricted: Vec<Arc<Class>>,
    /// Variables that classes set in addition to those of the table.
    variables: Arc<BTreeSet<String>>,
    defaults: HashMap<String, String>,
    nodes: HashMap<String, Node>,
}

/// A class, and counts of its nodes.
#[derive(Clone, Debug)]
struct Entry {
    /// The class, or why it cannot be used.
    class: Result<Arc<Class>, String>,
    /// The same class; if it cannot be used, its known fields, which are guarded.
    guarded: Arc<Class>,
    fits: Fits,
    /// Those of its nodes that may give parts of GPUs to plain requests.
    cut: Fits,
    domains: Domains,
    slow: Slow,
}

impl Entry {
    fn new(class: Result<Class, Box<Broken>>) -> Self {
        let (class, guarded) = match class {
            Ok(class) => {
                let class = Arc::new(class);
                (Ok(Arc::clone(&class)), class)
            }
            Err(broken) => (Err(broken.reason), Arc::new(broken.guard)),
        };
        Self {
            class,
            guarded,
            fits: Fits::default(),
            cut: Fits::default(),
            domains: Domains::default(),
            slow: Slow::default(),
        }
    }

    /// Counts a node if it belongs to the class.
    fn add(&mut self, node: &Node) {
        if let Ok(class) = &self.class
            && node.matches(&class.selector)
        {
            self.fits.add(node.fit(class));
            self.cut.add(node.cut(class));
            self.domains.add(node.domain(class));
            self.slow.add(node.slower(class));
        }
    }

    /// Undoes [`Self::add`].
    fn remove(&mut self, node: &Node) {
        if let Ok(class) = &self.class
            && node.matches(&class.selector)
        {
            self.fits.remove(node.fit(class));
            self.cut.remove(node.cut(class));
            self.domains.remove(node.domain(class));
            self.slow.remove(node.slower(class));
        }
    }
}

impl View {
    /// Returns the class `name`, or why it cannot be used; `None` if it does not exist.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Result<&Arc<Class>, &str>> {
        self.classes
            .get(name)
            .map(|entry| entry.class.as_ref().map_err(String::as_str))
    }

    /// Returns the variables that classes set in addition to those of the table.
    #[must_use]
    pub fn variables(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.variables)
    }

    /// Returns the names of all classes, in order.
    pub fn class_names(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// Returns the classes that claim pods, in the order of their claims.
    #[must_use]
    pub fn claiming(&self) -> &[Arc<Class>] {
        &self.claiming
    }

    /// Returns the restricted classes, in order. They include classes that cannot
    /// be used, with only their name and node selector.
    #[must_use]
    pub fn restricted(&self) -> &[Arc<Class>] {
        &self.restricted
    }

    /// Returns the classes that queue and can be used, in order.
    pub fn queueing(&self) -> impl Iterator<Item = &Arc<Class>> {
        let usable = self
            .classes
            .values()
            .filter_map(|entry| entry.class.as_ref().ok());
        usable.filter(|class| class.queue.is_some())
    }

    /// Returns where the right to the class `name`, which need not exist, must be granted.
    #[must_use]
    pub fn granted_in(&self, name: &str) -> GrantedIn {
        let entry = self
            .classes
            .get(name)
            .filter(|entry| entry.guarded.restricted);
        entry.map_or_else(GrantedIn::default, |entry| entry.guarded.granted_in)
    }

    /// Returns the default class of a namespace.
    #[must_use]
    pub fn default_class(&self, namespace: &str) -> Option<&str> {
        self.defaults.get(namespace).map(String::as_str)
    }

    /// Returns how a pod that needs a domain of `gpus` fits the nodes of `class`.
    #[must_use]
    pub fn room(&self, class: &Class, gpus: u32) -> Room {
        let bandwidth = class.min_bandwidth.unwrap_or(0);
        self.classes
            .get(&class.name)
            .map_or_else(Room::default, |entry| entry.fits.room(gpus, bandwidth))
    }

    /// Returns the fastest node of `class` if all are slower than the class's minimum bandwidth;
    /// `None` if one is not, or if none has published its domains.
    #[must_use]
    pub fn too_slow(&self, class: &Class) -> Option<Fastest<'_>> {
        let entry = self.classes.get(&class.name)?;
        (self.room(class, 1).nodes == 0).then(|| entry.slow.fastest())?
    }

    /// Returns the room of `class` for a gang of pods with so many GPUs.
    #[must_use]
    pub fn gang_room(&self, class: &Class, gpus: u32) -> GangRoom {
        self.classes
            .get(&class.name)
            .map_or_else(GangRoom::default, |entry| entry.domains.room(gpus))
    }

    /// Returns the names of the nodes of `class` that fit a pod which needs a
    /// domain of `gpus`, in order. Scans every node: for output, not for decisions.
    #[must_use]
    pub fn matching_nodes(&self, class: &Class, gpus: u32) -> Vec<&str> {
        let bandwidth = class.min_bandwidth.unwrap_or(0);
        let fitting = self.nodes.iter().filter(|(_, node)| {
            node.matches(&class.selector)
                && node
                    .fit(class)
                    .is_some_and(|fit| fit.holds(gpus, bandwidth))
        });
        let mut names: Vec<_> = fitting.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Adds or replaces a class, or the reason why it cannot be used. Nothing else
    /// is known about such a class, so it is guarded like a restricted one.
    pub fn set_class(&mut self, name: &str, class: Result<Class, String>) {
        let broken = |reason| Box::new(Broken::new(name, &Value::Null, reason));
        self.set_read_class(name, class.map_err(broken));
    }

    /// Adds or replaces a class, as returned by [`Class::read`].
    pub fn set_read_class(&mut self, name: &str, class: Result<Class, Box<Broken>>) {
        let mut entry = Entry::new(class);
        self.nodes.values().for_each(|node| entry.add(node));
        self.classes.insert(name.to_owned(), entry);
        self.index();
    }

    pub fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
        self.index();
    }

    /// Sets or removes the default class of a namespace.
    pub fn set_default_class(&mut self, namespace: &str, class: Option<&str>) {
        match class {
            Some(class) => self.defaults.insert(namespace.to_owned(), class.to_owned()),
            None => self.defaults.remove(namespace),
        };
    }

    /// Sets the labels of a node.
    pub fn set_node(&mut self, name: &str, labels: Labels) {
        self.change_node(name, |node| {
            let changed = node.labels() != Some(&labels);
            if changed {
                node.set_labels(Some(labels));
            }
            changed
        });
    }

    /// Removes the labels of a node.
    pub fn remove_node(&mut self, name: &str) {
        self.change_node(name, |node| {
            node.set_labels(None);
            node.tainted.clear();
            true
        });
    }

    /// Sets the free GPUs of a node; `None` if unknown.
    pub fn set_free(&mut self, name: &str, free: Option<Free>) {
        if self.nodes.get(name).and_then(|node| node.free) != free {
            self.change_node(name, |node| std::mem::replace(&mut node.free, free) != free);
        }
    }

    /// Returns the names of the namespaces with a default class.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        self.defaults.keys().cloned().collect()
    }

    /// Reports whether any node is known.
    #[must_use]
    pub fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns the labels of a node; `None` if it is not known.
    #[must_use]
    pub fn labels(&self, node: &str) -> Option<&Labels> {
        self.nodes.get(node)?.labels()
    }

    /// Returns the names of the nodes.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    /// Changes one node and, if `change` reports a change, the counts of every class.
    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node) -> bool) {
        let before = self.nodes.get(name).cloned();
        let mut node = before.clone().unwrap_or_else(|| Node::new(name));
        if !change(&mut node) {
            return;
        }
        for entry in self.classes.values_mut() {
            if let Some(before) = &before {
                entry.remove(before);
            }
            entry.add(&node);
        }
        if node.is_known() {
            self.nodes.insert(name.to_owned(), node);
        } else {
            self.nodes.remove(name);
        }
    }

    /// Recomputes what decisions need about all classes: changes of classes are
    /// rare, decisions are frequent.
    fn index(&mut self) {
        let guarded = self.classes.values().map(|entry| &entry.guarded);
        let restricted = guarded.filter(|class| class.restricted);
        self.restricted = restricted.cloned().collect();
        let usable = || {
            let entries = self.classes.values();
            entries.filter_map(|entry| entry.class.as_ref().ok())
        };
        let variables = usable().flat_map(|class| class.environment.extra.keys());
        self.variables = Arc::new(variables.cloned().collect());
        let rank = |class: &Arc<Class>| class.applies_to.as_ref().map(|applies| applies.precedence);
        self.claiming = usable()
            .filter(|class| rank(class).is_some())
            .cloned()
            .collect();
        // A stable sort, so that equal classes stay in the order of their names.
        self.claiming.sort_by_key(|class| Reverse(rank(class)));
    }
}

#[cfg(test)]
mod tests {
    use nvlink_topology::labels;
    use serde_json::{Value, json};

    use super::*;

    fn class(name: &str, spec: Value) -> Result<Class, String> {
        Ok(Class::new(name, &serde_json::from_value(spec).unwrap()).unwrap())
    }

    fn node(size: u32, bandwidth: u32, interconnect: &str) -> Labels {
        [
            (labels::DOMAIN_SIZE, size.to_string()),
            (labels::BANDWIDTH, bandwidth.to_string()),
            (labels::INTERCONNECT, interconnect.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    fn free(all: u32, healthy: u32) -> Option<Free> {
        Some(Free { all, healthy })
    }

    fn room(view: &View, name: &str, gpus: u32) -> Room {
        view.room(view.class(name).unwrap().unwrap(), gpus)
    }

    #[test]
    fn nodes_are_counted_whether_they_or_the_class_come_first() {
        let switched = json!({
            "minBandwidth": "400GBps",
            "nodeSelector": {"matchLabels": {labels::INTERCONNECT: "nvswitch"}}
        });
        let mut view = View::default();
        view.set_node("a", node(8, 450, "nvswitch"));
        view.set_class("fast", class("fast", switched));
        view.set_class("any", class("any", json!({})));
        view.set_node("b", node(2, 56, "nvlink"));
        view.set_node("c", node(16, 300, "nvswitch"));
        view.set_node("cpu", Labels::new());
        assert_eq!(
            room(&view, "fast", 4),
            Room {
                fitting: 1,
                free: 1,
                nodes: 1,
                largest: 8
            }
        );
        assert_eq!(
            room(&view, "any", 4),
            Room {
                fitting: 2,
                free: 2,
                nodes: 3,
                largest: 16
            }
        );
        let fast = view.class("fast").unwrap().unwrap().clone();
        assert_eq!(view.matching_nodes(&fast, 4), ["a"]);
    }

    #[test]
    fn counts_follow_a_node() {
        let mut view = View::default();
        view.set_class("fast", class("fast", json!({})));
        view.set_node("a", node(8, 450, "nvswitch"));
        view.set_free("a", free(2, 2));
        assert_eq!(
            room(&view, "fast", 4),
            Room {
                fitting: 1,
                free: 0,
                nodes: 1,
                largest: 8
            }
        );
        view.set_free("a", None);
        view.set_node("a", node(4, 450, "nvswitch"));
        assert_eq!(
            room(&view, "fast", 5),
            Room {
                fitting: 0,
                free: 0,
                nodes: 1,
                largest: 4
            }
        );
        view.remove_node("a");
        assert_eq!(room(&view, "fast", 1), Room::default());
        assert!(!view.has_nodes());
    }

    #[test]
    fn the_fastest_node_is_known_if_all_are_too_slow() {
        let mut view = View::default();
        view.set_node("c", node(8, 400, "nvswitch"));
        view.set_class("fast", class("fast", json!({"minBandwidth": "450GBps"})));
        view.set_node("b", node(8, 400, "nvswitch"));
        view.set_node("a", node(2, 56, "nvlink"));
        view.set_node("cpu", Labels::new());
        let best = |view: &View| {
            let fastest = view.too_slow(view.class("fast").unwrap().unwrap());
            fastest.map(|best| (best.node.to_owned(), best.bandwidth))
        };
        assert_eq!(best(&view), Some(("b".to_owned(), 400)));
        view.set_node("b", node(8, 450, "nvswitch"));
        assert_eq!(best(&view), None, "a node is fast enough");
        view.remove_node("b");
        view.remove_node("c");
        assert_eq!(best(&view), Some(("a".to_owned(), 56)));
        view.remove_node("a");
        assert_eq!(best(&view), None, "nothing is published");
    }

    #[test]
    fn domains_span_nodes() {
        let mut view = View::default();
        view.set_class("any", class("any", json!({})));
        view.set_class("fast", class("fast", json!({"minBandwidth": "900GBps"})));
        let rack = |size, bandwidth, domain: &str| {
            let mut labels = node(size, bandwidth, "nvswitch");
            labels.insert(labels::DOMAIN.to_owned(), domain.to_owned());
            labels
        };
        view.set_node("a", rack(4, 900, "r1"));
        view.set_node("b", rack(4, 900, "r1"));
        view.set_node("c", rack(6, 450, "r2"));
        view.set_node("d", node(16, 900, "nvlink"));
        view.set_class("late", class("late", json!({})));
        let room = |view: &View, name: &str| {
            let room = view.gang_room(view.class(name).unwrap().unwrap(), 1);
            (room.node, room.domain, room.shared)
        };
        assert_eq!(room(&view, "any"), (6, 8, true));
        assert_eq!(room(&view, "late"), (6, 8, true));
        assert_eq!(room(&view, "fast"), (4, 8, true));
        view.set_node("b", rack(4, 900, "r3"));
        assert_eq!(room(&view, "any"), (6, 6, false));
        view.remove_node("c");
        view.set_free("a", free(0, 0));
        assert_eq!(room(&view, "any"), (4, 4, false));
        view.remove_node("a");
        view.remove_node("b");
        assert_eq!(room(&view, "any"), (0, 0, false));
    }

    #[test]
    fn claims_are_ordered_by_precedence_then_name() {
        let mut view = View::default();
        for (name, precedence) in [("b", 1), ("c", 10), ("a", 1)] {
            view.set_class(
                name,
                class(name, json!({"appliesTo": {"precedence": precedence}})),
            );
        }
        view.set_class("none", class("none", json!({})));
        view.set_class("broken", Err("odd".to_owned()));
        let order: Vec<_> = view
            .claiming()
            .iter()
            .map(|class| class.name.as_str())
            .collect();
        assert_eq!(order, ["c", "a", "b"]);
        view.remove_class("c");
        assert_eq!(view.claiming().len(), 2);
    }
}
