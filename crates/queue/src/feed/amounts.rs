//! CPU, memory and other resources besides GPUs: what pods ask for, and what nodes have. Pure.

use std::collections::BTreeMap;

use nvlink_planner::Name;
use serde_json::Value;

use nvlink_api::{
    pod::{self, Container, Role},
    quantity,
};

use crate::channel;

/// The first resources of each vector: CPU in thousandths, memory and storage in bytes, the number of
/// pods, and that of IMEX channels. Others follow.
const FIXED: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "pods", CHANNELS];
/// IMEX channels, in place of a resource: the scheduler counts the devices of claims. No resource has
/// this name, which is no name of Kubernetes.
const CHANNELS: &str = "IMEX channels";

/// Amounts of resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Those of [`FIXED`].
    fixed: [u64; FIXED.len()],
    /// All others, in the order of their names.
    others: Box<[(Name, u64)]>,
}

type ByName<'a> = BTreeMap<&'a str, u64>;

impl Amounts {
    /// Returns what a pod takes of its node, by the rule of kube-scheduler: the larger of all
    /// containers and sidecars together and the largest init phase, or what the pod as a whole
    /// requests, plus its overhead
    /// (<https://github.com/kubernetes/component-helpers/blob/master/resource/helpers.go>). A
    /// container that is being resized counts with the larger of both sizes.
    #[must_use]
    pub fn of_pod(pod: &Value) -> Self {
        let (mut all, mut sidecars, mut phase) = (ByName::new(), ByName::new(), ByName::new());
        for container in pod::containers(pod) {
            let own = requests(pod, &container);
            match container.role {
                Role::Main => add(&mut all, &own),
                Role::Sidecar => {
                    add(&mut sidecars, &own);
                    raise(&mut phase, &sidecars);
                }
                Role::Init => {
                    let mut now = sidecars.clone();
                    add(&mut now, &own);
                    raise(&mut phase, &now);
                }
            }
        }
        add(&mut all, &sidecars);
        raise(&mut all, &phase);
        all.extend(read(pod, &["spec", "resources", "requests"]));
        add(&mut all, &read(pod, &["spec", "overhead"]));
        all.insert("pods", 1);
        all.insert(CHANNELS, channel::named(pod).is_some().into());
        all.retain(|_, amount| *amount > 0);
        Self::new(&all, 0)
    }

    /// Returns what a node has, by its status. What of `FIXED` it does not say has no limit.
    #[must_use]
    pub fn of_node(status: &Value) -> Self {
        Self::new(&read(status, &["allocatable"]), u64::MAX)
    }

    /// Returns what a node has that gives so many IMEX channels.
    pub(super) fn with_channels(mut self, channels: u64) -> Self {
        let named = FIXED.iter().zip(&mut self.fixed);
        let own = named.filter(|(name, _)| **name == CHANNELS);
        own.for_each(|(_, amount)| *amount = channels);
        self
    }

    fn new(all: &ByName<'_>, absent: u64) -> Self {
        let fixed = FIXED.map(|name| all.get(name).copied().unwrap_or(absent));
        let others = all.iter().filter(|(name, _)| !FIXED.contains(name));
        Self {
            fixed,
            others: others
                .map(|(name, one)| (Name::from(*name), *one))
                .collect(),
        }
    }

    /// Returns the names of the resources that are not of [`FIXED`].
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.others.iter().map(|(name, _)| name)
    }

    /// Returns what is not 0 as quantities by resource, without the numbers of pods and channels.
    pub(crate) fn quantities(&self) -> serde_json::Map<String, Value> {
        let fixed = FIXED
            .iter()
            .zip(self.fixed)
            .filter(|(name, _)| **name != "pods" && **name != CHANNELS);
        let fixed = fixed.map(|(name, one)| match *name {
            "cpu" => (*name, one, "m"),
            _ => (*name, one, ""),
        });
        let others = self.others.iter().map(|(name, one)| (&**name, *one, ""));
        let all = fixed.chain(others).filter(|(_, one, _)| *one > 0);
        all.map(|(name, one, unit)| (name.to_owned(), format!("{one}{unit}").into()))
            .collect()
    }

    /// Returns the amounts of [`FIXED`], then those of `others`.
    pub(super) fn vector(&self, others: &[Name]) -> Vec<u64> {
        let other = |name: &Name| {
            let at = self.others.binary_search_by(|(one, _)| one.cmp(name));
            at.map_or(0, |at| self.others[at].1)
        };
        let others = others.iter().map(other);
        self.fixed.into_iter().chain(others).collect()
    }
}

/// A sum of amounts, from which any of them can be subtracted again.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    fixed: [u128; FIXED.len()],
    others: BTreeMap<Name, u128>,
    /// The number of summands.
    pub(super) count: usize,
}

impl Sum {
    pub(super) fn add(&mut self, amounts: &Amounts) {
        self.count += 1;
        let fixed = self.fixed.iter_mut().zip(amounts.fixed);
        fixed.for_each(|(sum, one)| *sum += u128::from(one));
        for (name, one) in &amounts.others {
            *self.others.entry(name.clone()).or_default() += u128::from(*one);
        }
    }

