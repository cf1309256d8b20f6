//! How long a pod may run, and how long it probably will.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use nvlink_api::{class::duration, pod};
use nvlink_topology::labels;
use serde_json::Value;

use super::{
    life::time,
    past::{Spread, Worth},
};

/// The annotation in which GitLab Runner writes the job's timeout, such as `1h0m0s`
/// (<https://docs.gitlab.com/runner/executors/kubernetes/>). Anybody can write it into a pod, and
/// nothing in the cluster enforces it. So it counts only in pods of a project of GitLab, by the
/// label that the webhook sets where one of the runners that the class lists creates the pod.
const GITLAB_TIMEOUT: &str = "job.runner.gitlab.com/timeout";
/// The names of these projects begin so.
const GITLAB_PROJECT: &str = "gitlab.";

/// What limits the run of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long its author expects it to run.
    pub expected: Option<Duration>,
    /// How long it may run: its `activeDeadlineSeconds`, which Kubernetes counts from the moment
    /// when the kubelet accepts the pod.
    pub run: Option<Duration>,
    /// When it ends at the latest, however long it waits: the deadline of its Job and the timeout
    /// of its GitLab job, which both count from before the pod was created.
    pub end: Option<Timestamp>,
}

/// How long a pod will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// How long it probably runs.
    pub likely: Duration,
    /// How long it runs at most, by its limits, else by the spread of past runs.
    pub longest: Duration,
    /// Where the estimate comes from.
    pub source: Source,
}

/// Where an estimate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Its author says so.
    Expected,
    /// Past runs of the same job.
    Past {
        /// Number of runs.
        runs: usize,
    },
    /// Nothing else than a limit is known, which most jobs do not reach.
    Limit,
}

impl Estimate {
    /// Plans allow for so much more than the likely time, as a part of it.
    ///
    /// Reservations end at the likely time plus this. With the whole spread of past runs, where
    /// these are unlike, GPUs stay idle before the jobs that wait for them, and small jobs do not
    /// fit in between: simulated on 1,200 jobs on 96 GPUs whose runs vary by a log-normal factor
    /// of sigma 1, the mean wait is 6 to 38 % longer than without any allowance, and within 5 % of
    /// it with a quarter; at sigma 0.2 and 0.5 all of these differ by chance only. Where a job runs
    /// longer, its reservation grows step by step, as Tsafrir et al. do for predictions (IEEE TPDS
    /// 18(6), 2007).
    const ALLOWANCE: u32 = 4;

    /// Returns how much longer than the likely time the pod is planned to hold its GPUs.
    #[must_use]
    pub fn allowance(&self) -> Duration {
        let spread = self.longest.saturating_sub(self.likely);
        spread.min(self.likely / Self::ALLOWANCE)
    }
}

impl Limits {
    /// Reads the limits of `pod`; `job` is the Job that owns it.
    #[must_use]
    pub fn of(pod: &Value, job: Option<&Value>) -> Self {
        let annotation = |key| pod::metadata(pod, "annotations", key).and_then(Value::as_str);
        let created = time(pod, &["metadata", "creationTimestamp"]);
        let project = pod::metadata(pod, "labels", labels::PROJECT).and_then(Value::as_str);
        let by_runner = project.is_some_and(|project| project.starts_with(GITLAB_PROJECT));
        let gitlab = annotation(GITLAB_TIMEOUT).filter(|_| by_runner);
        let gitlab = created.zip(gitlab.and_then(go_duration));
        let end = |(from, after): (Timestamp, Duration)| from.checked_add(after).ok();
        let this = Self {
            expected: annotation(labels::EXPECTED_DURATION).and_then(duration::parse),
            run: deadline(pod),
            end: gitlab.and_then(end),
        };
        match job {
            Some(job) => this.within(job, created),
            None => this,
        }
    }

    /// Returns the limits of a pod of `job`, which began no later than at `latest`: the API may not
    /// show yet when a Job began whose first pod it shows.
    #[must_use]
    pub fn within(self, job: &Value, latest: Option<Timestamp>) -> Self {
        let began = time(job, &["status", "startTime"]).or(latest);
        let end = began.zip(deadline(job));
        let end = end.and_then(|(began, after)| began.checked_add(after).ok());
        Self {
            end: self.end.into_iter().chain(end).min(),
            ..self
        }
    }

    /// Reports whether nothing limits the run.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// Returns how long the pod will run if it starts at `start`, `past` being the past runs of
    /// the same job; `None` if nothing is known. Its author's word counts, as far as those of its
    /// project were `worth` something, unless most past runs took longer: so nobody gains by saying
    /// less.
    #[must_use]
    pub fn estimate(
        &self,
        past: Option<Spread>,
        worth: Worth,
        start: Timestamp,
    ) -> Option<Estimate> {
        let left = self
            .end
            .map(|end| Duration::try_from(end.duration_since(start)).unwrap_or_default());
        let limit = self.run.into_iter().chain(left).min();
        let cut = |duration: Duration| limit.map_or(duration, |limit| duration.min(limit));
        let runs_longer = |expected| past.is_some_and(|past: Spread| past.median > expected);
        let expected = self.expected.map(|expected| worth.of(expected));
        if let Some(expected) = expected.filter(|expected| !runs_longer(*expected)) {
            return Some(Estimate {
                likely: cut(expected),
                longest: limit.unwrap_or(expected),
                source: Source::Expected,
            });
        }
        if let Some(past) = past {
            return Some(Estimate {
                likely: cut(past.median),
                longest: cut(past.most),
                source: Source::Past { runs: past.runs },
            });
        }
        limit.map(|limit| Estimate {
            likely: limit,
            longest: limit,
            source: Source::Limit,
        })
    }
}

