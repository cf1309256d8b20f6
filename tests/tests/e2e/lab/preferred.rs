//! `nvlink-exporter device-plugin` between a real kubelet and a device plugin that knows no links.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::Write,
    os::unix::net::UnixStream,
    path::PathBuf,
    time::{Duration, Instant},
};

use nvlink_tests::{Choice, Lab, LabNode, allocate, assets, nvml, programs, wait_until};
use nvlink_topology::{
    BrokenGpus, Gpu, GpuSet, Graph, NodeTopology, Pattern, Request, Scope, place, sparing,
};
use serde_json::{Value, json};

use super::{Bench, WORK, spec, variable};
use crate::allocations::held;

/// Returns what `place` chooses.
fn placed(profile: &str, gpus: usize, free: &[u32]) -> Vec<u32> {
    let (source, gpus) = (format!("sim:{profile}"), gpus.to_string());
    let free: Vec<String> = free.iter().map(ToString::to_string).collect();
    let free = free.join(",");
    let arguments = [
        "place", "--source", &source, "--scope", "node", "--gpus", &gpus, "--free", &free,
    ];
    let output = [&arguments[..], &["--output", "json"]].concat();
    let text = programs::run(programs::EXPORTER, &output, "").unwrap();
    let placement: Value = serde_json::from_str(&text).unwrap();
    let gpus = placement["gpus"].as_array().unwrap().iter();
    gpus.map(|gpu| u32::try_from(gpu.as_u64().unwrap()).unwrap())
        .collect()
}

/// Runs pods of these sizes of a class, one after the other, on a node of its own, and compares the
/// GPUs of each and their order with those of `place` for what was free. Those with a `false` end
/// again at once.
pub(super) fn as_placed(node: &LabNode, class: &str, profile: &str, sizes: &[(usize, bool)]) {
    let bench = Bench::start_with(node, profile);
    let all = bench.lab.recording()["spec"]["gpus"]
        .as_array()
        .unwrap()
        .len();
    let mut free: Vec<u32> = (0..u32::try_from(all).unwrap()).collect();
    for (at, &(gpus, stays)) in sizes.iter().enumerate() {
        let pod = format!("{}-{at}", bench.lab.name());
        bench.run_pod_of(class, &pod, u32::try_from(gpus).unwrap());
        let expected = has_the_gpus_of_place(&bench, &pod, profile, gpus, &free);
        match stays {
            true => free.retain(|gpu| !expected.contains(gpu)),
            false => {
                bench.end(&pod);
                bench.wait_for_phase(&pod, "Succeeded");
                bench.wait_for_pod(&pod, 0);
            }
        }
    }
}

/// Asserts that a pod got the GPUs of `place` in its order, and returns them.
pub(super) fn has_the_gpus_of_place(
    bench: &Bench,
    pod: &str,
    profile: &str,
    gpus: usize,
    free: &[u32],
) -> Vec<u32> {
    let expected = placed(profile, gpus, free);
    let mut sorted = expected.clone();
    sorted.sort_unstable();
    let text = bench.wait_for_pod(pod, gpus);
    assert_eq!(held(&text, pod), sorted, "{pod} of {free:?}");
    let log = bench.printed(&[pod]);
    let relative = expected
        .iter()
        .map(|gpu| sorted.iter().position(|one| one == gpu));
    let relative: Vec<String> = relative.map(|at| at.unwrap().to_string()).collect();
    assert_eq!(
        variable(&log, "CUDA_VISIBLE_DEVICES"),
        Some(&*relative.join(","))
    );
    assert_eq!(variable(&log, "CUDA_DEVICE_ORDER"), Some("PCI_BUS_ID"));
    let uuids: Vec<&str> = expected.iter().map(|&gpu| bench.uuid(gpu)).collect();
    assert_eq!(
        variable(&log, "NVLINK_DOMAINS_GPUS"),
        Some(&*uuids.join(","))
    );
    expected
}

/// Does it with the process between the kubelet and a device plugin that knows no links.
fn as_preferred(name: &str, profile: &str, sizes: &[(usize, bool)]) {
    let node = LabNode::new(name, profile)
        .choosing(Choice::Scattered)
        .preferring();
    as_placed(&node, "preferred", profile, sizes);
}

#[test]
fn a_container_gets_the_gpus_of_place_in_their_order() {
    as_preferred(
        "lab-mesh",
        "dgx1-v100",
        &[(1, true), (4, false), (3, true), (4, true)],
    );
}

#[test]
fn pairs_stay_together_on_a_board_with_bridges() {
    as_preferred(
        "lab-pairs",
        "a100-pcie-pairs",
        &[(1, true), (2, false), (3, true), (2, true), (2, true)],
    );
}

