//! What a pod demands of its node besides GPUs: the scheduler binds it nowhere else.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use nvlink_api::pod;
use nvlink_planner::Name;
use serde_json::{Value, json};

use super::{
    Feed,
    neighbours::{Near, Ties},
    node::Node,
};

/// The number of demands without a pod that are kept for the next pod like theirs.
const KEPT: usize = 64;

/// What the waiting pods demand, each demand under a name.
#[derive(Debug, Default)]
pub(super) struct Demands {
    named: BTreeMap<String, (Name, Demand)>,
    /// The number of pods by the name of their demand.
    pods: HashMap<Name, usize>,
    /// The number of demands so far.
    count: u64,
}

impl Demands {
    /// Returns the names of the demands that the node `name` meets, where these are the neighbours that
    /// they need.
    pub(super) fn met(
        &self,
        name: &str,
        node: &Node,
        near: &HashMap<Name, Near>,
    ) -> impl Iterator<Item = Name> {
        let named = self.named.values();
        let met = named.filter(move |(id, demand)| {
            near.get(id).is_none_or(|near| near.is_met(node)) && demand.is_met(name, node)
        });
        met.map(|(name, _)| name.clone())
    }

    /// Returns the names and ties of the demands that depend on where other pods are.
    pub(super) fn tied(&self) -> impl Iterator<Item = (&Name, &Ties)> {
        let named = self.named.values();
        named.filter_map(|(name, demand)| Some((name, demand.ties.as_deref()?)))
    }

    /// Returns the name of a demand, if it has one.
    pub(super) fn name(&self, demand: &Demand) -> Option<Name> {
        let (name, _) = self.named.get(&demand.key())?;
        Some(name.clone())
    }

    /// Names a new demand.
    pub(super) fn add(&mut self, demand: Demand) -> Name {
        let name = Name::from(format!("demand {}", self.count));
        self.count += 1;
        self.named.insert(demand.key(), (name.clone(), demand));
        name
    }

    /// Forgets the demands without a pod if they are many, and returns them.
    pub(super) fn sweep(&mut self) -> Vec<Demand> {
        if self.named.len().saturating_sub(self.pods.len()) <= KEPT {
            return Vec::new();
        }
        let mut swept = Vec::new();
        self.named.retain(|_, (name, demand)| {
            let used = self.pods.contains_key(name);
            if !used {
                swept.push(demand.clone());
            }
            used
        });
        swept
    }

    /// Counts a pod with a demand.
    pub(super) fn join(&mut self, demand: Option<&Name>) {
        if let Some(name) = demand {
            *self.pods.entry(name.clone()).or_default() += 1;
        }
    }

    /// Counts a pod out.
    pub(super) fn leave(&mut self, demand: Option<&Name>) {
        if let Some(name) = demand
            && let Some(pods) = self.pods.get_mut(name)
        {
            *pods -= 1;
            if *pods == 0 {
                self.pods.remove(name);
            }
        }
    }
}

/// A pod's node selector, required affinity, tolerations and volumes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Demand {
    /// Its required pod affinity and anti-affinity.
    pub(super) ties: Option<Arc<Ties>>,
    selector: Value,
    terms: Option<Vec<Value>>,
    tolerations: Vec<Value>,
    /// For each volume that narrows the nodes, terms of a node selector.
    volumes: Vec<Vec<Value>>,
}

impl Demand {
    pub(super) fn of(pod: &Value) -> Self {
        const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
        let required = [
            "spec",
            "affinity",
            "nodeAffinity",
            REQUIRED,
            "nodeSelectorTerms",
        ];
        let terms = pod::at(pod, &required).and_then(Value::as_array);
        let selector = pod::at(pod, &["spec", "nodeSelector"]);
        Self {
            ties: Ties::of(pod).map(Arc::new),
            selector: selector.cloned().unwrap_or_default(),
            terms: terms.cloned(),
            tolerations: pod::list(pod, &["spec", "tolerations"]).cloned().collect(),
            volumes: Vec::new(),
        }
    }

