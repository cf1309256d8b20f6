//! Random gangs of 2 to 64 pods compete for GPUs: each starts whole, no GPU is given away twice,
//! and nobody waits for ever. `SEQUENCES=100` makes more of them than the few of each run.
//!
//! That overtaking delays nobody is a property of the planner (`crates/planner/tests/planner/promises.rs`
//! replays arrivals without it): no class can switch it off, so no cluster can compare.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    time::{Duration, Instant},
};

use fastrand::Rng;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::cluster::{Cluster, GATE, job, placement, waits};

const SEED: u64 = 15;
/// Sequences at a time, each in its namespace.
const LANES: u64 = 4;
/// All GPUs: eight nodes of eight.
const GPUS: u32 = 64;
const AT_ONCE: usize = 16;
/// So many sequences a lane may be before the last one. Jobs that start where a large gang cannot yet
/// pass it, for ten minutes at least: only when no more of them come must it start.
const AHEAD: u64 = 1;
/// How long nothing starts and nothing ends if a gang waits for ever, on a machine that is busy with
/// other things.
const LONG: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(100);

/// A gang of a sequence.
#[derive(Debug)]
struct Gang {
    name: String,
    pods: u32,
    gpus: u32,
    /// How many of its pods are created at first; the others come later.
    first: u32,
    created: u32,
    /// One of its pods is deleted while the gang waits, and created again.
    again: bool,
    was_again: bool,
    ended: bool,
}

/// The sequences of one namespace, one after the other.
struct Lane {
    api: Api<Pod>,
    number: u64,
    rng: Rng,
    gangs: Vec<Gang>,
    /// How many sequences are over, and how many there are.
    done: u64,
    all: u64,
}

type Pods = HashMap<(String, String), Value>;

impl Gang {
    fn random(name: String, rng: &mut Rng) -> Self {
        let pods = match rng.u32(0..20) {
            0 => rng.u32(33..=64),
            1..5 => rng.u32(9..=32),
            _ => rng.u32(2..=8),
        };
        let fits: Vec<u32> = [1, 2, 4, 8]
            .into_iter()
            .filter(|gpus| gpus * pods <= GPUS)
            .collect();
        let late = rng.u32(0..4) == 0;
        Self {
            name,
            pods,
            gpus: fits[rng.usize(..fits.len())],
            first: if late { rng.u32(1..pods) } else { pods },
            created: 0,
            again: rng.u32(0..4) == 0,
            was_again: false,
            ended: false,
        }
    }

    fn pod(&self, number: u32) -> String {
        format!("{}-{number:02}", self.name)
    }

    fn object(&self, number: u32) -> Value {
        let mut pod = job(&self.pod(number), self.gpus);
        pod["metadata"]["annotations"] = json!({
            "nvlink-domains.io/gang": self.name,
            "nvlink-domains.io/gang-size": self.pods.to_string(),
        });
        pod
    }

    /// Asserts that all its pods were put in place by one plan.
    fn assert_whole(&self, pods: &[&Value]) {
        let plans: Vec<Value> = pods
            .iter()
            .map(|pod| placement(pod).unwrap()["plan"].clone())
            .collect();
        let mut ranks: Vec<Value> = pods
            .iter()
            .map(|pod| placement(pod).unwrap()["rank"].clone())
            .collect();
        ranks.sort_by_key(|rank| rank.as_u64());
        let all: Vec<Value> = (0..self.pods).map(Value::from).collect();
        assert_eq!(ranks, all, "{self:?}");
        // A pod that was created again may have rejoined a gang that had started.
        assert!(
            self.was_again || plans.iter().all(|plan| *plan == plans[0]),
            "{self:?}: {plans:?}"
        );
    }
}

impl Lane {
    fn new(client: &Client, number: u64, all: u64) -> Self {
        Self {
            api: Api::namespaced(client.clone(), &namespace(number)),
            number,
            rng: Rng::with_seed(SEED * 1_000 + number),
            gangs: Vec::new(),
            done: 0,
            all,
        }
    }

    fn has_ended(&self) -> bool {
        self.done == self.all
    }

