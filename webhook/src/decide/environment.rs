//! Environment variables: what is set, where, and why.
//!
//! Nothing here is set where the container's own `env` sets the name, or where
//! its `envFrom` might. Inside one node nothing is set that changes the paths
//! of NCCL or UCX: their own choice is the best known, and a global
//! `NCCL_P2P_LEVEL` or `UCX_TLS` without `cuda` makes jobs slow or crash.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Chosen, refusal::Refusal};
use crate::{
    class::Class,
    crd::domain_class::{Environment, Fabric},
    patch::Editor,
    pod::{self, Container},
};

/// A variable of a job that spans pods.
struct Row {
    name: &'static str,
    fabrics: &'static [Fabric],
    value: fn(&Environment) -> Option<String>,
}

const RDMA: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE];
const TCP: &[Fabric] = &[Fabric::TCP];
const ANY: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE, Fabric::TCP];

/// What a job that spans pods gets, by the class's fabric.
const TABLE: &[Row] = &[
    // NCCL reads a list of prefixes (eth1 is also eth10) unless it starts with `=`.
    Row {
        name: "NCCL_SOCKET_IFNAME",
        fabrics: ANY,
        value: |environment| {
            environment
                .network_interface
                .as_ref()
                .map(|name| format!("={name}"))
        },
    },
    // Without `=` mlx5_1 is also mlx5_10: a storage or management card would carry traffic.
    Row {
        name: "NCCL_IB_HCA",
        fabrics: RDMA,
        value: |environment| Some(format!("={}", environment.rdma_devices.join(","))),
    },
    // A stray RDMA card without a route would be chosen and then fail.
    Row {
        name: "NCCL_IB_DISABLE",
        fabrics: TCP,
        value: |_| Some("1".to_owned()),
    },
    // A list without `cuda` makes UCX crash on GPU buffers.
    Row {
        name: "UCX_TLS",
        fabrics: RDMA,
        value: |_| Some("rc,cuda,sm,self".to_owned()),
    },
    // A list without `cuda` makes UCX crash on GPU buffers.
    Row {
        name: "UCX_TLS",
        fabrics: TCP,
        value: |_| Some("tcp,cuda,sm,self".to_owned()),
    },
    // UCX takes every device unless told; the list names device and port.
    Row {
        name: "UCX_NET_DEVICES",
        fabrics: RDMA,
        value: |environment| {
            let ports: Vec<_> = environment
                .rdma_devices
                .iter()
                .map(|name| format!("{name}:1"))
                .collect();
            Some(ports.join(","))
        },
    },
    // UCX takes every interface unless told, the container bridge too.
    Row {
        name: "UCX_NET_DEVICES",
        fabrics: TCP,
        value: |environment| environment.network_interface.clone(),
    },
];

/// Hides GPUs from a container that asked for none, whatever its image says.
const VOID: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "void");

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Names that have our value somewhere.
    pub(super) set: BTreeSet<String>,
    /// Names that the user set differently somewhere.
    pub(super) kept: BTreeSet<String>,
    /// What could not be set, for the user.
    pub(super) warnings: Vec<String>,
}

/// Sets the variables of all containers.
pub(super) fn set(editor: &mut Editor, chosen: &Chosen) -> Result<Report, Refusal> {
    let mut report = Report::default();
    // Paths first: the containers borrow the document that is about to change.
    let mut planned = Vec::new();
    for container in pod::containers(editor.document()) {
        let mut hidden = Vec::new();
        let wanted = wanted(&container, chosen);
        let present = present(&container, &wanted);
        for ((name, value), own) in wanted.into_iter().zip(present) {
            match own {
                Some(Some(own)) if own == value => drop(report.set.insert(name)),
                Some(_) => drop(report.kept.insert(name)),
                None if may_come_from_elsewhere(&container, &name) => hidden.push(name),
                None => planned.push((container.place(), name, value)),
            }
        }
        if !hidden.is_empty() {
            report.warnings.push(format!(
                "container {:?} has envFrom, which may set {}: not set",
                container.name(),
                hidden.join(", ")
            ));
        }
    }
    for (place, name, value) in planned {
        editor.append(&place.path("env"), json!({"name": name, "value": value}))?;
        report.set.insert(name);
    }
    Ok(report)
}

/// The variables that a container should have, in the order in which they are written.
fn wanted(container: &Container<'_>, chosen: &Chosen) -> Vec<(String, String)> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let gpus = container.amount(&chosen.class.resource).unwrap_or(0);
    if gpus == 0 {
        // Not tuning but isolation, so that `environment: none` does not switch it off.
        let bare = !container.may_hold_gpu(&chosen.class.resource);
        return if bare {
            vec![pair(VOID.0, VOID.1)]
        } else {
            Vec::new()
        };
    }
    if chosen.intent.no_environment {
        return Vec::new();
    }
    // Ordinals are the container's own: which GPUs these are is decided on the node.
    let ordinals: Vec<_> = (0..gpus.min(MAX_ORDINALS))
        .map(|gpu| gpu.to_string())
        .collect();
    let mut wanted = vec![
        pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        pair("CUDA_VISIBLE_DEVICES", &ordinals.join(",")),
    ];
    if chosen.intent.gang.is_some() {
        wanted.extend(network(&chosen.class));
    }
    for (name, value) in &chosen.class.environment.extra {
        // What an administrator wrote into the class beats the table.
        wanted.retain(|(own, _)| own != name);
        wanted.push(pair(name, value));
    }
    wanted
}

/// More GPUs than any node has: bounds the patch of a pod that asks for nonsense.
const MAX_ORDINALS: u32 = 1024;

fn network(class: &Class) -> impl Iterator<Item = (String, String)> {
    let environment = &class.environment;
    let rows = TABLE
        .iter()
        .filter(|row| row.fabrics.contains(&environment.fabric));
    rows.filter_map(|row| Some((row.name.to_owned(), (row.value)(environment)?)))
}

/// What the container's `env` gives to each wanted name: `None` if nothing,
/// `Some(None)` if something that is not plain text. The last entry wins.
/// One pass, because CI systems write hundreds of variables.
fn present<'a>(
    container: &Container<'a>,
    wanted: &[(String, String)],
) -> Vec<Option<Option<&'a str>>> {
    let mut found = vec![None; wanted.len()];
    let env = container.value().get("env").and_then(Value::as_array);
    for entry in env.into_iter().flatten() {
        let Some(name) = entry.get("name").and_then(Value::as_str) else {
            continue;
        };
        let Some(index) = wanted.iter().position(|(wanted, _)| wanted == name) else {
            continue;
        };
        let elsewhere = entry.get("valueFrom").is_some_and(|from| !from.is_null());
        let text = entry
            .get("value")
            .and_then(Value::as_str)
            .unwrap_or_default();
        found[index] = Some((!elsewhere).then_some(text));
    }
    found
}

/// Whether an `envFrom` may set `name`. Its values are not in the pod, and a
/// value in `env` would beat them.
fn may_come_from_elsewhere(container: &Container<'_>, name: &str) -> bool {
    let sources = container.value().get("envFrom").and_then(Value::as_array);
    sources.into_iter().flatten().any(|source| {
        name.starts_with(
            source
                .get("prefix")
                .and_then(Value::as_str)
                .unwrap_or_default(),
        )
    })
}
