//! Which nodes of a restricted class keep other pods off with its taint.

use nvlink_api::class::Class;

use super::{Labels, View, nodes::Node};

/// The nodes of a restricted class, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Nodes with the taint of the class.
    pub tainted: Vec<String>,
    /// Nodes that match the class but do not have its taint.
    pub open: Vec<String>,
}

impl View {
    /// Returns this view with the class restricted or open; `None` where it has no such class that can
    /// be used.
    #[must_use]
    pub fn with_restriction(&self, name: &str, restricted: bool) -> Option<Self> {
        let class = Class::clone(self.class(name)?.ok()?);
        let mut view = self.clone();
        view.set_class(
            name,
            Ok(Class {
                restricted,
                ..class
            }),
        );
        Some(view)
    }

    /// Sets the classes whose taint a node has.
    pub fn set_tainted(&mut self, name: &str, classes: Vec<String>) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.tainted = classes;
        }
    }

    /// Reports whether the node `name` belongs to `class`, with or without its taint.
    #[must_use]
    pub fn is_node_of(&self, name: &str, class: &Class) -> bool {
        let node = self.nodes.get(name);
        node.is_some_and(|node| node.tainted.contains(&class.name) || is_of(node, class))
    }

    /// Returns the labels of the node `name` if it is certain that it does not belong to `class`.
    #[must_use]
    pub fn labels_outside(&self, name: &str, class: &Class) -> Option<&Labels> {
        let labels = self.nodes.get(name)?.labels()?;
        (!self.is_node_of(name, class)).then_some(labels)
    }

    /// Returns the nodes of `class`, in order. Scans every node: for output, not
    /// for decisions.
    #[must_use]
    pub fn guarded(&self, class: &Class) -> Guarded {
        let mut guarded = Guarded::default();
        for (name, node) in &self.nodes {
            if node.tainted.contains(&class.name) {
                guarded.tainted.push(name.clone());
            } else if is_of(node, class) {
                guarded.open.push(name.clone());
            }
        }
        guarded.tainted.sort_unstable();
        guarded.open.sort_unstable();
        guarded
    }
}

/// Reports whether the node belongs to the class. If the class has every node, only
/// nodes with GPUs count: nobody taints the others.
fn is_of(node: &Node, class: &Class) -> bool {
    let least = class.min_bandwidth.unwrap_or(0);
    let fast = node.is_fast(least);
    fast.unwrap_or(!class.selector.is_empty()) && node.matches(&class.selector)
}

#[cfg(test)]
mod tests {
    use nvlink_topology::labels;
    use serde_json::json;

    use super::*;

    fn class(spec: serde_json::Value) -> Class {
        Class::new("gold", &serde_json::from_value(spec).unwrap()).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn nodes_without_the_taint_are_found() {
        let mut view = View::default();
        let fast = [
            (labels::DOMAIN_SIZE, "8"),
            (labels::BANDWIDTH, "450"),
            ("pool", "gold"),
        ];
        let slow = [
            (labels::DOMAIN_SIZE, "8"),
            (labels::BANDWIDTH, "50"),
            ("pool", "gold"),
        ];
        view.set_node("a", labels(&fast));
        view.set_node("b", labels(&fast));
        view.set_node("slow", labels(&slow));
        // Its exporter has not published anything yet.
        view.set_node("new", labels(&[("pool", "gold")]));
        view.set_node("cpu", labels(&[("pool", "cpu")]));
        view.set_tainted("b", vec!["gold".to_owned()]);
        view.set_tainted("new", vec!["silver".to_owned()]);
        view.set_tainted("unknown", vec!["gold".to_owned()]);
        let of = |spec| {
            let Guarded { tainted, open } = view.guarded(&class(spec));
            (tainted.join(" "), open.join(" "))
        };
        let pool = json!({"matchLabels": {"pool": "gold"}});
        let check = |spec, open: &str| assert_eq!(of(spec), ("b".to_owned(), open.to_owned()));
        check(json!({"nodeSelector": pool}), "a new slow");
        check(
            json!({"nodeSelector": pool, "minBandwidth": "400GBps"}),
            "a new",
        );
        check(json!({}), "a slow");
        let gold = class(json!({"nodeSelector": pool, "minBandwidth": "400GBps"}));
        let own =
            ["a", "b", "cpu", "new", "slow", "unknown"].map(|node| view.is_node_of(node, &gold));
        assert_eq!(own, [true, true, false, true, false, false]);
        view.remove_node("b");
        view.set_node("b", labels(&fast));
        assert_eq!(view.guarded(&class(json!({}))).open, ["a", "b", "slow"]);
    }
}