    /// Returns the same, wherever other pods are.
    pub(super) fn untied(self) -> Self {
        Self { ties: None, ..self }
    }

    /// Returns the same where volumes narrow the nodes.
    pub(super) fn reaching(self, volumes: Vec<Vec<Value>>) -> Self {
        Self { volumes, ..self }
    }

    /// Returns a text that is the same for equal demands only.
    pub(super) fn key(&self) -> String {
        let ties = self.ties.as_ref().map(|ties| ties.key());
        json!([
            self.selector,
            self.terms,
            self.tolerations,
            ties,
            self.volumes
        ])
        .to_string()
    }

    /// Reports whether the node `name` meets it, but for its ties.
    pub(super) fn is_met(&self, name: &str, node: &Node) -> bool {
        let selector = self.selector.as_object().into_iter().flatten();
        let mut selector = selector.map(|(key, value)| (node.labels.get(key), value));
        let selected = selector.all(|(label, value)| label.map(String::as_str) == value.as_str());
        let terms = self.terms.as_ref();
        let any = |terms: &Vec<Value>| terms.iter().any(|term| matches(term, name, node));
        let fits = terms.is_none_or(any) && self.volumes.iter().all(any);
        selected && fits && node.taints.iter().all(|taint| self.tolerates(taint))
    }

    fn tolerates(&self, taint: &Value) -> bool {
        let text = |value: &Value, key: &str| {
            value
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let effect = text(taint, "effect");
        if effect == "PreferNoSchedule" {
            return true;
        }
        self.tolerations.iter().any(|one| {
            let of = |key| text(one, key);
            let exists = of("operator") == "Exists";
            let key = of("key");
            (of("effect").is_empty() || of("effect") == effect)
                && ((key.is_empty() && exists) || key == text(taint, "key"))
                && (exists || of("value") == text(taint, "value"))
        })
    }
}

/// Reports whether a node matches a term. A term without requirements matches no node.
fn matches(term: &Value, name: &str, node: &Node) -> bool {
    let mut count = 0;
    for one in pod::list(term, &["matchExpressions"]) {
        count += 1;
        let key = one.get("key").and_then(Value::as_str).unwrap_or_default();
        if !holds(one, node.labels.get(key).map(String::as_str)) {
            return false;
        }
    }
    for one in pod::list(term, &["matchFields"]) {
        count += 1;
        if !holds(one, Some(name)) {
            return false;
        }
    }
    count > 0
}

/// Reports whether a requirement holds for a value, as in Kubernetes.
pub(super) fn holds(requirement: &Value, value: Option<&str>) -> bool {
    let mut values = pod::list(requirement, &["values"]).filter_map(Value::as_str);
    let operator = requirement.get("operator").and_then(Value::as_str);
    let number = |text: &str| text.parse::<i64>().ok();
    match (operator.unwrap_or_default(), value) {
        ("In", Some(value)) => values.any(|one| one == value),
        ("NotIn", Some(value)) => values.all(|one| one != value),
        ("NotIn" | "DoesNotExist", None) | ("Exists", Some(_)) => true,
        ("Gt" | "Lt", Some(value)) => {
            let pair = number(value).zip(values.next().and_then(number));
            pair.is_some_and(|(own, limit)| match operator {
                Some("Gt") => own > limit,
                _ => own < limit,
            })
        }
        _ => false,
    }
}

impl Feed {
    /// Returns the name of the set of nodes that meet what `pod`, which need not exist, demands.
    pub fn demand_of(&mut self, pod: &Value) -> Name {
        let demand = self.bounded(Demand::of(pod));
        self.demand(demand)
    }

