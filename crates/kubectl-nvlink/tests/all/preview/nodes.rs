//! What `preview` says about the nodes: which fit, and why none does.

use std::fs;

use serde_json::{Value, json};

use super::{JOB, NODE, PREVIEW, fails, files, run, text};

/// GPUs 0 and 2 are in one domain, but only GPU 1 has links to both.
#[test]
fn gpus_of_one_domain_without_links_between_them_are_noted() {
    let directory = files();
    let chain = NODE
        .replace("pair", "chain")
        .replace(r#"{"index": 1}]"#, r#"{"index": 1}, {"index": 2}]"#)
        .replace(
            "56000000000}]",
            r#"56000000000}, {"a": 1, "b": 2, "via": "direct", "links": 4, "bytesPerSecond": 56000000000}]"#,
        )
        .replace("[0, 1]}]", "[0, 1, 2]}]");
    let held = r#""status": {"allocations": [{"namespace": "ci", "pod": "x", "container": "main", "gpus": [1]}]}"#;
    let busy = chain.trim_end().strip_suffix('}').unwrap().to_owned() + "," + held + "}";
    for (document, told) in [(chain, false), (busy, true)] {
        fs::write(directory.path().join("nodes/pair.json"), document).unwrap();
        let args = [
            "preview",
            "--cluster",
            "classes.yaml",
            "--cluster",
            "nodes",
            "-f",
            "job.yaml",
        ];
        let output = run(directory.path(), &args, "");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout) + &text(&output.stderr);
        let note = "node chain: no 2 free GPUs of one nvlink-domain have all the NVLinks";
        assert_eq!(said.contains(note), told, "{said}");
    }
}

/// Returns an H200 board of which GPU `index` has only 16 of its 18 links.
pub(super) fn board(name: &str, index: u32) -> Value {
    let gpu = |gpu: u32| {
        let link = |link: u32| json!({"index": link, "up": gpu != index || link < 16});
        let links: Vec<_> = (0..18).map(link).collect();
        json!({"index": gpu, "model": "NVIDIA H200", "links": links})
    };
    let gpus: Vec<_> = (0..8).map(gpu).collect();
    json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": name},
        "spec": {
            "source": {"kind": "sim"},
            "gpus": gpus,
            "domains": [{"id": format!("{name}.0"), "gpus": [0, 1, 2, 3, 4, 5, 6, 7]}]
        }
    })
}

const FASTEST: &str = "\
apiVersion: nvlink-domains.io/v1alpha1
kind: DomainClass
metadata: {name: fast}
spec: {minBandwidth: 450GBps, appliesTo: {minGpus: 2}}
";

#[test]
fn a_class_that_is_faster_than_every_node_names_the_best() {
    let directory = files();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("classes.yaml", FASTEST);
    write("nodes/h200.json", &board("h200", 3).to_string());
    let args = ["preview", "--cluster", "classes.yaml", "--cluster", "nodes"];
    let said = || {
        let output = run(
            directory.path(),
            &[&args[..], &["-f", "job.yaml"]].concat(),
            "",
        );
        text(&output.stderr)
    };
    for line in [
        "no node of class \"fast\" has 450 GB/s per GPU; the best has 400 GB/s (node h200)",
        "node h200 has 400 GB/s per GPU because links are down (GPU 3: 16 of 18 links)\n",
        "nodes that fit: none (0 of 2)",
    ] {
        assert!(said().contains(line), "{} should contain {line}", said());
    }
    assert!(!said().contains("published"), "{}", said());
    fs::remove_dir_all(directory.path().join("nodes")).unwrap();
    fs::create_dir(directory.path().join("nodes")).unwrap();
    write("nodes/new.yaml", "{kind: Node, metadata: {name: new}}");
    let told =
        "no node with the labels of class \"fast\" has published its domains: the pod will wait";
    assert!(said().contains(told), "{}", said());
}

#[test]
fn slow_nodes_and_the_origin_of_bandwidths_are_noted() {
    let directory = files();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("classes.yaml", &FASTEST.replace("450", "400"));
    let mut slow = board("h200", 0);
    slow["spec"]["comparisons"] = serde_json::json!([{
        "model": "NVIDIA H200", "path": "NVLINK", "gpus": 8, "ratio": 0.78, "runs": 5,
    }]);
    let mut args = vec!["preview", "--cluster", "classes.yaml", "--cluster", "nodes"];
    args.extend(["-f", "job.yaml"]);
    let note =
        "note: measured slower than their siblings, so preferred least: h200 (78 % with 8 GPUs)";
    let said = |board: &Value| {
        write("nodes/h200.json", &board.to_string());
        text(&run(directory.path(), &args, "").stderr)
    };
    let with = said(&slow);
    assert!(with.contains(note), "{with}");
    let from = "bandwidth: constants: data-sheet rates of active links, not calibrated\n";
    assert!(with.contains(from), "{with}");
    let without = said(&board("h200", 0));
    assert!(!without.contains("slower"), "{without}");
    write(
        "classes.yaml",
        &FASTEST.replace("minBandwidth: 450GBps, ", ""),
    );
    assert!(!said(&slow).contains("bandwidth:"));
}

