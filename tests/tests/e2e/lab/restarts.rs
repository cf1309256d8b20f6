//! Restarts in random order while pods with GPUs come and go, with `nvlink-exporter device-plugin` and
//! with the vendor's device plugin alone. `RESTARTS=100` makes more of them than the few of each run.

use std::{
    collections::BTreeMap,
    env,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nvlink_tests::{Choice, LabNode, crowd, wait_until};
use serde_json::{Value, json};

use super::{Bench, preferred::Restart, spec};
use crate::allocations::held;

const PROFILE: &str = "dgx1-v100";
const GPU: &str = "nvidia.com/gpu";
const LONG: Duration = Duration::from_secs(90);
/// The kubelet has devices once it has handled the first list of them, a while after it began to
/// watch them: on a busy machine, a pod that comes in between is refused.
const HANDLED: Duration = Duration::from_secs(2);
/// Pods at a time, of one or two GPUs: more than there are GPUs for, so that one is always about to
/// start. Two GPUs belong to a pod that stays.
const PODS: usize = 8;
/// How the kubelet refuses a pod whose devices it does not have.
const REFUSED: &str = "UnexpectedAdmissionError";
/// A kubelet that is killed cancels the start of a container, whoever gave it devices.
const CANCELED: &str = "StartError";
/// What it began before it was killed may be in its own way for minutes.
const STUCK: &str = "still starting";

/// While some parts were away, until the kubelet had the devices again.
struct Window {
    parts: Vec<Restart>,
    from: Instant,
    /// How long they were away.
    away: Duration,
    /// When the kubelet has certainly handled their devices.
    until: Instant,
}

/// A pod that ended.
struct Ended {
    name: String,
    /// What became of it: `Succeeded`, or why it failed.
    reason: String,
    created: Instant,
    seen: Instant,
}

struct Outcome {
    windows: Vec<Window>,
    ended: Vec<Ended>,
}

impl Outcome {
    fn failed(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter().filter(|pod| pod.reason != "Succeeded")
    }

    /// Returns the times without devices in which a pod may have come to the node.
    fn windows_of(&self, pod: &Ended) -> impl Iterator<Item = &Window> {
        let windows = self.windows.iter();
        windows.filter(|one| pod.created <= one.until && pod.seen >= one.from)
    }
}

#[test]
fn no_pod_fails_in_restarts_that_would_not_fail_with_the_vendors_plugin_alone() {
    let restarts = env::var("RESTARTS").map_or(12, |text| text.parse().unwrap());
    thread::scope(|scope| {
        for (name, preferring) in [("lab-alone", false), ("lab-chaos", true)] {
            scope.spawn(move || check(name, preferring, restarts));
        }
    });
}

fn check(name: &str, preferring: bool, restarts: usize) {
    let node = LabNode::new(name, PROFILE).choosing(Choice::Scattered);
    let node = if preferring { node.preferring() } else { node };
    let bench = Bench::start_with(&node, PROFILE);
    let outcome = shaken(&bench, preferring, restarts);
    tell(name, &outcome);
    for pod in outcome.failed() {
        let (name, reason) = (&pod.name, &*pod.reason);
        let excuse = |window: &Window| match reason {
            REFUSED => true,
            CANCELED | STUCK => window.parts.contains(&Restart::Kubelet),
            _ => false,
        };
        let excused = outcome.windows_of(pod).any(excuse);
        assert!(excused, "{name} failed by itself: {reason}");
    }
    let ran = outcome.ended.len() - outcome.failed().count();
    assert!(ran >= restarts / 4, "{ran} pods prove nothing");
}

/// Restarts parts of a node in random order while pods come and go, and checks that nothing is lost.
fn shaken(bench: &Bench, preferring: bool, restarts: usize) -> Outcome {
    let steady = format!("{}-steady", bench.lab.name());
    bench.run_pod(&steady, 2);
    let before = held(&bench.wait_for_pod(&steady, 2), &steady);
    let stop = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let stream = scope.spawn(|| Stream::new(bench).run(&stop));
        let _stop = Stop(&stop);
        let windows = restart_all(bench, preferring, restarts);
        stop.store(true, Ordering::Relaxed);
        Outcome {
            windows,
            ended: stream.join().unwrap().unwrap(),
        }
    });
    bench.lab.wait_for_devices(GPU, 8).unwrap();
    // The rest of them, so that none is missing or unhealthy.
    let rest = format!("{}-rest", bench.lab.name());
    bench.run_pod(&rest, 6);
    assert_eq!(held(&bench.wait_for_pod(&rest, 6), &rest).len(), 6);
    let pod = bench.kubectl.get(&["pod", &steady]).unwrap();
    let status = &pod["status"]["containerStatuses"][0];
    assert!(
        status["restartCount"] == 0 && status["state"]["running"].is_object(),
        "{status:#}"
    );
    assert_eq!(held(&bench.wait_for_pod(&steady, 2), &steady), before);
    outcome
}

/// The same restarts for both nodes, but for those of what stands between.
fn restart_all(bench: &Bench, preferring: bool, restarts: usize) -> Vec<Window> {
    use Restart::{Between, Kubelet, Vendor};
    let mut random = fastrand::Rng::with_seed(16);
    let mut windows = Vec::new();
    let mut done = 0;
    while done < restarts {
        let mut parts = vec![Kubelet, Vendor, Between];
        random.shuffle(&mut parts);
        // Two at once now and then.
        parts.truncate(if random.u8(..4) == 0 { 2 } else { 1 });
        done += parts.len();
        // Pods must get their turn between two restarts.
        let pause = Duration::from_millis(random.u64(..4_000)) * crowd();
        parts.retain(|part| preferring || *part != Between);
        if parts.is_empty() {
            continue;
        }
        thread::sleep(pause);
        windows.push(restart(bench, parts));
    }
    windows
}

