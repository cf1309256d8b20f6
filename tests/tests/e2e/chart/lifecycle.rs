//! Install, upgrade, rollback and uninstall, while somebody creates pods all the time.
//!
//! There is no kubelet, so the webhook runs beside the cluster, with the arguments of the chart's
//! Deployment and the rights of its account.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::{Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use nvlink_tests::{
    ControlPlane, Controller, Exporter, Helm, Kubectl, Node, Replica, crowd, node, port,
    programs::WEBHOOK, wait_until,
};
use serde_json::{Value, json};

use super::{Installed, SOON, chart, control_plane, documents, read};
use crate::{
    check,
    pods::{decision, gpu_pod},
    shared::dry_run,
};

const SPREAD: &str = "classes: {chart: {appliesTo: {minGpus: 1}}}";
const WIDER: &str = "classes: {chart: {appliesTo: {minGpus: 2}}}\nwebhook: {replicas: 3}";

/// One pod that somebody tried to create, and from when to when.
struct Tried {
    at: Instant,
    until: Instant,
    pod: anyhow::Result<Value>,
}

impl Tried {
    /// Reports whether the webhook did not answer within five seconds: other tests may keep both cores from
    /// it.
    fn is_late(&self) -> bool {
        let error = self.pod.as_ref().err();
        error.is_some_and(|error| format!("{error:#}").contains("context deadline exceeded"))
    }
}

/// Tries to create pods that name the class `chart` until `stop`.
fn create_pods<'s>(
    scope: &'s Scope<'s, '_>,
    kubectl: &'s Kubectl,
    stop: &'s AtomicBool,
) -> ScopedJoinHandle<'s, Vec<Tried>> {
    let mut pod = gpu_pod("probe", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "chart"});
    scope.spawn(move || {
        let mut tried = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let at = Instant::now();
            let pod = dry_run(kubectl, &pod);
            let until = Instant::now();
            tried.push(Tried { at, until, pod });
        }
        tried
    })
}

/// Ends the creation of pods, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the arguments of the container of a Deployment of the chart, which runs `command`, for a
/// webhook at `url`.
fn arguments(
    helm: &Helm,
    values: &str,
    (template, command): (&str, &str),
    url: &str,
) -> Vec<String> {
    let rendered = helm.template(template, values).unwrap();
    let mut objects = documents(&rendered).into_iter();
    let deployment = objects
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    let (first, arguments) = arguments.split_first().unwrap();
    assert_eq!(first, command);
    let ours = |argument: &String| match argument.split_once('=') {
        Some(("--service", _)) => format!("--url={url}"),
        Some(("--web.listen-address", _)) => {
            format!("--web.listen-address={}", port::address().unwrap())
        }
        Some(("--extender-listen", _)) => {
            format!("--extender-listen={}", port::address().unwrap())
        }
        _ => argument.clone(),
    };
    arguments.iter().map(ours).collect()
}

/// A replica of each Deployment of the chart.
pub(super) struct Running {
    pub(super) replica: Replica,
    pub(super) controller: Controller,
}

impl Running {
    /// Asserts that neither lacks a right.
    fn is_allowed(&self) {
        for process in [&self.replica.process, &self.controller.process] {
            let log = process.log();
            assert!(!log.contains("forbidden"), "{log}");
        }
    }
}

/// Registers a URL for nothing: the policy on our own accounts lets the controller write only a URL that
/// an administrator registered, and no Service is reachable here.
fn register_url(kubectl: &Kubectl, url: &str) {
    let registration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "nvlink-domains.io"},
        "webhooks": [{
            "name": "guard.nvlink-domains.io", "sideEffects": "None", "failurePolicy": "Ignore",
            "clientConfig": {"url": format!("{url}/mutate")}, "admissionReviewVersions": ["v1"],
        }],
    });
    kubectl.apply(&registration.to_string()).unwrap();
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Starts a controller, and a webhook that waits for its CA, with the arguments of the chart and the
/// rights of their accounts.
pub(super) fn start_webhook(control_plane: &ControlPlane, helm: &Helm, values: &str) -> Running {
    let address = port::address().unwrap();
    let url = format!("https://{address}");
    let of = |template, command, account: &str| {
        let arguments = arguments(helm, values, (template, command), &url);
        let account = format!("system:serviceaccount:nvlink-system:{account}");
        (arguments, control_plane.kubeconfig_for(&account).unwrap())
    };
    let serve = of("webhook/deployment.yaml", "serve", "nvlink-webhook");
    let controller = of(
        "webhook/controller.yaml",
        "controller",
        "nvlink-webhook-controller",
    );
    register_url(control_plane.kubectl(), &url);
    let running = Running {
        controller: Controller::start(&controller.1, &words(&controller.0)).unwrap(),
        replica: Replica::start_on(address, &serve.1, &words(&serve.0)).unwrap(),
    };
    wait_until("the webhook to be registered", SOON, || {
        Ok((registered(control_plane.kubectl()) == 2).then_some(()))
    })
    .unwrap();
    running
}

