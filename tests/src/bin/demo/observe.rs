//! `make demo-observe`: three faults, from what breaks to what somebody on call reads.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nvlink_tests::{
    Alertmanager, Choice, ControlPlane, Exporter, Kubectl, Kubelet, Lab, LabNode, MetricsPage,
    Notification, Prometheus, Receiver, Rules, Webhook, dcgm, http, kubelet::Container, wait_until,
    webhook,
};
use serde_json::{Value, json};

use crate::{alone::Files, nodes::SOON, terminal::Terminal};

/// A minute of the rules is a second of the demo.
const FACTOR: u32 = 60;
/// Longer than any of the alerts takes.
const ALERT: Duration = Duration::from_secs(300);
/// Columns of a line.
const WIDTH: usize = 95;
const OFTEN: [&str; 2] = ["--collection-interval", "1s"];
const PAUSE: Duration = Duration::from_millis(200);

const LINK: &str = r#"[{"link-down": {"gpu": 3, "link": 7}}]"#;
/// The same, and the pod's GPUs send nothing over NVLink.
const SILENT: &str = r#"[{"link-down": {"gpu": 3, "link": 7}},
     {"traffic": {"gpu": 4, "percent": 0}}, {"traffic": {"gpu": 5, "percent": 0}}]"#;
/// The GPUs of the pod.
const PAIR: [usize; 2] = [4, 5];
const OF_THE_LINK: [&str; 1] = ["NvlinkLinkDown"];
const OF_THE_JOB: [&str; 1] = ["NvlinkPlacementPoor"];
const OF_THE_FALLBACK: [&str; 1] = ["NvlinkJobSlow"];

/// The running programs. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Site {
    machine: Machine,
    pairs: Exporter,
    prometheus: Prometheus,
    alertmanager: Alertmanager,
    receiver: Receiver,
    webhook: Webhook,
    kubectl: Kubectl,
    _lab: Lab,
    _control_plane: ControlPlane,
}

/// A machine without Kubernetes, with a pod.
#[derive(Debug)]
struct Machine {
    exporter: Exporter,
    dcgm: MetricsPage,
    _kubelet: Kubelet,
}

impl Machine {
    fn start() -> Result<Self> {
        let (kubelet, gpus) = (Kubelet::start()?, dcgm::uuids("dgx-h100", "dgx")?);
        let held = PAIR.map(|gpu| &*gpus[gpu]);
        let main = Container::named("main").holding("nvidia.com/gpu", &held);
        kubelet.run_pod("team", "finetune", [main]);
        let socket = kubelet.socket().to_string_lossy();
        let source = ["--source", "sim:dgx-h100", "--node-name", "dgx"];
        let arguments = [&source[..], &["--kubelet-socket", &socket], &OFTEN].concat();
        Ok(Self {
            exporter: Exporter::start(&arguments)?,
            dcgm: MetricsPage::start(move |_| dcgm::dcgm("dgx", &gpus, 0.9, 1e8))?,
            _kubelet: kubelet,
        })
    }

    /// Sets the faults, and shows how.
    fn set_faults(&self, terminal: &Terminal, faults: &str) -> Result<()> {
        let url = self.exporter.url("/sim/faults");
        let (method, command) = match faults {
            "" => ("DELETE", format!("curl -X DELETE {url}")),
            _ => (
                "PUT",
                format!("curl -X PUT -H 'Content-Type: application/json' {url} -d '{faults}'"),
            ),
        };
        let answer = http::send(method, &url, faults)?;
        ensure!(answer.status == 200, "{url}: {}", answer.body);
        terminal.command(&command)
    }
}