fn restart(bench: &Bench, parts: Vec<Restart>) -> Window {
    let lab = &bench.lab;
    let before = match parts.contains(&Restart::Between) {
        true => 0,
        false => lab.registrations(),
    };
    let from = Instant::now();
    parts.iter().for_each(|part| part.stop(lab));
    parts.iter().for_each(|part| part.start(lab));
    let what = format!("the devices after {parts:?}");
    let known = || Ok((lab.registrations() > before).then_some(()));
    lab.wait_for_kubelet(&what, LONG, known)
        .unwrap_or_else(|error| panic!("{error:?}"));
    Window {
        parts,
        from,
        away: from.elapsed(),
        until: Instant::now() + HANDLED * crowd(),
    }
}

/// Pods with GPUs that come and go.
struct Stream<'b> {
    bench: &'b Bench,
    running: BTreeMap<String, Instant>,
    ended: Vec<Ended>,
    /// How many of the ended ones are deleted.
    deleted: usize,
}

impl<'b> Stream<'b> {
    fn new(bench: &'b Bench) -> Self {
        Self {
            bench,
            running: BTreeMap::new(),
            ended: Vec::new(),
            deleted: 0,
        }
    }

    /// Creates pods until it shall stop, and waits for the last ones.
    fn run(mut self, stop: &AtomicBool) -> Result<Vec<Ended>> {
        while !stop.load(Ordering::Relaxed) {
            if self.running.len() < PODS {
                self.create()?;
            }
            self.look()?;
            self.delete()?;
        }
        let last = wait_until("the last pods to end", LONG, || {
            self.look()?;
            ensure!(self.running.is_empty(), "{:?}", self.running.keys());
            Ok(Some(()))
        });
        if last.is_err() {
            self.give_up()?;
        }
        Ok(self.ended)
    }

    /// Shows and deletes the pods that do not end.
    fn give_up(&mut self) -> Result<()> {
        for (name, created) in std::mem::take(&mut self.running) {
            let kubectl = self.bench.kubectl;
            println!("{}", kubectl.run(&["describe", "pod", &name])?);
            let phase = kubectl.get(&["pod", &name])?["status"]["phase"].clone();
            ensure!(phase == "Pending", "{name} is {phase}");
            kubectl.run(&["delete", "pod", &name])?;
            self.ended.push(Ended {
                name,
                reason: STUCK.to_owned(),
                created,
                seen: Instant::now(),
            });
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        let node = self.bench.lab.name();
        let number = self.running.len() + self.ended.len();
        let name = format!("{node}-{number}");
        let gpus = if number.is_multiple_of(2) { 2 } else { 1 };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"stream": node}},
            "spec": spec(node, gpus, "sleep 0.2"),
        });
        let created = Instant::now();
        self.bench.kubectl.create(&pod)?;
        self.running.insert(name, created);
        Ok(())
    }

    /// Deletes pods that ended, several at a time.
    fn delete(&mut self) -> Result<()> {
        let spent = &self.ended[self.deleted..];
        if spent.len() < 10 {
            return Ok(());
        }
        let names = spent.iter().map(|pod| &*pod.name);
        let delete: Vec<&str> = ["delete", "pods", "--wait=false"]
            .into_iter()
            .chain(names)
            .collect();
        self.bench.kubectl.run(&delete)?;
        self.deleted = self.ended.len();
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        let selector = format!("stream={}", self.bench.lab.name());
        let pods = self.bench.kubectl.get(&["pods", "-l", &selector])?;
        let seen = Instant::now();
        for pod in pods["items"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let Some(reason) = end(pod) else { continue };
            if let Some(created) = self.running.remove(name) {
                self.ended.push(Ended {
                    name: name.to_owned(),
                    reason,
                    created,
                    seen,
                });
            }
        }
        Ok(())
    }
}

/// Returns what became of a pod, if it ended.
fn end(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    match status["phase"].as_str() {
        Some("Succeeded") => Some("Succeeded".to_owned()),
        Some("Failed") => {
            let ended = &status["containerStatuses"][0]["state"]["terminated"];
            let reason = status["reason"].as_str().or(ended["reason"].as_str());
            Some(reason.map_or_else(|| status.to_string(), str::to_owned))
        }
        _ => None,
    }
}

/// Prints how long the devices were away for each kind of restart, and what became of the pods.
fn tell(name: &str, outcome: &Outcome) {
    let mut kinds: BTreeMap<Vec<Restart>, Vec<Duration>> = BTreeMap::new();
    for window in &outcome.windows {
        let away = window.away;
        kinds.entry(window.parts.clone()).or_default().push(away);
    }
    for (parts, mut away) in kinds {
        away.sort_unstable();
        let (median, longest) = (away[away.len() / 2], away[away.len() - 1]);
        let count = away.len();
        println!(
            "{name}: {count} x {parts:?}: devices away for {median:.1?}, at most {longest:.1?}"
        );
    }
    let failed = outcome.failed().count();
    println!("{name}: {failed} of {} pods failed", outcome.ended.len());
    for pod in outcome.failed() {
        let last = outcome.windows_of(pod).last();
        let last = last.map(|window| &window.parts);
        println!("{name}: {} {}, {last:?}", pod.name, pod.reason);
    }
}

/// Ends the stream of pods, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
