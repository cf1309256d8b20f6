//! A cluster whose admission survives what happens to the leaders of the queue.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use nvlink_tests::{
    ControlPlane, Exporter, Kubectl, Node, Replica, Webhook,
    certificates::Authority,
    node, port,
    programs::{self, WEBHOOK},
    wait_until, webhook, workdir,
};
use serde_json::{Value, json};

use crate::{
    pods::{decision, gpu_pod},
    queue::cluster::SOON,
    shared::dry_run,
};

/// Ends a debug build of the webhook at a boundary between two writes.
const FAILPOINT: &str = "NVLINK_WEBHOOK_TEST_DIES_AFTER";
/// May do all that admission takes, but not hold the Lease, so it never leads.
const ADMISSION: &str = "admission";
pub(super) const NAMESPACE: &str = "team";
/// The class of pods that name none. They may wait for hours.
const LONG: &str = "line";
/// A class whose pods may wait for a few seconds.
pub(super) const BRIEF: &str = "brief";

/// A control plane, nodes that simulated exporters describe, and a webhook that never leads.
pub(super) struct Stage {
    pub(super) plane: ControlPlane,
    pub(super) team: Kubectl,
    exporters: BTreeMap<String, Exporter>,
    tls: [PathBuf; 2],
    _admission: Webhook,
}

impl Stage {
    /// Starts `nodes` of eight GPUs behind NVSwitches in one zone, and two classes that queue.
    pub(super) fn start(nodes: &[&str], brief: &str) -> Self {
        let plane = ControlPlane::start().unwrap();
        webhook::install_crds(plane.kubectl()).unwrap();
        let default = json!({"nvlink-domains.io/default-class": LONG});
        let team = plane.namespace(NAMESPACE, &json!({}), &default).unwrap();
        for (name, timeout) in [(LONG, "3h"), (BRIEF, brief)] {
            let placement =
                json!({"whenUnavailable": "Queue", "scope": "zone", "queueTimeout": timeout});
            let class = json!({
                "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
                "metadata": {"name": name}, "spec": {"placement": placement},
            });
            plane.kubectl().create(&class).unwrap();
        }
        let admission = admission(&plane);
        let files = Authority::new("leaders").unwrap();
        let files = files.issue("tls", &workdir::fresh("leaders").unwrap());
        let files = files.unwrap();
        let mut this = Self {
            plane,
            team,
            exporters: BTreeMap::new(),
            tls: [files.certificate, files.key],
            _admission: admission,
        };
        for name in nodes {
            this.create_node(name);
            this.describe(name);
        }
        this.wait_until_described(nodes.len());
        wait_until("the webhook to gate pods", SOON, || {
            let stored = dry_run(&this.team, &gpu_pod("probe", 1))?;
            Ok(decision(&stored).map(drop))
        })
        .unwrap();
        this
    }

    pub(super) fn create_node(&self, name: &str) {
        let node = Node::new(name, 8).label("topology.kubernetes.io/zone", "z");
        node::create(self.plane.kubectl(), &[node]).unwrap();
    }

    /// Starts the exporter of a node.
    pub(super) fn describe(&mut self, name: &str) {
        let source = ["--source", "sim:dgx-h100"];
        let exporter = Exporter::publishing(self.plane.kubeconfig(), name, &source).unwrap();
        self.exporters.insert(name.to_owned(), exporter);
    }

    /// Kills the exporter of a node, and removes what it published.
    pub(super) fn forget(&mut self, name: &str) {
        self.exporters.remove(name);
        let delete = ["delete", "nodetopology", name];
        self.plane.kubectl().run(&delete).unwrap();
    }

    fn wait_until_described(&self, count: usize) {
        let all = self.plane.kubectl();
        wait_until("all nodes to be described", SOON, || {
            let described = all.get(&["nodes", "-l", "nvlink-domains.io/domain-size=8"])?;
            Ok((described["items"].as_array().map(Vec::len) == Some(count)).then_some(()))
        })
        .unwrap();
    }

