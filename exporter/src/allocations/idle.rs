//! Since when the NVLinks of a job have been idle. A job that should communicate over them either
//! waits, or communicates another way.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use nvlink_history::{Key, totals::GpuTotals};
use nvlink_topology::{Allocation, Gpu, Pattern};

use crate::placement::Judged;

/// How long the NVLinks of a job must be idle before it is published: loading data and starting take
/// minutes. The alert `NvlinkJobSlow` looks back as long.
const LASTING: Duration = Duration::from_secs(30 * 60);
/// Idle NVLinks carry less than this share of the line rate, in the busier direction, as in the alert
/// `NvlinkGpusIdle`.
const IDLE: f64 = 0.0005;

/// What the clock of the node may differ, in seconds, before a published time is corrected.
const CLOCK: i64 = 60;

/// A container of a pod: namespace, pod, its UID, container.
type Name = (String, String, Option<String>, String);

/// What the NVLinks of jobs did until the last look.
#[derive(Debug, Default)]
pub(super) struct Idle {
    before: Option<Seen>,
    since: BTreeMap<Name, Since>,
}

/// The totals of a reading.
#[derive(Debug)]
struct Seen {
    at: Instant,
    totals: BTreeMap<Key, GpuTotals>,
}

#[derive(Clone, Debug)]
struct Since {
    at: Instant,
    /// The same by the clock of the node, once it is published. It changes only if the clock was set.
    published: Option<Timestamp>,
}

impl Idle {
    /// Sets `idle_since` of each allocation in `judged`. The reading with `gpus` and `totals` ended `at`,
    /// which is `now` by the clock of the node.
    pub(super) fn look(
        &mut self,
        gpus: &[Gpu],
        totals: &[GpuTotals],
        judged: &mut [Judged],
        (at, now): (Instant, Timestamp),
    ) {
        let seen = Seen::new(gpus, totals, at);
        let begin = self.before.as_ref().map_or(at, |before| before.at);
        // A reading without counters tells nothing: the next one tells of the whole time.
        let tells = !seen.totals.is_empty();
        if tells && begin < at {
            let idle = self.idle(gpus, &seen);
            let idle = |one: &&Judged| can_communicate(one) && idle.is_superset(&held(one));
            let names = judged.iter().filter(idle).map(|one| name(&one.allocation));
            let since = names.map(|name| {
                let known = self.since.remove(&name);
                let published = None;
                // Not since the last look: the pod may have started in between.
                let new = Since { at, published };
                (name, known.unwrap_or(new).lasting(at, now))
            });
            self.since = since.collect();
        }
        if tells {
            self.before = Some(seen);
        }
        for one in judged {
            let since = self.since.get(&name(&one.allocation));
            let published = since.and_then(|since| since.published);
            one.allocation.idle_since = published.map(|at| at.to_string());
        }
    }

    /// Returns the GPUs whose NVLinks have been idle since the last reading.
    fn idle(&self, gpus: &[Gpu], seen: &Seen) -> BTreeSet<u32> {
        let idle = |gpu: &&Gpu| {
            let before = self.before.as_ref();
            let busiest = before.and_then(|before| seen.busiest(before, &key(gpu)));
            let rate = gpu.line_rate().map(|rate| rate as f64 * IDLE);
            busiest
                .zip(rate)
                .is_some_and(|(busiest, rate)| busiest < rate)
        };
        gpus.iter().filter(idle).map(|gpu| gpu.index).collect()
    }
}

impl Seen {
    fn new(gpus: &[Gpu], totals: &[GpuTotals], at: Instant) -> Self {
        let gpu = |index| gpus.iter().find(|gpu| gpu.index == index);
        let totals = totals.iter();
        let totals = totals.filter_map(|one| Some((key(gpu(one.gpu)?), one.clone())));
        Self {
            at,
            totals: totals.collect(),
        }
    }

