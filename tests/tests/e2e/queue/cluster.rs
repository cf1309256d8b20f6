//! A cluster whose webhook serves the queue.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use nvlink_tests::{
    ControlPlane, Exporter, Helm, Kubectl, Node, Webhook, node,
    programs::{self, WEBHOOK},
    wait_until, webhook, workdir,
};
use serde_json::{Value, json};

use crate::{
    pods::{decision, gpu_pod},
    shared::dry_run,
};

pub(super) const GATE: &str = "nvlink-domains.io/queue";
const CLASS: &str = "line";
/// Of the webhook and its Lease, with the rights of the chart.
pub(super) const NAMESPACE: &str = "nvlink-system";
/// A killed leader's Lease expires after 15 seconds.
pub(super) const SOON: Duration = Duration::from_secs(90);
/// Ends a debug build of the webhook after so many writes of a kind.
const FAILPOINT: &str = "NVLINK_WEBHOOK_TEST_DIES_AFTER";

/// Returns the name of the device of a GPU, which has the number of a device file and not the index.
pub(super) fn device_of(gpu: u32) -> String {
    format!("gpu-{}", (gpu + 1) % 8)
}

/// Returns the PCIe root of a GPU: two share one.
pub(super) fn root_of(gpu: u32) -> String {
    format!("pci0000:{:x}0", gpu / 2 * 2)
}

/// A control plane with nodes that simulated exporters describe, a webhook, and a namespace whose
/// pods have a class that queues.
pub(super) struct Cluster {
    pub(super) plane: ControlPlane,
    pub(super) webhook: Option<Webhook>,
    pub(super) team: Kubectl,
    /// What its class says besides its placement.
    spec: Value,
    /// The webhook's.
    kubeconfig: PathBuf,
    /// Further flags of the webhook.
    flags: Vec<&'static str>,
    exporters: Vec<Exporter>,
}

impl Cluster {
    /// Starts `nodes` of eight GPUs behind NVSwitches, and a class with `placement`.
    pub(super) fn start(nodes: &[&str], placement: Value) -> Self {
        let nodes: Vec<_> = nodes.iter().map(|name| (*name, "sim:dgx-h100")).collect();
        Self::of(&nodes, placement)
    }

    /// The same with nodes of eight GPUs from these sources.
    pub(super) fn of(nodes: &[(&str, &str)], placement: Value) -> Self {
        Self::with(nodes, placement, json!({}))
    }

    /// The same with a class whose gangs get IMEX channels, the policies, and a webhook with the rights of
    /// the chart and no more.
    pub(super) fn with_channels(nodes: &[(&str, &str)], placement: Value) -> Self {
        let environment = json!({"fabric": "MNNVL", "mnnvl": "Managed"});
        let this = Self::with(nodes, placement, json!({ "environment": environment }));
        this.set_policies(&[]);
        this
    }

    /// The same with a DRA driver on each node in place of a device plugin, a class whose GPUs come by
    /// claims, the policies, and a webhook with the rights of the chart and no more.
    pub(super) fn claiming(nodes: &[(&str, &str)], placement: Value) -> Self {
        Self::claiming_with(nodes, placement, json!({"devices": {"mapping": "Claim"}}))
    }

