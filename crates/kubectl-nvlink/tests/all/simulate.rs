//! `kubectl nvlink simulate`, as a user runs it. The figures are tested in `crates/simulation`.

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

const TRACE: &str =
    "time,gpus,duration,user\n0,1,100,a\n0,1.5,50,b\n20,2,10,a\n10,1,10,c\n5,0,9,c\n";

fn simulate(trace: &str, more: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-nvlink"))
        .args(["simulate", "-"])
        .args(match more.contains(&"--nodes") {
            true => &[][..],
            false => &["--nodes", "rtx-a6000-pairs=1"],
        })
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(trace.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const NOTES: &str = "\
note: 1 job with a fraction of a GPU, rounded up to whole GPUs
note: 1 job without GPUs, left out
note: 1 job out of order, sorted by time
note: ignored columns: user
";

#[test]
fn the_table_says_what_was_odd_about_the_trace() {
    let done = simulate(TRACE, &[]);
    let table = text(&done.stdout);
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    assert!(table.starts_with("4 jobs on 4 GPUs of 1 node\n"), "{table}");
    assert!(table.contains("nvlink-domains against packed: "), "{table}");
    assert!(table.ends_with(NOTES), "{table}");
}

#[test]
fn json_has_exactly_the_documented_keys_and_the_notes_go_to_stderr() {
    let done = simulate(TRACE, &["--output", "json", "--seed", "7"]);
    assert!(done.status.success());
    assert_eq!(text(&done.stderr), NOTES);
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let keys = |value: &Value| {
        let keys = value.as_object().unwrap().keys();
        keys.cloned().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(&report), "clusters");
    let cluster = &report["clusters"][0];
    assert_eq!(keys(cluster), "cluster gpus nodes policies");
    let policies = cluster["policies"].as_array().unwrap();
    let names: Vec<_> = policies
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["nvlink-domains", "spread", "packed", "aligned"]);
    for one in policies {
        assert_eq!(
            keys(one),
            "bySize communicationSeconds crossDomainJobs gpuHours jobs lostGpuHours \
             makespanSeconds name quality rejected timedOut turnaroundSeconds utilization waitSeconds"
        );
        assert_eq!(keys(&one["waitSeconds"]), "max mean p50 p95 p99");
        assert_eq!(keys(&one["communicationSeconds"]), "mean p95");
        assert_eq!(keys(&one["quality"]), "mean p5");
        assert_eq!((&one["jobs"], &one["rejected"]), (&4.into(), &0.into()));
    }
    assert_eq!(simulate(TRACE, &["--output", "json", "--seed", "7"]), done);
}

/// All-to-all over a fabric of several nodes leaves each GPU through a port of its own, as inside
/// one node: 8 GPUs take as long as on a board with the same ports, and 72 take longer only by what
/// each has for others.
#[test]
fn all_to_all_over_a_fabric_is_as_fast_as_within_one_node() {
    let seconds = |cluster: &str, gpus: u32| {
        let trace = format!("time,gpus,duration,pattern\n0,{gpus},100,all-to-all\n");
        let done = simulate(&trace, &["--output", "json", "--nodes", cluster]);
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        report["clusters"][0]["policies"][0]["communicationSeconds"]["mean"]
            .as_f64()
            .unwrap()
    };
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    let (board, fabric) = (seconds("hgx-b200=1", 8), seconds("gb200-nvl72=18", 8));
    assert!(close(board, fabric), "{board} {fabric}");
    // 1 GiB: each GPU sends 7/8 of it over 18 links of 40.1 GB/s.
    let one = 0.875 * f64::from(1 << 30) / (18.0 * 40.1e9);
    assert!(close(board, one), "{board} {one}");
    let rack = seconds("gb200-nvl72=18", 72);
    let expected = fabric * (71.0 / 72.0) / (7.0 / 8.0);
    assert!(close(rack, expected), "{rack} {expected}");
}

#[test]
fn the_plot_is_an_xml_document() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plot.svg");
    let done = simulate(TRACE, &["--plot", path.to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("<title ") && svg.contains("<desc "));
    let missing = directory.path().join("none/plot.svg");
    let done = simulate(TRACE, &["--plot", missing.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("none/plot.svg: No such file"),
        "{done:?}"
    );
}

#[test]
fn errors_are_one_line_that_names_file_line_and_column() {
    let done = simulate("time,gpus,duration\n0,x,1\n", &[]);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(1), ""));
    let expected = "error: stdin: line 2, column gpus: \"x\" is not a number: give GPUs, such as 8, \
                    or 0.5 for a share of one\n";
    assert_eq!(text(&done.stderr), expected);
    let missing = Command::new(env!("CARGO_BIN_EXE_kubectl-nvlink"))
        .args(["simulate", "/nonexistent.csv", "--nodes", "l40s=1"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("error: /nonexistent.csv: No such file"));
    let wrong = simulate(TRACE, &["--nodes", "dgx=1"]);
    assert_eq!(wrong.status.code(), Some(2));
}

const CLASS: &str = "\
apiVersion: nvlink-domains.io/v1alpha1
kind: DomainClass
metadata: {name: pairs}
spec:
  placement: {scope: nvlink-domain, whenUnavailable: Queue, queueTimeout: 1m}
";

/// Returns what `simulate` prints with a class.
fn with_class(trace: &str, class: &str, more: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("class.yaml");
    fs::write(&path, class).unwrap();
    let more: Vec<&str> = more
        .iter()
        .copied()
        .chain(["--class-file", path.to_str().unwrap()])
        .collect();
    simulate(trace, &more)
}

/// The third job waits for a pair, and the last one longer than it may; no pair ever holds the one
/// before it.
#[test]
fn a_class_says_scope_and_time_limits() {
    let trace = "time,gpus,duration\n0,2,50\n0,2,1000\n1,2,20\n2,4,10\n3,2,10\n";
    let done = with_class(trace, CLASS, &["--output", "json"]);
    assert!(done.status.success(), "{done:?}");
    let note = "note: all jobs have class pairs: its placement, access.maxGpusPerProject and \
                environment.mnnvl count, nothing else\n";
    assert_eq!(text(&done.stderr), note);
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    let [own, _, packed, _] = &report["clusters"][0]["policies"].as_array().unwrap()[..] else {
        panic!("{report}")
    };
    let never = |one: &Value| [&one["rejected"], &one["timedOut"]].map(|one| one.as_u64().unwrap());
    assert_eq!((never(own), never(packed)), ([1, 1], [0, 0]));
    assert_eq!(own["waitSeconds"]["max"], 49.0);
    let table = with_class(trace, CLASS, &[]);
    let table = text(&table.stdout);
    assert!(
        table.contains("\ntimed out                        1              0  "),
        "{table}"
    );
    let table = table.replace('\n', " ");
    assert!(
        table.contains("nvlink-domains does not run 2 jobs that others run; "),
        "{table}"
    );
}

#[test]
fn a_class_that_does_not_queue_or_is_not_one_is_an_error() {
    let pending = CLASS.replace(", whenUnavailable: Queue, queueTimeout: 1m", "");
    let done = with_class(TRACE, &pending, &[]);
    let expected =
        "error: class pairs does not queue: set spec.placement.whenUnavailable to Queue\n";
    assert_eq!(
        (done.status.code(), text(&done.stderr)),
        (Some(1), expected)
    );
    let done = with_class(TRACE, "kind: Pod\n", &[]);
    let wanted = "class.yaml: expected one DomainClass, and it has 0: put the one to use into a file of its own\n";
    assert!(text(&done.stderr).ends_with(wanted), "{done:?}");
    // A class comes with the Roles of its users, as in deploy/examples.
    let with_role = format!("{CLASS}---\nkind: Role\nmetadata: {{name: use}}\n");
    assert!(with_class(TRACE, &with_role, &[]).status.success());
    let two = format!("{CLASS}---\n{CLASS}");
    assert!(text(&with_class(TRACE, &two, &[]).stderr).contains("it has 2"));
}

#[test]
fn several_clusters_are_compared() {
    let two = [
        "--nodes",
        "rtx-a6000-pairs=1",
        "--nodes",
        "rtx-a6000-pairs=1,l40s=2",
    ];
    let done = simulate(TRACE, &two);
    let table = text(&done.stdout);
    assert!(
        table.starts_with("rtx-a6000-pairs=1: 4 jobs on 4 GPUs of 1 node\n"),
        "{table}"
    );
    assert!(
        table.contains("rtx-a6000-pairs=1,l40s=2: 4 jobs on"),
        "{table}"
    );
    let comparison = table.split_once("The clusters compared:\n").unwrap().1;
    let comparison = comparison.split_once("note:").unwrap().0;
    crate::fixture::check_golden("simulate/clusters.txt", comparison);
    let plot = [&two[..], &["--plot", "/nonexistent/plot.svg"]].concat();
    let done = simulate(TRACE, &plot);
    assert!(
        text(&done.stderr).contains("--plot draws one cluster"),
        "{done:?}"
    );
}
