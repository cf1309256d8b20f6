//! Which GPUs of a node are held. The exporter and the scheduler disagree about it for
//! seconds: a pod is bound before the kubelet gives it GPUs and the exporter reports them,
//! and gone before the exporter reports that they are free.

use std::sync::Arc;

use nvlink_topology::Allocation;

use super::{Kept, Node, Pod, State, Sync, pod::Stage};

/// Who holds the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The GPUs that no reported pod holds, by index, ascending; `None` if the exporter
    /// reports no allocations.
    pub free: Option<Vec<u32>>,
    /// Pods that are bound to the node and request GPUs, of which it is not reported which
    /// ones they hold; by name.
    pub unreported: Vec<Arc<Pod>>,
}

impl State {
    /// Returns who holds the GPUs of the node `name`. A report on a pod that has ended or
    /// is gone does not count.
    #[must_use]
    pub fn occupancy(&self, name: &str, node: &Node) -> Occupancy {
        let reported = || node.allocations.iter().flatten();
        let held: Vec<&Allocation> = reported().filter(|one| !self.is_over(one)).collect();
        let free = |gpu: &u32| !held.iter().any(|one| one.gpus.contains(gpu));
        let unreported = self.bound(name).filter(|((namespace, name), pod)| {
            let of_pod =
                |one: &&Allocation| one.namespace == *namespace && one.pod == *name && is(pod, one);
            pod.gpus > 0 && !held.iter().any(of_pod)
        });
        Occupancy {
            free: node.allocations.as_ref().map(|_| {
                let mut free: Vec<u32> =
                    node.gpus.iter().map(|gpu| gpu.index).filter(free).collect();
                free.sort_unstable();
                free
            }),
            unreported: unreported.map(|(_, pod)| Arc::clone(pod)).collect(),
        }
    }

    /// Reports whether the pod of an allocation has ended or is gone. While the watch of
    /// pods fails, the exporter knows better.
    fn is_over(&self, one: &Allocation) -> bool {
        if self.kept != Kept::WithDevices || self.of_pods != Sync::Follows {
            return false;
        }
        let name = (one.namespace.clone(), one.pod.clone());
        let pod = self.pods.get(&name);
        pod.is_none_or(|pod| pod.stage == Stage::Ended || !is(pod, one))
    }
}

/// Reports whether the allocation is one of this pod, and not of an earlier one of the same
/// name.
fn is(pod: &Pod, one: &Allocation) -> bool {
    let uids = pod.uid.as_ref().zip(one.pod_uid.as_ref());
    uids.is_none_or(|(known, reported)| known == reported)
}

#[cfg(test)]
mod tests {
    use nvlink_topology::NodeTopologySpec;
    use serde_json::json;

    use super::*;
    use crate::mirror::{Marks, Mirror};

    fn allocation(pod: &str, uid: Option<&str>, gpus: &[u32]) -> Allocation {
        Allocation {
            namespace: "n".to_owned(),
            pod: pod.to_owned(),
            pod_uid: uid.map(str::to_owned),
            container: "c".to_owned(),
            gpus: gpus.to_vec(),
            ..Allocation::default()
        }
    }

    fn pod(uid: &str, stage: Stage) -> Pod {
        Pod {
            uid: Some(uid.to_owned()),
            gpus: 1,
            stage,
            ..Pod::default()
        }
    }

    /// Returns the free GPUs of a node of four, and the pods whose GPUs are not reported.
    fn seen(mirror: &Mirror, held: Option<Vec<Allocation>>) -> (Option<Vec<u32>>, Vec<String>) {
        let gpus: Vec<_> = (0..4).map(|index| json!({ "index": index })).collect();
        let spec = json!({"source": {"kind": "sim"}, "gpus": gpus});
        let spec: NodeTopologySpec = serde_json::from_value(spec).unwrap();
        mirror.set_node("a", Ok(&spec), Marks::default(), Ok(held));
        let state = mirror.read();
        let node = state.nodes["a"].as_ref().as_ref().unwrap();
        let seen = state.occupancy("a", node);
        let uids = seen.unreported.iter().filter_map(|pod| pod.uid.clone());
        (seen.free, uids.collect())
    }

    fn bound() -> Stage {
        Stage::Bound("a".to_owned())
    }

    #[test]
    fn pods_count_from_their_binding_to_their_end() {
        let mirror = Mirror::default();
        mirror.keep(Kept::WithDevices);
        let set = |name: &str, pod| mirror.set_pod(("n".to_owned(), name.to_owned()), pod);
        set("reported", pod("1", bound()));
        set("bound", pod("2", bound()));
        set("waits", pod("3", Stage::Unbound));
        set("elsewhere", pod("4", Stage::Bound("b".to_owned())));
        set("ended", pod("5", Stage::Ended));
        set("again", pod("6", bound()));
        let held = || {
            Some(vec![
                allocation("reported", None, &[0]),
                allocation("ended", Some("5"), &[1]),
                allocation("again", Some("earlier"), &[2]),
                allocation("gone", None, &[3]),
            ])
        };
        // Not all pods have been read.
        assert_eq!(
            seen(&mirror, held()),
            (Some(vec![]), vec!["6".to_owned(), "2".to_owned()])
        );
        mirror.all_pods(|_| true);
        let both = vec!["6".to_owned(), "2".to_owned()];
        assert_eq!(seen(&mirror, held()), (Some(vec![1, 2, 3]), both.clone()));
        mirror.pods_follow(false);
        assert_eq!(seen(&mirror, held()), (Some(vec![]), both.clone()));
        mirror.pods_follow(true);
        let all = ["6", "2", "1"].map(str::to_owned).to_vec();
        assert_eq!(seen(&mirror, None), (None, all));
    }

    #[test]
    fn without_all_pods_a_report_is_believed() {
        let mirror = Mirror::default();
        mirror.all_pods(|_| true);
        let held = Some(vec![allocation("of-no-class", None, &[0])]);
        assert_eq!(seen(&mirror, held), (Some(vec![1, 2, 3]), vec![]));
    }
}