    /// Starts a replica that may lead.
    pub(super) fn leader(&self) -> Replica {
        self.leader_of(&programs::path(WEBHOOK).unwrap(), self.plane.kubeconfig())
    }

    /// Starts a replica that may lead, and ends at a boundary such as `release=1`.
    pub(super) fn mortal_leader(&self, boundary: &str) -> Replica {
        let program = programs::path(WEBHOOK).unwrap();
        let script = format!(
            "#!/bin/sh\n{FAILPOINT}={boundary} exec {} \"$@\"\n",
            program.display()
        );
        let path = workdir::fresh("failpoint").unwrap().join("webhook");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self.leader_of(&path, self.plane.kubeconfig())
    }

    /// Starts a replica that may lead, and reaches the API server by another kubeconfig.
    pub(super) fn leader_of(&self, program: &Path, kubeconfig: &Path) -> Replica {
        let [cert, key] = self.tls.each_ref().map(|path| path.to_string_lossy());
        let arguments = ["--tls-cert", &cert, "--tls-key", &key];
        let address = port::address().unwrap();
        Replica::of(program, address, kubeconfig, &arguments).unwrap()
    }

    /// Returns the number of the present term; 0 if nobody leads.
    pub(super) fn term(&self) -> i64 {
        let lease = ["lease", "nvlink-webhook", "-n", "default"];
        let lease = self.plane.kubectl().get(&lease).unwrap_or_default();
        let held = lease["spec"]["holderIdentity"]
            .as_str()
            .is_some_and(|holder| !holder.is_empty());
        let term = lease["spec"]["leaseTransitions"].as_i64();
        term.filter(|_| held).unwrap_or(0)
    }

    /// Waits until somebody leads in a later term than `term`, and returns it.
    pub(super) fn led_after(&self, term: i64) -> i64 {
        wait_until("a replica to lead", SOON, || {
            Ok(Some(self.term()).filter(|now| *now > term))
        })
        .unwrap()
    }

    /// Gives up the Lease for a leader that was killed, which would otherwise expire only after
    /// 15 seconds.
    pub(super) fn free_lease(&self) {
        let free = json!({"spec": {"holderIdentity": ""}}).to_string();
        let patch = ["patch", "lease", "nvlink-webhook", "-n", "default"];
        let patch = [&patch[..], &["--type=merge", "-p", &free]].concat();
        self.plane.kubectl().run(&patch).unwrap();
    }
}

/// Registers a webhook that never leads.
fn admission(plane: &ControlPlane) -> Webhook {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": ADMISSION},
        "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
            {
                "apiGroups": ["authorization.k8s.io"],
                "resources": ["subjectaccessreviews"], "verbs": ["create"],
            },
        ],
    });
    let all = plane.kubectl();
    all.create(&role).unwrap();
    let binding = ["create", "clusterrolebinding", ADMISSION];
    let binding = [
        &binding[..],
        &["--clusterrole", ADMISSION, "--user", ADMISSION],
    ]
    .concat();
    all.run(&binding).unwrap();
    let webhook = Webhook::start(&plane.kubeconfig_for(ADMISSION).unwrap()).unwrap();
    webhook.register(all).unwrap();
    webhook
}

/// Returns a pod, as one of a gang of so many pods if it is named.
pub(super) fn pod(
    name: &str,
    gpus: u32,
    gang: Option<(&str, usize)>,
    class: Option<&str>,
) -> Value {
    let mut pod = gpu_pod(name, gpus);
    let mut annotations = json!({});
    if let Some((gang, size)) = gang {
        annotations["nvlink-domains.io/gang"] = json!(gang);
        annotations["nvlink-domains.io/gang-size"] = json!(size.to_string());
    }
    if let Some(class) = class {
        annotations["nvlink-domains.io/class"] = json!(class);
    }
    pod["metadata"]["annotations"] = annotations;
    pod["metadata"]["labels"] = json!({"part": gang.map_or(name, |(gang, _)| gang)});
    pod
}