/// Runs the demo, and returns what it started.
pub(crate) fn show(terminal: &Terminal) -> Result<Site> {
    let site = start(terminal)?;
    site.show_addresses(terminal)?;

    terminal.step("A link breaks")?;
    let begin = Instant::now();
    site.machine.set_faults(terminal, LINK)?;
    site.follow(terminal, begin, &OF_THE_LINK)?;
    site.show_received(terminal, OF_THE_LINK[0])?;

    terminal.step("A job gets the wrong GPUs")?;
    terminal.say("The webhook sent the job to a node with free NVLink pairs. The device plugin there does not know\nabout NVLink, and hands out one GPU of each of two pairs:")?;
    let begin = Instant::now();
    site.start_job(terminal)?;
    site.follow(terminal, begin, &OF_THE_JOB)?;
    site.show_received(terminal, OF_THE_JOB[0])?;

    terminal.step("A job does not use its NVLinks")?;
    terminal.say("Pod finetune has two GPUs of machine dgx, by a stand-in of its kubelet, and they work, by one of\ndcgm-exporter. Now nothing goes over their NVLinks, as with NCCL_P2P_DISABLE in its image:")?;
    let begin = Instant::now();
    site.machine.set_faults(terminal, SILENT)?;
    site.follow(terminal, begin, &OF_THE_FALLBACK)?;
    site.show_received(terminal, OF_THE_FALLBACK[0])?;

    terminal.step("All are repaired")?;
    site.machine.set_faults(terminal, "")?;
    terminal.run(
        &site.kubectl,
        "kubectl delete job train --namespace team --wait=false",
    )?;
    site.wait_until_resolved(terminal)?;
    Ok(site)
}

fn start(terminal: &Terminal) -> Result<Site> {
    terminal.step("Two machines, the webhook, Prometheus and Alertmanager")?;
    terminal
        .say("A control plane and a node with kubelet and containerd start; about 20 seconds.")?;
    let control_plane = ControlPlane::start_for_kubelets()?;
    let kubectl = control_plane.kubectl();
    webhook::install_crds(kubectl)?;
    let node = LabNode::new("pairs", "a100-pcie-pairs").choosing(Choice::Scattered);
    let lab = Lab::start(&control_plane, &node)?;
    let socket = lab.pod_resources();
    let socket = socket.to_string_lossy();
    let source = ["--source", "sim:a100-pcie-pairs"];
    let arguments = [&source[..], &["--kubelet-socket", &socket], &OFTEN].concat();
    let pairs = Exporter::publishing(control_plane.kubeconfig(), "pairs", &arguments)?;
    let machine = Machine::start()?;
    let webhook = Webhook::start(control_plane.kubeconfig())?;
    webhook.register(kubectl)?;
    kubectl.apply(Files::CLASS)?;
    let receiver = Receiver::start()?;
    let alertmanager = Alertmanager::start(&receiver)?;
    let rules = Rules::read()?.faster(FACTOR);
    let targets = [(&machine.exporter, "dgx"), (&pairs, "pairs")];
    let targets = targets.map(|(exporter, node)| (exporter.address.as_str(), node));
    let jobs = jobs(&targets, &webhook, &machine.dcgm);
    let prometheus = Prometheus::alerting(jobs, &rules, &alertmanager)?;
    let up = |samples: &[nvlink_tests::Sample]| samples.len() == 4;
    prometheus.wait_for("up == 1", SOON, up)?;
    Ok(Site {
        machine,
        pairs,
        prometheus,
        alertmanager,
        receiver,
        webhook,
        kubectl: control_plane.namespace("team", &json!({}), &json!({}))?,
        _lab: lab,
        _control_plane: control_plane,
    })
}

fn jobs(exporters: &[(&str, &str)], webhook: &Webhook, dcgm: &MetricsPage) -> Vec<Value> {
    let group = |(address, node): &(&str, &str)| json!({"targets": [address], "labels": {"instance": node}});
    let groups: Vec<Value> = exporters.iter().map(group).collect();
    let admin = [webhook.replica.admin.as_str()];
    vec![
        json!({"job_name": "nvlink-exporter", "honor_labels": true, "static_configs": groups}),
        json!({"job_name": "nvlink-webhook", "static_configs": [{"targets": admin}]}),
        json!({"job_name": "dcgm-exporter", "static_configs": [{"targets": [dcgm.address]}]}),
    ]
}

impl Site {
    pub(crate) fn show_addresses(&self, terminal: &Terminal) -> Result<()> {
        let rows = [
            ("WHAT", "WHERE".to_owned()),
            ("page of machine dgx", self.machine.exporter.url("/")),
            ("page of node pairs", self.pairs.url("/")),
            (
                "alerts in Prometheus",
                format!("{}/alerts", self.prometheus.url),
            ),
            (
                "Alertmanager",
                format!("http://{}/", self.alertmanager.address),
            ),
            (
                "metrics of the webhook",
                format!("http://{}/metrics", self.webhook.replica.admin),
            ),
        ];
        let rows = rows.map(|(what, place)| vec![what.to_owned(), place]);
        terminal.table(&rows)?;
        terminal.say(&format!(
            "The rules are those of alerts/rules, {FACTOR} times as fast: an alert that waits for ten minutes waits\nfor ten seconds here."
        ))
    }

