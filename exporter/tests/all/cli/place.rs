//! What `place` prints, and when there is no placement.

use super::{failure, run, text};

#[test]
fn no_placement_is_status_1_with_the_reason() {
    let place = |args: &[&str]| {
        failure(&run(
            &[&["place", "--source", "sim:a100-pcie-pairs"], args].concat()
        ))
    };
    let cases: [(&[&str], &str); 6] = [
        (&["--gpus", "0"], "0 GPUs"),
        (&["--gpus", "9"], "only 8"),
        (&["--gpus", "2", "--free", "3"], "only 1"),
        (&["--gpus", "2", "--free", "3,12"], "GPU 12 does not exist"),
        (
            &["--gpus", "1", "--free", "3", "--require", "4"],
            "GPU 4 is required but not free",
        ),
        (&["--gpus", "3"], "no nvlink-domain has room for 3"),
    ];
    for (args, expected) in cases {
        let (status, error) = place(args);
        assert!(status == 1 && error.contains(expected), "{args:?}: {error}");
    }
}

/// A fabric of 576 GPUs is many nodes, and a node has at most 128 GPUs.
#[test]
fn more_gpus_than_a_node_has_are_a_job_over_several_nodes() {
    for gpus in ["144", "576"] {
        let place = ["place", "--source", "sim:gb200-nvl72", "--gpus", gpus];
        let (status, error) = failure(&run(&place));
        let expected =
            format!("{gpus} GPUs requested, but there are only 4: place chooses GPUs of one node");
        assert!(status == 1 && error.contains(&expected), "{error}");
        assert!(error.contains("one pod for each node"), "{error}");
    }
    let shape = [
        "place",
        "--source",
        "sim:gb200-nvl72",
        "--gpus",
        "4",
        "--pattern",
        "tp=4,pp=36",
    ];
    let output = run(&shape);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("their product is at most 128"), "{error}");
}

#[test]
fn placements() {
    let place = |args: &[&str]| {
        text(run(&[
            &[
                "place",
                "--source",
                "sim:a100-pcie-pairs",
                "--node-name",
                "n",
            ],
            args,
        ]
        .concat()))
    };
    let table = place(&["--gpus", "2", "--free", "0,3-5"]);
    assert!(
        table.contains("4 5\n") && table.contains("NV12") && table.contains("n.2"),
        "{table}"
    );
    let json = place(&[
        "--gpus",
        "2",
        "--require",
        "6",
        "--scope",
        "node",
        "--output",
        "json",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["gpus"], serde_json::json!([6, 7]));
    assert_eq!(json["quality"]["node"], 1.0);
    // Pairs other than 6 and 7 that include 6 have no bridge.
    assert_eq!(json["nextBest"]["gpus"], serde_json::json!([4, 6]));
    assert!(json["nextBest"]["cost"].as_f64() > json["cost"].as_f64());
    assert!(json["nextBest"]["bottleneckBytesPerSecond"].is_u64());
    assert_eq!(
        place(&["--gpus", "2", "--free", "4-7", "--output", "env"]),
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES=4,5\n"
    );
    let mesh = ["place", "--source", "sim:dgx1-v100", "--gpus", "3"];
    let table = text(run(&[&mesh[..], &["--free", "0,1,5"]].concat()));
    assert!(table.contains("5 -NV1 through 1- 0\n"), "{table}");
}

#[test]
fn a_placement_is_compared_with_the_next_best_set() {
    let row = |profile: &str, args: &[&str]| {
        let source = format!("sim:{profile}");
        let table = text(run(&[&["place", "--source", &source], args].concat()));
        let mut rows = table.lines();
        let row = rows.find_map(|line| line.strip_prefix("next best set"));
        row.map(|row| row.trim_start().to_owned())
    };
    let slower = row("dgx1-v100", &["--gpus", "2", "--free", "0,1,3"]).unwrap();
    assert_eq!(
        slower, "0 1, 53.69 ms for 1 GiB per GPU (2.0 times as long)",
        "0 and 3 have two links, 0 and 1 one"
    );
    let equal = row("dgx-h100", &["--gpus", "4"]).unwrap();
    assert_eq!(equal, "4 5 6 7, as fast", "the other NUMA node");
    assert_eq!(row("dgx-h100", &["--gpus", "8"]), None, "no other set");
    let all_required = ["--gpus", "2", "--require", "0,1"];
    assert_eq!(row("dgx-h100", &all_required), None);
    let apart = ["--gpus", "2", "--free", "0,1,2"];
    assert_eq!(row("a100-pcie-pairs", &apart), None, "not on NVLink");
}

#[test]
fn the_path_of_a_placement_names_hops_over_pcie() {
    let own = ["place", "--source", "sim:a100-pcie-pairs", "--gpus", "4"];
    let pairs = [&own[..], &["--scope", "node"]].concat();
    let table = text(run(&[&pairs[..], &["--pattern", "pipeline"]].concat()));
    let path = "0 -NV12- 1 -PCIe (NODE)- 2 -NV12- 3\n";
    assert!(table.contains(path), "{table}");
}

#[test]
fn broken_gpus_are_avoided_and_the_output_says_why() {
    let place = |args: &[&str]| {
        let output = run(&[&["place", "--source", "sim:h200-degraded"], args].concat());
        let error = String::from_utf8(output.stderr.clone()).unwrap();
        (text(output), error)
    };
    let row = |table: &str, title: &str| {
        let mut rows = table.lines();
        let row = rows.find_map(|line| line.strip_prefix(title));
        row.map(|row| row.trim_start().to_owned())
    };
    let three = "3 (missing-links, fabric)";
    let (table, error) = place(&["--gpus", "5"]);
    let gpus = row(&table, "GPUs, in rank order").unwrap();
    assert_eq!(gpus, "0 1 2 4 7");
    let avoided = format!("{three}, 5 (missing-links, fabric), 6 (recovery-gpu-reset)");
    assert_eq!(row(&table, "broken GPUs avoided").unwrap(), avoided);
    assert_eq!((row(&table, "broken GPUs used"), &*error), (None, ""));

    // Two more are needed: 6 has all its links, and 5 more than 3.
    let (table, error) = place(&["--gpus", "7"]);
    assert_eq!(row(&table, "broken GPUs avoided").unwrap(), three);
    let used = "5 (missing-links, fabric), 6 (recovery-gpu-reset)";
    assert_eq!(row(&table, "broken GPUs used").unwrap(), used);
    assert!(
        error.contains(&format!("marked as broken are used: {used};")),
        "{error}"
    );

    let (json, _) = place(&["--gpus", "2", "--free", "2,3,4", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["gpus"], serde_json::json!([2, 4]));
    let broken = serde_json::json!({
        "avoided": [{"gpu": 3, "faults": ["missing-links", "fabric"]}]
    });
    assert_eq!(json["brokenGpus"], broken);

    let (table, error) = place(&["--gpus", "8", "--broken", "ignore"]);
    assert!(
        row(&table, "broken GPUs used").is_some() && error.is_empty(),
        "{error}"
    );
    let avoid = ["place", "--source", "sim:h200-degraded", "--broken=avoid"];
    let avoid = [&avoid[..], &["--gpus"]].concat();
    let (status, error) = failure(&run(&[&avoid[..], &["6"]].concat()));
    let expected = format!(
        "no placement without the GPUs that are marked as broken: {avoided} (--broken last uses them if it must): "
    );
    assert!(status == 1 && error.contains(&expected), "{error}");
    let required = text(run(&[&avoid[..], &["6", "--require", "3"]].concat()));
    assert_eq!(row(&required, "broken GPUs used").unwrap(), three);
}
