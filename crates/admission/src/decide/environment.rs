//! Environment variables: which are set, where, and why.
//!
//! No variable is set if the container's own `env` sets it, or its `envFrom` may set it. For jobs
//! on one node, no variable changes the paths of NCCL or UCX, unless the class says so: their own
//! choice is the best known, and a global `NCCL_P2P_LEVEL` or a `UCX_TLS` without `cuda` makes jobs
//! slow or crash. A container with one GPU in a job of one pod does not communicate, and gets no
//! such variables.

use std::collections::BTreeSet;

use nvlink_api::{
    crd::environment::MNNVL,
    patch::Editor,
    pod::{self, Container, Place},
};
use nvlink_topology::labels;
use serde_json::{Value, json};

use super::{Chosen, claim, devices::Devices, refusal::Refusal};

mod table;

#[derive(Debug, Default)]
pub(super) struct Report {
    /// Variables with our value in at least one container.
    pub(super) set: BTreeSet<String>,
    /// Variables with our value that the ranks do not see.
    pub(super) unread: BTreeSet<String>,
    /// Variables that the user set differently in at least one container.
    pub(super) kept: BTreeSet<String>,
    /// Warnings for the user about variables that were not set or are not read.
    pub(super) warnings: Vec<String>,
}

impl Report {
    /// Moves the variables to `unread` and warns, because the ranks start over ssh. The ssh server
    /// passes on none of its own variables. `mpirun` passes on only those of Open MPI by default;
    /// Hydra, of Intel MPI and MPICH, passes on all of the launcher's. The launcher could set
    /// `OMPI_MCA_mca_base_env_list`, but Open MPI ends with an error if that is set beside the `-x`
    /// of most launch lines (`orterun:conflict-env-set` of <https://github.com/open-mpi/ompi>,
    /// orte/mca/schizo/ompi/schizo_ompi.c).
    fn over_ssh(&mut self) {
        let (read, unread) = std::mem::take(&mut self.set)
            .into_iter()
            .partition(|name| name == super::devices::VOID.0);
        (self.set, self.unread) = (read, unread);
        let mut told = self.unread.iter().filter(|name| !name.starts_with("CUDA_"));
        if let Some(first) = told.next() {
            let rest: String = told.map(|name| format!(", {name}")).collect();
            self.warnings.push(format!(
                "the ranks start over ssh, which passes on no variable of the container: pass {first}{rest} to mpirun with -x (Open MPI), set them in the launcher (Intel MPI, MPICH), or write the NCCL ones to /etc/nccl.conf in the image"
            ));
        }
    }
}

/// A variable that a container should have.
struct Wanted {
    name: String,
    value: Text,
    /// It names a network interface that the container does not see.
    unfit: bool,
}

impl Wanted {
    fn fit((name, value): (String, Text)) -> Self {
        let unfit = false;
        Self { name, value, unfit }
    }
}

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Plain(String),
    /// What an annotation of this name says when the container starts.
    Annotation(String),
}

impl Text {
    /// Returns the entry of a container's `env`.
    fn entry(&self, name: &str) -> Value {
        match self {
            Self::Plain(value) => json!({"name": name, "value": value}),
            Self::Annotation(_) => json!({"name": name, "valueFrom": self.source()}),
        }
    }

    /// Returns where the value comes from.
    fn source(&self) -> Value {
        match self {
            Self::Plain(_) => Value::Null,
            Self::Annotation(key) => {
                json!({"fieldRef": {"fieldPath": format!("metadata.annotations['{key}']")}})
            }
        }
    }

    /// Reports whether `entry` of a container's `env` has this value. The API server adds the
    /// version of the pod to a source.
    fn is_of(&self, entry: &Value) -> bool {
        let own = entry.get("value").and_then(Value::as_str);
        let path = |source: &Value| source.pointer("/fieldRef/fieldPath").cloned();
        let source = entry.get("valueFrom").filter(|source| !source.is_null());
        match (self, source) {
            (Self::Plain(value), None) => own.unwrap_or_default() == value,
            (Self::Annotation(_), Some(source)) => path(source) == path(&self.source()),
            _ => false,
        }
    }
}

