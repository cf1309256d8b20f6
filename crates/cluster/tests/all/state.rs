//! The state of the cluster: whatever the order in which objects come, change and go, it is that of
//! one that has read only what is there at the end.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
};

use nvlink_admission::view::SharedView;
use nvlink_api::class::Class;
use nvlink_cluster::{
    gpus::{Claim, Hardwares, Slice},
    informer::{Extent, Fan, Follower, Informer},
    kinds::{Informers, PodObject},
    mirror::Mirror,
    watches::Watches,
};
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};
use tokio::task::JoinSet;

type Key = (String, String);

const DRIVER: &str = "gpu.nvidia.com";
const NODES: [&str; 3] = ["n0", "n1", "n2"];

/// What happens to an object of a kind; `None`: it goes. Or all that are there are read again.
#[derive(Clone, Debug)]
enum Event {
    Topology(String, Option<Value>),
    Pod(String, Option<Value>),
    Slice(String, Option<Value>),
    Claim(String, Option<Value>),
    Again(usize),
}

/// The state of a process, and the watches that feed it.
struct Process {
    mirror: Mirror,
    view: SharedView,
    hardwares: Hardwares,
    topologies: Fan<Arc<nvlink_cluster::gpus::Published>>,
    pods: Fan<PodObject>,
    slices: Fan<Option<Slice>>,
    claims: Fan<Option<Claim>>,
    /// The objects that are there, by kind.
    there: [BTreeMap<String, Value>; 4],
    _watches: JoinSet<()>,
}

/// Returns what the watch of a kind feeds.
async fn fan<T: Send + 'static>(informer: &Informer<T>, watches: &mut JoinSet<()>) -> Fan<T> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let informer = informer.clone();
    watches.spawn(informer.run(move |_, fan| {
        if let Some(sender) = sender.lock().unwrap().take() {
            let _ = sender.send(fan);
        }
        std::future::pending()
    }));
    receiver.await.unwrap()
}

impl Process {
    async fn start() -> Self {
        let (informers, view) = (Informers::default(), SharedView::default());
        let class = Class::new("any", &serde_json::from_value(json!({})).unwrap());
        view.write()
            .set_class("any", class.map_err(|error| error.to_string()));
        let _ = Watches::start(&informers, &view, &Arc::default());
        let mirror = Mirror::counting(view.clone());
        mirror.follow(&informers);
        mirror.follow_pods(&informers, Extent::Whole);
        let mut watches = JoinSet::new();
        let mut process = Self {
            topologies: fan(&informers.topologies, &mut watches).await,
            pods: fan(&informers.pods, &mut watches).await,
            slices: fan(&informers.slices, &mut watches).await,
            claims: fan(&informers.claims, &mut watches).await,
            hardwares: Hardwares::default(),
            there: Default::default(),
            _watches: watches,
            mirror,
            view,
        };
        (0..4).for_each(|kind| process.again(kind));
        process
    }

    fn apply(&mut self, event: Event) {
        let (kind, name, object) = match event {
            Event::Topology(name, object) => (0, name, object),
            Event::Pod(name, object) => (1, name, object),
            Event::Slice(name, object) => (2, name, object),
            Event::Claim(name, object) => (3, name, object),
            Event::Again(kind) => return self.again(kind),
        };
        match &object {
            Some(object) => _ = self.there[kind].insert(name.clone(), object.clone()),
            None => _ = self.there[kind].remove(&name),
        }
        match object {
            Some(object) => self.set(kind, &name, &object),
            None => self.remove(kind, &name),
        }
    }

    fn set(&mut self, kind: usize, name: &str, object: &Value) {
        let key = key(kind, name);
        match kind {
            0 => {
                let published = self.hardwares.read_json(object.clone());
                self.topologies.set(&key, &Arc::new(published));
            }
            1 => {
                let metadata = serde_json::from_value(object["metadata"].clone()).unwrap();
                let document = Some(object.clone());
                self.pods.set(&key, &PodObject { metadata, document });
            }
            2 => self.slices.set(&key, &Slice::of(&read(&object["spec"]))),
            _ => self.claims.set(&key, &Claim::of(&read(object))),
        }
    }

    fn remove(&mut self, kind: usize, name: &str) {
        let key = key(kind, name);
        match kind {
            0 => self.topologies.remove(&key),
            1 => self.pods.remove(&key),
            2 => self.slices.remove(&key),
            _ => self.claims.remove(&key),
        }
    }

    /// Reads all objects of a kind again, as a watch does that starts anew.
    fn again(&mut self, kind: usize) {
        let there = self.there[kind].clone();
        for (name, object) in &there {
            self.set(kind, name, object);
        }
        let keys: HashSet<Key> = there.keys().map(|name| key(kind, name)).collect();
        match kind {
            0 => self.topologies.retain(&keys),
            1 => self.pods.retain(&keys),
            2 => self.slices.retain(&keys),
            _ => self.claims.retain(&keys),
        }
    }