    /// The same with a class that says more besides its placement.
    pub(super) fn claiming_with(nodes: &[(&str, &str)], placement: Value, spec: Value) -> Self {
        let this = Self::with(nodes, placement, spec);
        // That of NVIDIA's chart has a type, too: the claims of the queue need none.
        let selector = json!({"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}});
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]},
        });
        this.plane.kubectl().create(&class).unwrap();
        this.set_policies(&[]);
        for (name, _) in nodes {
            this.set_slice(name, &[]);
        }
        this
    }

    /// The same without nodes, for a pool that an autoscaler resizes: a webhook with the rights of the
    /// chart and no more, which may create placeholder pods, and the policies.
    pub(super) fn growing(placement: Value) -> Self {
        let plane = ControlPlane::start().unwrap();
        webhook::install_crds(plane.kubectl()).unwrap();
        let kubeconfig = account(&plane, true, false);
        let default = json!({"nvlink-domains.io/default-class": CLASS});
        let mut this = Self {
            kubeconfig,
            team: plane.namespace("team", &json!({}), &default).unwrap(),
            plane,
            webhook: None,
            spec: json!({}),
            flags: vec!["--placeholders"],
            exporters: Vec::new(),
        };
        this.set_policies(&["--exempt-namespace", NAMESPACE]);
        this.flags.extend(["--lease-namespace", NAMESPACE]);
        this.set_class(placement);
        this.restart();
        this
    }

    /// Installs the policies.
    fn set_policies(&self, flags: &[&str]) {
        let policies = ["policies", "--lease-namespace", NAMESPACE];
        let policies = programs::run(WEBHOOK, &[&policies, flags].concat(), "").unwrap();
        let apply = ["apply", "--server-side", "-f", "-"];
        self.plane.kubectl().run_with(&apply, &policies).unwrap();
    }

    /// Starts an exporter on a node with eight GPUs behind NVSwitches.
    pub(super) fn describe(&mut self, node: &str) {
        let source = ["--source", "sim:dgx-h100"];
        let exporter = Exporter::publishing(self.plane.kubeconfig(), node, &source).unwrap();
        self.exporters.push(exporter);
    }

    /// Writes the ResourceSlice of a node, as NVIDIA's DRA driver does: in no order, by numbers that
    /// are no indices, with MIG devices that do not exist yet. `tainted` GPUs are not allocated.
    pub(super) fn set_slice(&self, node: &str, tainted: &[u32]) {
        let tag = |uuid: &str| json!({"string": uuid});
        let version = json!({"version": "580.65.6"});
        let gpus = (0..).zip(self.uuids(node)).flat_map(|(at, uuid)| {
            let mut device = json!({
                "name": device_of(at),
                "attributes": {
                    "type": tag("gpu"), "uuid": tag(&uuid), "driverVersion": version,
                    "resource.kubernetes.io/pcieRoot": tag(&root_of(at)),
                },
            });
            if tainted.contains(&at) {
                device["taints"] = json!([{"key": "example.com/bad", "effect": "NoSchedule"}]);
            }
            let mig = json!({
                "name": format!("{}-mig-1g10gb-19-0", device_of(at)),
                "attributes": {"type": tag("mig"), "parentUUID": tag(&uuid)},
            });
            [mig, device]
        });
        let devices: Vec<Value> = gpus.collect();
        let devices: Vec<&Value> = devices.iter().rev().collect();
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{node}-gpu.nvidia.com")},
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices,
            },
        });
        self.plane.kubectl().apply(&slice.to_string()).unwrap();
    }

    /// Returns the UUIDs of a node's GPUs, by index.
    pub(super) fn uuids(&self, node: &str) -> Vec<String> {
        let topology = self.plane.kubectl().get(&["nodetopology", node]).unwrap();
        let gpus = topology["spec"]["gpus"].as_array().unwrap().iter();
        gpus.map(|gpu| gpu["uuid"].as_str().unwrap().to_owned())
            .collect()
    }

    fn with(nodes: &[(&str, &str)], placement: Value, spec: Value) -> Self {
        let claims = spec["devices"]["mapping"] == "Claim";
        let channels = spec["environment"]["mnnvl"] == "Managed";
        let plane = ControlPlane::start().unwrap();
        webhook::install_crds(plane.kubectl()).unwrap();
        let exporters = nodes.iter().map(|(name, source)| {
            let node = Node::new(*name, if claims { 0 } else { 8 })
                .label("topology.kubernetes.io/zone", "z");
            node::create(plane.kubectl(), &[node]).unwrap();
            let source = ["--source", source];
            Exporter::publishing(plane.kubeconfig(), name, &source).unwrap()
        });
        let exporters = exporters.collect();
        let default = json!({"nvlink-domains.io/default-class": CLASS});
        let limited = claims || channels;
        let kubeconfig = match limited {
            true => account(&plane, false, channels),
            false => plane.kubeconfig().to_owned(),
        };
        let flags: &[&str] = if limited {
            &["--lease-namespace", NAMESPACE]
        } else {
            &[]
        };
        let mut this = Self {
            kubeconfig,
            team: plane.namespace("team", &json!({}), &default).unwrap(),
            plane,
            webhook: None,
            spec,
            flags: flags.to_vec(),
            exporters,
        };
        this.set_class(placement);
        this.restart();
        let all = this.plane.kubectl();
        wait_until("all nodes to be described", SOON, || {
            let described = all.get(&["nodes", "-l", "nvlink-domains.io/domain-size"])?;
            Ok((described["items"].as_array().map(Vec::len) == Some(nodes.len())).then_some(()))
        })
        .unwrap();
        this
    }

    /// Creates the class, or changes its placement.
    pub(super) fn set_class(&self, mut placement: Value) {
        if placement.get("whenUnavailable").is_none() {
            placement["whenUnavailable"] = json!("Queue");
        }
        let mut spec = self.spec.clone();
        spec["placement"] = placement;
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": CLASS}, "spec": spec,
        });
        self.plane.kubectl().apply(&class.to_string()).unwrap();
    }

    pub(super) fn delete_class(&self) {
        let all = self.plane.kubectl();
        all.run(&["delete", "domainclass", CLASS]).unwrap();
    }

    /// Kills the webhook, if one runs, and starts another one.
    pub(super) fn restart(&mut self) {
        self.run(&programs::path(WEBHOOK).unwrap());
    }

    /// The same, with a webhook that ends after so many writes of a kind, such as `release=1`.
    pub(super) fn restart_to_die_after(&mut self, writes: &str) {
        let program = programs::path(WEBHOOK).unwrap();
        let script = self.script(&format!(
            "#!/bin/sh\n{FAILPOINT}={writes} exec {} \"$@\"\n",
            program.display()
        ));
        self.run(&script);
    }

    fn script(&self, text: &str) -> PathBuf {
        let path = workdir::fresh("failpoint").unwrap().join("webhook");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn run(&mut self, program: &std::path::Path) {
        self.webhook = None;
        let webhook = Webhook::of(program, &self.kubeconfig, &self.flags).unwrap();
        // Where the machine stands still for five seconds, the API server would let pods pass as they are.
        let registration = webhook.registration().unwrap();
        let patient = registration.replace("timeoutSeconds: 5", "timeoutSeconds: 20");
        assert_ne!(patient, registration);
        self.plane.kubectl().apply(&patient).unwrap();
        wait_until("the webhook to gate pods", SOON, || {
            let stored = dry_run(&self.team, &gpu_pod("probe", 1))?;
            Ok(decision(&stored).map(drop))
        })
        .unwrap();
        self.webhook = Some(webhook);
    }

    /// Creates a job of one pod.
    pub(super) fn create(&self, name: &str, gpus: u32) {
        self.team.create(&job(name, gpus)).unwrap();
    }

    /// Creates a job of one pod whose author says how long it runs, such as `30m`.
    pub(super) fn create_for(&self, name: &str, gpus: u32, duration: &str) {
        let mut pod = job(name, gpus);
        let expected = json!({"nvlink-domains.io/expected-duration": duration});
        pod["metadata"]["annotations"] = expected;
        self.team.create(&pod).unwrap();
    }

    pub(super) fn pod(&self, name: &str) -> Value {
        self.team.get(&["pod", name]).unwrap()
    }

    /// Waits until the pod is bound, and returns it.
    pub(super) fn bound(&self, name: &str) -> Value {
        let log = || {
            let webhook = self.webhook.as_ref();
            webhook
                .map(|webhook| webhook.replica.process.log())
                .unwrap_or_default()
        };
        let bound = wait_until(&format!("pod {name} to be bound"), SOON, || {
            let pod = self.team.get(&["pod", name])?;
            anyhow::ensure!(pod["spec"]["nodeName"].is_string(), "{pod:#}");
            Ok(Some(pod))
        });
        bound.unwrap_or_else(|error| panic!("{error:#}\n{}", log()))
    }

    /// Ends a pod, as its kubelet would.
    pub(super) fn end(&self, name: &str) {
        let status = json!({"status": {"phase": "Succeeded"}}).to_string();
        let patch = [
            "patch",
            "pod",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
        ];
        self.team.run(&[&patch[..], &[&status]].concat()).unwrap();
    }

    /// Waits until the webhook gates new pods.
    pub(super) fn settle_class(&self) {
        wait_until("the class to queue", SOON, || {
            Ok(waits(&dry_run(&self.team, &gpu_pod("probe", 1))?).then_some(()))
        })
        .unwrap();
    }
}