    pub(super) fn subtract(&mut self, amounts: &Amounts) {
        self.count -= 1;
        let fixed = self.fixed.iter_mut().zip(amounts.fixed);
        fixed.for_each(|(sum, one)| *sum -= u128::from(one));
        for (name, one) in &amounts.others {
            if let Some(sum) = self.others.get_mut(name) {
                *sum -= u128::from(*one);
            }
        }
        self.others.retain(|_, sum| *sum > 0);
    }

    /// Returns the sums of [`FIXED`], then those of `others`.
    pub(super) fn vector(&self, others: &[Name]) -> Vec<u64> {
        let others = others.iter();
        let others = others.map(|name| self.others.get(name).copied().unwrap_or(0));
        let all = self.fixed.into_iter().chain(others);
        all.map(|sum| u64::try_from(sum).unwrap_or(u64::MAX))
            .collect()
    }
}

/// Returns what a container requests. The API server sets requests that are missing to the limits.
fn requests<'a>(pod: &'a Value, container: &Container<'a>) -> ByName<'a> {
    let spec = container.value();
    let mut all = read(spec, &["resources", "limits"]);
    all.extend(read(spec, &["resources", "requests"]));
    let list = match container.role {
        Role::Main => "containerStatuses",
        Role::Init | Role::Sidecar => "initContainerStatuses",
    };
    let mut statuses = pod::list(pod, &["status", list]);
    let status =
        statuses.find(|one| one.get("name").and_then(Value::as_str) == Some(container.name()));
    if let Some(status) = status {
        raise(&mut all, &read(status, &["allocatedResources"]));
        raise(&mut all, &read(status, &["resources", "requests"]));
    }
    all
}

fn read<'a>(value: &'a Value, path: &[&str]) -> ByName<'a> {
    let amount = |(name, amount): (&'a String, &'a Value)| {
        let decimals = if name == "cpu" { 3 } else { 0 };
        Some((name.as_str(), quantity::scaled(amount, decimals)?))
    };
    pod::entries(value, path).filter_map(amount).collect()
}

fn add<'a>(sum: &mut ByName<'a>, more: &ByName<'a>) {
    for (name, one) in more {
        let sum = sum.entry(name).or_default();
        *sum = sum.saturating_add(*one);
    }
}

fn raise<'a>(most: &mut ByName<'a>, other: &ByName<'a>) {
    for (name, one) in other {
        let most = most.entry(name).or_default();
        *most = (*most).max(*one);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_takes_what_the_scheduler_counts() {
        let container = |cpu: &str, memory: &str| {
            json!({"name": "c", "resources": {
                "requests": {"cpu": cpu}, "limits": {"cpu": "64", "memory": memory}
            }})
        };
        let mut sidecar = container("500m", "1Ki");
        sidecar["restartPolicy"] = json!("Always");
        let sum = |main: &[u64]| vec![main[0], main[1], 0, 1, 0];
        for (spec, expected) in [
            (json!({}), sum(&[0, 0])),
            (
                json!({"containers": [container("1", "2Ki"), container("0.5", "1Ki")]}),
                sum(&[1_500, 3_072]),
            ),
            (
                json!({
                    "initContainers": [sidecar, container("4", "1Ki")],
                    "containers": [container("1", "4Ki")],
                }),
                sum(&[4_500, 5_120]),
            ),
            (
                json!({
                    "containers": [container("1", "2Ki")],
                    "resources": {"requests": {"cpu": "3"}},
                    "overhead": {"cpu": "250m", "memory": "1Ki"},
                }),
                sum(&[3_250, 3_072]),
            ),
        ] {
            let pod = json!({ "spec": spec });
            assert_eq!(Amounts::of_pod(&pod).vector(&[]), expected, "{pod}");
        }
        let resized = json!({
            "spec": {"containers": [container("1", "2Ki")]},
            "status": {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]},
        });
        let taken = Amounts::of_pod(&resized).vector(&[]);
        assert_eq!(taken, [2_000, 2_048, 0, 1, 0]);
    }

    #[test]
    fn other_resources_follow_in_the_order_that_is_asked_for() {
        let allocatable = json!({"allocatable": {
            "cpu": "8", "pods": "110", "rdma/hca": "4", "hugepages-2Mi": "1Gi", "nvidia.com/gpu": "8"
        }});
        let node = Amounts::of_node(&allocatable);
        let others = ["rdma/hca", "absent", "hugepages-2Mi"].map(Name::from);
        let all = [8_000, u64::MAX, u64::MAX, 110, u64::MAX, 4, 0, 1 << 30];
        assert_eq!(node.vector(&others), all);
        let one = node.clone().with_channels(1).vector(&[]);
        assert_eq!(one, [8_000, u64::MAX, u64::MAX, 110, 1]);
        let names: Vec<_> = node.names().map(|name| &**name).collect();
        assert_eq!(names, ["hugepages-2Mi", "nvidia.com/gpu", "rdma/hca"]);
    }
}