    /// Returns all that the process says of the GPUs of nodes.
    fn says(&self) -> Vec<String> {
        let state = self.mirror.read();
        let view = self.view.read();
        let class = view.class("any").unwrap().unwrap();
        let rooms = (1..=4).map(|gpus| format!("{:?}", view.room(class, gpus)));
        let nodes = NODES.map(|node| {
            let gpus = state.gpus.of(node);
            let mut holders = gpus.holders();
            holders.sort_by_key(|one| format!("{one:?}"));
            let seen = state.occupancy(node);
            format!(
                "{node}: {holders:?} {seen:?} {:?}",
                gpus.most_free(|_| true)
            )
        });
        nodes.into_iter().chain(rooms).collect()
    }
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn key(kind: usize, name: &str) -> Key {
    let namespace = if kind % 2 == 1 { "team" } else { "" };
    (namespace.to_owned(), name.to_owned())
}

/// Returns a NodeTopology of four GPUs; of GPU `broken`, if there is one, links are missing.
fn topology(node: &str, held: Option<Vec<(String, u32)>>, broken: Option<u32>) -> Value {
    let gpus = (0..4).map(|index| {
        let mut gpu = json!({"index": index, "uuid": format!("GPU-{node}-{index}")});
        if broken == Some(index) {
            gpu["faults"] = json!(["missing-links"]);
        }
        gpu
    });
    let allocations = held.map(|held| {
        let one = |(pod, gpu): (String, u32)| {
            json!({
                "namespace": "team", "pod": pod, "podUid": format!("uid of {pod}"),
                "container": "c", "gpus": [gpu],
            })
        };
        held.into_iter().map(one).collect::<Vec<_>>()
    });
    json!({
        "apiVersion": nvlink_topology::API_VERSION, "kind": nvlink_topology::KIND,
        "metadata": {"name": node},
        "spec": {
            "source": {"kind": "sim"}, "gpus": gpus.collect::<Vec<_>>(),
            "domains": [{"id": format!("{node}/0"), "gpus": [0, 1]}, {"id": format!("{node}/1"), "gpus": [2, 3]}],
        },
        "status": {"allocations": allocations},
    })
}

fn pod(name: &str, node: &str, phase: &str, earlier: bool) -> Value {
    let uid = if earlier { "another" } else { name };
    json!({
        "metadata": {"namespace": "team", "name": name, "uid": format!("uid of {uid}")},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
        },
        "status": {"phase": phase},
    })
}

fn slice(node: &str, gpus: u32, generation: u32) -> Value {
    let device = |gpu: u32| json!({"name": format!("gpu-{gpu}"), "attributes": {"uuid": {"string": format!("GPU-{node}-{gpu}")}}});
    json!({"spec": {
        "driver": DRIVER, "nodeName": node, "devices": (0..gpus).map(device).collect::<Vec<_>>(),
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
    }})
}

fn claim(name: &str, node: &str, gpu: u32, user: Option<String>, looks: bool) -> Value {
    let users =
        user.map(|pod| json!({"resource": "pods", "name": pod, "uid": format!("uid of {pod}")}));
    json!({
        "metadata": {"namespace": "team", "name": name},
        "status": {
            "reservedFor": Vec::from_iter(users),
            "allocation": {"devices": {"results": [{
                "driver": DRIVER, "pool": node, "device": format!("gpu-{gpu}"), "adminAccess": looks,
            }]}},
        },
    })
}