#[test]
fn a_mesh_of_four_is_left_as_whole_as_it_can_be() {
    as_preferred(
        "lab-quad",
        "hgx-a100-4",
        &[(1, false), (2, true), (2, true)],
    );
}

/// The kubelet's own device manager, some thousand containers that come and go: no GPU twice, none
/// lost, and each container has the best of what was free, in the order of the ring.
#[test]
fn the_device_manager_gets_the_optimum_whatever_is_free() {
    if assets::lacks("the API of the device manager", 36) {
        return;
    }
    for (profile, steps) in [
        ("dgx1-v100", 4_000),
        ("a100-pcie-pairs", 3_000),
        ("hgx-a100-4", 1_000),
        ("h200-degraded", 2_000),
    ] {
        let node = LabNode::new("random", profile)
            .choosing(Choice::Scattered)
            .preferring();
        let recording = nvml::recording_of(profile, "random").unwrap();
        let board = Board::new(&recording);
        let gpus = board.uuids.len();
        let done = allocate(&node, gpus, steps, 16).unwrap();
        assert_eq!(done.steps.len(), steps);
        let mut held: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (number, step) in done.steps.iter().enumerate() {
            for ended in &step.ended {
                held.remove(ended).unwrap();
            }
            let taken: BTreeSet<u32> = held.values().flatten().copied().collect();
            let free: Vec<u32> = board.indices().filter(|gpu| !taken.contains(gpu)).collect();
            let expected = board.place(step.devices.len(), &free);
            let order = board.uuids_of(&expected).join(",");
            let named = step.variables.get("NVLINK_DOMAINS_GPUS");
            assert_eq!(named, Some(&order), "{profile}, step {number} of {free:?}");
            let mut devices = board.uuids_of(&expected);
            devices.sort_unstable();
            assert_eq!(
                step.devices, devices,
                "{profile}, step {number} of {free:?}"
            );
            held.insert(number, expected);
        }
        let all = "nvlink_device_plugin_allocations_total{resource=\"nvidia.com/gpu\",outcome=";
        assert!(
            !done.metrics.contains(&format!("{all}\"ignored\"")),
            "{}",
            done.metrics
        );
        let added = done
            .metrics
            .lines()
            .filter(|line| line.contains("_added_seconds"));
        println!("{profile}:\n{}", added.collect::<Vec<_>>().join("\n"));
    }
}

/// How many of which free GPUs.
type Question = (usize, Vec<u32>);

/// A node in the terms of the search.
struct Board {
    graph: Graph,
    broken: GpuSet,
    /// By index.
    uuids: BTreeMap<u32, String>,
    known: RefCell<HashMap<Question, Vec<u32>>>,
}

impl Board {
    fn new(recording: &Value) -> Self {
        let node: NodeTopology = serde_json::from_value(recording.clone()).unwrap();
        let graph = Graph::new(&node.spec).unwrap();
        let broken: Vec<u32> = node.spec.broken_gpus().collect();
        let uuid = |gpu: &Gpu| (gpu.index, gpu.uuid.clone().unwrap());
        Self {
            broken: graph.set(&broken).unwrap(),
            graph,
            uuids: node.spec.gpus.iter().map(uuid).collect(),
            known: RefCell::default(),
        }
    }

    fn indices(&self) -> impl Iterator<Item = u32> {
        self.uuids.keys().copied()
    }

    fn uuids_of(&self, gpus: &[u32]) -> Vec<String> {
        gpus.iter().map(|gpu| self.uuids[gpu].clone()).collect()
    }

    /// Returns the best placement, in rank order.
    fn place(&self, gpus: usize, free: &[u32]) -> Vec<u32> {
        let mut known = self.known.borrow_mut();
        let question = (gpus, free.to_vec());
        let find = || {
            let request = Request {
                gpus,
                free: self.graph.set(free).unwrap(),
                required: GpuSet::EMPTY,
                pattern: Pattern::default(),
                scope: Scope::Node,
            };
            let spared = sparing(&self.graph, &request, self.broken, BrokenGpus::Last).unwrap();
            place(&self.graph, &spared).unwrap().gpus
        };
        known.entry(question).or_insert_with(find).clone()
    }
}

/// Each way in which a part of the chain may be away and come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Restart {
    Kubelet,
    Vendor,
    Between,
}

impl Restart {
    pub(super) fn stop(self, lab: &Lab) {
        match self {
            Self::Kubelet => lab.stop_kubelet().unwrap(),
            Self::Vendor => lab.stop_vendor(),
            Self::Between => lab.stop_between(),
        }
    }