pub(super) fn registered(kubectl: &Kubectl) -> usize {
    let name = "nvlink-domains.io";
    let found = kubectl.get(&["mutatingwebhookconfiguration", name]);
    let entries = found.unwrap()["webhooks"].as_array().map(Vec::len);
    entries.unwrap_or(0)
}

/// Returns the CA that the webhook wrote into the chart's Secret.
fn authority(kubectl: &Kubectl) -> Value {
    let secret = kubectl.in_namespace("nvlink-system");
    let secret = secret.get(&["secret", "webhook-ca"]).unwrap();
    let data = secret["data"].clone();
    assert!(data["ca.crt"].is_string(), "{data}");
    data
}

fn least_gpus(kubectl: &Kubectl) -> Value {
    let class = kubectl.get(&["domainclass", "chart"]).unwrap();
    class["spec"]["appliesTo"]["minGpus"].clone()
}

/// Waits until the API server calls the webhook and the webhook has seen the class.
fn wait_until_placed(kubectl: &Kubectl) {
    let mut pod = gpu_pod("first", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "chart"});
    wait_until("the webhook to place pods", SOON, || {
        Ok(decision(&dry_run(kubectl, &pod)?).map(drop))
    })
    .unwrap();
}

#[test]
fn no_pod_is_refused_from_install_to_uninstall() {
    let (control_plane, _turn) = control_plane();
    let kubectl = control_plane.kubectl();
    let stop = AtomicBool::new(false);
    let (tried, placed, ends) = std::thread::scope(|scope| {
        let pods = create_pods(scope, kubectl, &stop);
        let stop = Stop(&stop);
        let installed = Installed::with(control_plane, SPREAD);
        let helm = &installed.helm;
        let _exporter = publish(control_plane);
        assert_eq!(least_gpus(kubectl), 1);
        let webhook = start_webhook(control_plane, helm, SPREAD);
        wait_until_placed(kubectl);
        helm_test(control_plane, helm);
        let placed = Instant::now();

        change_the_release(kubectl, helm);
        webhook.is_allowed();
        let ends = Instant::now();
        helm.on_release("uninstall", &["--no-hooks"]).unwrap();
        drop(webhook);
        // The API servers may use what they have seen for a moment longer.
        std::thread::sleep(Duration::from_secs(2));
        drop(stop);
        (pods.join().unwrap(), placed, ends)
    });
    let (mut all, mut decided) = (0, 0);
    let late = tried.iter().filter(|one| one.is_late()).count();
    assert!(late <= 3 * usize::try_from(crowd()).unwrap(), "{late} pods");
    for Tried { at, until, pod } in tried.into_iter().filter(|one| !one.is_late()) {
        let pod = pod.unwrap_or_else(|error| panic!("{error:#}"));
        if at > placed && until < ends {
            all += 1;
            decided += usize::from(decision(&pod).is_some());
        }
    }
    assert!(all > 10, "only {all} pods");
    assert_eq!(decided, all, "pods that the webhook changed, and all pods");
    let secret = ["secret", "webhook-ca"];
    let secret = kubectl.in_namespace("nvlink-system").get(&secret);
    secret.expect_err("helm leaves the Secret");
    clean(kubectl);
}

