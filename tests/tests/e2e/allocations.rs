//! Allocations as a kubelet on a real socket reports them, and what the exporter derives
//! from them.

mod kubelet;
mod lost;
mod with_api;

use std::{fs, path::PathBuf, time::Duration};

use nvlink_tests::{
    Exporter, Kubelet, Prometheus, Sample, check_metrics, http, kubelet::Container, wait_until,
    workdir,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);
const GPU: &str = "nvidia.com/gpu";

/// An exporter that queries a fake kubelet.
struct Bench {
    exporter: Exporter,
    kubelet: Kubelet,
    uuids: Vec<String>,
}

impl Bench {
    fn start(source: &str) -> Self {
        Self::with(Kubelet::start().unwrap(), source)
    }

    /// Starts an exporter that queries `kubelet`, and waits for the first answer.
    fn with(kubelet: Kubelet, source: &str) -> Self {
        let socket = kubelet.socket().to_str().unwrap().to_owned();
        let arguments = ["--source", source, "--kubelet-socket", &socket];
        let arguments = [&arguments[..], &["--collection-interval", "100ms"]].concat();
        let this = Self::of(Exporter::start(&arguments).unwrap(), kubelet);
        this.wait_for("the first answer", |text| succeeded(text) == Some(1.0));
        this
    }

    fn of(exporter: Exporter, kubelet: Kubelet) -> Self {
        let read = || http::text(&exporter.url("/readyz")).map(Some);
        let ready = exporter
            .process
            .wait_until("the first collection", SOON, read);
        ready.unwrap();
        let topology = topology(&exporter);
        let gpus = topology["spec"]["gpus"].as_array().unwrap().iter();
        let uuids = gpus.map(|gpu| gpu["uuid"].as_str().unwrap().to_owned());
        Self {
            uuids: uuids.collect(),
            exporter,
            kubelet,
        }
    }

    /// Runs a pod `ci/NAME` with one container that holds these GPUs, by UUID.
    fn run_pod(&self, name: &str, gpus: &[usize]) {
        let ids: Vec<&str> = gpus.iter().map(|&gpu| &*self.uuids[gpu]).collect();
        let main = Container::named("main").holding(GPU, &ids);
        self.kubelet.run_pod("ci", name, [main]);
    }

    /// Waits until the metrics are as wanted, and returns them.
    fn wait_for(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        wait_until(what, SOON, || {
            let text = self.exporter.metrics()?;
            if wanted(&text) {
                return Ok(Some(text));
            }
            let lines = text.lines().filter(|line| {
                ["nvlink_alloc", "nvlink_placement", "nvlink_exporter_coll"]
                    .iter()
                    .any(|name| line.starts_with(name))
            });
            anyhow::bail!("{}", lines.collect::<Vec<_>>().join("\n"))
        })
        .unwrap()
    }

    /// Waits until the pod `ci/NAME` holds `gpus` GPUs, and returns the metrics.
    fn wait_for_pod(&self, name: &str, gpus: usize) -> String {
        self.wait_for(&format!("{name} with {gpus} GPUs"), |text| {
            held(text, name).len() == gpus
        })
    }
}

fn topology(exporter: &Exporter) -> Value {
    let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the values of the series of `name` that have all these labels.
pub(crate) fn values(text: &str, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    let wanted: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\""))
        .collect();
    let lines = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (family, labels) = series.split_once('{')?;
        let labels = labels.trim_end_matches('}');
        let has = |one: &String| labels.split(',').any(|label| label == one);
        (family == name && wanted.iter().all(has)).then_some(value)
    });
    lines.map(|value| value.parse().unwrap()).collect()
}

fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let values = values(text, name, labels);
    assert!(values.len() <= 1, "{name} {labels:?}: {values:?}");
    values.first().copied()
}

/// Returns whether the last collection of allocations succeeded, as 0 or 1.
pub(crate) fn succeeded(text: &str) -> Option<f64> {
    let labels = [("collector", "allocations")];
    value(text, "nvlink_exporter_collector_success", &labels)
}

/// Returns the indices of the GPUs that the pod `ci/NAME` holds, by its info series.
pub(crate) fn held(text: &str, name: &str) -> Vec<u32> {
    let gpus = 0..72_u32;
    let holds = |gpu: &u32| {
        let gpu = gpu.to_string();
        let labels = [("namespace", "ci"), ("pod", name), ("gpu", &gpu)];
        !values(text, "nvlink_allocation_info", &labels).is_empty()
    };
    gpus.filter(holds).collect()
}