    /// Returns the bytes per second of a GPU in its busier direction since `before`; `None` if it is not known.
    fn busiest(&self, before: &Self, gpu: &Key) -> Option<f64> {
        let (now, then) = (self.totals.get(gpu)?, before.totals.get(gpu)?);
        // A direction that is not counted tells nothing; a count that fell, that the other is not known either.
        let more = |of: fn(&GpuTotals) -> Option<u64>| match (of(now), of(then)) {
            (Some(now), Some(then)) => now.checked_sub(then).map(Some),
            _ => Some(None),
        };
        let most = more(|one| one.transmit_bytes)?.max(more(|one| one.receive_bytes)?)?;
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        (seconds > 0.0).then(|| most as f64 / seconds)
    }
}

impl Since {
    /// Returns the same, published if it has lasted until `at`, which is `now`.
    fn lasting(mut self, at: Instant, now: Timestamp) -> Self {
        let lasted = at.duration_since(self.at);
        let began = now.checked_sub(lasted).ok();
        let began = began.and_then(|began| Timestamp::from_second(began.as_second()).ok());
        let moved =
            |old: Timestamp| began.is_some_and(|new| (new - old).get_seconds().abs() > CLOCK);
        if lasted >= LASTING && self.published.is_none_or(moved) {
            self.published = began;
        }
        self
    }
}

/// Reports whether NVLink joins all GPUs of a job, and it should use that.
fn can_communicate(one: &Judged) -> bool {
    one.allocation.gpus.len() > 1
        && one.domains == Some(1)
        && one.pattern != Pattern::None
        && one.lost.is_empty()
}

fn held(one: &Judged) -> BTreeSet<u32> {
    one.allocation.gpus.iter().copied().collect()
}

fn key(gpu: &Gpu) -> Key {
    Key::new(gpu.index, gpu.uuid.as_deref())
}

fn name(one: &Allocation) -> Name {
    let (namespace, pod, uid) = (one.namespace.clone(), one.pod.clone(), one.pod_uid.clone());
    (namespace, pod, uid, one.container.clone())
}

#[cfg(test)]
mod tests {
    use nvlink_source::SourceSpec;

    use super::*;
    use crate::allocations::Judge;

    const MINUTE: u64 = 60;

    /// Jobs on a node with eight GPUs of 450 GB/s; each GPU has sent `sent` bytes by now.
    struct Node {
        gpus: Vec<Gpu>,
        jobs: Vec<Judged>,
        sent: [u64; 8],
        idle: Idle,
        start: Instant,
        seconds: u64,
        /// By how many seconds the clock is wrong.
        clock: i64,
    }

    impl Node {
        fn new(jobs: &[&[u32]]) -> Self {
            let source: SourceSpec = "sim:dgx-h100".parse().unwrap();
            let mut source = source.open(Some("n")).unwrap();
            let spec = source.read(Duration::ZERO).unwrap().topology.spec;
            let job = |(n, gpus): (usize, &&[u32])| {
                let allocation = Allocation {
                    pod: format!("job-{n}"),
                    pod_uid: Some(format!("uid-{n}")),
                    gpus: gpus.to_vec(),
                    ..Allocation::default()
                };
                (allocation, None)
            };
            let jobs = jobs.iter().enumerate().map(job).collect();
            Self {
                jobs: Judge::default().judge(&spec, jobs),
                gpus: spec.gpus,
                sent: [0; 8],
                idle: Idle::default(),
                start: Instant::now(),
                seconds: 0,
                clock: 0,
            }
        }

        /// Lets minutes pass in which each GPU of `busy` sends 1 GB/s, and returns since when the jobs are idle.
        fn pass(&mut self, minutes: u64, busy: &[usize]) -> Vec<Option<String>> {
            for _ in 0..minutes {
                self.seconds += MINUTE;
                busy.iter().for_each(|&gpu| self.sent[gpu] += MINUTE << 30);
                self.look();
            }
            let since = |one: &Judged| one.allocation.idle_since.clone();
            self.jobs.iter().map(since).collect()
        }

        fn look(&mut self) {
            let total = |(gpu, &sent): (usize, &u64)| GpuTotals {
                gpu: u32::try_from(gpu).unwrap(),
                transmit_bytes: Some(sent),
                receive_bytes: Some(0),
                ..GpuTotals::default()
            };
            let totals: Vec<_> = self.sent.iter().enumerate().map(total).collect();
            let at = self.start + Duration::from_secs(self.seconds);
            let now = self.now();
            let jobs = &mut self.jobs;
            self.idle.look(&self.gpus, &totals, jobs, (at, now));
        }