    pub(super) fn start(self, lab: &Lab) {
        match self {
            Self::Kubelet => lab.restart_kubelet().unwrap(),
            Self::Vendor => lab.start_vendor().unwrap(),
            Self::Between => lab.start_between().unwrap(),
        }
    }
}

const ORDERS: [&[Restart]; 7] = [
    &[Restart::Kubelet],
    &[Restart::Vendor],
    &[Restart::Between],
    &[Restart::Between, Restart::Kubelet],
    &[Restart::Kubelet, Restart::Between],
    &[Restart::Vendor, Restart::Between, Restart::Kubelet],
    &[Restart::Kubelet, Restart::Vendor, Restart::Between],
];

#[test]
fn devices_come_back_after_every_order_of_restarts() {
    let profile = "dgx1-v100";
    let node = LabNode::new("lab-restarts", profile)
        .choosing(Choice::Scattered)
        .preferring();
    let bench = Bench::start_with(&node, profile);
    let run_steady = |name: &str| {
        bench.run_pod_of("preferred", name, 2);
        held(&bench.wait_for_pod(name, 2), name)
    };
    let mut steady = "steady".to_owned();
    let mut kept = run_steady(&steady);
    for (at, order) in ORDERS.into_iter().enumerate() {
        order.iter().for_each(|part| part.stop(&bench.lab));
        let start = Instant::now();
        order.iter().for_each(|part| part.start(&bench.lab));
        let pod = run_at_last(&bench, &format!("after-{at}"), 4);
        println!("{order:?}: a pod runs after {:?}", start.elapsed());
        let refused = order.contains(&Restart::Kubelet) && is_refused(&bench, &steady);
        let mut expected = vec![best_beside(&kept, profile)];
        // A pod that fails when the kubelet starts again frees its GPUs, on a busy machine after the next pod got its
        // own.
        if refused {
            println!("{order:?}: the kubelet refused {steady}, which ran");
            kept.clear();
            expected.push(best_beside(&kept, profile));
        } else {
            let status = bench.kubectl.get(&["pod", &steady]).unwrap()["status"].take();
            assert_eq!(status["phase"], "Running", "{order:?}: {status:#}");
            assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
        }
        let text = bench.wait_for_pod(&pod, 4);
        let beside = format!("{order:?}, {pod}, beside {kept:?}");
        let got = held(&text, &pod);
        assert!(expected.contains(&got), "{got:?} {beside}");
        assert_eq!(held(&text, &steady), kept, "{beside}");
        bench.end(&pod);
        bench.wait_for_phase(&pod, "Succeeded");
        bench.wait_for_pod(&pod, 0);
        if refused {
            steady = format!("steady-{at}");
            kept = run_steady(&steady);
        }
    }
}

/// Returns the best four GPUs of a node beside those that a pod keeps, by index.
fn best_beside(kept: &[u32], profile: &str) -> Vec<u32> {
    let free: Vec<u32> = (0..8).filter(|gpu| !kept.contains(gpu)).collect();
    let mut best = placed(profile, 4, &free);
    best.sort_unstable();
    best
}

/// Reports whether a kubelet that started refused a pod that ran. Kubelets do while they do not know
/// the devices or the labels of their node yet, whoever serves the devices; the slower the machine, the
/// more often. The pod's phase shows it later than that its GPUs are free.
fn is_refused(bench: &Bench, pod: &str) -> bool {
    let of_pod = format!("involvedObject.name={pod},type=Warning");
    let events = bench.kubectl.get(&["events", "--field-selector", &of_pod]);
    let events = events.unwrap()["items"].take();
    let reasons = [
        "OutOfnvidia.com/gpu",
        "NodeAffinity",
        "UnexpectedAdmissionError",
    ];
    let mut events = events.as_array().unwrap().iter();
    events.any(|event| reasons.iter().any(|reason| event["reason"] == *reason))
}

/// Runs a pod, again if the kubelet refuses it. Until a kubelet that starts has heard from a device
/// plugin, it refuses what the scheduler sends it, whoever the plugin is.
fn run_at_last(bench: &Bench, name: &str, gpus: u32) -> String {
    let mut attempt = 0;
    wait_until(
        "a pod that the kubelet takes",
        Duration::from_secs(60),
        || {
            attempt += 1;
            let pod = format!("{name}-{attempt}");
            bench.create_pod_of("preferred", &pod, gpus);
            let phase = wait_until("its phase", Duration::from_secs(30), || {
                let pod = bench.kubectl.get(&["pod", &pod])?;
                let phase = pod["status"]["phase"].as_str().unwrap_or_default();
                Ok(["Running", "Failed"]
                    .contains(&phase)
                    .then(|| phase.to_owned()))
            })?;
            Ok((phase == "Running").then_some(pod))
        },
    )
    .unwrap()
}

