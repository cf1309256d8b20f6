//! The cluster: nodes that nobody runs, classes that queue, the webhook, and its Lease.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use nvlink_tests::{
    ControlPlane, Node, Webhook, node, port,
    programs::{self, EXPORTER},
    wait_until,
    webhook::install_crds,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// GPUs of a node.
pub(crate) const GPUS: usize = 8;
/// The class whose pods wait as long as it takes.
pub(crate) const CLASS: &str = "line";
/// The class whose pods wait for [`TIMEOUT`].
pub(crate) const SHORT: &str = "short";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// The namespace for whose pods the API server calls the webhook, and the one for whose it does not.
pub(crate) const CALLED: &str = "called";
pub(crate) const BARE: &str = "bare";
/// Objects written at a time, as many as the queue writes.
pub(crate) const AT_ONCE: usize = 64;
pub(crate) const LONG: Duration = Duration::from_secs(600);
const MIB: f64 = 1024.0;
const LEASE: &str = "nvlink-webhook";

pub(crate) struct Cluster {
    pub(crate) plane: ControlPlane,
    pub(crate) webhook: Webhook,
    /// The address of the page.
    pub(crate) page: String,
    pub(crate) runtime: Runtime,
    pub(crate) nodes: usize,
    client: Client,
}

impl Cluster {
    /// Starts a cluster of `nodes` nodes of eight GPUs behind NVSwitches. The webhook does not lead.
    pub(crate) fn start(nodes: usize) -> Result<Self> {
        let arguments = ["topology", "--source", "sim:dgx-h100", "--output", "json"];
        let document: Value = serde_json::from_str(&programs::run(EXPORTER, &arguments, "")?)?;
        let plane = ControlPlane::start()?;
        install_crds(plane.kubectl())?;
        for name in [CALLED, BARE] {
            plane.namespace(name, &json!({"side": name}), &json!({}))?;
        }
        let names: Vec<_> = (0..nodes).map(|index| format!("node-{index:05}")).collect();
        let objects = names.iter().map(|name| {
            let node = Node::new(name, 8).label("nvlink-domains.io/domain-size", "8");
            node.label("nvlink-domains.io/bandwidth", "450")
        });
        node::create(plane.kubectl(), &objects.collect::<Vec<_>>())?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(plane.client())?;
        let page = port::address()?.to_string();
        let webhook = Webhook::start_with(plane.kubeconfig(), &["--web.listen-address", &page])?;
        let this = Self {
            plane,
            webhook,
            page,
            runtime,
            nodes,
            client,
        };
        this.runtime.block_on(this.describe(&names, &document))?;
        this.create_classes()?;
        this.register()?;
        this.hold_lease()?;
        Ok(this)
    }

    /// Returns the pods of a namespace.
    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn describe(&self, nodes: &[String], document: &Value) -> Result<()> {
        let kind = GroupVersionKind::gvk("nvlink-domains.io", "v1alpha1", "NodeTopology");
        let kind = ApiResource::from_gvk_with_plural(&kind, "nodetopologies");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let create = |name: &String| {
            let (api, mut document) = (api.clone(), document.clone());
            document["metadata"]["name"] = json!(name);
            async move {
                let object = serde_json::from_value(document)?;
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        };
        let created = stream::iter(nodes).map(create).buffer_unordered(AT_ONCE);
        created.try_collect().await
    }

    fn create_classes(&self) -> Result<()> {
        let timeout = format!("{}s", TIMEOUT.as_secs());
        for (name, placement) in [
            (CLASS, json!({"whenUnavailable": "Queue"})),
            (
                SHORT,
                json!({"whenUnavailable": "Queue", "queueTimeout": timeout}),
            ),
        ] {
            self.plane.kubectl().create(&json!({
                "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
                "metadata": {"name": name}, "spec": {"placement": placement},
            }))?;
        }
        Ok(())
    }

    /// Registers the webhook for pods of one namespace only.
    fn register(&self) -> Result<()> {
        let kubectl = self.plane.kubectl();
        let arguments = ["create", "--dry-run=client", "-f", "-", "-o", "json"];
        let text = kubectl.run_with(&arguments, &self.webhook.registration()?)?;
        let mut registration: Value = serde_json::from_str(&text)?;
        let entries = registration["webhooks"].as_array_mut();
        for entry in entries.context("the registration has no entries")? {
            let only = json!({"key": "side", "operator": "In", "values": [CALLED]});
            match &mut entry["namespaceSelector"]["matchExpressions"] {
                Value::Array(expressions) => expressions.push(only),
                absent => *absent = json!([only]),
            }
        }
        kubectl.apply(&registration.to_string())?;
        let pod = crate::pods::pod("probe", SHORT, 1, false).to_string();
        let create = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        wait_until("the webhook to gate pods", LONG, || {
            let stored = kubectl.in_namespace(CALLED).run_with(&create, &pod)?;
            Ok(stored.contains("schedulingGates").then_some(()))
        })
    }

    fn set_holder(&self, holder: &str) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "default");
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 86_400});
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams::default();
        let patched = leases.patch(LEASE, &params, &patch);
        self.runtime.block_on(patched)?;
        Ok(())
    }

    /// Takes the Lease, so that nobody serves the queue.
    pub(crate) fn hold_lease(&self) -> Result<()> {
        wait_until("the Lease", LONG, || {
            self.set_holder("benchmark")?;
            Ok(Some(()))
        })?;
        wait_until("the webhook not to lead", LONG, || {
            let leads = self.metric("nvlink_webhook_leader")?;
            Ok((leads == 0.0).then_some(()))
        })
    }

    /// Gives the Lease to the webhook, which takes it within two seconds.
    pub(crate) fn hand_over(&self) -> Result<()> {
        self.set_holder("")
    }

    /// Returns the sum of the series of a metric of the webhook.
    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        let page = self.webhook.replica.metrics()?;
        let lines = page.lines().filter_map(|line| line.strip_prefix(name));
        let values = lines.filter(|line| line.starts_with(['{', ' ']));
        let values = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// Returns the number of rounds so far, and the seconds that they took.
    pub(crate) fn rounds(&self) -> Result<[f64; 2]> {
        let of = |part| {
            self.metric(&format!(
                "nvlink_webhook_queue_round_duration_seconds_{part}"
            ))
        };
        Ok([of("count")?, of("sum")?])
    }

    /// Returns the memory of the webhook now and at most so far, in MiB.
    pub(crate) fn memory(&self) -> Result<[f64; 2]> {
        memory(self.webhook.replica.process.id())
    }
}

/// Returns the memory of a process now and at most so far, in MiB.
pub(crate) fn memory(process: u32) -> Result<[f64; 2]> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        number.map_or(f64::NAN, |kib| kib / MIB)
    }))
}