/// Runs what `helm test` runs, with the account and the rights that it gets.
fn helm_test(control_plane: &ControlPlane, helm: &Helm) {
    let values = "tests: {class: chart}";
    let rendered = helm.template("tests/admission.yaml", values).unwrap();
    let mut objects = documents(&rendered);
    let pod = objects.pop().unwrap();
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let kubectl = control_plane.kubectl();
    kubectl.apply(&objects).unwrap();
    let account = &pod["spec"]["serviceAccountName"];
    let account = format!("system:serviceaccount:nvlink-system:{}", text(account));
    let account = control_plane.kubeconfig_for(&account).unwrap();
    let arguments = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    let arguments: Vec<_> = arguments.iter().map(text).collect();
    let (status, printed) = check::run(WEBHOOK, &account, &arguments);
    assert!(printed.contains("gets class \"chart\""), "{printed}");
    assert_eq!(status, 0);
    kubectl.run_with(&["delete", "-f", "-"], &objects).unwrap();
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Upgrades the release and rolls it back, with and without server-side apply. The registration
/// and the CA stay as the webhook wrote them.
fn change_the_release(kubectl: &Kubectl, helm: &Helm) {
    let before = authority(kubectl);
    let expect = |gpus: u32| {
        assert_eq!((least_gpus(kubectl), registered(kubectl)), (json!(gpus), 2));
        assert_eq!(authority(kubectl), before);
    };
    helm.release("upgrade", WIDER, &[]).unwrap();
    expect(2);
    // The first revision has the class as a hook; a rollback to it keeps the class.
    helm.on_release("rollback", &[]).unwrap();
    assert_eq!(registered(kubectl), 2);
    assert_eq!(authority(kubectl), before);
    helm.release("upgrade", SPREAD, &[]).unwrap();
    expect(1);
    for flags in [&[][..], &["--server-side=false"]] {
        helm.release("upgrade", WIDER, flags).unwrap();
        expect(2);
        helm.on_release("rollback", flags).unwrap();
        expect(1);
    }
}

/// Creates a node, to which no pod of the chart is bound, since no kubelet would end it, and runs an
/// exporter until it has published.
fn publish(control_plane: &ControlPlane) -> Exporter {
    let kubectl = control_plane.kubectl();
    node::create(kubectl, &[Node::new("chart-node", 8).pool("chart")]).unwrap();
    let arguments = ["--source", "sim:dgx-h100"];
    let exporter = Exporter::publishing(control_plane.kubeconfig(), "chart-node", &arguments);
    wait_until("the NodeTopology", SOON, || {
        kubectl.get(&["nodetopology", "chart-node"]).map(Some)
    })
    .unwrap();
    exporter.unwrap()
}

/// Returns the commands for kubectl in the chapter "Uninstall" of the chart's README.
fn commands() -> Vec<String> {
    let text = read(&chart("README.md"));
    let chapter = text.split_once("\n## Uninstall\n").unwrap().1;
    let chapter = chapter.split("\n## ").next().unwrap();
    let lines = chapter.lines().map(str::trim);
    let commands = lines.filter(|line| line.starts_with("kubectl "));
    commands.map(str::to_owned).collect()
}

/// Runs the commands of README, after which nothing of the project is left.
fn clean(kubectl: &Kubectl) {
    let commands = commands();
    assert!(commands.len() > 3, "{commands:?}");
    for command in commands {
        let output = kubectl.shell(&command).unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let kinds = "crd,mutatingwebhookconfiguration,validatingadmissionpolicy,\
        validatingadmissionpolicybinding,clusterrole,clusterrolebinding,namespace";
    wait_until("everything to be deleted", SOON, || {
        let left = kubectl.run(&["get", kinds, "-o", "name"])?;
        let left: Vec<_> = left
            .lines()
            .filter(|name| name.contains("nvlink"))
            .collect();
        anyhow::ensure!(left.is_empty(), "{left:?}");
        Ok(Some(()))
    })
    .unwrap();
    let node = kubectl.get(&["node", "chart-node"]).unwrap();
    for field in ["labels", "annotations"] {
        let text = node["metadata"][field].to_string();
        assert!(!text.contains("nvlink-domains.io"), "{text}");
    }
    kubectl.run(&["delete", "node", "chart-node"]).unwrap();
}