/// Returns the quality of the pod `ci/NAME` relative to the node, and relative to the free GPUs.
pub(crate) fn quality(text: &str, name: &str) -> (Option<f64>, Option<f64>) {
    let against = |reference| {
        let labels = [("namespace", "ci"), ("pod", name), ("reference", reference)];
        value(text, "nvlink_placement_quality_ratio", &labels)
    };
    (against("node"), against("free"))
}

/// Checks the metrics of allocations with promtool.
fn check_own(text: &str) {
    let own = |line: &&str| {
        ["nvlink_allocation", "nvlink_placement"]
            .iter()
            .any(|name| line.contains(name))
    };
    let lines: Vec<&str> = text.lines().filter(own).collect();
    assert!(lines.len() > 12, "{lines:?}");
    check_metrics(&(lines.join("\n") + "\n")).unwrap();
}

/// Writes a recording of the simulated node `profile` after `change`, and returns its path.
fn recording(profile: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let exporter = Exporter::start(&["--source", profile, "--kubelet-socket", "none"]).unwrap();
    let mut document = topology(&exporter);
    change(&mut document);
    let path = workdir::fresh("recording").unwrap().join("node.json");
    fs::write(&path, document.to_string()).unwrap();
    path
}

/// Returns one value of the pod `ci/NAME`.
pub(crate) fn of_pod(text: &str, family: &str, pod: &str) -> Option<f64> {
    value(text, family, &[("namespace", "ci"), ("pod", pod)])
}

#[test]
fn a_job_is_rated_relative_to_the_node_and_to_the_free_gpus() {
    // On a DGX-1, GPU 0 has two links to each of 3 and 4, one to each of 1 and 2, and none to 5.
    let bench = Bench::start("sim:dgx1-v100");
    bench.run_pod("large", &[2, 3, 4, 5, 6, 7]);
    bench.wait_for_pod("large", 6);
    bench.run_pod("rest", &[0, 1]);
    let text = bench.wait_for_pod("rest", 2);
    assert_eq!(
        quality(&text, "rest"),
        (Some(0.5), Some(1.0)),
        "no better pair was free"
    );
    bench.kubelet.remove_pod("ci", "large");
    bench.kubelet.remove_pod("ci", "rest");
    bench.wait_for_pod("rest", 0);

    bench.run_pod("bad", &[0, 5]);
    let (node, free) = quality(&bench.wait_for_pod("bad", 2), "bad");
    assert!(node.unwrap() < 0.4, "{node:?}");
    assert_eq!(free, node, "all GPUs were free");
    bench.kubelet.remove_pod("ci", "bad");
    bench.wait_for_pod("bad", 0);
    bench.run_pod("good", &[0, 3]);
    let good = bench.wait_for_pod("good", 2);
    assert_eq!(quality(&good, "good"), (Some(1.0), Some(1.0)));
}

#[test]
fn the_gpus_of_a_job_and_the_free_ones_are_reported_until_it_ends() {
    let bench = Bench::start("sim:dgx1-v100");
    bench.run_pod("large", &[2, 3, 4, 5, 6, 7]);
    let text = bench.wait_for_pod("large", 6);
    assert_eq!(of_pod(&text, "nvlink_placement_gpus", "large"), Some(6.0));
    assert_eq!(values(&text, "nvlink_domain_free_gpus", &[]), [2.0]);
    assert_eq!(values(&text, "nvlink_largest_free_set_gpus", &[]), [2.0]);

    bench.run_pod("rest", &[0, 1]);
    let text = bench.wait_for_pod("rest", 2);
    let rest = |family| of_pod(&text, family, "rest");
    let bottleneck = rest("nvlink_placement_bottleneck_bytes_per_second");
    assert_eq!(bottleneck, Some(20e9));
    assert_eq!(rest("nvlink_placement_domains"), Some(1.0));
    let pattern = [
        ("pod", "rest"),
        ("pattern", "all-reduce"),
        ("source", "default"),
    ];
    let pattern = value(&text, "nvlink_placement_pattern_info", &pattern);
    assert_eq!(pattern, Some(1.0));
    let topology = topology(&bench.exporter);
    let info = [
        ("gpu", "1"),
        ("UUID", &*bench.uuids[1]),
        ("namespace", "ci"),
        ("pod", "rest"),
        ("container", "main"),
        (
            "domain",
            topology["spec"]["domains"][0]["id"].as_str().unwrap(),
        ),
    ];
    assert_eq!(value(&text, "nvlink_allocation_info", &info), Some(1.0));
    check_own(&text);

    // A deleted pod has no series, and its GPUs are free.
    bench.kubelet.remove_pod("ci", "large");
    bench.kubelet.remove_pod("ci", "rest");
    let gone = |text: &str| !text.contains("pod=\"large\"") && !text.contains("pod=\"rest\"");
    let text = bench.wait_for("the pods to go", gone);
    assert_eq!(values(&text, "nvlink_domain_free_gpus", &[]), [8.0]);
}

