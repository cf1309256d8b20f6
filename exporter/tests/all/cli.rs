//! The program itself: exit statuses, messages, streams.

mod calibration;
mod place;

use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::support::PAIRS;

const PROGRAM: &str = env!("CARGO_BIN_EXE_nvlink-exporter");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(args)
        .env_remove("NODE_NAME")
        .env("KUBECONFIG", "/dev/null");
    command
}

fn run(args: &[&str]) -> Output {
    command(args).stdin(Stdio::null()).output().unwrap()
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut command = command(args);
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A refused input may be closed before its end.
    drop(child.stdin.take().unwrap().write_all(input));
    child.wait_with_output().unwrap()
}

/// Returns the exit status and the only line on stderr.
fn failure(output: &Output) -> (i32, String) {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(error.lines().count(), 1, "{error}");
    (output.status.code().unwrap(), error.trim_end().to_owned())
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_error_states_its_reason_once() {
    let (status, error) = failure(&run(&["topology", "--source", "sysfs:/no/such"]));
    assert_eq!(status, 1);
    assert_eq!(error.matches("/no/such").count(), 1, "{error}");
    assert_eq!(error.matches("No such file").count(), 1, "{error}");
}

#[test]
fn bad_input_is_one_line_and_status_1() {
    let cases: [(&[u8], &str); 6] = [
        (b"", "standard input: the input is empty"),
        (b"\x7fELF\0\0", "standard input: line 1: a NUL byte"),
        (b"{\"kind\": \"Pod\"}", "standard input: kind is \"Pod\""),
        (b"{\"spec\": ", "standard input: not valid JSON"),
        (PAIRS.split_at(130).0.as_bytes(), "standard input: line "),
        (
            b"\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV2\t X \n",
            "standard input: line 3: GPU1 to GPU0 is NV2 here",
        ),
    ];
    for (input, expected) in cases {
        let (status, error) = failure(&with_input(&["topology", "--source", "file:-"], input));
        assert!(
            error.starts_with(&format!("nvlink-exporter: {expected}")),
            "{error}"
        );
        assert_eq!(status, 1);
    }
    let (status, error) = failure(&run(&["topology", "--source", "file:/no/such"]));
    assert!(
        status == 1 && error.contains("/no/such: No such file"),
        "{error}"
    );
    let empty = tempfile::tempdir().unwrap();
    let source = format!("sysfs:{}", empty.path().display());
    let (status, error) = failure(&run(&["topology", "--source", &source]));
    assert!(
        status == 1 && error.contains("sys/bus/pci/devices does not exist"),
        "{error}"
    );
}

#[test]
fn bad_usage_is_status_2() {
    let cases: [&[&str]; 6] = [
        &["topology", "--source", "sim:toaster"],
        &["topology", "--source", "carrier-pigeon"],
        &["place", "--source", "sim:l40s"],
        &["place", "--source", "sim:l40s", "--gpus", "x"],
        &[
            "place",
            "--source",
            "sim:l40s",
            "--gpus",
            "2",
            "--pattern",
            "gossip",
        ],
        &["serve", "--publish", "--source", "sim:l40s"],
    ];
    for args in cases {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn a_huge_input_is_refused_before_it_is_read() {
    let mut command = command(&["topology", "--source", "file:-"]);
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let block = vec![b'x'; 1 << 20];
    let written = (0..100)
        .take_while(|_| input.write_all(&block).is_ok())
        .count();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("larger than 16 MiB")
    );
    assert!(written < 20, "read {written} MiB");
}

#[test]
fn a_recording_keeps_its_name_and_its_allocations() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.json");
    let path = file.to_str().unwrap();
    let args = [
        "record",
        "--source",
        "file:-",
        "--node-name",
        "gpu-7",
        "--to",
        path,
    ];
    assert!(with_input(&args, PAIRS.as_bytes()).status.success());
    let source = format!("file:{path}");
    assert!(text(run(&["topology", "--source", &source])).starts_with("gpu-7  4 × GPU"));
    let other = text(run(&[
        "topology",
        "--source",
        &source,
        "--node-name",
        "gpu-8",
        "-o",
        "json",
    ]));
    assert!(other.contains("\"name\": \"gpu-8\"") && other.contains("\"id\": \"gpu-8.0\""));

    let mut document: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    document["status"] = serde_json::json!({"allocations": [
        {"namespace": "ci", "pod": "job", "container": "main", "gpus": [0]}]});
    fs::write(&file, document.to_string()).unwrap();
    let placed = text(run(&[
        "place", "--source", &source, "--gpus", "2", "--output", "json",
    ]));
    assert!(placed.contains("2,\n    3"), "{placed}");
    assert!(text(run(&["topology", "--source", &source])).contains("held by ci/job"));
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        1,
        "a temporary file is left"
    );
}