/// Returns a pod with `gpus` GPUs.
pub(super) fn job(name: &str, gpus: u32) -> Value {
    let mut pod = gpu_pod(name, gpus);
    pod["metadata"]["labels"] = json!({"job": name});
    pod
}

pub(super) fn waits(pod: &Value) -> bool {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.into_iter().flatten().any(|gate| gate["name"] == GATE)
}

/// Returns where the queue put a pod.
pub(super) fn placement(pod: &Value) -> Option<Value> {
    let text = pod["metadata"]["annotations"]["nvlink-domains.io/queue-placement"].as_str()?;
    Some(serde_json::from_str(text).unwrap())
}

/// Creates the account of the chart, which may create placeholder pods and ComputeDomains or not, and
/// returns its kubeconfig.
fn account(plane: &ControlPlane, placeholders: bool, domains: bool) -> PathBuf {
    let all = plane.kubectl();
    all.run(&["create", "namespace", NAMESPACE]).unwrap();
    let helm = Helm::new().unwrap();
    // The chart's registration comes with the Lease.
    let values = format!(
        "webhook: {{computeDomains: {domains}, placeholders: {{enabled: {placeholders}}}}}"
    );
    let roles = ["webhook/rbac.yaml", "webhook/controller-rbac.yaml"];
    let optional = placeholders.then_some("webhook/placeholders.yaml");
    let roles = roles.into_iter().chain(optional);
    for template in roles.chain(["webhook/registration.yaml"]) {
        let objects = helm.template(template, &values).unwrap();
        all.apply(&objects).unwrap();
    }
    // One process does what the two of the chart do.
    let account = format!("--serviceaccount={NAMESPACE}:nvlink-webhook-controller");
    let both = [
        "create",
        "clusterrolebinding",
        "both",
        "--clusterrole=nvlink-webhook",
    ];
    all.run(&[&both[..], &[&account]].concat()).unwrap();
    let account = format!("system:serviceaccount:{NAMESPACE}:nvlink-webhook-controller");
    plane.kubeconfig_for(&account).unwrap()
}
