//! Which GPUs of a node are held. The exporter and the scheduler disagree about it for
//! seconds: a pod is bound before the kubelet gives it GPUs and the exporter reports them,
//! and gone before the exporter reports that they are free.

use std::sync::Arc;

use super::{Pod, State, Sync, pod::Stage};
use crate::{gpus::Holding, informer::Extent};

/// Who holds the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The GPUs that nobody holds, by index, ascending; `None` if it is not known who holds which.
    pub free: Option<Vec<u32>>,
    /// Pods that are bound to the node and request GPUs, of which it is not known which ones they
    /// hold; by name.
    pub unreported: Vec<Arc<Pod>>,
}

impl State {
    /// Returns who holds the GPUs of a node; `None` if it published nothing that can be used. A pod
    /// that has ended or is gone holds nothing.
    #[must_use]
    pub fn occupancy(&self, node: &str) -> Option<Occupancy> {
        let gpus = self.gpus.of(node);
        gpus.known()?;
        let holders = gpus.holders();
        let holds = |namespace: &str, name: &str, pod: &Pod| {
            let mut said = holders.iter().filter_map(|one| one.pod.as_ref());
            said.any(|one| one.id.split_once('/') == Some((namespace, name)) && is(pod, one))
        };
        let unreported = self
            .bound(node)
            .filter(|((namespace, name), pod)| pod.gpus > 0 && !holds(namespace, name, pod));
        Some(Occupancy {
            free: gpus.free_of(&holders, |pod| !self.is_over(pod)),
            unreported: unreported.map(|(_, pod)| Arc::clone(pod)).collect(),
        })
    }

    /// Reports whether a pod that is said to hold GPUs has ended or is gone. While the watch of
    /// pods fails, the exporter or claim that says it knows better.
    #[must_use]
    pub fn is_over(&self, one: &Holding) -> bool {
        if self.extent != Extent::Whole || self.of_pods != Sync::Follows {
            return false;
        }
        let Some((namespace, name)) = one.id.split_once('/') else {
            return false;
        };
        let pod = self.pods.get(&(namespace.to_owned(), name.to_owned()));
        pod.is_none_or(|pod| pod.stage == Stage::Ended || !is(pod, one))
    }
}

/// Reports whether what is said is about this pod, and not about an earlier one of the same name.
fn is(pod: &Pod, one: &Holding) -> bool {
    let uids = pod.uid.as_ref().zip(one.uid.as_ref());
    uids.is_none_or(|(known, said)| known == said)
}

#[cfg(test)]
mod tests {
    use nvlink_topology::{Allocation, NodeTopologySpec};
    use serde_json::json;

    use super::*;
    use crate::{
        gpus::{Hardwares, Marks},
        mirror::Mirror,
    };

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
        let node = Hardwares::default().node(&spec, Marks::default(), held);
        mirror.set_node("a", Arc::new(Ok(node)));
        let seen = mirror.read().occupancy("a").unwrap();
        let uids = seen.unreported.iter().filter_map(|pod| pod.uid.clone());
        (seen.free, uids.collect())
    }

    fn bound() -> Stage {
        Stage::Bound("a".to_owned())
    }

    #[test]
    fn pods_count_from_their_binding_to_their_end() {
        let mirror = Mirror::default();
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
        mirror.all_pods(|_| true, Extent::Whole);
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
        mirror.all_pods(|_| true, Extent::OfClasses);
        let held = Some(vec![allocation("of-no-class", None, &[0])]);
        assert_eq!(seen(&mirror, held), (Some(vec![1, 2, 3]), vec![]));
    }
}
