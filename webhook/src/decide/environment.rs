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
    decide::patch::Editor,
    decide::pod::{self, Container, Place},
};

mod table;

/// Whether NCCL looks for NVLink between nodes.
pub(super) const MNNVL: &str = "NCCL_MNNVL_ENABLE";

#[derive(Debug, Default)]
pub(super) struct Report {
    /// Names that have our value somewhere.
    pub(super) set: BTreeSet<String>,
    /// The same, where the ranks do not see them.
    pub(super) unread: BTreeSet<String>,
    /// Names that the user set differently somewhere.
    pub(super) kept: BTreeSet<String>,
    /// What could not be set, for the user.
    pub(super) warnings: Vec<String>,
}

impl Report {
    /// Says that the ranks start over ssh. Its server hands on none of its own
    /// variables, and `mpirun` by itself none but those of Open MPI (Hydra, of
    /// Intel MPI and MPICH, all of the launcher's). The launcher could be told
    /// by `OMPI_MCA_mca_base_env_list`, but Open MPI ends where that is set
    /// beside the `-x` that most launch lines have (`orterun:conflict-env-set`
    /// of <https://github.com/open-mpi/ompi>, orte/mca/schizo/ompi/schizo_ompi.c).
    fn over_ssh(&mut self) {
        let (read, unread) = std::mem::take(&mut self.set)
            .into_iter()
            .partition(|name| name == super::devices::VOID.0);
        (self.set, self.unread) = (read, unread);
        let mut told = self.unread.iter().filter(|name| !name.starts_with("CUDA_"));
        if let Some(first) = told.next() {
            let rest: String = told.map(|name| format!(", {name}")).collect();
            self.warnings.push(format!(
                "the ranks start over ssh, which hands on no variable of the container: name {first}{rest} to mpirun with -x (Open MPI), set them in the launcher (Intel MPI, MPICH), or write NCCL's to /etc/nccl.conf in the image"
            ));
        }
    }
}

/// A variable that a container should have.
struct Wanted {
    name: String,
    value: String,
    /// It names an interface that the container does not see.
    unfit: bool,
}

impl Wanted {
    fn fit((name, value): (String, String)) -> Self {
        let unfit = false;
        Self { name, value, unfit }
    }
}

/// What holds for all containers of a pod.
struct Plan<'a> {
    chosen: &'a Chosen,
    devices: Devices<'a>,
    /// Its containers see the interfaces of the host.
    host_network: bool,
    /// What is to be written, and where.
    steps: Vec<(Place, String, String)>,
    report: Report,
}

/// Sets the variables of all containers.
pub(super) fn set(editor: &mut Editor, chosen: &Chosen) -> Result<Report, Refusal> {
    let document = editor.document();
    let mut plan = Plan {
        chosen,
        devices: Devices::of(document, chosen),
        host_network: document.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)),
        steps: Vec::new(),
        report: Report::default(),
    };
    for container in pod::containers(document) {
        plan.add(&container);
    }
    let Plan {
        steps, mut report, ..
    } = plan;
    for (place, name, value) in steps {
        editor.append(&place.path("env"), json!({"name": name, "value": value}))?;
        report.set.insert(name);
    }
    if chosen.over_ssh {
        report.over_ssh();
    }
    Ok(report)
}

impl Plan<'_> {
    fn add(&mut self, container: &Container<'_>) {
        let (mut hidden, mut unfit) = (Vec::new(), Vec::new());
        let wanted = self.wanted(container);
        let present = present(container, &wanted);
        for (wanted, own) in wanted.into_iter().zip(present) {
            let name = wanted.name;
            match own {
                Some(Some(own)) if own == wanted.value => drop(self.report.set.insert(name)),
                Some(_) => drop(self.report.kept.insert(name)),
                None if wanted.unfit => unfit.push(name),
                // Isolation holds against what an envFrom may say as well.
                None if name != super::devices::VOID.0
                    && may_come_from_elsewhere(container, &name) =>
                {
                    hidden.push(name);
                }
                None => self.steps.push((container.place(), name, wanted.value)),
            }
        }
        let name = container.name();
        if !hidden.is_empty() {
            self.report.warnings.push(format!(
                "container {name:?} has envFrom, which may set {}: not set",
                hidden.join(", ")
            ));
        }
        if !unfit.is_empty() {
            self.report.warnings.push(format!(
                "container {name:?} has the network of the host, whose interfaces are not those of pods: {} not set; set them if NCCL, UCX or NVSHMEM choose a wrong one",
                unfit.join(", ")
            ));
        }
    }

    /// The variables that a container should have, in the order in which they are written.
    fn wanted(&self, container: &Container<'_>) -> Vec<Wanted> {
        let class = &self.chosen.class;
        let gpus = container.amount(&class.resource).unwrap_or(0);
        if gpus == 0 {
            let void = self.devices.none(container);
            return void.into_iter().map(Wanted::fit).collect();
        }
        if self.chosen.intent.no_environment {
            return Vec::new();
        }
        let order = self.devices.order(container, gpus).into_iter();
        let mut wanted: Vec<_> = order.map(Wanted::fit).collect();
        if gpus >= 2 || self.chosen.spans {
            wanted.extend(self.tuning());
        }
        for (name, value) in &class.environment.extra {
            // What an administrator wrote into the class beats the table.
            wanted.retain(|own| own.name != *name);
            wanted.push(Wanted::fit((name.clone(), value.clone())));
        }
        // NVSHMEM ignores the one where it finds the other.
        if wanted.iter().any(|own| own.name == table::HCA_LIST)
            && (wanted.iter().any(|own| own.name == table::HCA_MAP)
                || sets(container, table::HCA_MAP))
        {
            wanted.retain(|own| own.name != table::HCA_LIST);
        }
        wanted
    }

    fn tuning(&self) -> impl Iterator<Item = Wanted> {
        let environment = &self.chosen.class.environment;
        let rows = table::rows(environment, self.chosen.spans);
        rows.filter_map(|row| {
            Some(Wanted {
                name: row.name.to_owned(),
                value: (row.value)(environment)?,
                unfit: self.host_network && row.names_interface(),
            })
        })
    }
}

/// Whether the container's `env` has `name`, whatever its value.
fn sets(container: &Container<'_>, name: &str) -> bool {
    let env = container.value().get("env").and_then(Value::as_array);
    let mut names = env.into_iter().flatten().map(|entry| entry.get("name"));
    names.any(|own| own.and_then(Value::as_str) == Some(name))
}

/// Whether the pod sees to it that NCCL finds an IMEX channel where it looks
/// for one: by a claim, which may be that of a ComputeDomain, or by saying
/// whether NCCL looks.
pub(super) fn minds_channels(pod: &Value, containers: &[Container<'_>]) -> bool {
    let claims = pod
        .pointer("/spec/resourceClaims")
        .and_then(Value::as_array);
    claims.is_some_and(|claims| !claims.is_empty())
        || containers.iter().any(|container| sets(container, MNNVL))
}

/// What the container's `env` gives to each wanted name: `None` if nothing,
/// `Some(None)` if something that is not plain text. The last entry wins.
/// One pass, because CI systems write hundreds of variables.
fn present<'a>(container: &Container<'a>, wanted: &[Wanted]) -> Vec<Option<Option<&'a str>>> {
    let mut found = vec![None; wanted.len()];
    let env = container.value().get("env").and_then(Value::as_array);
    for entry in env.into_iter().flatten() {
        let Some(name) = entry.get("name").and_then(Value::as_str) else {
            continue;
        };
        let Some(index) = wanted.iter().position(|wanted| wanted.name == name) else {
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
