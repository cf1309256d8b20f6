//! Jobs and nodes that communicate more slowly than others, and jobs that do not communicate.

use std::{
    thread,
    time::{Duration, Instant},
};

use nvlink_tests::{Exporter, Kubelet, http, kubelet::Container};
use serde_json::Value;

use super::watch::{SOON, Wanted, Watch, rules, set, start};

pub(super) const ALERTS: &[Wanted<'_>] = &[
    ("node", "NvlinkJobSlow"),
    ("slow-job", "NvlinkJobSlow"),
    ("idle-job", "NvlinkGpusIdle"),
];

/// How long the pods of CI run: longer than the 10 minutes after which the baseline counts a pod.
const LIFE: Duration = Duration::from_millis(14_000);
/// What usual jobs, those of the slow node, and the slow job send, in percent of the line rate.
const USUAL: u32 = 50;
const SLOW: u32 = 10;
const SLOWER: u32 = 4;

/// A simulated node with a kubelet.
struct Node {
    kubelet: Kubelet,
    exporter: Exporter,
    uuids: Vec<String>,
}

impl Node {
    fn start(name: &str, profile: &str) -> Self {
        let kubelet = Kubelet::start().unwrap();
        let socket = kubelet.socket().to_str().unwrap();
        let exporter = start(name, profile, &["--kubelet-socket", socket]);
        let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
        let topology: Value = serde_json::from_str(&text).unwrap();
        let gpus = topology["spec"]["gpus"].as_array().unwrap().iter();
        let uuids = gpus.map(|gpu| gpu["uuid"].as_str().unwrap().to_owned());
        Self {
            uuids: uuids.collect(),
            kubelet,
            exporter,
        }
    }

    /// Sets the traffic of each GPU.
    fn carry(&self, percent: impl Fn(usize) -> u32) {
        let faults = (0..self.uuids.len()).map(|gpu| {
            format!(
                r#"{{"traffic": {{"gpu": {gpu}, "percent": {}}}}}"#,
                percent(gpu)
            )
        });
        let faults: Vec<_> = faults.collect();
        set(&self.exporter, &format!("[{}]", faults.join(",")));
    }

    /// Gives a pod the GPUs `2 * pair` and the next one.
    fn run(&self, pod: &str, pair: usize) {
        let held = &self.uuids[2 * pair..2 * pair + 2];
        let container = Container::named("main").holding("nvidia.com/gpu", held);
        self.kubelet.run_pod("ci", pod, [container]);
    }
}

/// Pods that come and go on the pairs of a node from `first` on.
struct Pods<'n> {
    node: &'n Node,
    pairs: std::ops::Range<usize>,
    started: usize,
    next: Instant,
}

impl<'n> Pods<'n> {
    fn new(node: &'n Node, first: usize) -> Self {
        Self {
            pairs: first..node.uuids.len() / 2,
            node,
            started: 0,
            next: Instant::now(),
        }
    }

    /// Replaces the oldest pod when it is time.
    fn go_on(&mut self) {
        if Instant::now() < self.next {
            return;
        }
        let count = self.pairs.len();
        let first = self.pairs.start;
        let name = |number: usize| format!("build-{first}-{number}");
        if let Some(oldest) = self.started.checked_sub(count) {
            self.node.kubelet.remove_pod("ci", &name(oldest));
        }
        let pair = self.pairs.start + self.started % count;
        self.node.run(&name(self.started), pair);
        self.started += 1;
        self.next += LIFE / u32::try_from(count).unwrap();
    }
}

/// Lets pods come and go until `is_over`.
fn go_on(pods: &mut [Pods<'_>], watch: &Watch, is_over: impl Fn() -> bool) {
    let end = Instant::now() + 4 * SOON;
    while !is_over() {
        assert!(Instant::now() < end, "{:#?}", watch.receiver.received());
        pods.iter_mut().for_each(Pods::go_on);
        thread::sleep(Duration::from_millis(100));
    }
}

/// Watches the nodes. Six hours pass in a minute, and the baseline is that of 24 seconds ago instead of
/// a day; what is recorded keeps its pace.
fn watch(targets: &[(&str, &str)]) -> Watch {
    let rules = rules(&["webhook.yaml"]).alert_faster("NvlinkGpusIdle", 6);
    let rules = rules.replaced("NvlinkJobSlow", "offset 1440000ms", "offset 24s");
    Watch::by(&rules.unwrap(), targets)
}

/// The baseline, once it rests on enough pods.
const BASELINE: &str = "placement:nvlink_transmit_bytes_per_gpu:p10_1w{model=~\".*V100.*\"} offset 24s and placement:nvlink_pods_started:sum1w offset 24s >= 10";

/// The pods of the siblings stay; on the slow node and on the node of the slow job, pods come and go.
#[test]
fn slow_jobs_slow_nodes_and_idle_jobs_are_notified() {
    let names = ["slow-node", "b", "c", "d"];
    let nodes = names.map(|name| Node::start(name, "dgx-h100"));
    let mixed = Node::start("mixed", "dgx2-v100");
    let all = nodes.iter().zip(names).chain([(&mixed, "mixed")]);
    let targets = all.map(|(node, name)| (name, &*node.exporter.address));
    let watch = watch(&targets.collect::<Vec<_>>());
    for (node, name) in nodes.iter().zip(names).skip(1) {
        node.carry(|_| USUAL);
        (0..4).for_each(|pair| node.run(&format!("train-{name}-{pair}"), pair));
    }
    // The first pair runs the slow job later, the third one is idle, the others run builds. A GPU
    // receives what the one before it sends, so the second pair is idle as well.
    let usual = |gpu: usize| if (2..6).contains(&gpu) { 0 } else { USUAL };
    mixed.carry(usual);
    mixed.run("slow-job", 0);
    mixed.run("idle-job", 2);
    nodes[0].carry(|_| SLOW);
    let mut pods = [Pods::new(&mixed, 3), Pods::new(&nodes[0], 0)];
    let begin = Instant::now();
    go_on(&mut pods, &watch, || {
        let found = watch.prometheus.query(BASELINE);
        found.is_ok_and(|found| !found.is_empty())
    });
    let fault = Instant::now();
    mixed.carry(|gpu| if gpu < 2 { SLOWER } else { usual(gpu) });
    let is_told = |wanted: &Wanted<'_>| !watch.received(*wanted).is_empty();
    go_on(&mut pods, &watch, || ALERTS.iter().all(is_told));
    watch.wait_until_firing(begin, &[ALERTS[0], ALERTS[2]]);
    watch.wait_until_firing(fault, &ALERTS[1..2]);

    mixed.carry(|_| USUAL);
    nodes[0].carry(|_| USUAL);
    let is_over = |wanted: &Wanted<'_>| {
        let received = watch.received(*wanted);
        let last = received.last();
        last.is_some_and(|note| note.status == "resolved")
    };
    go_on(&mut pods, &watch, || ALERTS.iter().all(is_over));
    let mut others = watch.receiver.received();
    let of_these = |name: &str| ALERTS.iter().any(|(_, alert)| *alert == name);
    others.retain(|note| !of_these(note.label("alertname")));
    assert!(others.is_empty(), "{others:#?}");
}