fn event() -> impl Strategy<Value = Event> {
    let node = || select(&NODES[..]);
    let pods = || (0..4_u32).prop_map(|n| format!("p{n}"));
    let held = prop::collection::vec((pods(), 0..4_u32), 0..4);
    let topologies = (
        node(),
        prop::option::weighted(0.8, (prop::option::of(held), prop::option::of(0..4_u32))),
    );
    let topologies = topologies.prop_map(|(node, what)| {
        let object = what.map(|(held, broken)| topology(node, held, broken));
        Event::Topology(node.to_owned(), object)
    });
    let phases = select(&["Pending", "Running", "Succeeded"][..]);
    let bound = prop::option::weighted(0.8, (node(), phases, any::<bool>()));
    let of_pods = (pods(), bound).prop_map(|(name, what)| {
        let object = what.map(|(node, phase, earlier)| pod(&name, node, phase, earlier));
        Event::Pod(name, object)
    });
    let slices = (
        0..4_u32,
        node(),
        prop::option::weighted(0.8, (0..5_u32, 1..3_u32)),
    );
    let slices = slices.prop_map(|(name, node, what)| {
        let object = what.map(|(gpus, generation)| slice(node, gpus, generation));
        Event::Slice(format!("s{name}"), object)
    });
    let what = (node(), 0..4_u32, prop::option::of(pods()), any::<bool>());
    let claims = (0..4_u32, prop::option::weighted(0.8, what)).prop_map(|(name, what)| {
        let name = format!("c{name}");
        let object = what.map(|(node, gpu, user, looks)| claim(&name, node, gpu, user, looks));
        Event::Claim(name, object)
    });
    prop_oneof![4 => topologies, 4 => of_pods, 3 => slices, 3 => claims, 1 => (0..4_usize).prop_map(Event::Again)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_order_of_events_leaves_no_trace(events in prop::collection::vec(event(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (grown, fresh) = runtime.block_on(async {
            let mut grown = Process::start().await;
            for event in events {
                grown.apply(event);
            }
            let mut fresh = Process::start().await;
            fresh.there = grown.there.clone();
            (0..4).rev().for_each(|kind| fresh.again(kind));
            (grown.says(), fresh.says())
        });
        prop_assert_eq!(grown, fresh);
    }
}

/// Writes down what happens.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Follower<u32> for Log {
    fn begins(&mut self) {
        self.0.lock().unwrap().push("begins".to_owned());
    }

    fn set(&mut self, (_, name): &Key, item: &u32) {
        self.0.lock().unwrap().push(format!("{name}={item}"));
    }

    fn remove(&mut self, (_, name): &Key) {
        self.0.lock().unwrap().push(format!("-{name}"));
    }

    fn retain(&mut self, keys: &HashSet<Key>, extent: Extent) {
        let text = format!("all {} {extent:?}", keys.len());
        self.0.lock().unwrap().push(text);
    }
}

/// The watches of an informer that start.
type Starts = tokio::sync::mpsc::UnboundedReceiver<(Extent, Fan<u32>)>;

async fn informer() -> (Informer<u32>, Starts, JoinSet<()>) {
    let informer = Informer::<u32>::default();
    let (started, starts) = tokio::sync::mpsc::unbounded_channel();
    let mut watches = JoinSet::new();
    watches.spawn(informer.clone().run(move |extent, fan| {
        let _ = started.send((extent, fan));
        std::future::pending()
    }));
    tokio::task::yield_now().await;
    (informer, starts, watches)
}

fn named(name: &str) -> Key {
    (String::new(), name.to_owned())
}

#[tokio::test]
async fn a_new_follower_sees_all_and_the_others_miss_nothing() {
    let (informer, mut starts, _watches) = informer().await;
    let (first, second) = (Log::default(), Log::default());
    let _first = informer.subscribe(Extent::Whole, first.clone());
    let (_, old) = starts.recv().await.unwrap();
    old.set(&named("a"), &1);
    old.retain(&[named("a")].into());
    assert_eq!(first.take(), ["begins", "a=1", "all 1 Whole"]);
    let _second = informer.subscribe(Extent::Whole, second.clone());
    let (_, new) = starts.recv().await.unwrap();
    // The list of the second is older than what the first has heard.
    new.set(&named("a"), &1);
    old.set(&named("b"), &2);
    new.retain(&[named("a")].into());
    assert_eq!(first.take(), ["b=2"]);
    assert_eq!(second.take(), ["a=1", "all 1 Whole"]);
    new.set(&named("b"), &2);
    assert_eq!(
        (first.take(), second.take()),
        (vec!["b=2".to_owned()], vec!["b=2".to_owned()])
    );
    tokio::task::yield_now().await;
    let third = Log::default();
    let _third = informer.subscribe(Extent::OfClasses, third.clone());
    let (extent, new) = starts.recv().await.unwrap();
    assert_eq!(extent, Extent::Whole, "one watch reads as much as all need");
    new.retain(&HashSet::new());
    assert_eq!(third.take(), ["all 0 Whole"]);
}

#[tokio::test]
async fn a_watch_runs_while_somebody_follows_and_reads_what_they_need() {
    let (informer, mut starts, _watches) = informer().await;
    assert!(starts.try_recv().is_err(), "nobody follows");
    let (first, second) = (Log::default(), Log::default());
    let of_first = informer.subscribe(Extent::OfClasses, first.clone());
    let (extent, old) = starts.recv().await.unwrap();
    assert_eq!(extent, Extent::OfClasses);
    let of_second = informer.subscribe(Extent::Whole, second.clone());
    // The list is half read: the second must not take what remains for the whole.
    old.retain(&[named("a")].into());
    assert_eq!(first.take(), ["begins", "all 1 OfClasses"]);
    assert!(second.take().is_empty());

    let (extent, whole) = starts.recv().await.unwrap();
    assert_eq!(extent, Extent::Whole);
    whole.set(&named("a"), &2);
    whole.remove(&named("a"));
    assert_eq!(first.take(), ["begins", "a=2", "-a"]);
    assert_eq!(second.take(), ["begins", "a=2", "-a"]);

    drop(of_second);
    let (extent, fan) = starts.recv().await.unwrap();
    assert_eq!(extent, Extent::OfClasses, "nobody needs all any more");
    fan.set(&named("b"), &3);
    assert_eq!((first.take().len(), second.take().len()), (2, 0));
    drop(of_first);
    tokio::task::yield_now().await;
    fan.set(&named("b"), &4);
    assert!(first.take().is_empty());
    assert!(starts.try_recv().is_err(), "nobody follows any more");
}
