//! A machine with GPUs over the minutes of a scenario: what its exporter and kube-state-metrics say of it.

use super::{
    pages::{Condition, Kind, NAMESPACE, NODE, POD, name, page},
    values::Sample,
};

/// The identity of the fabric on the pages of a tray, without its last digit.
const FABRIC: &str = "6f1f4e35-9c0b-4d52-8a67-2b0c7e91d3a";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Busy,
    /// A pod holds the GPUs and does not communicate.
    Idle,
    Broken,
    Empty,
    /// As a boot and a new driver leave it for some minutes.
    Joining,
    Released,
    /// The driver is upgraded, and the exporter has left the machine.
    Upgraded,
    /// The exporter ends.
    Ending,
    /// There is no such exporter.
    Gone,
    /// The machine reboots.
    Down,
}

impl State {
    fn condition(self) -> Option<Condition> {
        match self {
            Self::Busy | Self::Idle => Some(Condition::Held),
            Self::Broken => Some(Condition::Broken),
            Self::Empty => Some(Condition::Empty),
            Self::Joining => Some(Condition::Joining),
            Self::Released => Some(Condition::Released),
            Self::Upgraded | Self::Ending | Self::Gone | Self::Down => None,
        }
    }

    fn is_target(self) -> bool {
        !matches!(self, Self::Upgraded | Self::Gone)
    }

    /// Bytes that a GPU sends and receives in a minute.
    fn traffic(self) -> f64 {
        match self {
            Self::Busy | Self::Broken => 1e12,
            _ => 1e6,
        }
    }
}

/// States, each with the minute from which on it is so.
pub(super) type Life = Vec<(u32, State)>;

/// Returns the state at a minute.
pub(super) fn at(life: &Life, minute: u32) -> State {
    let past = life.iter().take_while(|(from, _)| *from <= minute);
    past.last().map_or(State::Gone, |(_, state)| *state)
}

/// Errors that each GPU, or one of them, counts in a minute.
#[derive(Clone, Debug)]
pub(super) struct Errors {
    pub(super) minute: u32,
    pub(super) gpu: Option<u32>,
    pub(super) kind: &'static str,
    pub(super) count: u32,
}