#[test]
fn free_gpus_of_pods_that_started_before_the_exporter_are_unknown() {
    let first = Bench::start("sim:dgx1-v100");
    first.run_pod("early", &[0, 1]);
    let Bench {
        exporter, kubelet, ..
    } = first;
    drop(exporter);
    let second = Bench::with(kubelet, "sim:dgx1-v100");
    let text = second.wait_for_pod("early", 2);
    assert_eq!(quality(&text, "early"), (Some(0.5), None));
}

/// Starts an exporter of a node of eight GPUs of which only GPU 7 has MIG.
fn bench_with_mig() -> Bench {
    let path = recording("sim:dgx1-v100", |document| {
        document["spec"]["gpus"][7]["migEnabled"] = json!(true);
        document.as_object_mut().unwrap().remove("status");
    });
    Bench::start(&format!("file:{}", path.display()))
}

/// Returns pods that identify their GPUs in all possible ways: name, resource, ids.
fn pods_of_all_ways(
    uuid: impl Fn(usize) -> String,
) -> [(&'static str, &'static str, Vec<String>); 8] {
    let shared = "nvidia.com/gpu.shared";
    let mig = "MIG-7f3e1b1c-0000-5555-aaaa-123456789abc";
    let plain = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect();
    [
        ("shared-1", shared, vec![uuid(0) + "::0", uuid(1) + "::1"]),
        ("shared-2", shared, vec![uuid(0) + "::1", uuid(0) + "::2"]),
        ("index", GPU, plain(&["2", "3::1"])),
        ("gke", GPU, plain(&["nvidia4", "nvidia5/gi3"])),
        ("mig", "nvidia.com/mig-1g.10gb", plain(&[mig])),
        ("renamed", "acme.com/fast", vec![uuid(6)]),
        ("fpga", "acme.com/fpga", plain(&["0", "1"])),
        ("foreign", GPU, plain(&["GPU-of-another-node", "99"])),
    ]
}

#[test]
fn all_kinds_of_device_ids_are_recognised() {
    let bench = bench_with_mig();
    for (pod, resource, ids) in pods_of_all_ways(|gpu| bench.uuids[gpu].clone()) {
        let main = Container::named("main").holding(resource, &ids);
        bench.kubelet.run_pod("ci", pod, [main]);
    }
    let last = Container::named("main").holding(GPU, &["1"]);
    bench.kubelet.run_pod("ci", "last", [last]);
    let text = bench.wait_for_pod("last", 1);
    for (pod, gpus) in [
        ("shared-1", &[0, 1][..]),
        ("shared-2", &[0]),
        ("index", &[2, 3]),
        ("gke", &[4, 5]),
        ("mig", &[7]),
        ("renamed", &[6]),
        ("fpga", &[]),
        ("foreign", &[]),
    ] {
        assert_eq!(held(&text, pod), gpus, "{pod}");
        let known = text.contains(&format!("pod=\"{pod}\""));
        assert_eq!(known, !gpus.is_empty(), "{pod}");
    }
    check_own(&text);
    // An unknown device is logged once, however often the kubelet lists it.
    let calls = bench.kubelet.calls();
    bench.wait_for("more answers", |_| bench.kubelet.calls() > calls + 3);
    let log = bench.exporter.process.log();
    assert_eq!(log.matches("GPU-of-another-node").count(), 1, "{log}");
}

#[test]
fn containers_of_a_pod_are_rated_separately() {
    let bench = Bench::start("sim:dgx1-v100");
    let uuid = |gpu: usize| bench.uuids[gpu].clone();
    let mixed = [
        Container::named("one")
            .holding(GPU, &[uuid(1)])
            .holding("rdma/hca", &["0"]),
        Container::named("both")
            .holding(GPU, &[uuid(2)])
            .holding("acme.com/fast", &[uuid(3)]),
    ];
    bench.kubelet.run_pod("ci", "mixed", mixed);
    let none = [Container::named("main")];
    bench.kubelet.run_pod("ci", "web", none);
    let text = bench.wait_for_pod("mixed", 3);
    let containers = values(&text, "nvlink_placement_gpus", &[("pod", "mixed")]);
    assert_eq!(containers, [2.0, 1.0], "by name: both, one");
    assert!(!text.contains("pod=\"web\""), "the pod holds no GPU");
}

