//! From benchmarks that measure less than those of sibling nodes to the node on which the
//! scheduler places a job.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, SystemTime},
};

use nvlink_tests::{Exporter, Kubectl, Node, http, node, programs, wait_until, workdir};
use serde_json::{Value, json};

use crate::{
    pods::{decision, gpu_pod, is_bound, wait_for_pods},
    shared::{control_plane, create_class, namespace_with_class},
};

const SOON: Duration = Duration::from_secs(30);
const SLOW: &str = "nvlink-domains.io/slow";

/// Keeps five runs of all_reduce on eight GPUs in `directory`, of about `bus` GB/s, which ended
/// `age` ago.
fn keep(directory: &Path, bus: f64, age: Duration) {
    let mut inputs = Vec::new();
    for number in 0..5 {
        let bus = bus + f64::from(number) / 10.0;
        let (alg, time) = (bus / 1.75, 8_589_934_592.0 / (bus / 1.75) / 1000.0);
        let row = format!("{time:.0}  {alg:.2}  {bus:.2}      0");
        let text = format!(
            "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n\
             #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n\
             8589934592    2147483648     float     sum      -1    {row}    {row}\n\
             # Out of bounds values : 0 OK\n# Avg bus bandwidth    : {bus:.3}\n"
        );
        let path = directory.join(format!("{bus}.txt"));
        fs::write(&path, text).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        inputs.push(path.to_str().unwrap().to_owned());
    }
    let state = directory.join("state");
    let flags = [
        "--source",
        "sim:dgx-h100",
        "--state",
        state.to_str().unwrap(),
    ];
    let place = ["--collective", "all_reduce", "--gpus", "8", "--nodes", "1"];
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let arguments = [&["ingest"][..], &inputs, &flags, &place].concat();
    programs::run(programs::EXPORTER, &arguments, "").unwrap();
}

