//! The command `record`.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::support;

fn recorded(source: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"));
    command
        .args(["record", "--source", source])
        .args(args)
        .env_remove("NODE_NAME")
        .stdin(Stdio::null());
    command
}

fn samples(path: &Path) -> Vec<f64> {
    let document: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let samples = document["samples"].as_array().cloned().unwrap_or_default();
    samples
        .iter()
        .map(|sample| sample["seconds"].as_f64().unwrap())
        .collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_program_takes_samples() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.json");
    let three = ["--samples", "3", "--interval", "100ms", "--to"];
    let output = recorded("sim:rtx-a6000-pairs", &three)
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let times = samples(&path);
    assert!(
        times.len() == 3 && times[0] == 0.0 && times[1] >= 0.1 && times[2] >= 0.2,
        "{times:?}"
    );
}

#[test]
fn one_reading_records_the_counters_too() {
    let output = recorded("sim:rtx-a6000-pairs", &[]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"samples\": [\n    {\"seconds\":0.0,"));
}

#[test]
fn a_source_without_counters_causes_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("topo.txt");
    fs::write(&capture, support::PAIRS).unwrap();
    let source = format!("file:{}", capture.display());
    let two = ["--samples", "2", "--interval", "100ms"];
    let output = recorded(&source, &two).output().unwrap();
    assert!(
        output.status.success() && stderr(&output).contains("has no counters"),
        "{output:?}"
    );
}

#[test]
fn invalid_flags_are_usage_errors() {
    for bad in [["--samples", "0"], ["--interval", "1"], ["--samples", "x"]] {
        let output = recorded("sim:l40s", &bad).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn an_interrupted_recording_keeps_its_samples() {
    for signal in ["INT", "TERM"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.json");
        let many = ["--samples", "1000", "--interval", "200ms", "--to"];
        let mut command = recorded("sim:rtx-a6000-pairs", &many);
        let mut child = command.arg(&path).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut progress = String::new();
        said.read_line(&mut progress).unwrap();
        assert!(progress.ends_with(" of 199 s\n"), "{progress}");
        assert!(!path.exists(), "nothing is written before the end");
        let id = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &id])
                .status()
                .unwrap()
                .success()
        );
        assert!(child.wait().unwrap().success());
        let taken = samples(&path).len();
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(
            taken < 1000 && rest.contains(&format!("{taken} of 1000 samples are recorded")),
            "{taken}: {rest}"
        );
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "a temporary file is left over"
        );
    }
}

/// As root, a rename onto `/dev/null` would remove the device from the machine.
#[test]
fn pipes_and_links_are_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (pipe, link, file) = (at("pipe"), at("link"), at("node.json"));
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&pipe, &link] {
        let output = recorded("sim:l40s", &["--to"]).arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(!fs::symlink_metadata(path).unwrap().is_file());
    }
    for text in [reader.join().unwrap(), fs::read_to_string(&file).unwrap()] {
        assert!(text.contains("\"kind\": \"NodeTopology\""), "{text}");
    }
}

/// A pipe that nobody reads: the first signal ends a recording, the next one its writing.
#[test]
fn a_pipe_without_a_reader_does_not_outlive_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut child = recorded("sim:l40s", &["--to"])
        .arg(&pipe)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id().to_string();
    // It may still be recording: each signal ends one step.
    let status = loop {
        std::thread::sleep(std::time::Duration::from_millis(300));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        drop(Command::new("kill").args(["-s", "TERM", &id]).status());
    };
    assert_eq!(status.code(), Some(1));
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        said.contains("received SIGTERM before the recording was written"),
        "{said}"
    );
}
