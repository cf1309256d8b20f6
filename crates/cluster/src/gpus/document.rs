//! A NodeTopology as the API server sends it, read in parts.

use kube::core::Object;
use nvlink_topology::{Allocation, NodeTopologySpec};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::{Hardwares, Marks, Node, Published};

/// A NodeTopology. A malformed one is parsed, too: one among a thousand must not stop the others.
pub type Document = Object<Spec, Lenient<Status>>;

/// A part of an object that is parsed alone.
#[derive(Clone, Debug)]
pub struct Lenient<T>(Result<T, String>);

impl<T: Default> Default for Lenient<T> {
    fn default() -> Self {
        Self(Ok(T::default()))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let parsed = serde_path_to_error::deserialize(value);
        Ok(Self(parsed.map_err(|error| error.to_string())))
    }
}

/// The spec of a NodeTopology, parsed alone, and the marks in it.
#[derive(Clone, Debug)]
pub struct Spec {
    spec: Result<NodeTopologySpec, String>,
    marks: Marks,
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let marks = Marks::deserialize(&value).unwrap_or_default();
        let spec = serde_path_to_error::deserialize(value);
        let spec = spec.map_err(|error| format!("spec.{error}"));
        Ok(Self { spec, marks })
    }
}

/// The status of a document. Allocations are absent if they are not known: an empty
/// status remains when a status was removed.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Status {
    allocations: Option<Vec<Allocation>>,
}

impl Hardwares {
    /// Reduces a NodeTopology to what is kept of it, or says why it cannot be used.
    pub fn read(&mut self, object: Document) -> Published {
        let Spec { spec, marks } = object.spec;
        let spec = spec?;
        let status = object.status.map(|status| status.0).transpose();
        let status = status.map_err(|error| format!("status.{error}"))?;
        Ok(self.node(&spec, marks, status.unwrap_or_default().allocations))
    }

    /// Reads an object as [`Hardwares::read`] does.
    pub fn read_json(&mut self, object: Value) -> Published {
        let object = serde_json::from_value(object).map_err(|error| error.to_string())?;
        self.read(object)
    }

    /// Returns what is kept of a node. `allocations` are `None` if they are not known.
    pub fn node(
        &mut self,
        spec: &NodeTopologySpec,
        marks: Marks,
        allocations: Option<Vec<Allocation>>,
    ) -> Node {
        Node::new(spec, marks, allocations, self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: Value, status: Value) -> Published {
        Hardwares::default().read_json(json!({
            "apiVersion": nvlink_topology::API_VERSION, "kind": nvlink_topology::KIND,
            "metadata": {"name": "a"}, "spec": spec, "status": status,
        }))
    }

    #[test]
    fn a_malformed_topology_is_shown_with_its_reason() {
        let spec = json!({"source": {"kind": "nvml"}, "gpus": [{"index": 0}]});
        let reason = |spec: &Value, status: Value| match read(spec.clone(), status) {
            Ok(node) => format!("{:?}", node.allocations.as_ref().map(Vec::len)),
            Err(reason) => reason,
        };
        let said = reason(&spec, json!({}));
        assert_eq!(said, "None", "an empty status says nothing");
        assert_eq!(reason(&spec, json!({"allocations": []})), "Some(0)");
        let said = reason(&json!({"gpus": 7}), json!({}));
        assert!(said.starts_with("spec.gpus: invalid type"), "{said}");
        let said = reason(&spec, json!({"allocations": [1]}));
        assert!(said.starts_with("status.allocations"), "{said}");
    }

    #[test]
    fn marks_of_broken_gpus_are_read_where_they_exist() {
        let broken = |spec: Value| match read(spec, json!({})) {
            Ok(node) => format!("{:?} {}", node.gpus[0].broken(), node.lost.len()),
            Err(reason) => reason,
        };
        let marked = json!({
            "source": {"kind": "nvml"}, "gpus": [{"index": 0, "faults": ["xid-74"]}, {"index": 1}],
            "lost": [{"index": 2, "uuid": "GPU-2"}],
        });
        assert_eq!(broken(marked), "[\"xid-74\"] 1");
        let odd = json!({"source": {"kind": "nvml"}, "gpus": [{"index": 0}], "lost": 7});
        assert!(broken(odd).starts_with("spec.lost: invalid type"));
    }
}