impl Errors {
    fn are_of(&self, series: &str) -> bool {
        let gpu = self.gpu.map(|gpu| format!(r#"{{gpu="{gpu}","#));
        name(series) == "nvlink_gpu_errors_total"
            && series.contains(&format!(r#"kind="{}""#, self.kind))
            && gpu.is_none_or(|gpu| series.contains(&gpu))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The address of the exporter.
    pub(super) instance: String,
    pub(super) namespace: &'static str,
    /// The number of the rack of a tray.
    pub(super) rack: u32,
    pub(super) life: Life,
    /// Its series are those of all GPUs; else the first GPU stands for the others, which are like it.
    pub(super) whole: bool,
    pub(super) errors: Vec<Errors>,
}

/// A series, and what it has at the minutes that were asked for.
pub(super) type Series = (String, Vec<Sample>);

impl Machine {
    /// Returns the series of its exporter.
    pub(super) fn exported(&self, minutes: &[u32]) -> Vec<Series> {
        let states: Vec<State> = minutes.iter().map(|at_| at(&self.life, *at_)).collect();
        let conditions = states.iter().filter_map(|state| state.condition());
        let mut conditions: Vec<_> = conditions.collect();
        conditions.sort();
        conditions.dedup();
        let mut all: Vec<&String> = conditions
            .iter()
            .flat_map(|condition| page(self.kind, *condition).keys())
            .collect();
        all.sort();
        all.dedup();
        all.retain(|series| self.shows(series, &conditions));
        let up = states.iter().map(|state| match state {
            state if !state.is_target() => Sample::Absent,
            state => Sample::Value(f64::from(state.condition().is_some())),
        });
        let up = (self.rename("up{}"), up.collect());
        let values = all.into_iter().map(|series| {
            let values = self.values(series, minutes, &states);
            (self.rename(series), values)
        });
        [up].into_iter().chain(values).collect()
    }

    /// Reports whether a series can tell a rule something. Most say all the time that nothing is wrong.
    fn shows(&self, series: &str, conditions: &[Condition]) -> bool {
        let is_first = !series.contains(r#"{gpu=""#) || series.contains(r#"{gpu="0""#);
        if !is_first && !self.whole {
            return false;
        }
        let mut values = conditions
            .iter()
            .filter_map(|condition| page(self.kind, *condition).get(series));
        let first = values.next();
        if values.any(|value| Some(value) != first)
            || self.errors.iter().any(|errors| errors.are_of(series))
        {
            return true;
        }
        match name(series) {
            "nvlink_gpu_errors_total"
            | "nvlink_bit_error_ratio"
            | "nvlink_fabric_health"
            | "nvlink_gpu_row_remap"
            | "nvlink_gpu_recovery_action" => first != Some(&0.0),
            "nvlink_link_up" => series.contains(r#"link="0""#),
            "nvlink_nic_speed_bytes_per_second" => series.contains(r#"nic="mlx5_0""#),
            "nvlink_peer_links" => is_first,
            "nvlink_fabric_state" => series.contains(r#"state="completed""#),
            _ => true,
        }
    }

    fn values(&self, series: &str, minutes: &[u32], states: &[State]) -> Vec<Sample> {
        let name = name(series);
        let (mut bytes, mut started, mut seen, mut last) = (0.0, 0, None, 0);
        let value = |(minute, state): (&u32, &State)| {
            let Some(condition) = state.condition() else {
                (bytes, started, seen, last) = (0.0, *minute, None, *minute);
                return Sample::Absent;
            };
            bytes += state.traffic() * f64::from(*minute - last);
            last = *minute;
            let found = page(self.kind, condition).get(series).copied();
            if found.is_some() {
                seen = seen.or(Some(*minute));
            }
            let errors = || {
                let all = self.errors.iter().filter(|errors| errors.are_of(series));
                let past = all.filter(|errors| (started..=*minute).contains(&errors.minute));
                f64::from(past.map(|errors| errors.count).sum::<u32>())
            };
            // An exporter keeps XIDs as long as it runs.
            let value = match name {
                "nvlink_xid_timestamp_seconds" => seen.map(|minute| f64::from(60 * minute)),
                "nvlink_xid_errors_total" => seen.map(|_| 1.0),
                "nvlink_gpu_errors_total" => found.map(|_| errors()),
                _ if name.ends_with("_bytes_total") => found.map(|_| bytes),
                _ => found,
            };
            value.map_or(Sample::Absent, Sample::Value)
        };
        minutes.iter().zip(states).map(value).collect()
    }

    /// Returns the series of this machine in place of that of a page.
    fn rename(&self, series: &str) -> String {
        let own = format!(r#"{{instance="{}",job="nvlink-exporter","#, self.instance);
        let series = match series.split_once('{') {
            Some((name, labels)) => format!("{name}{own}{labels}"),
            None => format!("{series}{own}}}"),
        };
        let fabric = format!("{FABRIC}{}", self.rack);
        series
            .replace(",}", "}")
            .replace(&format!("{FABRIC}8"), &fabric)
            .replace("\"GPU-", &format!("\"GPU-{}-", self.name))
            .replace(NAMESPACE, self.namespace)
            .replace(POD, &format!("job-{}", self.name))
            .replace(NODE, &self.name)
    }

    /// Returns the series of kube-state-metrics about the machine.
    pub(super) fn node(&self, minutes: &[u32]) -> Vec<Series> {
        let name = &self.name;
        let gpus = f64::from(self.kind.gpus());
        let allocatable = self.map(minutes, |state| match state {
            State::Joining | State::Released | State::Upgraded => Sample::Value(0.0),
            _ => Sample::Value(gpus),
        });
        let ready = self.map(minutes, |state| {
            Sample::Value(f64::from(state != State::Down))
        });
        vec![
            (
                format!(
                    r#"kube_node_status_allocatable{{node="{name}",resource="nvidia_com_gpu"}}"#
                ),
                allocatable,
            ),
            (
                format!(
                    r#"kube_node_status_condition{{node="{name}",condition="Ready",status="true"}}"#
                ),
                ready,
            ),
        ]
    }

    /// Returns the series of kube-state-metrics about the pod of the exporter.
    pub(super) fn pod(&self, minutes: &[u32]) -> Vec<Series> {
        let pod = self.instance.replace(['.', ':'], "-");
        let pod = format!(r#"namespace="nvlink-system",pod="nvlink-exporter-{pod}""#);
        let present = |value: f64| {
            move |state: State| match state.is_target() {
                true => Sample::Value(value),
                false => Sample::Absent,
            }
        };
        let (mut restarts, mut before) = (0.0, State::Busy);
        let restarts = self.map(minutes, |state| {
            if before == State::Down && state != State::Down {
                restarts += 1.0;
            }
            before = state;
            present(restarts)(state)
        });
        vec![
            (
                format!(r#"kube_pod_info{{{pod},node="{}"}}"#, self.name),
                self.map(minutes, present(1.0)),
            ),
            (
                format!(
                    r#"kube_pod_container_status_restarts_total{{{pod},container="exporter"}}"#
                ),
                restarts,
            ),
        ]
    }

    fn map(&self, minutes: &[u32], value: impl FnMut(State) -> Sample) -> Vec<Sample> {
        let states = minutes.iter().map(|minute| at(&self.life, *minute));
        states.map(value).collect()
    }
}