/// Makes a calibration of the runs in `directory`, and returns its file.
fn calibrate(directory: &Path) -> String {
    let state = directory.join("state");
    let make = ["calibration", "make", state.to_str().unwrap()];
    let made = programs::run(programs::EXPORTER, &make, "").unwrap();
    let file = directory.join("calibration.json");
    fs::write(&file, made).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Starts an exporter of a node of its own, with the runs in `directory`.
fn exporter(name: &str, directory: &Path, calibration: &str) -> Exporter {
    let control_plane = control_plane();
    let node = Node::new(name, 8).pool("siblings");
    node::create(control_plane.kubectl(), &[node]).unwrap();
    restart(name, directory, calibration)
}

fn restart(name: &str, directory: &Path, calibration: &str) -> Exporter {
    let state = directory.join("state");
    let arguments = [
        ["--source", "sim:dgx-h100"],
        ["--collection-interval", "100ms"],
        ["--collectives", state.to_str().unwrap()],
        ["--calibration", calibration],
    ];
    Exporter::publishing(control_plane().kubeconfig(), name, &arguments.concat()).unwrap()
}

/// Waits until the node is published with the label as `wanted`.
fn wait_for_label(name: &str, wanted: &Value) {
    wait_until(&format!("the label {wanted} of {name}"), SOON, || {
        let node = control_plane().kubectl().get(&["node", name])?;
        let labels = &node["metadata"]["labels"];
        anyhow::ensure!(labels["nvlink-domains.io/domain-size"] == "8", "no labels");
        anyhow::ensure!(labels[SLOW] == *wanted, "the label is {}", labels[SLOW]);
        Ok(Some(()))
    })
    .unwrap();
}

/// Creates a pod of eight GPUs, and returns it when it has a node.
fn place(kubectl: &Kubectl, name: &str) -> Value {
    let mut pod = gpu_pod(name, 8);
    pod["metadata"]["labels"] = json!({"job": name});
    node::in_pool(&mut pod["spec"], "siblings");
    kubectl.create(&pod).unwrap();
    wait_for_pods(kubectl, &format!("job={name}"), 1, is_bound).remove(0)
}

/// Asserts that what the slow node measures is in its NodeTopology, and on the pages of its
/// exporter.
fn assert_compared(exporter: &Exporter, name: &str) {
    let expected = json!([{
        "model": "NVIDIA H100 80GB HBM3", "path": "NVLINK", "gpus": 8, "ratio": 0.8, "runs": 5,
    }]);
    // The object is written after the label.
    wait_until("the comparison", SOON, || {
        let topology = control_plane().kubectl().get(&["nodetopology", name])?;
        let found = &topology["spec"]["comparisons"];
        anyhow::ensure!(*found == expected, "the comparisons are {found}");
        Ok(Some(()))
    })
    .unwrap();
    let served = http::text(&exporter.url("/api/v1/topology")).unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    assert_eq!(served["spec"]["comparisons"], expected);
    let page = http::text(&exporter.url("/")).unwrap();
    let told = "benchmarks reach 80 % of what sibling nodes reach (8 GPUs, NVLINK, 5 runs)";
    assert!(page.contains(told), "{page}");
}

/// Returns the versions of the NodeTopology and of the Node's labels, which a write changes.
fn version(name: &str) -> [Value; 2] {
    let kubectl = control_plane().kubectl();
    let topology = kubectl.get(&["nodetopology", name]).unwrap();
    let node = kubectl
        .get(&["node", name, "--show-managed-fields"])
        .unwrap();
    let managers = node["metadata"]["managedFields"].as_array().unwrap();
    let own = managers
        .iter()
        .find(|one| one["manager"] == "nvlink-exporter");
    [
        topology["metadata"]["resourceVersion"].clone(),
        own.unwrap()["time"].clone(),
    ]
}

fn unpublish(name: &str) {
    let mut unpublish = nvlink_tests::command(programs::path(programs::EXPORTER).unwrap());
    unpublish.args(["unpublish", "--node-name", name]);
    let kubeconfig = control_plane().kubeconfig();
    let output = unpublish.env("KUBECONFIG", kubeconfig).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_node_that_measures_below_its_siblings_comes_after_them() {
    let (a, b) = (
        workdir::fresh("siblings").unwrap(),
        workdir::fresh("siblings").unwrap(),
    );
    let day = Duration::from_secs(24 * 3600);
    keep(&b, 350.0, day);
    let calibration = calibrate(&b);
    keep(&a, 280.0, day);
    let slow = exporter("sibling-a", &a, &calibration);
    let _fast = exporter("sibling-b", &b, &calibration);
    wait_for_label("sibling-a", &json!("true"));
    wait_for_label("sibling-b", &Value::Null);

    assert_compared(&slow, "sibling-a");

    create_class("siblings", &json!({"minBandwidth": "400GBps"}));
    let jobs = namespace_with_class("siblings", "siblings");
    let first = place(&jobs, "first");
    assert_eq!(first["spec"]["nodeName"], "sibling-b");
    let from = &decision(&first).unwrap()["bandwidthFrom"];
    let said = "constants: data-sheet rates of active links, not calibrated";
    assert_eq!(from, said);
    let second = place(&jobs, "second");
    assert_eq!(second["spec"]["nodeName"], "sibling-a", "no other is free");

    // A restart changes nothing, and good runs end it.
    let before = version("sibling-a");
    drop(slow);
    let again = restart("sibling-a", &a, &calibration);
    let published = r#"nvlink_exporter_published_timestamp_seconds{what="topology"}"#;
    wait_until("the exporter to publish", SOON, || {
        Ok(again.metrics()?.contains(published).then_some(()))
    })
    .unwrap();
    wait_for_label("sibling-a", &json!("true"));
    assert_eq!(version("sibling-a"), before);
    keep(&a, 351.0, Duration::ZERO);
    wait_for_label("sibling-a", &Value::Null);

    keep(&a, 250.0, Duration::ZERO);
    wait_for_label("sibling-a", &json!("true"));
    drop(again);
    unpublish("sibling-a");
    let kubectl = control_plane().kubectl();
    let node = kubectl.get(&["node", "sibling-a"]).unwrap();
    assert!(node["metadata"]["labels"][SLOW].is_null(), "{node}");
}
