//! The programs on other architectures, run by QEMU: they print the same bytes as on this one.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nvlink_tests::{
    Exporter, FakeNvml, Foreign, Webhook, http,
    programs::{self, EXPORTER, WEBHOOK},
    wait_until, workdir,
};
use serde_json::{Value, json};

use crate::{
    clients::ask,
    pods::gpu_pod,
    shared::{control_plane, create_class},
};

const SOON: Duration = Duration::from_secs(60);

/// `$ARCHITECTURES`, such as `arm64 riscv64`, names the architectures; by default one, because each
/// takes minutes to compile.
#[test]
fn other_architectures_print_the_same_bytes() {
    let wanted = env::var("ARCHITECTURES").unwrap_or_else(|_| "riscv64".to_owned());
    for name in wanted.split_whitespace().filter(|&name| name != "amd64") {
        same_bytes(&Foreign::build(name).unwrap());
    }
}

fn same_bytes(foreign: &Foreign) {
    let root = machine();
    let sysfs = format!("sysfs:{}", root.display());
    let mut commands = Vec::new();
    for source in ["sim:dgx1-v100", "sim:gb200-nvl72", "sim:l40s", &sysfs] {
        for format in ["table", "json", "dot", "matrix"] {
            commands.push(format!(
                "topology --node-name n --output {format} --source {source}"
            ));
        }
    }
    for job in [
        "--gpus 4 --free 0,1,2,5,6",
        "--gpus 6 --pattern all-to-all",
        "--gpus 8 --pattern tp=4,pp=2",
    ] {
        for source in ["sim:dgx1-v100", "sim:a100-pcie-pairs"] {
            commands.push(format!(
                "place --node-name n --scope node --source {source} --output json {job}"
            ));
        }
    }
    for command in commands {
        let arguments: Vec<_> = command.split(' ').collect();
        let wanted = programs::run(EXPORTER, &arguments, "").unwrap();
        assert_eq!(
            run(&foreign.path(EXPORTER), &arguments),
            wanted,
            "{command}"
        );
    }
    served_bytes(
        foreign,
        &["--source", "sim:h200-degraded", "--node-name", "n"],
    );
    served_bytes(foreign, &["--source", &sysfs, "--node-name", "n"]);
    driver_bytes(foreign);
    reviewed_bytes(foreign);
}

fn run(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Serves a node with both programs, and compares the document and the metrics.
fn served_bytes(foreign: &Foreign, arguments: &[&str]) {
    let ours = Exporter::start(arguments).unwrap();
    let theirs = Exporter::of(&foreign.path(EXPORTER), &[], arguments).unwrap();
    assert_same(&ours, &theirs);
}

/// Does the same with the driver's library of each architecture.
fn driver_bytes(foreign: &Foreign) {
    let mut machine = FakeNvml::of_profile("dgx-h100").unwrap();
    let ours = machine.exporter(&["--node-name", "n"]).unwrap();
    machine.use_library(foreign.fake_nvml());
    let source = machine.source();
    let arguments = ["--source", &source, "--node-name", "n"];
    let theirs = Exporter::of(
        &foreign.path(EXPORTER),
        &[machine.environment()],
        &arguments,
    );
    assert_same(&ours, &theirs.unwrap());
}

fn assert_same(ours: &Exporter, theirs: &Exporter) {
    for one in [ours, theirs] {
        one.process
            .wait_until("it to be ready", SOON, || {
                http::text(&one.url("/readyz")).map(Some)
            })
            .unwrap();
    }
    let document = |one: &Exporter| http::text(&one.url("/api/v1/topology")).unwrap();
    assert_eq!(comparable(&document(theirs)), comparable(&document(ours)));
    let [ours, theirs] = [ours, theirs].map(|one| series(&one.metrics().unwrap()));
    let differing: Vec<_> = ours.symmetric_difference(&theirs).collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(ours.len() > 10, "{ours:#?}");
}

/// Returns the document without the path of the driver's library.
fn comparable(document: &str) -> Value {
    let mut document: Value = serde_json::from_str(document).unwrap();
    document["spec"]["source"]["from"] = Value::Null;
    document
}

/// Returns the series of a scrape without their values, and without the path of the library.
fn series(text: &str) -> BTreeSet<String> {
    let own = |line: &&str| !line.starts_with('#') && !line.contains("source_info");
    let name = |line: &str| line.rsplit_once(' ').unwrap().0.to_owned();
    text.lines().filter(own).map(name).collect()
}

/// Has the webhook answer an AdmissionReview over TLS, and compares the answer with ours.
fn reviewed_bytes(foreign: &Foreign) {
    create_class("foreign", &json!({}));
    let mut pod = gpu_pod("train", 4);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "foreign"});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "namespace": "default", "object": pod,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "ada"},
        },
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let answer = |program: &Path| {
        let webhook = Webhook::of(program, control_plane().kubeconfig(), &[]).unwrap();
        let answer = wait_until("the webhook to know the class", SOON, || {
            let answer = runtime.block_on(ask(&webhook, None, &review.to_string()))?;
            Ok(answer.contains("JSONPatch").then_some(answer))
        });
        serde_json::from_str::<Value>(&answer.unwrap()).unwrap()
    };
    assert_eq!(
        answer(&foreign.path(WEBHOOK)),
        answer(&programs::path(WEBHOOK).unwrap())
    );
}

/// Returns the root of a machine with a GPU behind a switch, and a NIC, as the kernel shows it.
fn machine() -> PathBuf {
    let root = workdir::fresh("sysfs").unwrap();
    let bus = root.join("sys/bus/pci/devices");
    fs::create_dir_all(&bus).unwrap();
    for (path, vendor, class) in [
        ("pci0000:3a/0000:3a:00.0", "0x1000", "0x060400"),
        ("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0x10de", "0x030200"),
        ("pci0000:3a/0000:3a:00.0/0000:3c:00.0", "0x10de", "0x030200"),
        ("pci0000:ba/0000:ba:00.0", "0x10de", "0x030200"),
    ] {
        let own = root.join("sys/devices").join(path);
        fs::create_dir_all(&own).unwrap();
        for (name, text) in [("vendor", vendor), ("class", class), ("numa_node", "0")] {
            fs::write(own.join(name), format!("{text}\n")).unwrap();
        }
        let address = path.rsplit_once('/').unwrap().1;
        symlink(format!("../../../devices/{path}"), bus.join(address)).unwrap();
    }
    root
}