    /// Goes on: creates pods, ends gangs that run, and begins the next sequence, if that is not after
    /// `last`.
    async fn step(&mut self, pods: &Pods, last: u64) -> anyhow::Result<()> {
        if self.gangs.is_empty() {
            if self.done > last {
                return Ok(());
            }
            for number in 0..self.rng.u32(2..=4) {
                let name = format!("s{:02}-{number}", self.done);
                self.gangs.push(Gang::random(name, &mut self.rng));
            }
            return self.create().await;
        }
        self.create().await?;
        let mut gangs = std::mem::take(&mut self.gangs);
        for gang in gangs.iter_mut().filter(|gang| !gang.ended) {
            self.look(gang, pods).await?;
        }
        if gangs.iter().all(|gang| gang.ended) {
            let now = DeleteParams::default().grace_period(0);
            self.api
                .delete_collection(&now, &ListParams::default())
                .await?;
            self.done += 1;
            gangs.clear();
        }
        self.gangs = gangs;
        Ok(())
    }

    /// Creates the pods that are due, in random order.
    async fn create(&mut self) -> anyhow::Result<()> {
        let mut objects = Vec::new();
        for gang in &mut self.gangs {
            let until = match gang.created {
                0 => gang.first,
                _ if self.rng.bool() => gang.pods,
                so_far => so_far,
            };
            objects.extend((gang.created..until).map(|number| gang.object(number)));
            gang.created = until;
        }
        self.rng.shuffle(&mut objects);
        let api = &self.api;
        let create = |object| async move {
            let pod = serde_json::from_value(object)?;
            api.create(&PostParams::default(), &pod).await?;
            anyhow::Ok(())
        };
        stream::iter(objects)
            .map(create)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn look(&mut self, gang: &mut Gang, pods: &Pods) -> anyhow::Result<()> {
        let place = |number| (namespace(self.number), gang.pod(number));
        let there: Vec<&Value> = (0..gang.pods)
            .filter_map(|number| pods.get(&place(number)))
            .collect();
        if there.len() < gang.pods as usize {
            return Ok(());
        }
        if gang.again && there.iter().all(|pod| waits(pod)) {
            gang.again = false;
            gang.was_again = true;
            let number = self.rng.u32(0..gang.pods);
            let now = DeleteParams::default().grace_period(0);
            self.api.delete(&gang.pod(number), &now).await?;
            let pod = serde_json::from_value(gang.object(number))?;
            self.api.create(&PostParams::default(), &pod).await?;
            return Ok(());
        }
        let bound = there.iter().all(|pod| pod["spec"]["nodeName"].is_string());
        if !bound || self.rng.u32(0..3) == 0 {
            return Ok(());
        }
        gang.assert_whole(&there);
        gang.ended = true;
        let api = &self.api;
        let end = |name: String| async move {
            let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            let params = PatchParams::default();
            api.patch_status(&name, &params, &ended).await?;
            anyhow::Ok(())
        };
        let names: Vec<String> = (0..gang.pods).map(|number| gang.pod(number)).collect();
        stream::iter(names)
            .map(end)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }
}

/// Returns a line for each gang that has not ended, in any lane: a gang may wait for one of another
/// lane. Says of the pods that have no node why.
fn describe(pods: &Pods) -> String {
    let mut gangs: BTreeMap<(&str, &str), Vec<(&str, &Value)>> = BTreeMap::new();
    for ((namespace, name), pod) in pods.iter().filter(|(_, pod)| !has_ended(pod)) {
        let gang = name.rsplit_once('-').map_or(&**name, |(gang, _)| gang);
        gangs
            .entry((namespace, gang))
            .or_default()
            .push((name, pod));
    }
    let lines = gangs.into_iter().map(|((namespace, gang), mut pods)| {
        let all = pods.len();
        pods.retain(|(_, pod)| !pod["spec"]["nodeName"].is_string());
        pods.sort_by_key(|(name, _)| *name);
        let why = pods.first().map(|(name, pod)| {
            let placed =
                placement(pod).map(|placed| (placed["plan"].clone(), placed["node"].clone()));
            let conditions = pod["status"]["conditions"].as_array();
            let said = conditions.into_iter().flatten().map(|one| &one["message"]);
            let said: Vec<&Value> = said.collect();
            format!(
                "{name} waits {} placed {placed:?} says {said:?}",
                waits(pod)
            )
        });
        format!(
            "{namespace} {gang}: {all} pods, {} without a node: {why:?}\n",
            pods.len()
        )
    });
    lines.collect()
}

/// Reports whether a pod is over.
fn has_ended(pod: &Value) -> bool {
    let phase = &pod["status"]["phase"];
    *phase == "Succeeded" || *phase == "Failed"
}

fn namespace(lane: u64) -> String {
    format!("lane-{lane}")
}

/// Asserts that no GPU is given to two pods that may run.
fn assert_once(pods: &Pods) {
    let mut held: BTreeMap<(String, u64), &str> = BTreeMap::new();
    for ((_, name), pod) in pods {
        if has_ended(pod) || waits(pod) {
            continue;
        }
        let placed = placement(pod).unwrap_or_else(|| panic!("no {GATE} and no place: {pod:#}"));
        let node = placed["node"].as_str().unwrap();
        let bound = pod["spec"]["nodeName"].as_str();
        assert!(
            bound.is_none_or(|bound| bound == node),
            "{name} is on {bound:?}: {placed}"
        );
        for gpu in placed["gpus"].as_array().unwrap() {
            let place = (node.to_owned(), gpu.as_u64().unwrap());
            if let Some(other) = held.insert(place, name) {
                panic!("GPU {gpu} of {node} is given to {name} and to {other}");
            }
        }
    }
}

/// Returns how many sequences are over in the lane with the fewest, unless all have ended.
fn slowest(lanes: &[Lane]) -> Option<u64> {
    let lanes = lanes.iter().filter(|lane| !lane.has_ended());
    lanes.map(|lane| lane.done).min()
}

/// Returns what changes whenever a pod starts, or a gang or a sequence ends.
fn reached(lanes: &[Lane], pods: &Pods) -> (u64, usize, usize) {
    let running = |pod: &&Value| !has_ended(pod) && pod["spec"]["nodeName"].is_string();
    let ended = lanes.iter().flat_map(|lane| &lane.gangs);
    let ended = ended.filter(|gang| gang.ended).count();
    let done: u64 = lanes.iter().map(|lane| lane.done).sum();
    (done, ended, pods.values().filter(running).count())
}

/// Returns the end of a log.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Returns all pods of the lanes at one moment.
async fn snapshot(all: &Api<Pod>) -> anyhow::Result<Pods> {
    let list = all.list(&ListParams::default()).await?;
    let pods = list.items.iter().map(|pod| {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let key = (name(&pod.metadata.namespace), name(&pod.metadata.name));
        Ok((key, serde_json::to_value(pod)?))
    });
    pods.collect()
}

#[test]
fn gangs_that_compete_start_whole_and_all_of_them_start() {
    let nodes = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"];
    let cluster = Cluster::start(&nodes, json!({"scope": "zone"}));
    let default = json!({"nvlink-domains.io/default-class": "line"});
    for lane in 0..LANES {
        cluster
            .plane
            .namespace(&namespace(lane), &json!({}), &default)
            .unwrap();
    }
    let sequences = env::var("SEQUENCES").map_or(40, |text| text.parse().unwrap());
    let each = sequences / LANES;
    let runtime = Runtime::new().unwrap();
    let done = runtime.block_on(async {
        let client = cluster.plane.client().await?;
        let all = Api::all(client.clone());
        let mut lanes: Vec<Lane> = (0..LANES)
            .map(|number| Lane::new(&client, number, each))
            .collect();
        let mut moved = (Instant::now(), (0, 0, 0));
        while let Some(slowest) = slowest(&lanes) {
            let pods = snapshot(&all).await?;
            assert_once(&pods);
            let reached = reached(&lanes, &pods);
            if moved.1 != reached {
                moved = (Instant::now(), reached);
            }
            let waits = moved.0.elapsed();
            anyhow::ensure!(waits < LONG, "seed {SEED}, all wait:\n{}", describe(&pods));
            for lane in lanes.iter_mut().filter(|lane| !lane.has_ended()) {
                lane.step(&pods, slowest + AHEAD).await?;
            }
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(lanes.iter().map(|lane| lane.done).sum::<u64>())
    });
    let log = || last_lines(&cluster.webhook.as_ref().unwrap().replica.process.log());
    let done = done.unwrap_or_else(|error| panic!("{error:#}\n{}", log()));
    assert_eq!(done, each * LANES);
    assert!(each > 0, "SEQUENCES is at least {LANES}");
}
