//! A replica of nvlink-webhook over the minutes of a scenario, with the metrics of docs/reference.md that rules read, and
//! what the API server says of its calls.

use super::{
    machine::{Life, Series, State, at},
    values::Sample,
};

/// It serves while it is busy, and starts while it is joining.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) instance: &'static str,
    pub(super) life: Life,
    /// The minute from which on it leads.
    pub(super) leads: Option<u32>,
    /// The minute from which on the policies are those of another version.
    pub(super) outdated: Option<u32>,
}

const OUTCOMES: [(&str, f64); 5] = [
    ("mutated", 20.0),
    ("untouched", 100.0),
    ("denied", 2.0),
    ("invalid", 0.0),
    ("overloaded", 0.0),
];

impl Replica {
    /// One that serves all the time.
    pub(super) fn new(instance: &'static str) -> Self {
        let life = vec![(0, State::Busy)];
        Self {
            instance,
            life,
            leads: None,
            outdated: None,
        }
    }

    pub(super) fn series(&self, minutes: &[u32]) -> Vec<Series> {
        let since = |from: Option<u32>, minute: u32| from.is_some_and(|from| from <= minute);
        let one = |of: bool| f64::from(u8::from(of));
        let mut all = vec![
            self.one("up", "", minutes, |_, _| 1.0),
            self.one("nvlink_webhook_ready", "", minutes, |serves, _| one(serves)),
            self.one("nvlink_webhook_registered", "", minutes, |_, _| 1.0),
            self.one("nvlink_webhook_leader", "", minutes, |serves, minute| {
                one(serves && since(self.leads, minute))
            }),
            self.one(
                "nvlink_webhook_policies_current",
                "",
                minutes,
                |_, minute| one(!since(self.outdated, minute)),
            ),
            self.one(
                "nvlink_webhook_certificate_expiry_timestamp_seconds",
                "",
                minutes,
                |serves, _| 90.0 * 86_400.0 * one(serves),
            ),
        ];
        for kind in ["Pod", "Node", "NodeTopology", "DomainClass"] {
            let kind = format!(r#",kind="{kind}""#);
            all.push(self.one(
                "nvlink_webhook_cache_age_seconds",
                &kind,
                minutes,
                |_, _| 0.0,
            ));
        }
        for (outcome, rate) in OUTCOMES {
            let outcome = format!(r#",outcome="{outcome}""#);
            let name = "nvlink_webhook_admission_requests_total";
            all.push(self.one(name, &outcome, minutes, |_, minute| {
                rate * f64::from(minute)
            }));
        }
        for le in ["0.01", "0.1", "1.0", "+Inf"] {
            let le = format!(r#",le="{le}""#);
            let name = "nvlink_webhook_admission_duration_seconds_bucket";
            all.push(self.one(name, &le, minutes, |_, minute| 122.0 * f64::from(minute)));
        }
        all
    }

    /// Returns a series, by whether the replica serves and for how many minutes it has run.
    fn one(
        &self,
        name: &str,
        labels: &str,
        minutes: &[u32],
        value: impl Fn(bool, u32) -> f64,
    ) -> Series {
        let is_counter = name.ends_with("_total") || name.ends_with("_bucket");
        let start = self.life.iter().find(|(_, state)| *state != State::Gone);
        let start = start.map_or(0, |(from, _)| *from);
        let values = minutes.iter().map(|minute| match at(&self.life, *minute) {
            State::Gone => Sample::Absent,
            state => {
                let since = if is_counter { *minute - start } else { *minute };
                Sample::Value(value(state == State::Busy, since))
            }
        });
        let instance = self.instance;
        let series = format!(r#"{name}{{instance="{instance}",job="nvlink-webhook"{labels}}}"#);
        (series, values.collect())
    }
}

/// Returns what an API server counts: pods that are refused by decision, and no call that fails.
pub(super) fn api_server(minutes: &[u32]) -> Vec<Series> {
    let entry = r#"instance="10.0.0.1:6443",job="apiserver",name="class.nvlink-domains.io""#;
    [("no_error", 2.0), ("calling_webhook_error", 0.0)]
        .map(|(error, rate)| {
            let name = "apiserver_admission_webhook_rejection_count";
            let values = minutes
                .iter()
                .map(|minute| Sample::Value(rate * f64::from(*minute)));
            let series = format!(r#"{name}{{{entry},error_type="{error}"}}"#);
            (series, values.collect())
        })
        .into()
}
