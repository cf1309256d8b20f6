//! Prometheus and Alertmanager over running programs, and a receiver.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use nvlink_tests::{
    Alertmanager, Exporter, Notification, Prometheus, Receiver, Rules, http, wait_until, workdir,
};
use serde_json::{Value, json};

/// A minute of the rules is a second of the test.
pub(crate) const FACTOR: u32 = 60;
pub(crate) const SOON: Duration = Duration::from_secs(180);

/// A value of one of its labels, empty if any will do, and the name of an alert.
pub(crate) type Wanted<'a> = (&'a str, &'a str);

/// They end when this is dropped.
pub(crate) struct Watch {
    pub(crate) receiver: Receiver,
    pub(crate) alertmanager: Alertmanager,
    pub(crate) prometheus: Prometheus,
}

/// Returns the rules of these files, as fast as the tests need them.
pub(crate) fn rules(without: &[&str]) -> Rules {
    let all = Rules::read().unwrap().faster(FACTOR);
    without.iter().fold(all, |rules, file| rules.without(file))
}

/// Starts an exporter of a simulated machine.
pub(crate) fn start(node: &str, profile: &str, arguments: &[&str]) -> Exporter {
    let source = format!("sim:{profile}");
    let own = [
        "--source",
        &source,
        "--node-name",
        node,
        "--collection-interval",
        "1s",
    ];
    Exporter::start(&[&own, arguments].concat()).unwrap()
}

/// Replaces the faults of a simulated machine; empty text removes them.
pub(crate) fn set(exporter: &Exporter, faults: &str) {
    let url = exporter.url("/sim/faults");
    let method = if faults.is_empty() { "DELETE" } else { "PUT" };
    let answer = http::send(method, &url, faults).unwrap();
    assert_eq!(answer.status, 200, "{faults}: {}", answer.body);
}

/// Prints how long each alert took.
pub(crate) fn tell(begin: Instant, wanted: &[Wanted<'_>], times: &[Instant]) {
    for ((of, alert), at) in wanted.iter().zip(times) {
        let seconds = at.duration_since(begin).as_secs_f64();
        let of = if of.is_empty() { "the webhook" } else { of };
        eprintln!(
            "{alert}: {seconds:.1} s from the fault of {of} to the receiver, {FACTOR} times as fast"
        );
    }
}

impl Watch {
    /// Watches exporters, each with the name of its node.
    pub(crate) fn start(targets: &[(&str, &str)]) -> Self {
        // Without a webhook, the rules about it would say that it is down.
        Self::by(&rules(&["webhook.yaml"]), targets)
    }

    /// Watches exporters by these rules.
    pub(crate) fn by(rules: &Rules, targets: &[(&str, &str)]) -> Self {
        let group = |(node, address): &(&str, &str)| json!({"targets": [address], "labels": {"instance": node}});
        let groups: Vec<Value> = targets.iter().map(group).collect();
        let job =
            json!({"job_name": "nvlink-exporter", "honor_labels": true, "static_configs": groups});
        Self::of(vec![job], rules, targets.len())
    }

    /// Watches the targets of scrape configurations, `count` in all.
    pub(crate) fn of(jobs: Vec<Value>, rules: &Rules, count: usize) -> Self {
        let receiver = Receiver::start().unwrap();
        let alertmanager = Alertmanager::start(&receiver).unwrap();
        let prometheus = Prometheus::alerting(jobs, rules, &alertmanager).unwrap();
        let up = |samples: &[nvlink_tests::Sample]| {
            samples.first().is_some_and(|one| one.value == count as f64)
        };
        prometheus.wait_for("count(up == 1)", SOON, up).unwrap();
        Self {
            receiver,
            alertmanager,
            prometheus,
        }
    }

    /// Waits until each alert was delivered since `begin`, prints how long that took, and returns
    /// when it was.
    pub(crate) fn wait_until_firing(&self, begin: Instant, wanted: &[Wanted<'_>]) -> Vec<Instant> {
        let times = self.wait_for(wanted, |received| {
            let mut received = received.iter();
            received.find(|note| note.status == "firing" && note.at >= begin)
        });
        tell(begin, wanted, &times);
        times
    }

    /// Waits until the last word about each alert is that it is resolved.
    pub(crate) fn wait_until_resolved(&self, wanted: &[Wanted<'_>]) {
        self.wait_for(wanted, |received| {
            received.last().filter(|note| note.status == "resolved")
        });
    }

    /// Returns what was delivered of an alert.
    pub(crate) fn received(&self, (of, alert): Wanted<'_>) -> Vec<Notification> {
        let is_meant = |note: &Notification| {
            let labelled = of.is_empty() || note.labels.values().any(|value| value == of);
            note.label("alertname") == alert && labelled
        };
        let mut received = self.receiver.received();
        received.retain(is_meant);
        received
    }

    fn wait_for(
        &self,
        wanted: &[Wanted<'_>],
        found: impl Fn(&[Notification]) -> Option<&Notification>,
    ) -> Vec<Instant> {
        let times = wait_until("the notifications", SOON, || {
            let mut times = Vec::new();
            for &(of, alert) in wanted {
                let received = self.received((of, alert));
                let note = found(&received).with_context(|| {
                    format!("{alert} of {of}: last came {:#?}", received.last())
                })?;
                times.push(note.at);
            }
            Ok(Some(times))
        });
        times.unwrap()
    }
}

/// Targets of Prometheus that change while it runs.
pub(crate) struct Targets(PathBuf);

impl Targets {
    pub(crate) fn new() -> Self {
        Self(workdir::fresh("targets").unwrap().join("targets.json"))
    }

    /// Replaces the targets by these addresses.
    pub(crate) fn set(&self, addresses: &[&str]) {
        let next = self.0.with_extension("next");
        fs::write(&next, json!([{"targets": addresses}]).to_string()).unwrap();
        fs::rename(next, &self.0).unwrap();
    }

    /// Returns the scrape configuration.
    pub(crate) fn job(&self, name: &str) -> Value {
        let files = json!([{"files": [self.0], "refresh_interval": "1s"}]);
        json!({"job_name": name, "honor_labels": true, "file_sd_configs": files})
    }
}
