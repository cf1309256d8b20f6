//! Environment variables: what is set, where, and why.
//!
//! Nothing here is set where the container's own `env` sets the name, or where
//! its `envFrom` might. Inside one node nothing is set that changes the paths
//! of NCCL or UCX, unless the class says so: their own choice is the best
//! known, and a global `NCCL_P2P_LEVEL` or `UCX_TLS` without `cuda` makes jobs
//! slow or crash. A container that is alone with one GPU has nobody to talk to,
//! and gets nothing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Chosen, devices::Devices, refusal::Refusal};
use crate::{
    crd::environment::{AddressFamily, Distance, Environment, Fabric, Mnnvl, PeerToPeer, RoCE},
    decide::patch::Editor,
    decide::pod::{self, Container},
};

/// The jobs that a variable is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Those whose GPUs talk to others, on a node or between nodes.
    Any,
    /// Those of one node.
    Node,
    /// Those that span pods.
    Network,
}

/// A variable, by the class's fabric.
struct Row {
    name: &'static str,
    reach: Reach,
    fabrics: &'static [Fabric],
    value: fn(&Environment) -> Option<String>,
}

const EACH: &[Fabric] = &[
    Fabric::None,
    Fabric::Infiniband,
    Fabric::RoCE,
    Fabric::TCP,
    Fabric::MNNVL,
    Fabric::PCIe,
];
const NETWORKS: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE, Fabric::TCP, Fabric::MNNVL];
/// MNNVL may have RDMA between racks.
const RDMA: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE, Fabric::MNNVL];
const VERBS: &[Fabric] = &[Fabric::Infiniband, Fabric::RoCE];
const SOCKETS: &[Fabric] = &[Fabric::TCP, Fabric::MNNVL];

/// What a container gets whose GPUs talk to others.
const TABLE: &[Row] = &[
    // Only restricts: what is farther goes through memory. So never by itself.
    Row {
        name: "NCCL_P2P_LEVEL",
        reach: Reach::Any,
        fabrics: EACH,
        value: |environment| match environment.peer_to_peer? {
            PeerToPeer::PHB => Some("PHB".to_owned()),
            PeerToPeer::SYS => Some("SYS".to_owned()),
            PeerToPeer::Disabled => None,
        },
    },
    // Turns NVLink off as well: only where an IOMMU or ACS breaks peer access.
    Row {
        name: "NCCL_P2P_DISABLE",
        reach: Reach::Any,
        fabrics: EACH,
        value: |environment| {
            let disabled = environment.peer_to_peer == Some(PeerToPeer::Disabled);
            disabled.then(|| "1".to_owned())
        },
    },
    // Without network there is nothing to try; a list without `cuda` makes UCX crash.
    Row {
        name: "UCX_TLS",
        reach: Reach::Node,
        fabrics: &[Fabric::PCIe],
        value: |_| Some("cuda,sm,self".to_owned()),
    },
    // NCCL reads a list of prefixes (eth1 is also eth10) unless it starts with `=`.
    Row {
        name: "NCCL_SOCKET_IFNAME",
        reach: Reach::Network,
        fabrics: NETWORKS,
        value: |environment| {
            let name = environment.network_interface.as_ref();
            name.map(|name| format!("={name}"))
        },
    },
    // Without `=` mlx5_1 is also mlx5_10: a storage or management card would carry traffic.
    Row {
        name: "NCCL_IB_HCA",
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| listed(environment, |devices| format!("={}", devices.join(","))),
    },
    // A stray RDMA card without a route would be chosen and then fail.
    Row {
        name: "NCCL_IB_DISABLE",
        reach: Reach::Network,
        fabrics: &[Fabric::TCP],
        value: |_| Some("1".to_owned()),
    },
    // NCCL's own limit suits bare machines; in virtual ones PCI is not what it seems.
    Row {
        name: "NCCL_NET_GDR_LEVEL",
        reach: Reach::Network,
        fabrics: RDMA,
        value: |environment| Some(distance(environment.gpu_direct?).to_owned()),
    },
    // Lossless Ethernet carries only the traffic that is marked as the switches expect.
    Row {
        name: "NCCL_IB_TC",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.traffic_class),
    },
    // As above, by priority.
    Row {
        name: "NCCL_IB_SL",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.service_level),
    },
    // NCCL finds the index itself since 2.21; a fixed one is wrong as soon as cards differ.
    Row {
        name: "NCCL_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.gid_index),
    },
    // Which of a card's addresses NCCL takes where it finds the index itself.
    Row {
        name: "NCCL_IB_ADDR_FAMILY",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| {
            let family = environment.roce.as_ref()?.address_family?;
            Some(family_name(family).to_owned())
        },
    },
    // As above.
    Row {
        name: "NCCL_IB_ADDR_RANGE",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| environment.roce.as_ref()?.address_range.clone(),
    },
    // By itself NCCL uses it where it works; 1 makes a job fail where it does not.
    Row {
        name: "NCCL_MNNVL_ENABLE",
        reach: Reach::Network,
        fabrics: &[Fabric::MNNVL],
        value: |environment| {
            let required = environment.mnnvl == Some(Mnnvl::Required);
            required.then(|| "1".to_owned())
        },
    },
    // A list without `cuda` makes UCX crash on GPU buffers.
    Row {
        name: "UCX_TLS",
        reach: Reach::Network,
        fabrics: VERBS,
        value: |_| Some("rc,cuda,sm,self".to_owned()),
    },
    // As above. Over MNNVL GPU buffers go by `cuda`, and the rest is small.
    Row {
        name: "UCX_TLS",
        reach: Reach::Network,
        fabrics: SOCKETS,
        value: |_| Some("tcp,cuda,sm,self".to_owned()),
    },
    // UCX takes every device unless told; the list names device and port.
    Row {
        name: "UCX_NET_DEVICES",
        reach: Reach::Network,
        fabrics: VERBS,
        value: |environment| {
            listed(environment, |devices| {
                let ports: Vec<_> = devices.iter().map(|name| format!("{name}:1")).collect();
                ports.join(",")
            })
        },
    },
    // UCX takes every interface unless told, the container bridge too.
    Row {
        name: "UCX_NET_DEVICES",
        reach: Reach::Network,
        fabrics: SOCKETS,
        value: |environment| environment.network_interface.clone(),
    },
    // UCX does not find the index itself.
    Row {
        name: "UCX_IB_GID_INDEX",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.gid_index),
    },
    // As for NCCL.
    Row {
        name: "UCX_IB_TRAFFIC_CLASS",
        reach: Reach::Network,
        fabrics: &[Fabric::RoCE],
        value: |environment| number(environment, |roce| roce.traffic_class),
    },
];