#[test]
fn allocations_of_a_recording_are_rated_without_a_kubelet() {
    let path = recording("sim:dgx1-v100", |document| {
        let one = |pod: &str, gpus: [u32; 2], free: Value| {
            json!({
                "namespace": "ci", "pod": pod, "container": "main", "gpus": gpus, "freeWhenPlaced": free
            })
        };
        let mut known = one("known", [0, 1], json!([0, 1, 5]));
        known["freeWhenPlaced"] = json!([0, 1]);
        let mut unknown = one("unknown", [2, 7], json!(null));
        unknown.as_object_mut().unwrap().remove("freeWhenPlaced");
        document["status"] = json!({"allocations": [known, unknown]});
    });
    let source = format!("file:{}", path.display());
    let exporter = Exporter::start(&["--source", &source, "--kubelet-socket", "none"]).unwrap();
    let text = wait_until("the rating", SOON, || {
        let text = exporter.metrics()?;
        Ok((held(&text, "known").len() == 2).then_some(text))
    })
    .unwrap();
    assert_eq!(quality(&text, "known"), (Some(0.5), Some(1.0)));
    let (node, free) = quality(&text, "unknown");
    assert!(node.unwrap() < 1.0 && free.is_none());
    assert_eq!(succeeded(&text), None, "no kubelet is queried");
}

/// The mean of the GPUs of comparable jobs.
const BY_CLASS: &str = "avg by (model, gpus, path) (
    nvlink_allocation_info
  * on (instance, gpu, UUID) group_left ()
    rate(nvlink_gpu_transmit_bytes_total[1m])
  * on (instance, namespace, pod, container) group_left (model, gpus, path)
    nvlink_placement_info
)";

/// Returns the query of docs/exporter.md, "Bandwidth of a job".
fn bandwidth_query() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exporter.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Bandwidth of a job").unwrap();
    section.split("```\n").nth(1).unwrap().to_owned()
}

#[test]
fn the_bandwidth_of_a_job_is_one_join() {
    let bench = Bench::start("sim:dgx-h100");
    bench.run_pod("train", &[0, 1, 2, 3]);
    // Two pods share GPU 7.
    for (pod, share) in [("share-1", "::0"), ("share-2", "::1")] {
        let main = Container::named("main").holding(GPU, &[bench.uuids[7].clone() + share]);
        bench.kubelet.run_pod("ci", pod, [main]);
    }
    bench.wait_for_pod("train", 4);
    let prometheus = Prometheus::start(&[(&bench.exporter.address, "node-1")]).unwrap();
    let all = prometheus
        .wait_for(&bandwidth_query(), SOON, |samples| {
            samples.len() == 3 && samples.iter().all(|one| one.value > 0.0)
        })
        .unwrap();
    let of = |pod: &str| {
        let one = all.iter().find(|one| one.labels["pod"] == pod).unwrap();
        assert_eq!(one.labels["namespace"], "ci");
        one.value
    };
    // Four GPUs send about four times as much as one, and no link exceeds its own rate.
    assert!(
        of("train") > of("share-1") && of("train") < 4.0 * 450e9,
        "{all:?}"
    );
    let ratio = of("share-1") / of("share-2");
    assert!((0.9..1.1).contains(&ratio), "they share one GPU: {all:?}");

    let all = prometheus.query(BY_CLASS).unwrap();
    let class = |one: &Sample| {
        let label = |name: &str| one.labels.get(name).cloned().unwrap_or_default();
        assert!(label("model").contains("H100"), "{all:?}");
        (label("gpus"), label("path"))
    };
    let mut classes: Vec<_> = all.iter().map(class).collect();
    classes.sort();
    let classes: Vec<_> = classes
        .iter()
        .map(|(gpus, path)| (&**gpus, &**path))
        .collect();
    assert_eq!(classes, [("1", ""), ("4", "NVLINK")]);
    for one in &all {
        // One GPU has nothing to say to another.
        let expected = match &*class(one).0 {
            "1" => 1e5..1e7,
            _ => 1e9..450e9,
        };
        assert!(expected.contains(&one.value), "{all:?}");
    }
}
