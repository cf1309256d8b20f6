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
/// The longest time for a sequence, on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(240);
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
    since: Instant,
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
            since: Instant::now(),
            done: 0,
            all,
        }
    }

    fn has_ended(&self) -> bool {
        self.done == self.all
    }

    /// Goes on: creates pods, ends gangs that run, and begins the next sequence.
    async fn step(&mut self, pods: &Pods) -> anyhow::Result<()> {
        if self.gangs.is_empty() {
            self.since = Instant::now();
            for number in 0..self.rng.u32(2..=4) {
                let name = format!("s{:02}-{number}", self.done);
                self.gangs.push(Gang::random(name, &mut self.rng));
            }
            return self.create().await;
        }
        let stuck = self.since.elapsed() > LONG;
        assert!(
            !stuck,
            "{} waits for ever: {}",
            namespace(self.number),
            self.describe(pods)
        );
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

    fn describe(&self, pods: &Pods) -> String {
        let own = pods
            .iter()
            .filter(|((namespace, _), _)| *namespace == self::namespace(self.number));
        let mut lines: Vec<String> = own
            .map(|((_, name), pod)| {
                let conditions = &pod["status"]["conditions"];
                format!(
                    "{name} waits {} on {}: {conditions}",
                    waits(pod),
                    pod["spec"]["nodeName"]
                )
            })
            .collect();
        lines.sort();
        format!(
            "seed {SEED}, sequence {}, {:#?}\n{}",
            self.done,
            self.gangs,
            lines.join("\n")
        )
    }
}

fn namespace(lane: u64) -> String {
    format!("lane-{lane}")
}

/// Asserts that no GPU is given to two pods that may run.
fn assert_once(pods: &Pods) {
    let mut held: BTreeMap<(String, u64), &str> = BTreeMap::new();
    for ((_, name), pod) in pods {
        let ended = ["Succeeded", "Failed"]
            .map(Value::from)
            .contains(&pod["status"]["phase"]);
        if ended || waits(pod) {
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
        while lanes.iter().any(|lane| !lane.has_ended()) {
            let pods = snapshot(&all).await?;
            assert_once(&pods);
            for lane in lanes.iter_mut().filter(|lane| !lane.has_ended()) {
                lane.step(&pods).await?;
            }
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(lanes.iter().map(|lane| lane.done).sum::<u64>())
    });
    assert_eq!(done.unwrap(), each * LANES);
    assert!(each > 0, "SEQUENCES is at least {LANES}");
}