#[test]
fn a_closed_pipe_is_silent() {
    let mut command = command(&["topology", "--source", "sim:dgx2-v100", "--output", "json"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn help_has_examples() {
    for args in [&["--help"][..], &["place", "--help"], &["help", "record"]] {
        assert!(text(run(args)).contains("Example"), "{args:?}");
    }
    assert!(text(run(&["--help"])).contains("Usage: nvlink-exporter [COMMAND] [FLAGS]"));
    assert!(text(run(&["--version"])).starts_with("nvlink-exporter "));
}

/// Returns the log line with the address, once it is complete.
fn address(log: &str) -> Option<String> {
    let mut lines = log.split_inclusive('\n');
    let line = lines.find(|line| line.contains("\"address\""))?;
    line.ends_with('\n').then(|| line.to_owned())
}

#[test]
fn serving_ends_on_sigterm() {
    let mut command = command(&[
        "--source",
        "sim:l40s",
        "--web.listen-address",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = child.stderr.take().unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    // The first collection may be logged before it.
    let line = loop {
        if let Some(line) = address(&seen) {
            break line;
        }
        let read = log.read(&mut buffer).unwrap();
        assert!(read > 0, "ended early: {seen}");
        seen += &String::from_utf8_lossy(&buffer[..read]);
    };
    let serving: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(
        serving["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:"),
        "{seen}"
    );
    let kill = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let until = Instant::now() + Duration::from_secs(10);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "still running");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = run(&[
        "serve",
        "--source",
        "sim:l40s",
        "--web.listen-address",
        &address,
    ]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains(&format!("listening on {address}: Address already in use")),
        "{error}"
    );
    assert!(Path::new(PROGRAM).exists());
}

#[test]
fn an_invalid_configuration_fails_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("web.yml");
    fs::write(&config, "tls_server_config: {cert_fiel: x}\n").unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (
            &["--web.config.file", config.to_str().unwrap()],
            1,
            "web.yml: tls_server_config.cert_fiel: unknown field",
        ),
        (
            &["--web.config.file", "/no/such"],
            1,
            "/no/such: No such file",
        ),
        (
            &["--stale-after", "5s"],
            2,
            "--stale-after must be longer than --collection-interval",
        ),
        (
            &["--web.telemetry-path", "metrics"],
            2,
            "expected a path such as /metrics",
        ),
    ];
    for (flags, status, expected) in cases {
        let output = run(&[
            &[
                "serve",
                "--source",
                "sim:l40s",
                "--web.listen-address",
                "127.0.0.1:0",
            ],
            flags,
        ]
        .concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_invalid_log_filter_is_logged() {
    let mut command = command(&["unpublish", "--node-name", "n"]);
    let output = command.env("RUST_LOG", "kube=loud").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("RUST_LOG=\"kube=loud\" is invalid: logging info"),
        "{said}"
    );
}

/// The Kubernetes client logs each of its failures.
#[test]
fn log_lines_of_libraries_appear_only_if_the_filter_enables_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config");
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
        contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n";
    fs::write(&path, config).unwrap();
    let lines = |filter: &str| {
        let mut command = command(&["unpublish", "--node-name", "n"]);
        command.env("KUBECONFIG", &path).env("RUST_LOG", filter);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap().lines().count()
    };
    assert_eq!(lines(""), 1);
    assert!(lines("info") > 1);
}

#[test]
fn a_missing_cluster_is_reported_in_one_line() {
    let home = tempfile::tempdir().unwrap();
    let mut command = command(&["unpublish", "--node-name", "n"]);
    command.env_remove("KUBECONFIG").env("HOME", home.path());
    let (status, error) = failure(&command.output().unwrap());
    assert_eq!(status, 1);
    assert!(error.contains("no kubeconfig to use"), "{error}");
    assert!(!error.contains("infer"), "{error}");
}

#[test]
fn assumed_rates_are_marked() {
    let pair = |input: &str| {
        let args = ["topology", "--source", "file:-"];
        text(with_input(&args, input.as_bytes()))
    };
    let matrix = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n";
    let assumed = "(model unknown: assumed 20 GB/s per link)";
    assert!(pair(matrix).contains(assumed));
    assert!(pair(matrix).contains("GB/s per GPU if a link has 25 GB/s; the model is unknown"));
    let known = text(run(&["topology", "--source", "sim:dgx-h100"]));
    assert!(!known.contains("assumed"), "{known}");
}

#[test]
fn metrics_are_explained() {
    let text = text(run(&["metrics"]));
    assert!(text.contains("| `nvlink_transmit_bytes_total` | bytes | `gpu` `UUID` `link` |"));
}

#[test]
fn an_error_in_a_variable_names_the_variable_and_not_the_flag() {
    let serve = |variable: &str, args: &[&str]| {
        let args = [args, &["--node-name", "n", "--stale-after", "30s"]].concat();
        let output = command(&args).env(variable, "yes").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let variable = "NVLINK_EXPORTER_PUBLISH";
    let error = serve(variable, &[]);
    let expected = format!("invalid value 'yes' for 'the environment variable {variable}'");
    assert!(error.contains(&expected), "{error}");
    let variable = "NVLINK_EXPORTER_PUBLISH_INTERVAL";
    let error = serve(variable, &["serve"]);
    assert!(error.contains(variable), "{error}");
    // The flag takes precedence over the variable.
    let error = serve(variable, &["--publish-interval", "no"]);
    assert!(error.contains("'--publish-interval <DURATION>'"), "{error}");
}

#[test]
fn flag_names_of_other_programs_lead_to_the_flag() {
    for args in [&["--listen", ":1"], &["--listen-address", ":1"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("'--web.listen-address'"), "{error}");
        assert!(!error.contains("interval"), "{error}");
    }
}