/// Returns a pod of the class with GPUs in an init container and in the container after it.
fn with_init(bench: &Bench, name: &str, (init, main): (u32, u32)) -> Value {
    let container = |name: &str, gpus: u32, script: &str| {
        json!({
            "name": name, "image": "busybox:1", "command": ["sh", "-c", script],
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        })
    };
    let mut spec = spec(bench.lab.name(), 0, "");
    spec["initContainers"] = json!([container("init", init, "env")]);
    spec["containers"] = json!([container("main", main, WORK)]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"nvlink-domains.io/class": "preferred"}},
        "spec": spec,
    })
}

/// The kubelet reuses the GPUs of an init container. Of more than enough, it takes any and asks nobody;
/// where it needs more, it asks which.
#[test]
fn a_container_gets_gpus_of_the_init_container_before_it() {
    let profile = "dgx1-v100";
    let node = LabNode::new("lab-init", profile)
        .choosing(Choice::Scattered)
        .preferring();
    let bench = Bench::start_with(&node, profile);
    for (name, sizes) in [("fewer", (4, 2)), ("as-many", (2, 2)), ("more", (1, 3))] {
        bench
            .kubectl
            .create(&with_init(&bench, name, sizes))
            .unwrap();
        bench.wait_for_phase(name, "Running");
        let log = bench.printed(&[name, "-c", "main"]);
        let init = bench.kubectl.run(&["logs", name, "-c", "init"]).unwrap();
        let [init, main] = [&init, &log].map(|log| {
            let gpus = variable(log, "NVLINK_DOMAINS_GPUS").unwrap().split(',');
            gpus.map(str::to_owned).collect::<BTreeSet<_>>()
        });
        let size = |gpus: &BTreeSet<String>| u32::try_from(gpus.len()).unwrap();
        assert_eq!((size(&init), size(&main)), sizes);
        let (smaller, larger) = match sizes.0 < sizes.1 {
            true => (&init, &main),
            false => (&main, &init),
        };
        assert!(smaller.is_subset(larger), "{name}: {init:?} {main:?}");
        bench.end(name);
        bench.wait_for_phase(name, "Succeeded");
        bench.wait_for_pod(name, 0);
    }
}

#[test]
fn hostile_peers_harm_nobody_else() {
    let profile = "hgx-a100-4";
    let node = LabNode::new("lab-hostile", profile)
        .choosing(Choice::Scattered)
        .preferring();
    let bench = Bench::start_with(&node, profile);
    let (kubelet, vendor) = bench.lab.plugin_directories();
    let offered = fs::read_dir(kubelet)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let own = |path: &PathBuf| path.to_string_lossy().contains("nvlink-dp-");
    let own = offered.into_iter().find(own).unwrap();
    let silent: Vec<UnixStream> = [&own, &vendor.join("kubelet.sock")]
        .into_iter()
        .flat_map(|socket| {
            (0..8).map(move |at| {
                let mut stream = UnixStream::connect(socket).unwrap();
                // Nothing, no HTTP, half a preface of HTTP/2, and a frame of 16 MiB.
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
                let said: &[u8] = match at % 4 {
                    0 => b"",
                    1 => b"GET / HTTP/1.1\r\n\r\n",
                    2 => &preface[..10],
                    _ => &[&preface[..], &[0xff; 9], &[0; 4096]].concat(),
                };
                // It may have hung up already.
                let _ = stream.write_all(said);
                stream
            })
        })
        .collect();
    // Names of sockets that lead elsewhere, names that are no resources, and another vendor's.
    let _false: Vec<_> = [
        ("nvidia.com/other", "../elsewhere.sock"),
        ("no resource", "a.sock"),
        ("kubernetes.io/cpu", "b.sock"),
    ]
    .into_iter()
    .map(|(resource, socket)| bench.lab.start_other_vendor(resource, socket).unwrap())
    .collect();
    let _good = bench
        .lab
        .start_other_vendor("example.com/card", "card.sock")
        .unwrap();
    bench.lab.wait_for_devices("example.com/card", 4).unwrap();
    bench.run_pod_of("preferred", "unharmed", 2);
    let text = bench.wait_for_pod("unharmed", 2);
    assert_eq!(held(&text, "unharmed"), placed(profile, 2, &[0, 1, 2, 3]));
    drop(silent);
}
