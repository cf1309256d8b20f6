//! The condition `Isolated`: whether the nodes of a restricted class are reserved
//! for its pods.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nvlink_api::{
    class::condition,
    crd::{DomainClass, condition::Condition},
};
use nvlink_topology::labels;

use nvlink_admission::view::Guarded;

/// The type of the condition.
pub(super) const ISOLATED: &str = "Isolated";

/// The most nodes, and the most pods, that a message names.
const NODES: usize = 10;
const PODS: usize = 5;

/// A pod that was not admitted for the class, but is on one of its nodes or may go to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The node that it is on; `None` if it is waiting, and may go to a node of the class.
    pub(super) node: Option<String>,
}

/// The findings on a restricted class.
#[derive(Clone, Debug)]
pub(super) struct Findings {
    pub(super) guarded: Guarded,
    /// The pods that do not belong there, or why they could not be listed.
    pub(super) strays: Result<Vec<Stray>, String>,
}

/// Returns the condition `Isolated` of `class` at `now`.
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
            "cannot check whether other pods are there: {reason}"
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
            "{} node(s) have the taint of the class, and no other pods are there",
            tainted.len()
        ));
    }
    condition(class, (ISOLATED, status, reason), said.join("; "), now)
}

fn untainted(class: &str, nodes: &[String]) -> String {
    let shown = &nodes[..nodes.len().min(NODES)];
    format!(
        "{} node(s) of the class do not have its taint, so any pod may run there: {}{}. To keep other pods off: kubectl taint nodes {} {}={class}:NoSchedule",
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
        "{} pod(s) are on nodes of the class, or are waiting and tolerate its taint, but do not belong to it and their service accounts may not use it: {}{}. To delete them: {}",
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
    fn the_message_has_the_commands_that_isolate_the_nodes() {
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
            "team/early (on a), team/waits (waiting). To delete them: ",
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
            "12 node(s) of the class do not have its taint",
            "n9 and 2 more. To keep other pods off: kubectl taint nodes n0 ",
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
            message.ends_with("other pods are there: pods is forbidden"),
            "{message}"
        );
    }
}
