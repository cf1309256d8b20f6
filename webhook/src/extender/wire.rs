//! kube-scheduler's extender API, v1 (`k8s.io/kube-scheduler/extender/v1`). Its Go types
//! have no JSON names, so kube-scheduler sends the names of the fields, and reads any case.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A call of kube-scheduler: `ExtenderArgs`.
#[derive(Clone, Debug)]
pub struct Args {
    pub pod: Value,
    pub candidates: Candidates,
}

/// The nodes that passed the scheduler's own filters.
#[derive(Clone, Debug, PartialEq)]
pub enum Candidates {
    /// Of an extender with `nodeCacheCapable: true`.
    Names(Vec<String>),
    /// Whole nodes, which the answer repeats.
    Nodes(Vec<Value>),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "Pod", alias = "pod")]
    pod: Value,
    #[serde(default, rename = "Nodes", alias = "nodes")]
    nodes: Option<NodeList>,
    #[serde(
        default,
        rename = "NodeNames",
        alias = "nodeNames",
        alias = "nodenames"
    )]
    node_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct NodeList {
    #[serde(default)]
    items: Option<Vec<Value>>,
}

impl Args {
    /// Parses the body of a call.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let wrong = |reason: String| format!("not the ExtenderArgs of kube-scheduler: {reason}");
        let raw: Raw = serde_path_to_error::deserialize(&mut deserializer)
            .map_err(|error| wrong(error.to_string()))?;
        deserializer
            .end()
            .map_err(|error| wrong(error.to_string()))?;
        if !raw.pod.is_object() {
            return Err("Pod is not an object".to_owned());
        }
        let candidates = match (raw.node_names, raw.nodes) {
            (Some(names), _) => Candidates::Names(names),
            (None, Some(nodes)) => Candidates::Nodes(nodes.items.unwrap_or_default()),
            (None, None) => return Err("there is neither NodeNames nor Nodes".to_owned()),
        };
        Ok(Self {
            pod: raw.pod,
            candidates,
        })
    }
}

impl Candidates {
    /// Returns the names of the nodes.
    ///
    /// # Errors
    /// When a node has none.
    pub fn names(&self) -> Result<Vec<&str>, String> {
        match self {
            Self::Names(names) => Ok(names.iter().map(String::as_str).collect()),
            Self::Nodes(nodes) => nodes.iter().enumerate().map(name_of).collect(),
        }
    }
}

fn name_of((at, node): (usize, &Value)) -> Result<&str, String> {
    let name = node
        .get("metadata")
        .and_then(|all| all.get("name")?.as_str());
    name.ok_or_else(|| format!("Nodes.items[{at}] has no name"))
}

/// An answer to `filter`: `ExtenderFilterResult`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_names: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Map<String, Value>>,
    /// The nodes that are dropped, with the reason of each. They are none of `FailedNodes`,
    /// because the scheduler does not ask an extender without a preempt verb which pods to
    /// remove from a node, and may remove the wrong ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// What is wrong with the call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl FilterResult {
    /// Lets all nodes pass.
    pub(super) fn all(candidates: Candidates) -> Self {
        Self::some(candidates, BTreeMap::new())
    }

    /// Lets the nodes pass that have not `failed`.
    pub(super) fn some(candidates: Candidates, failed: BTreeMap<String, String>) -> Self {
        let mut this = Self::default();
        match candidates {
            Candidates::Names(mut names) => {
                names.retain(|name| !failed.contains_key(name));
                this.node_names = Some(names);
            }
            Candidates::Nodes(mut nodes) => {
                nodes.retain(|node| {
                    let name = name_of((0, node));
                    name.is_ok_and(|name| !failed.contains_key(name))
                });
                this.nodes = Some(Map::from_iter([("items".to_owned(), nodes.into())]));
            }
        }
        this.failed_and_unresolvable_nodes = failed;
        this
    }

    /// Says what is wrong with the call. An ignorable extender is then skipped.
    pub(super) fn error(reason: String) -> Self {
        Self {
            error: reason,
            ..Self::default()
        }
    }
}

/// The score of a node: `HostPriority`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    pub host: String,
    /// From 0 to 10; 10 is the best.
    pub score: u8,
}

impl HostPriority {
    pub(super) fn new(host: &str, score: u8) -> Self {
        Self {
            host: host.to_owned(),
            score,
        }
    }
}