#[test]
fn strict_fails_if_no_node_can_hold_a_pod() {
    let directory = files();
    let path = directory.path();
    let strict = |stdin: &str, more: &[&str]| {
        let args = [PREVIEW, &["-", "--strict"], more].concat();
        run(path, &args, stdin)
    };
    let output = strict(JOB, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let large = JOB.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 4");
    let said =
        "error: no node can hold Job/train: no node of class \"fast\" has a domain of 4 GPUs";
    fails(&strict(&large, &[]), 1, &[said]);
    fails(&strict(&large, &["-o", "diff"]), 1, &[said]);
    let output = strict(&large, &["-o", "text"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("nodes that fit: none"));
    let gang = "app: \"007\"}, annotations: {nvlink-domains.io/gang: g, nvlink-domains.io/gang-size: \"2\"}";
    let gang = JOB.replace("app: \"007\"}", gang);
    fails(
        &strict(&gang, &[]),
        1,
        &["error: no node can hold Job/train: the gang needs 2 pods of 2 GPU(s)"],
    );
    let without = run(path, &[PREVIEW, &["-"]].concat(), &large);
    assert!(without.status.success(), "{}", text(&without.stderr));
    let alone = [
        "preview",
        "--cluster",
        "classes.yaml",
        "--strict",
        "-f",
        "-",
    ];
    fails(&run(path, &alone, JOB), 2, &["--strict needs nodes"]);
    let plain = JOB.replace("nvidia.com/gpu: 2", "cpu: 2");
    let output = strict(&plain, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_topology_without_a_name_has_that_of_its_file() {
    let directory = files();
    let path = directory.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write(
        "nodes/other.json",
        &NODE.replace("{\"name\": \"pair\"}", "{}"),
    );
    let args = [PREVIEW, &["job.yaml", "-o", "text"]].concat();
    let said = text(&run(path, &args, "").stdout);
    assert!(
        said.contains("nodes that fit: other, pair (2 of 2)"),
        "{said}"
    );
    // The same file twice is one node; two files with one name are a mistake.
    let twice = [&args[..], &["--cluster", "nodes/pair.json"]].concat();
    let output = run(path, &twice, "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    write("nodes/other.json", NODE);
    let both = [
        "nodes/pair.json: NodeTopology \"pair\"",
        "nodes/other.json has",
    ];
    fails(&run(path, &args, ""), 2, &both);
}

/// The numbers of `CUDA_VISIBLE_DEVICES` count whole GPUs. A request for whole GPUs gets slices of them
/// where MIG has the strategy `single`, and shares of them with time-slicing.
#[test]
fn no_order_of_devices_where_a_node_may_give_parts_of_gpus() {
    let mig = r#"{
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology", "metadata": {"name": "mig"},
        "spec": {"source": {"kind": "nvml"}, "gpus": [{"index": 0}, {"index": 1, "migEnabled": true}]}
    }"#;
    let labelled = |node: &str, label: &str| {
        format!("{{kind: Node, metadata: {{name: {node}, labels: {{nvidia.com/{label}}}}}}}")
    };
    let mixed = labelled("mig", "mig.strategy: mixed");
    let unused = labelled("pair", "mig.strategy: single");
    let shared = labelled("pair", "gpu.sharing-strategy: time-slicing");
    let whole = labelled("pair", "gpu.sharing-strategy: none");
    for (title, scope, files_of_nodes, ordered) in [
        ("whole GPUs", "node", &[][..], true),
        ("MIG", "node", &[mig], false),
        ("MIG, where no domain is", "nvlink-domain", &[mig], true),
        ("slices by name", "node", &[mig, &mixed], true),
        ("a strategy, no slice", "node", &[&unused], true),
        ("shared GPUs", "nvlink-domain", &[&shared], false),
        ("GPUs that are not shared", "nvlink-domain", &[&whole], true),
    ] {
        let directory = files();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let class = format!("  placement: {{scope: {scope}}}\n  appliesTo: {{minGpus: 2}}\n");
        write(
            "classes.yaml",
            &format!(
                "apiVersion: nvlink-domains.io/v1alpha1\nkind: DomainClass\nmetadata: {{name: own}}\nspec:\n{class}"
            ),
        );
        for (index, text) in files_of_nodes.iter().enumerate() {
            write(&format!("nodes/{index}.yaml"), text);
        }
        let output = run(directory.path(), &[PREVIEW, &["job.yaml"]].concat(), "");
        let (pod, said) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{title}: {said}");
        for name in ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"] {
            assert_eq!(
                pod.contains(&format!("name: {name}")),
                ordered,
                "{title}: {pod}"
            );
        }
    }
}
