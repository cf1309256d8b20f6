//! Pods as launchers, operators and CI systems create them: `tests/classify/*.yaml`.
//!
//! The first line of each file is the expected result. `tests/golden/classify.txt` shows the
//! reasons for users. `tests/launch-lines.yaml` has launch lines from the documentation of
//! projects.

use std::{fs, path::PathBuf};

use nvlink_admission::decide::Admitted;
use nvlink_topology::labels;

use crate::fixture::{admission, check_golden, subject};
use serde_json::{Value, json};

fn decide(mut pod: Value) -> Admitted {
    pod["metadata"]["annotations"][labels::CLASS] = json!("tcp");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let admit = |pod| runtime.block_on(admission(&[]).admit(pod, "ci", &subject()));
    let admitted = admit(pod).unwrap();
    assert!(admit(admitted.pod.clone()).unwrap().patch.is_empty());
    admitted
}

/// Returns the pattern with its attributes, in the form of the first line of a file.
fn outcome(admitted: &Admitted) -> String {
    let record = admitted.record.as_ref().unwrap();
    // The class's network variables are set if the job has other pods.
    let mut set = record.env.iter().chain(&record.unread);
    let spans = set.any(|name| name == "NCCL_IB_DISABLE");
    let mut words = vec![record.pattern.clone()];
    words.extend(record.guess.then(|| "a guess".to_owned()));
    words.extend(spans.then(|| "spans".to_owned()));
    words.join(", ")
}

#[test]
fn real_pods_are_classified() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/classify");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 30, "{} specs", files.len());
    let (mut told, mut wrong) = (String::new(), Vec::new());
    for path in files {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let expected = text.lines().next().unwrap().trim_start_matches("# ");
        let admitted = decide(serde_saphyr::from_str(&text).unwrap());
        let actual = outcome(&admitted);
        let from = admitted.record.unwrap().pattern_from;
        assert!(from.len() < 300, "{name}: {from}");
        if expected != actual {
            wrong.push(format!(
                "{name}: expected {expected}, got {actual} ({from})"
            ));
        }
        told.push_str(&format!("{name}: {actual}: {from}\n"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    check_golden("classify.txt", &told);
}

/// A row of `tests/launch-lines.yaml`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    doc: String,
    line: String,
    is: String,
    gpus: Option<u32>,
    image: Option<String>,
    #[serde(default)]
    env: std::collections::BTreeMap<String, String>,
}

impl Line {
    fn pod(&self) -> Value {
        let mut pod = crate::fixture::pod(self.gpus.unwrap_or(8), json!({}));
        let container = &mut pod["spec"]["containers"][0];
        match &self.image {
            Some(image) => {
                container["image"] = json!(image);
                container["args"] = json!(self.line.split(' ').collect::<Vec<_>>());
            }
            None => container["command"] = json!(["/bin/bash", "-c", self.line]),
        }
        let variables = self.env.iter();
        let variables = variables.map(|(name, value)| json!({"name": name, "value": value}));
        container["env"] = variables.collect();
        pod
    }
}

#[test]
fn documented_launch_lines_are_classified() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/launch-lines.yaml");
    let lines: Vec<Line> = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(lines.len() > 40, "{} lines", lines.len());
    let wrong: Vec<_> = lines
        .iter()
        .filter_map(|line| {
            let admitted = decide(line.pod());
            let (expected, actual) = (&line.is, outcome(&admitted));
            let from = admitted.record.unwrap().pattern_from;
            let Line { doc, line, .. } = line;
            let told = format!("{line}\n  is {expected}, not {actual} ({from})\n  {doc}");
            (*expected != actual).then_some(told)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_variable_of_the_class_does_not_change_the_pattern() {
    let admission = admission(&[]);
    let spec = json!({"environment": {"extra": {"DMLC_PS_ROOT_URI": "x", "TP": "2"}}});
    let class = nvlink_api::class::Class::new("own", &serde_json::from_value(spec).unwrap());
    admission
        .view
        .write()
        .set_class("own", class.map_err(|error| error.to_string()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut pod = crate::fixture::pod(2, json!({labels::CLASS: "own"}));
    pod["spec"]["containers"][0]["command"] = json!(["vllm", "serve", "m", "-tp", "$(TP)"]);
    let admit = |pod| runtime.block_on(admission.admit(pod, "ci", &subject()));
    let once = admit(pod).unwrap();
    let record = once.record.as_ref().unwrap();
    assert!(record.pattern == "all-reduce" && record.guess, "{record:?}");
    assert!(admit(once.pod).unwrap().patch.is_empty());
}

#[test]
fn a_long_script_is_read() {
    let mut pod = crate::fixture::pod(2, json!({}));
    let script = "a && ( b | \"c $(d)\" ) \n".repeat(40_000);
    pod["spec"]["containers"][0]["command"] = json!(["bash", "-c", script]);
    let record = decide(pod).record.unwrap();
    assert!(record.guess);
}
