//! Which GPUs of a node are held. The exporter and the scheduler disagree about it for
//! seconds: a pod is bound before the kubelet gives it GPUs and the exporter reports them,
//! and gone before the exporter reports that they are free.

use std::sync::Arc;

use super::{Pod, PodName, State, Sync, pod::Stage};
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
        let holds = |(namespace, name): &PodName| {
            let mut said = holders.iter().filter_map(|one| one.pod.as_ref());
            let here = |one: &Holding| one.id.split_once('/') == Some((namespace, name));
            said.any(|one| here(one) && self.said(node, one).is_some())
        };
        let unreported = self
            .bound(node)
            .filter(|(name, pod)| pod.gpus > 0 && !holds(name));
        Some(Occupancy {
            free: gpus.free_of(&holders, |pod| !self.is_over(node, pod)),
            unreported: unreported.map(|(_, pod)| Arc::clone(pod)).collect(),
        })
    }

    /// Reports whether a pod that is said to hold GPUs of a node has ended or is gone. While the watch
    /// of pods fails, the exporter or claim that says it knows better.
    #[must_use]
    pub fn is_over(&self, node: &str, one: &Holding) -> bool {
        if self.extent != Extent::Whole || self.of_pods != Sync::Follows {
            return false;
        }
        let pod = self.said(node, one);
        pod.is_none_or(|pod| pod.stage == Stage::Ended)
    }

    /// Returns the pod that is said to hold GPUs of a node; `None` if it is gone. A later pod of its
    /// name is not the same: without a UID, what is said is about the pod that is on the node.
    #[must_use]
    pub fn said(&self, node: &str, one: &Holding) -> Option<&Arc<Pod>> {
        let (namespace, name) = one.id.split_once('/')?;
        let pod = self.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        let is = match pod.uid.as_ref().zip(one.uid.as_ref()) {
            Some((known, said)) => known == said,
            None => self.extent != Extent::Whole || pod.node() == Some(node),
        };
        is.then_some(pod)
    }
}

#[cfg(test)]
mod tests {
    use nvlink_topology::{Allocation, NodeTopologySpec};
    use serde_json::json;

    use super::*;
    use crate::{
        gpus::{Hardwares, Marks, id},
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
    fn a_report_without_a_uid_is_about_no_later_pod_of_the_name() {
        for (stage, free) in [
            (bound(), vec![1, 2, 3]),
            (Stage::Unbound, vec![0, 1, 2, 3]),
            (Stage::Bound("b".to_owned()), vec![0, 1, 2, 3]),
        ] {
            let mirror = Mirror::default();
            mirror.set_pod(("n".to_owned(), "again".to_owned()), pod("2", stage));
            mirror.all_pods(|_| true, Extent::Whole);
            let held = Some(vec![allocation("again", None, &[0])]);
            assert_eq!(seen(&mirror, held).0, Some(free));
        }
    }

    #[test]
    fn what_is_said_of_an_earlier_pod_is_not_about_a_later_one() {
        for extent in [Extent::OfClasses, Extent::Whole] {
            let mirror = Mirror::default();
            mirror.set_pod(("n".to_owned(), "again".to_owned()), pod("2", bound()));
            mirror.all_pods(|_| true, extent);
            let said = |uid: &str| {
                let (id, uid) = (id("n", "again"), Some(uid.to_owned()));
                mirror.read().said("a", &Holding { id, uid }).is_some()
            };
            assert_eq!((said("1"), said("2")), (false, true));
        }
    }

    #[test]
    fn without_all_pods_a_report_is_believed() {
        let mirror = Mirror::default();
        mirror.all_pods(|_| true, Extent::OfClasses);
        let held = Some(vec![allocation("of-no-class", None, &[0])]);
        assert_eq!(seen(&mirror, held), (Some(vec![1, 2, 3]), vec![]));
    }
}