/// The state for all containers of a pod.
struct Plan<'a> {
    chosen: &'a Chosen,
    devices: Devices<'a>,
    /// The pod uses the host network.
    host_network: bool,
    /// Position, name and value of each variable to write.
    steps: Vec<(Place, String, Text)>,
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
        editor.append(&place.path("env"), value.entry(&name))?;
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
                Some(own) if wanted.value.is_of(own) => drop(self.report.set.insert(name)),
                Some(_) => drop(self.report.kept.insert(name)),
                None if wanted.unfit => unfit.push(name),
                // The variables that isolate a container, and without which a gang would fail, are set even
                // if an envFrom may set them.
                None if name != super::devices::VOID.0
                    && !(name == MNNVL && self.chosen.is_managed())
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
                "container {name:?} has envFrom, which may set {}: the webhook did not set them",
                hidden.join(", ")
            ));
        }
        if !unfit.is_empty() {
            self.report.warnings.push(format!(
                "container {name:?} uses the host network, whose interfaces differ from those of pods: the webhook did not set {}; set them if NCCL, UCX or NVSHMEM choose a wrong interface",
                unfit.join(", ")
            ));
        }
    }

    /// Returns the variables that a container should have, in the order of writing.
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
            wanted.extend(self.tuning(container));
        }
        if self.chosen.is_managed() {
            let value = match self.chosen.gets_channel() {
                true => by_queue(),
                false => never(),
            };
            wanted.push(Wanted::fit((MNNVL.to_owned(), value)));
        }
        for (name, value) in &class.environment.extra {
            // The class's own variables override the table.
            wanted.retain(|own| own.name != *name);
            wanted.push(Wanted::fit((name.clone(), Text::Plain(value.clone()))));
        }
        // NVSHMEM ignores the map if the list is set.
        if wanted.iter().any(|own| own.name == table::HCA_LIST)
            && (wanted.iter().any(|own| own.name == table::HCA_MAP)
                || sets(container, table::HCA_MAP))
        {
            wanted.retain(|own| own.name != table::HCA_LIST);
        }
        wanted
    }

    fn tuning(&self, container: &Container<'_>) -> impl Iterator<Item = Wanted> {
        let rows = table::rows(&self.chosen.class.environment, self.chosen.spans);
        let key = claim::key(&claim::ranks_of(container));
        rows.filter_map(move |row| {
            Some(Wanted {
                name: row.name.to_owned(),
                value: self.value(&row.value, &key)?,
                unfit: self.host_network && row.names_interface(),
            })
        })
    }

    /// Returns the value of a variable of the container with this key; `None` if it is not set.
    fn value(&self, of: &table::Value, key: &str) -> Option<Text> {
        let class = &self.chosen.class;
        let environment = &class.environment;
        let devices = &environment.rdma_devices;
        let rdma = class.nics.is_some() || !devices.is_empty();
        match of {
            table::Value::Class(value) => value(environment).map(Text::Plain),
            table::Value::Sockets(_) if rdma => None,
            table::Value::Sockets(value) => value(environment).map(Text::Plain),
            table::Value::Rdma(_) | table::Value::Devices(_) if !rdma => None,
            table::Value::NicOfGpu(value) => {
                let one = class.nics.as_ref().filter(|nics| nics.per_gpu == 1);
                one.map(|_| Text::Plain((*value).to_owned()))
            }
            table::Value::Rdma(value) => Some(Text::Plain((*value).to_owned())),
            // The queue writes the annotation when it has chosen the GPUs, and so their NICs.
            table::Value::Devices(list) if class.nics.is_some() => {
                Some(Text::Annotation(format!("{}{key}", list.annotation)))
            }
            table::Value::Devices(list) => Some(Text::Plain((list.of)(devices))),
        }
    }
}

/// Reports whether the container's `env` has `name`, whatever its value.
fn sets(container: &Container<'_>, name: &str) -> bool {
    pod::list(container.value(), &["env"]).any(|entry| pod::text(entry, &["name"]) == name)
}

/// Returns the value of [`MNNVL`] that the queue chooses when it has placed the gang.
fn by_queue() -> Text {
    Text::Annotation(labels::QUEUE_MNNVL.to_owned())
}

/// Returns the value of [`MNNVL`] for a gang that gets no channels.
fn never() -> Text {
    Text::Plain("0".to_owned())
}

/// Reports whether the pod itself handles IMEX channels: by a claim, which may be that of a
/// `ComputeDomain`, or by setting the variable that controls whether NCCL needs one to another value
/// than the webhook would, if the gang stays on `one_node`.
pub(super) fn minds_channels(pod: &Value, containers: &[Container<'_>], one_node: bool) -> bool {
    let ours = |entry: &Value| by_queue().is_of(entry) || one_node && never().is_of(entry);
    let own = |claim: &Value| {
        let name = pod::text(claim, &["name"]);
        name != labels::CLAIM && name != labels::CHANNEL
    };
    let sets = |entry: &Value| pod::text(entry, &["name"]) == MNNVL && !ours(entry);
    let sets = |one: &Container<'_>| pod::list(one.value(), &["env"]).any(sets);
    pod::list(pod, &["spec", "resourceClaims"]).any(own) || containers.iter().any(sets)
}

/// Returns the entry of each wanted variable in the container's `env`. The last entry wins.
/// This is one pass, because CI systems write hundreds of variables.
fn present<'a>(container: &Container<'a>, wanted: &[Wanted]) -> Vec<Option<&'a Value>> {
    let mut found = vec![None; wanted.len()];
    for entry in pod::list(container.value(), &["env"]) {
        let Some(name) = entry.get("name").and_then(Value::as_str) else {
            continue;
        };
        let Some(index) = wanted.iter().position(|wanted| wanted.name == name) else {
            continue;
        };
        found[index] = Some(entry);
    }
    found
}

/// Reports whether an `envFrom` may set `name`. Its values are not in the pod, and a value in `env`
/// would override them.
fn may_come_from_elsewhere(container: &Container<'_>, name: &str) -> bool {
    let mut sources = pod::list(container.value(), &["envFrom"]);
    sources.any(|source| name.starts_with(pod::text(source, &["prefix"])))
}