/// Returns `spec.activeDeadlineSeconds` of a pod or Job.
fn deadline(object: &Value) -> Option<Duration> {
    let seconds = pod::at(object, &["spec", "activeDeadlineSeconds"])?.as_u64()?;
    Some(Duration::from_secs(seconds))
}

/// Parses a duration as Go prints it: `2h3m0.5s`, `1m30s`, `500ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(split);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        let part = Duration::try_from_secs_f64(number * scale).ok()?;
        total = total.checked_add(part)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn durations_of_go() {
        for (text, milliseconds) in [
            ("1h0m0s", Some(3_600_000)),
            ("2h3m0.5s", Some(7_380_500)),
            ("90s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("500ms", Some(500)),
            ("0s", Some(0)),
            ("", None),
            ("60", None),
            ("-1h", None),
            ("1d", None),
            ("1..5h", None),
            ("h", None),
            ("99999999999999999999999h", None),
        ] {
            let expected = milliseconds.map(Duration::from_millis);
            assert_eq!(go_duration(text), expected, "{text}");
        }
    }

    #[test]
    fn limits_come_from_pod_job_and_gitlab() {
        let created = "2026-08-01T10:00:00Z";
        let gitlab = json!({
            "metadata": {
                "creationTimestamp": created,
                "labels": {labels::PROJECT: "gitlab.42"},
                "annotations": {
                    GITLAB_TIMEOUT: "1h0m0s", labels::EXPECTED_DURATION: "20m"
                }
            },
            "spec": {"activeDeadlineSeconds": 3601, "containers": []}
        });
        let limits = Limits::of(&gitlab, None);
        let expected = Limits {
            expected: Some(Duration::from_secs(1200)),
            run: Some(Duration::from_secs(3601)),
            end: Some(at("2026-08-01T11:00:00Z")),
        };
        assert_eq!(limits, expected);
        // Somebody says so who is no runner of the class.
        let mut by_hand = gitlab.clone();
        by_hand["metadata"]["labels"][labels::PROJECT] = json!("team");
        assert_eq!(Limits::of(&by_hand, None).end, None);
        let job = json!({
            "spec": {"activeDeadlineSeconds": 600},
            "status": {"startTime": "2026-08-01T09:59:00Z"}
        });
        assert_eq!(
            Limits::of(&gitlab, Some(&job)).end,
            Some(at("2026-08-01T10:09:00Z"))
        );
        assert_eq!(Limits::of(&json!({}), Some(&json!({}))), Limits::default());
    }

    #[test]
    fn an_estimate_prefers_what_is_known_best() {
        let start = at("2026-08-01T10:30:00Z");
        let past = Spread {
            runs: 5,
            median: HOUR,
            most: 2 * HOUR,
        };
        let estimate = |limits: Limits, past| {
            let estimate = limits.estimate(past, Worth::FULL, start)?;
            Some((estimate.likely, estimate.longest, estimate.source))
        };
        assert_eq!(estimate(Limits::default(), None), None);
        let runs = Source::Past { runs: 5 };
        assert_eq!(
            estimate(Limits::default(), Some(past)),
            Some((HOUR, 2 * HOUR, runs))
        );
        let limited = Limits {
            run: Some(4 * HOUR),
            end: Some(at("2026-08-01T12:00:00Z")),
            ..Limits::default()
        };
        let left = HOUR + HOUR / 2;
        assert_eq!(estimate(limited, None), Some((left, left, Source::Limit)));
        assert_eq!(estimate(limited, Some(past)), Some((HOUR, left, runs)));
        let expected = Limits {
            expected: Some(HOUR / 4),
            ..limited
        };
        assert_eq!(
            estimate(expected, None),
            Some((HOUR / 4, left, Source::Expected))
        );
        let late = Limits {
            end: Some(at("2026-08-01T10:00:00Z")),
            ..Limits::default()
        };
        assert_eq!(
            estimate(late, None),
            Some((Duration::ZERO, Duration::ZERO, Source::Limit))
        );
    }

    #[test]
    fn plans_allow_for_a_part_of_what_a_run_may_take_longer() {
        let past = Spread {
            runs: 5,
            median: HOUR,
            most: 2 * HOUR,
        };
        let alike = Spread {
            most: HOUR + HOUR / 10,
            ..past
        };
        let limited = Limits {
            run: Some(4 * HOUR),
            ..Limits::default()
        };
        let expected = Limits {
            expected: Some(HOUR / 4),
            ..limited
        };
        let start = at("2026-08-01T10:30:00Z");
        for (limits, past, allowance) in [
            (Limits::default(), Some(past), HOUR / 4),
            (Limits::default(), Some(alike), HOUR / 10),
            (expected, None, HOUR / 16),
            (limited, None, Duration::ZERO),
        ] {
            let estimate = limits.estimate(past, Worth::FULL, start).unwrap();
            assert_eq!(estimate.allowance(), allowance);
        }
    }

    #[test]
    fn nobody_gains_by_claiming_less_than_past_runs_took() {
        let past = Spread {
            runs: 5,
            median: HOUR,
            most: 2 * HOUR,
        };
        let estimate = |claimed| {
            let limits = Limits {
                expected: Some(claimed),
                ..Limits::default()
            };
            let estimate = limits.estimate(Some(past), Worth::FULL, at("2026-08-01T10:30:00Z"));
            estimate.map(|one| (one.likely, one.longest, one.source))
        };
        let runs = Source::Past { runs: 5 };
        assert_eq!(estimate(HOUR / 60), Some((HOUR, 2 * HOUR, runs)));
        for claimed in [HOUR, 3 * HOUR] {
            let told = Some((claimed, claimed, Source::Expected));
            assert_eq!(estimate(claimed), told);
        }
    }
}