fn listed(environment: &Environment, text: fn(&[String]) -> String) -> Option<String> {
    let devices = &environment.rdma_devices[..];
    (!devices.is_empty()).then(|| text(devices))
}

fn number(environment: &Environment, field: fn(&RoCE) -> Option<u32>) -> Option<String> {
    environment
        .roce
        .as_ref()
        .and_then(field)
        .map(|number| number.to_string())
}

fn distance(distance: Distance) -> &'static str {
    match distance {
        Distance::LOC => "LOC",
        Distance::PIX => "PIX",
        Distance::PXB => "PXB",
        Distance::PHB => "PHB",
        Distance::SYS => "SYS",
    }
}

fn family_name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "AF_INET",
        AddressFamily::V6 => "AF_INET6",
    }
}

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
    let devices = Devices::of(editor.document(), chosen);
    for container in pod::containers(editor.document()) {
        let mut hidden = Vec::new();
        let wanted = wanted(&container, chosen, &devices);
        let present = present(&container, &wanted);
        for ((name, value), own) in wanted.into_iter().zip(present) {
            match own {
                Some(Some(own)) if own == value => drop(report.set.insert(name)),
                Some(_) => drop(report.kept.insert(name)),
                // Isolation holds against what an envFrom may say as well.
                None if name != super::devices::VOID.0
                    && may_come_from_elsewhere(&container, &name) =>
                {
                    hidden.push(name);
                }
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
fn wanted(
    container: &Container<'_>,
    chosen: &Chosen,
    devices: &Devices<'_>,
) -> Vec<(String, String)> {
    let class = &chosen.class;
    let gpus = container.amount(&class.resource).unwrap_or(0);
    if gpus == 0 {
        return devices.none(container).into_iter().collect();
    }
    if chosen.intent.no_environment {
        return Vec::new();
    }
    let mut wanted = devices.order(container, gpus);
    if gpus >= 2 || chosen.spans {
        wanted.extend(tuning(&class.environment, chosen.spans));
    }
    for (name, value) in &class.environment.extra {
        // What an administrator wrote into the class beats the table.
        wanted.retain(|(own, _)| own != name);
        wanted.push((name.clone(), value.clone()));
    }
    wanted
}

fn tuning(environment: &Environment, spans: bool) -> impl Iterator<Item = (String, String)> {
    let rows = TABLE.iter().filter(move |row| {
        let reached = match row.reach {
            Reach::Any => true,
            Reach::Node => !spans,
            Reach::Network => spans,
        };
        reached && row.fabrics.contains(&environment.fabric)
    });
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