    /// Prints each step of these alerts until the receiver got all of them.
    fn follow(&self, terminal: &Terminal, begin: Instant, alerts: &[&str]) -> Result<()> {
        let mut states = BTreeMap::<String, &str>::new();
        let names = alerts.join("|");
        let query = format!("ALERTS{{alertname=~\"{names}\"}}");
        wait_until(&format!("{names} to reach the receiver"), ALERT, || {
            let samples = self.prometheus.query(&query)?;
            for alert in alerts {
                let mut states_now = samples.iter().filter(|one| {
                    one.labels
                        .get("alertname")
                        .is_some_and(|name| name == alert)
                });
                let firing = states_now.clone().any(|one| {
                    one.labels
                        .get("alertstate")
                        .is_some_and(|state| state == "firing")
                });
                let state = match () {
                    () if self.last(alert).is_some_and(|note| note.status == "firing") => {
                        "at the receiver"
                    }
                    () if firing => "firing",
                    () if states_now.next().is_some() => "pending",
                    () => continue,
                };
                if states.insert((*alert).to_owned(), state) != Some(state) {
                    let seconds = begin.elapsed().as_secs_f64();
                    terminal.output_line(&format!("{seconds:5.1} s  {alert:30} {state}"))?;
                }
            }
            let done = states.len() == alerts.len()
                && states.values().all(|state| *state == "at the receiver");
            std::thread::sleep(PAUSE);
            Ok(done.then_some(()))
        })?;
        terminal.say("")
    }

    /// Returns the latest notification of an alert.
    fn last(&self, alert: &str) -> Option<Notification> {
        let mut received = self.receiver.received().into_iter().rev();
        received.find(|note| note.label("alertname") == alert)
    }

    /// Prints what somebody on call reads.
    fn show_received(&self, terminal: &Terminal, alert: &str) -> Result<()> {
        let note = self
            .last(alert)
            .with_context(|| format!("{alert} was not delivered"))?;
        let text = |name: &str| note.annotations.get(name).cloned().unwrap_or_default();
        terminal.say(&format!(
            "What receiver {} gets ({}):",
            note.receiver,
            note.label("severity")
        ))?;
        let lines = [
            text("summary"),
            wrapped(&text("description")),
            text("runbook_url"),
        ];
        terminal.output(&lines.join("\n"))
    }

    fn start_job(&self, terminal: &Terminal) -> Result<()> {
        let two = Files::JOB
            .replace("\"4\"", "\"2\"")
            .replace("per-node=4", "per-node=2");
        terminal.command("kubectl create -f job.yaml --namespace team      (two GPUs)")?;
        wait_until("the webhook to see the class", SOON, || {
            let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "yaml"];
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
                "spec": {"containers": [{"name": "a", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
            });
            let shown = self.kubectl.run_with(&arguments, &pod.to_string())?;
            Ok(shown.contains("nvlink-domains.io/decision").then_some(()))
        })?;
        terminal.output(&self.kubectl.run_with(&["create", "-f", "-"], &two)?)
    }

    fn wait_until_resolved(&self, terminal: &Terminal) -> Result<()> {
        let alerts = [&OF_THE_LINK[..], &OF_THE_JOB, &OF_THE_FALLBACK].concat();
        let begin = Instant::now();
        wait_until("the alerts to resolve", ALERT, || {
            let open = alerts.iter().filter(|alert| {
                self.last(alert)
                    .is_none_or(|note| note.status != "resolved")
            });
            let open: Vec<_> = open.collect();
            ensure!(open.is_empty(), "{open:?} are still open");
            Ok(Some(()))
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        terminal.say(&format!(
            "The receiver got word that all of them are resolved, after {seconds:.0} s."
        ))
    }
}

/// Breaks a text into lines that fit a terminal.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < WIDTH => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
