//! Whether the nodes of a restricted class are kept for its pods, as a
//! condition of its status.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nvlink_topology::labels;

use super::view::Guarded;
use crate::{
    class::condition,
    crd::{DomainClass, condition::Condition},
};

/// The type of the condition.
pub(super) const ISOLATED: &str = "Isolated";

/// Nodes, and pods, that a message names.
const NODES: usize = 10;
const PODS: usize = 5;

/// A pod where the class keeps others off, which was not admitted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The node that it is on; `None` where it waits, and may go to one.
    pub(super) node: Option<String>,
}

/// What was found of a restricted class.
#[derive(Clone, Debug)]
pub(super) struct Findings {
    pub(super) guarded: Guarded,
    /// The pods that do not belong there, or why nobody could look.
    pub(super) strays: Result<Vec<Stray>, String>,
}

/// The condition `Isolated` of `class` at `now`.
pub(super) fn isolated(class: &DomainClass, findings: &Findings, now: Time) -> Condition {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let Guarded { tainted, open } = &findings.guarded;
    let mut said = Vec::new();
    if !open.is_empty() {
        said.push(untainted(name, open));
    }
    match &findings.strays {
        Ok(strays) if strays.is_empty() => {}
        Ok(strays) => said.push(foreign(strays)),
        Err(reason) => said.push(format!(
            "whether other pods are there is not known: {reason}"
        )),
    }
    let (status, reason) = match &findings.strays {
        _ if !open.is_empty() => ("False", "NodesWithoutTaint"),
        Err(_) => ("Unknown", "PodsUnknown"),
        Ok(strays) if !strays.is_empty() => ("False", "OtherPods"),
        Ok(_) => ("True", "Isolated"),
    };
    if said.is_empty() {
        said.push(format!(
            "{} node(s) have the taint of the class, and no pod is there that was not admitted for it",
            tainted.len()
        ));
    }
    condition(class, (ISOLATED, status, reason), said.join("; "), now)
}

fn untainted(class: &str, nodes: &[String]) -> String {
    let shown = &nodes[..nodes.len().min(NODES)];
    format!(
        "{} node(s) of the class have not its taint, so that any pod may go there: {}{}. To keep others off: kubectl taint nodes {} {}={class}:NoSchedule",
        nodes.len(),
        shown.join(", "),
        more(nodes.len() - shown.len()),
        shown.join(" "),
        labels::CLASS,
    )
}

fn foreign(strays: &[Stray]) -> String {
    let shown = &strays[..strays.len().min(PODS)];
    let mut names = Vec::new();
    let mut by_namespace: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Stray {
        namespace,
        name,
        node,
    } in shown
    {
        let place = match node {
            Some(node) => format!("on {node}"),
            None => "waiting".to_owned(),
        };
        names.push(format!("{namespace}/{name} ({place})"));
        by_namespace.entry(namespace).or_default().push(name);
    }
    let commands = by_namespace.iter();
    let commands =
        commands.map(|(space, pods)| format!("kubectl delete pod -n {space} {}", pods.join(" ")));
    format!(
        "{} pod(s) are on nodes of the class, or wait and tolerate its taint, that are not of it and whose service account may not use it: {}{}. To end them: {}",
        strays.len(),
        names.join(", "),
        more(strays.len() - shown.len()),
        commands.collect::<Vec<_>>().join("; ")
    )
}

fn more(count: usize) -> String {
    match count {
        0 => String::new(),
        _ => format!(" and {count} more"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn said(findings: &Findings) -> (String, String, String) {
        let class = DomainClass::new("gold", Default::default());
        let Condition {
            status,
            reason,
            message,
            ..
        } = isolated(&class, findings, Time(Timestamp::UNIX_EPOCH));
        (status, reason, message)
    }

    fn stray(name: &str, node: Option<&str>) -> Stray {
        Stray {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            node: node.map(str::to_owned),
        }
    }

    #[test]
    fn what_does_not_belong_there_is_named_with_the_command_that_ends_it() {
        let mut findings = Findings {
            guarded: Guarded {
                tainted: vec!["a".to_owned()],
                open: Vec::new(),
            },
            strays: Ok(Vec::new()),
        };
        let (status, reason, message) = said(&findings);
        assert_eq!((&*status, &*reason), ("True", "Isolated"), "{message}");
        assert!(message.starts_with("1 node(s) have the taint"), "{message}");

        findings.strays = Ok(vec![stray("early", Some("a")), stray("waits", None)]);
        let (status, reason, message) = said(&findings);
        assert_eq!((&*status, &*reason), ("False", "OtherPods"), "{message}");
        for part in [
            "2 pod(s) are on nodes of the class",
            "team/early (on a), team/waits (waiting). To end them: ",
            "kubectl delete pod -n team early waits",
        ] {
            assert!(message.contains(part), "{part} is not in {message}");
        }

        findings.guarded.open = (0..12).map(|index| format!("n{index}")).collect();
        findings.strays = Ok((0..7)
            .map(|index| stray(&format!("p{index}"), None))
            .collect());
        let (status, reason, message) = said(&findings);
        assert_eq!((&*status, &*reason), ("False", "NodesWithoutTaint"));
        for part in [
            "12 node(s) of the class have not its taint",
            "n9 and 2 more. To keep others off: kubectl taint nodes n0 ",
            "n9 nvlink-domains.io/class=gold:NoSchedule; 7 pod(s)",
            "team/p4 (waiting) and 2 more",
        ] {
            assert!(message.contains(part), "{part} is not in {message}");
        }

        findings.guarded.open.clear();
        findings.strays = Err("pods is forbidden".to_owned());
        let (status, reason, message) = said(&findings);
        assert_eq!((&*status, &*reason), ("Unknown", "PodsUnknown"));
        assert!(
            message.ends_with("is not known: pods is forbidden"),
            "{message}"
        );
    }
}
