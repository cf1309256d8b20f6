//! Which alerts fire when, by the project's rules on promtool.

use std::{collections::BTreeMap, fs, process::Command};

use nvlink_tests::{Rules, assets, workdir};
use serde_json::{Value, json};

use super::{super::files, scenarios::Scenario, values::notation};

/// How long an Alertmanager that hears no more of an alert keeps it: four evaluations of a minute.
const FORGOTTEN: u32 = 4;

/// An alert, and from when to when it fires.
#[derive(Clone, Debug)]
pub(super) struct Firing {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) from: u32,
    /// `None` if it fires to the end.
    pub(super) to: Option<u32>,
}

/// Runs a test in which no alert may fire: promtool prints those that do.
pub(super) fn firing(scenario: &Scenario) -> Vec<Firing> {
    let times: Vec<u32> = (0..scenario.minutes)
        .step_by(scenario.interval as usize)
        .filter(|minute| !scenario.unwatched.contains(minute))
        .collect();
    let file = workdir::fresh("fleet").unwrap().join("test.json");
    // YAML is a superset of JSON.
    fs::write(&file, test(scenario, &times).to_string()).unwrap();
    let mut promtool = Command::new(assets::path("promtool").unwrap());
    let output = promtool
        .args(["test", "rules"])
        .arg(&file)
        .output()
        .unwrap();
    let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let all = parse(&told);
    assert!(
        output.status.success() || !all.is_empty(),
        "{}: {told}",
        scenario.name
    );
    let mut firings: Vec<Firing> = all
        .into_iter()
        .flat_map(|((labels, annotations), minutes)| runs(scenario, labels, annotations, &minutes))
        .collect();
    firings.sort_by_key(|firing| (firing.from, firing.labels.clone()));
    firings
}

fn test(scenario: &Scenario, times: &[u32]) -> Value {
    let rules = Rules::read().unwrap();
    let names = rules.alerts();
    let tests = times.iter().flat_map(|minute| {
        let time = format!("{minute}m");
        names
            .iter()
            .map(move |name| json!({"eval_time": time, "alertname": name, "exp_alerts": []}))
    });
    // What is recorded comes before what reads it.
    let mut groups: Vec<_> = rules.groups().collect();
    groups.sort_by_key(|(_, rules)| rules.first().is_some_and(|rule| rule["alert"].is_string()));
    let groups: Vec<_> = groups.iter().map(|(name, _)| name).collect();
    let series = scenario.series();
    let series = series
        .iter()
        .map(|(series, samples)| json!({"series": series, "values": notation(samples)}));
    json!({
        "rule_files": files("alerts/rules"),
        "evaluation_interval": format!("{}m", scenario.interval),
        "group_eval_order": groups,
        "tests": [{
            "interval": format!("{}m", scenario.scrape),
            "input_series": series.collect::<Vec<_>>(),
            "alert_rule_test": tests.collect::<Vec<_>>(),
        }],
    })
}

type Pairs = BTreeMap<String, String>;

/// Returns the minutes at which each alert fires. Its annotations are those of the first.
fn parse(told: &str) -> BTreeMap<(Pairs, Pairs), Vec<u32>> {
    let mut all: BTreeMap<Pairs, (Pairs, Vec<u32>)> = BTreeMap::new();
    let (mut minute, mut labels) = (0, Pairs::new());
    for line in told.lines().map(str::trim) {
        if line.starts_with("alertname:") {
            let time = line.split("time: ").nth(1).unwrap();
            minute = minutes(time.trim_end_matches([',', ' ']));
        } else if let Some(text) = line.strip_prefix("Labels:{") {
            labels = pairs(text);
        } else if let Some(text) = line.strip_prefix("Annotations:{") {
            let new = || (pairs(text), Vec::new());
            let found = all.entry(std::mem::take(&mut labels)).or_insert_with(new);
            found.1.push(minute);
        } else {
            assert!(!line.contains("err:"), "{line}");
        }
    }
    let all = all.into_iter();
    all.map(|(labels, (annotations, minutes))| ((labels, annotations), minutes))
        .collect()
}

/// Reads `a="b", c="d"}`.
fn pairs(text: &str) -> Pairs {
    let mut found = Pairs::new();
    let mut rest = text;
    while let Some((name, value)) = rest.split_once('=') {
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<String>();
        let text = values.next().unwrap().unwrap();
        found.insert(name.trim_start_matches([',', ' ']).to_owned(), text);
        rest = &value[values.byte_offset()..];
    }
    found
}

/// Reads a time such as `1d2h5m`.
fn minutes(text: &str) -> u32 {
    let units = text.split_inclusive(['d', 'h', 'm', 's']);
    let minutes = units.map(|part| {
        let (number, unit) = part.split_at(part.len() - 1);
        let number: u32 = number.parse().unwrap();
        number
            * match unit {
                "d" => 1440,
                "h" => 60,
                "m" => 1,
                _ => 0,
            }
    });
    minutes.sum()
}

/// Returns what fires without a pause.
fn runs(scenario: &Scenario, labels: Pairs, annotations: Pairs, minutes: &[u32]) -> Vec<Firing> {
    let (step, gap) = (scenario.interval, &scenario.unwatched);
    let last = (scenario.minutes - 1) / step * step;
    let runs = minutes.chunk_by(|a, b| b - a == step);
    let firing = runs.map(|run| {
        let (from, end) = (run[0], run[run.len() - 1]);
        let to = if !gap.is_empty() && end + step == gap.start {
            Some(end + FORGOTTEN)
        } else {
            (end != last).then_some(end + step)
        };
        Firing {
            labels: labels.clone(),
            annotations: annotations.clone(),
            from,
            to,
        }
    });
    firing.collect()
}

#[test]
fn what_promtool_prints_is_read() {
    let told = r#"
    alertname: A, time: 1h10m, 
        exp:[], 
        got:[
            0:
              Labels:{alertname="A", node="x"}
              Annotations:{summary="b{c=\"d\"}, é"}
            ]
"#;
    let all = parse(told);
    let ((labels, annotations), minutes) = all.first_key_value().unwrap();
    assert_eq!(labels["node"], "x");
    assert_eq!(annotations["summary"], "b{c=\"d\"}, é");
    assert_eq!(minutes, &[70]);
}