    /// Returns the name of a demand. A new one changes the nodes that meet it.
    pub(super) fn demand(&mut self, demand: Demand) -> Name {
        if let Some(name) = self.demands.name(&demand) {
            return name;
        }
        let mut changed = self.demands.sweep();
        changed.push(demand.clone());
        let met = self.nodes.iter().filter(|(name, node)| {
            let mut changed = changed.iter();
            changed.any(|demand| demand.is_met(name, node))
        });
        self.changed.nodes.extend(met.map(|(name, _)| name.clone()));
        let tied = demand.ties.is_some();
        let name = self.demands.add(demand);
        self.stale.extend(tied.then(|| name.clone()));
        name
    }
}

#[cfg(test)]
mod tests {
    use nvlink_topology::labels;

    use super::{
        super::{Feed, id},
        *,
    };

    fn node() -> Node {
        let labels = [("pool", "gpu"), ("size", "8")];
        Node {
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            taints: vec![
                json!({"key": "team", "value": "a", "effect": "NoSchedule"}),
                json!({"key": "soft", "effect": "PreferNoSchedule"}),
            ],
            ..Node::default()
        }
    }

    #[test]
    fn a_node_is_chosen_as_by_the_scheduler() {
        let tolerated = json!([{"key": "team", "operator": "Equal", "value": "a"}]);
        let required = |expressions: Value| {
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{}, {"matchExpressions": expressions}]
            }}})
        };
        let one = |key: &str, operator: &str, values: Value| {
            json!({"tolerations": tolerated, "affinity": required(json!([
                {"key": key, "operator": operator, "values": values}
            ]))})
        };
        for (spec, met) in [
            (json!({}), false),
            (json!({"tolerations": tolerated}), true),
            (json!({"tolerations": [{"operator": "Exists"}]}), true),
            (
                json!({"tolerations": [{"key": "team", "value": "b"}]}),
                false,
            ),
            (
                json!({"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]}),
                false,
            ),
            (
                json!({"tolerations": tolerated, "nodeSelector": {"pool": "gpu"}}),
                true,
            ),
            (
                json!({"tolerations": tolerated, "nodeSelector": {"pool": "cpu"}}),
                false,
            ),
            (one("size", "Gt", json!(["7"])), true),
            (one("size", "Gt", json!(["8"])), false),
            (one("size", "Lt", json!(["9"])), true),
            (one("pool", "In", json!(["x", "gpu"])), true),
            (one("pool", "NotIn", json!(["gpu"])), false),
            (one("absent", "NotIn", json!(["gpu"])), true),
            (one("absent", "Exists", json!([])), false),
            (one("absent", "DoesNotExist", json!([])), true),
        ] {
            let demand = Demand::of(&json!({"spec": spec}));
            assert_eq!(demand.is_met("n1", &node()), met, "{spec}");
        }
        let named = json!({"tolerations": tolerated, "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
            }]}
        }}});
        let demand = Demand::of(&json!({"spec": named}));
        assert!(demand.is_met("n1", &node()) && !demand.is_met("n2", &node()));
    }

    #[test]
    fn demands_without_a_pod_are_forgotten() {
        let mut feed = Feed::default();
        let pod = |name: &str, pool: u32| {
            json!({
                "metadata": {"namespace": "n", "name": name, "uid": name},
                "spec": {
                    "schedulingGates": [{"name": labels::QUEUE_GATE}],
                    "nodeSelector": {"pool": pool.to_string()},
                },
            })
        };
        feed.pod(pod("stays", 1_000));
        let stays = feed.demand_of(&pod("like it", 1_000));
        for pool in 0..500 {
            feed.pod(pod("a", pool));
            feed.reread(&id("n", "a"));
        }
        feed.gone(&id("n", "a"));
        let named = feed.demands.named.len();
        assert!(named <= KEPT + 2, "{named} demands");
        assert_eq!(feed.demands.pods.len(), 1);
        assert_eq!(feed.demand_of(&pod("like it", 1_000)), stays);
        let again = feed.demand_of(&pod("new", 0));
        assert!(&*again >= "demand 501", "no name has two meanings: {again}");
    }
}
