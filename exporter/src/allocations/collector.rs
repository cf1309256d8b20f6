//! The loop that reads allocations, judges and publishes them.

use std::{
    collections::BTreeSet,
    mem,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use nvlink_kubelet::client::Kubelet;
use nvlink_kubelet::podresources::ListPodResourcesResponse;
use nvlink_source::Reading;
use nvlink_topology::{Allocation, NodeTopologySpec, NodeTopologyStatus, Pattern};
use tokio::{
    sync::watch,
    task::{JoinError, spawn_blocking},
    time::timeout,
};

use super::{
    Judge,
    api::Cluster,
    claims::Claims,
    holdings::{Holdings, Names, PodName},
    idle::Idle,
    tracker::{Placed, Tracker},
};
use crate::{
    imex::Imex,
    placement::{Health, Judged, Keys, Placements},
    publish::status::{Record, Wanted},
    snapshot::{Latest, Snapshot},
};

/// How long to wait for the node's topology before checking again.
const TOPOLOGY: Duration = Duration::from_secs(1);
/// The maximum number of unknown names in a log line; there may be thousands.
const TOLD: usize = 4;

/// Sends the record to its keeper; `None` until the earlier record was restored.
pub(super) type Want = watch::Sender<Option<Wanted>>;
pub(super) type Recorded = watch::Receiver<Option<Record>>;
/// [`Judge::judge`].
type Judging = fn(&mut Judge, &NodeTopologySpec, Vec<(Allocation, Option<Pattern>)>) -> Vec<Judged>;

/// Collects the allocations of one node.
pub(super) struct Collector {
    kubelet: Option<Kubelet>,
    /// The kubelet's socket may be missing, until it has existed once.
    optional: bool,
    cluster: Cluster,
    claims: Claims,
    latest: Arc<Latest>,
    tracker: Tracker,
    judge: Judge,
    idle: Idle,
    judging: Judging,
    /// There was a look before.
    looked: bool,
    keeper: Option<(Recorded, Want)>,
    log: Log,
}

impl Collector {
    pub(super) fn new(
        socket: Option<(&Path, bool)>,
        cluster: Cluster,
        claims: Claims,
        latest: Arc<Latest>,
    ) -> Self {
        Self {
            kubelet: socket.map(|(path, _)| Kubelet::new(path)),
            optional: socket.is_some_and(|(_, optional)| optional),
            cluster,
            claims,
            latest,
            tracker: Tracker::default(),
            judge: Judge::default(),
            idle: Idle::default(),
            judging: Judge::judge,
            looked: false,
            keeper: None,
            log: Log::default(),
        }
    }

    /// Restores `record` once it was read, and then sends the current record to `want`.
    pub(super) fn keep(&mut self, record: Recorded, want: Want) {
        self.keeper = Some((record, want));
    }

    pub(super) async fn run(mut self, interval: Duration) {
        loop {
            let view = self.latest.view(Instant::now());
            let Some(data) = view.data() else {
                if view.snapshot.is_some() && self.asks() {
                    let error = "the node's topology is unknown".to_owned();
                    self.fail(error, Duration::ZERO);
                }
                drop(timeout(interval.min(TOPOLOGY), self.latest.changed()).await);
                continue;
            };
            let topology = &data.topology;
            match self.asks() {
                true => self.ask(data, view.snapshot.as_deref()).await,
                false => self.read(&topology.spec, topology.status.clone()).await,
            }
            tokio::time::sleep(interval).await;
        }
    }

    /// Reports whether there is a kubelet to call.
    fn asks(&mut self) -> bool {
        let there = self.kubelet.as_ref().is_some_and(Kubelet::is_there);
        self.optional &= !there;
        self.kubelet.is_some() && !self.optional
    }

    async fn ask(&mut self, data: &Reading, snapshot: Option<&Snapshot>) {
        let Some(kubelet) = &self.kubelet else {
            return;
        };
        let start = Instant::now();
        match kubelet.list().await {
            Ok(answer) => self.take(data, snapshot, answer, start).await,
            Err(error) => self.fail(error.to_string(), start.elapsed()),
        }
    }

    /// Publishes what the kubelet answered to a question that began at `start`.
    async fn take(
        &mut self,
        data: &Reading,
        snapshot: Option<&Snapshot>,
        answer: ListPodResourcesResponse,
        start: Instant,
    ) {
        let spec = &data.topology.spec;
        let answer = self.held(answer).await;
        self.restore();
        let imex = self.imex(&answer);
        let (placed, unknown, uncertain) = self.placed(data, answer);
        let (allocations, lost): (Vec<_>, Vec<_>) = placed
            .into_iter()
            .map(|one| (one.allocation, one.lost))
            .unzip();
        let mut judged = match self.judge(spec, allocations).await {
            Ok(judged) => judged,
            Err(error) => return self.fail(error, start.elapsed()),
        };
        self.log.succeeded(&unknown);
        for (one, lost) in judged.iter_mut().zip(lost) {
            one.lost = lost;
        }
        if let Some(Snapshot { health, totals, .. }) = snapshot {
            let at = (health.finished, Timestamp::now());
            self.idle.look(&spec.gpus, totals, &mut judged, at);
        }
        // A container whose GPUs are all lost holds no GPU of the document.
        let all = judged.iter().map(|one| &one.allocation);
        let there = all.filter(|one| !one.gpus.is_empty());
        let status = Some(NodeTopologyStatus {
            allocations: there.cloned().collect(),
        });
        let health = Health {
            error: None,
            duration: start.elapsed(),
        };
        self.place(Placements {
            on: Keys::of(&spec.gpus),
            status,
            uncertain,
            judged,
            imex,
            health: Some(health),
        });
    }

    fn imex(&self, answer: &ListPodResourcesResponse) -> Imex {
        let facts = self.cluster.read();
        Imex::of(
            answer,
            |pod| facts.has_ended(pod),
            |pod| facts.is_ready(pod),
        )
    }

    /// Returns the allocations of the kubelet's answer, the devices that are not known, and the GPUs that
    /// may or may not be held.
    fn placed(
        &mut self,
        data: &Reading,
        answer: ListPodResourcesResponse,
    ) -> (Vec<Placed>, BTreeSet<String>, BTreeSet<u32>) {
        let spec = &data.topology.spec;
        let mut facts = self.cluster.read();
        let pods = answer.pod_resources.iter();
        let listed: BTreeSet<PodName> = pods
            .map(|pod| (pod.namespace.clone(), pod.name.clone()))
            .collect();
        facts.forget_ended(|pod| listed.contains(pod));
        let names = Names::of(spec, &data.lost, &facts.slices);
        let mut holdings = Holdings::of(answer, &names);
        holdings.pods.retain(|pod, _| !facts.has_ended(pod));
        let uid = |pod: &PodName| facts.uid(pod);
        let placed = self.tracker.look(&spec.gpus, &holdings, uid);
        let uncertain = holdings.uncertain();
        (placed, holdings.unknown, uncertain)
    }

    /// Restores the earlier record, once it was read.
    fn restore(&mut self) {
        if let Some((record, _)) = &mut self.keeper
            && record.has_changed().unwrap_or(false)
        {
            let record = record.borrow_and_update().clone();
            self.tracker.restore(record.unwrap_or_default());
        }
    }

    /// Returns the kubelet's answer without what pods only look at.
    async fn held(&mut self, answer: ListPodResourcesResponse) -> ListPodResourcesResponse {
        // A look without the slices would take the GPUs of claims from their holders.
        if !mem::replace(&mut self.looked, true) && self.claims.has_api() {
            self.cluster.slices_are_read().await;
        }
        self.claims.held(answer).await
    }

    /// Uses the allocations of the source itself, if the kubelet is not called.
    async fn read(&mut self, spec: &NodeTopologySpec, status: Option<NodeTopologyStatus>) {
        let start = Instant::now();
        let allocations = status.as_ref().map(|status| status.allocations.clone());
        match self.judge(spec, allocations.unwrap_or_default()).await {
            Ok(judged) => {
                self.log.succeeded(&BTreeSet::new());
                self.place(Placements {
                    on: Keys::of(&spec.gpus),
                    status,
                    judged,
                    ..Placements::default()
                });
            }
            Err(error) => self.fail(error, start.elapsed()),
        }
    }

    /// Judges on another thread, so that requests do not have to wait. A panic is
    /// returned as an error: an empty list would mean that the node is empty.
    async fn judge(
        &mut self,
        spec: &NodeTopologySpec,
        allocations: Vec<Allocation>,
    ) -> Result<Vec<Judged>, String> {
        let allocations: Vec<(Allocation, Option<Pattern>)> = {
            let facts = self.cluster.read();
            let with_pattern = |one: Allocation| {
                let pod = (one.namespace, one.pod);
                let pattern = facts.pattern(&pod);
                let (namespace, pod) = pod;
                (
                    Allocation {
                        namespace,
                        pod,
                        ..one
                    },
                    pattern,
                )
            };
            allocations.into_iter().map(with_pattern).collect()
        };
        let mut judge = mem::take(&mut self.judge);
        let (judging, spec) = (self.judging, spec.clone());
        let judged = spawn_blocking(move || {
            let judged = judging(&mut judge, &spec, allocations);
            (judge, judged)
        });
        let (judge, mut judged) = judged.await.map_err(panicked)?;
        self.judge = judge;
        let facts = self.cluster.read();
        for one in &mut judged {
            let pod = (one.allocation.namespace.clone(), one.allocation.pod.clone());
            (one.class, one.project) = facts.labels(&pod);
            one.gang = facts.gang(&pod);
        }
        drop(facts);
        Ok(judged)
    }

    fn fail(&mut self, error: String, duration: Duration) {
        self.log.failed(&error);
        self.latest.place(Placements {
            health: Some(Health {
                error: Some(error),
                duration,
            }),
            ..Placements::default()
        });
    }

    fn place(&mut self, placements: Placements) {
        if let Some((record, want)) = &self.keeper
            && (placements.health.is_none() || record.borrow().is_some())
        {
            let now = Wanted {
                on: placements.on.clone(),
                status: placements.status.clone(),
            };
            want.send_if_modified(|wanted| {
                let changed = wanted.as_ref() != Some(&now);
                *wanted = Some(now);
                changed
            });
        }
        self.latest.place(placements);
    }
}

/// Returns the message of a panic.
fn panicked(error: JoinError) -> String {
    let said = error.try_into_panic().ok().and_then(|panic| {
        let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
    });
    let said = said.unwrap_or_else(|| "no message".to_owned());
    format!("judging the allocations panicked, which is a bug in the exporter: {said}")
}

/// Logs changes, and not the same state after each collection.
#[derive(Default)]
struct Log {
    error: Option<String>,
    unknown: BTreeSet<String>,
}

impl Log {
    fn failed(&mut self, error: &str) {
        if self.error.as_deref() != Some(error) {
            tracing::error!(error, "collection of allocations failed");
            self.error = Some(error.to_owned());
        }
    }

    fn succeeded(&mut self, unknown: &BTreeSet<String>) {
        if self.error.take().is_some() {
            tracing::info!("collection of allocations succeeded");
        }
        if *unknown != self.unknown && !unknown.is_empty() {
            let some: Vec<_> = unknown.iter().take(TOLD).map(|name| short(name)).collect();
            let (count, some) = (unknown.len(), some.join(", "));
            tracing::warn!(
                count,
                some,
                "the kubelet reports GPU devices that are unknown on this node (the GPU of a MIG \
                 device is known only from a ResourceSlice, or if one GPU alone has MIG enabled); \
                 they are skipped, and free GPUs are not reported where these devices may be"
            );
        }
        self.unknown.clone_from(unknown);
    }
}

/// Shortens a name for the log: names may have megabytes.
fn short(name: &str) -> String {
    const MOST: usize = 80;
    let mut short: String = name.chars().take(MOST).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use nvlink_history::totals::GpuTotals;
    use nvlink_kubelet::podresources::{ContainerDevices, ContainerResources, PodResources};
    use nvlink_source::SourceSpec;
    use nvlink_topology::Gpu;

    use super::*;

    /// A node whose source has an allocation of GPU 0.
    fn held() -> Arc<Latest> {
        let source: SourceSpec = "sim:dgx-h100".parse().unwrap();
        let mut source = source.open(Some("n")).unwrap();
        let mut snapshot = crate::collect::collect("sim", source.as_mut(), Duration::ZERO);
        let one = Allocation {
            gpus: vec![0],
            ..Allocation::default()
        };
        snapshot.data.as_mut().unwrap().topology.status = Some(NodeTopologyStatus {
            allocations: vec![one],
        });
        let latest = Arc::new(Latest::default());
        latest.publish(snapshot);
        latest
    }

    #[tokio::test]
    async fn a_panic_while_judging_is_an_error() {
        let latest = held();
        let mut collector = Collector::new(
            None,
            Cluster::default(),
            Claims::default(),
            Arc::clone(&latest),
        );
        collector.judging = |_, _, _| panic!("out of order");
        let run = collector.run(Duration::from_millis(1));
        let failed = async {
            loop {
                let view = latest.view(Instant::now());
                if let Some(placements) = view.placements {
                    return placements;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let placements = tokio::select! {
            placements = failed => placements,
            () = run => unreachable!(),
        };
        assert_eq!((&placements.status, placements.judged.len()), (&None, 0));
        let error = placements.health.as_ref().unwrap().error.as_deref();
        assert!(error.unwrap().ends_with("out of order"), "{error:?}");
    }

    #[tokio::test]
    async fn a_job_whose_nvlinks_are_idle_is_published_with_the_time() {
        let latest = held();
        let (cluster, claims) = (Cluster::default(), Claims::default());
        let mut collector = Collector::new(None, cluster, claims, Arc::clone(&latest));
        let source: SourceSpec = "sim:dgx-h100".parse().unwrap();
        let mut source = source.open(Some("n")).unwrap();
        let mut snapshot = crate::collect::collect("sim", source.as_mut(), Duration::ZERO);
        let data = snapshot.data.clone().unwrap();
        let spec = &data.topology.spec;
        let gpus = spec.gpus[..2].iter();
        let devices = ContainerDevices {
            resource_name: "nvidia.com/gpu".to_owned(),
            device_ids: gpus.filter_map(|gpu| gpu.uuid.clone()).collect(),
        };
        let container = ContainerResources {
            name: "main".to_owned(),
            devices: vec![devices],
            ..ContainerResources::default()
        };
        let pod = PodResources {
            name: "train".to_owned(),
            namespace: "ci".to_owned(),
            containers: vec![container],
        };
        let pod_resources = vec![pod];
        let total = |gpu: &Gpu| GpuTotals {
            gpu: gpu.index,
            transmit_bytes: Some(1),
            ..GpuTotals::default()
        };
        snapshot.totals = spec.gpus.iter().map(total).collect();
        let begin = snapshot.health.finished;
        let mut since = Vec::new();
        for minutes in [0, 1, 31] {
            let answer = ListPodResourcesResponse {
                pod_resources: pod_resources.clone(),
            };
            snapshot.health.finished = begin + Duration::from_secs(60 * minutes);
            let taken = collector.take(&data, Some(&snapshot), answer, Instant::now());
            taken.await;
            let placements = latest.view(Instant::now()).placements.unwrap();
            let status = placements.status.as_ref().unwrap();
            let [one] = &status.allocations[..] else {
                panic!("{status:?}")
            };
            assert_eq!(one.idle_since, placements.judged[0].allocation.idle_since);
            since.push(one.idle_since.is_some());
        }
        assert_eq!(since, [false, false, true]);
    }
}