        fn now(&self) -> Timestamp {
            let now = 1_785_578_400 + self.clock + i64::try_from(self.seconds).unwrap();
            Timestamp::from_second(now).unwrap()
        }
    }

    fn since(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_job_is_idle_once_it_has_been_for_half_an_hour() {
        let mut node = Node::new(&[&[0, 1], &[2, 3]]);
        node.look();
        assert_eq!(node.pass(30, &[2]), [None, None]);
        let told = since("2026-08-01T10:01:00Z");
        assert_eq!(node.pass(1, &[2]), [told.clone(), None]);
        assert_eq!(node.pass(90, &[2]), [told, None], "it does not change");
        assert_eq!(node.pass(1, &[0]), [None, None], "it communicates");
        let again = since("2026-08-01T12:03:00Z");
        assert_eq!(node.pass(31, &[])[0], again, "it begins anew");
    }

    #[test]
    fn one_gpu_of_a_job_that_sends_is_enough() {
        let mut node = Node::new(&[&[0, 1, 2, 3]]);
        node.look();
        for _ in 0..4 {
            assert_eq!(node.pass(20, &[]), [None]);
            assert_eq!(node.pass(1, &[3]), [None]);
        }
    }

    #[test]
    fn who_cannot_or_need_not_communicate_is_not_idle() {
        let mut node = Node::new(&[&[0], &[1, 2], &[3, 4], &[5, 6]]);
        node.jobs[1].pattern = Pattern::None;
        node.jobs[2].domains = Some(2);
        node.look();
        let all = node.pass(31, &[]);
        assert_eq!(all[..3], [None, None, None]);
        assert!(all[3].is_some());
    }

    #[test]
    fn a_reading_without_counters_ends_nothing_and_hides_nothing() {
        let mut node = Node::new(&[&[0, 1]]);
        node.look();
        let told = node.pass(40, &[]);
        let blind = |node: &mut Node| {
            node.seconds += MINUTE;
            let at = node.start + Duration::from_secs(node.seconds);
            let now = node.now();
            node.idle.look(&node.gpus, &[], &mut node.jobs, (at, now));
        };
        blind(&mut node);
        assert_eq!(node.pass(1, &[]), told, "it goes on");
        blind(&mut node);
        node.sent[0] += 600 << 30;
        assert_eq!(node.pass(1, &[]), [None], "it sent meanwhile");
    }

    #[test]
    fn counters_that_fall_are_not_known() {
        let mut node = Node::new(&[&[0, 1]]);
        node.sent[0] = 1 << 40;
        node.look();
        assert!(node.pass(31, &[])[0].is_some());
        node.sent[0] = 0;
        assert_eq!(node.pass(1, &[]), [None]);
    }

    #[test]
    fn a_clock_that_is_set_corrects_the_time() {
        let mut node = Node::new(&[&[0, 1]]);
        node.clock = -3600;
        node.look();
        assert_eq!(node.pass(31, &[]), [since("2026-08-01T09:01:00Z")]);
        node.clock = 0;
        assert_eq!(node.pass(1, &[]), [since("2026-08-01T10:01:00Z")]);
    }

    #[test]
    fn another_pod_of_the_name_begins_anew() {
        let mut node = Node::new(&[&[0, 1]]);
        node.look();
        assert!(node.pass(40, &[])[0].is_some());
        node.jobs[0].allocation.pod_uid = Some("other".to_owned());
        // The kubelet did not answer for an hour, in which the pod started.
        node.seconds += 60 * MINUTE;
        assert_eq!(node.pass(30, &[]), [None]);
        assert!(node.pass(1, &[])[0].is_some());
    }

    #[test]
    fn the_same_reading_twice_changes_nothing() {
        let mut node = Node::new(&[&[0, 1]]);
        node.look();
        let told = node.pass(31, &[]);
        assert!(told[0].is_some());
        node.look();
        assert_eq!(node.pass(0, &[]), told);
    }
}
