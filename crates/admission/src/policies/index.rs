//! The classes as the policies read them: one [`ClassIndex`], which is their only parameter.
//!
//! With each class as a parameter, the API server would convert every pod of the cluster anew for
//! each class. A ConfigMap would not do: once no policy has a parameter of a built-in kind, the API
//! server (1.36) stops the watch of that kind, and does not start it again for a later policy.
//!
//! A class is a text: a line of its fields (`Field`), and a line for each of its CI entries, all separated
//! by `;`, and lists in them by `|`, so that a policy reads no more of a class than it needs. No name of
//! a class begins with `_`, so these keys are free: [`RESTRICTED`] has the first lines of all restricted
//! classes, and [`CLAIMS`] the names of those that give GPUs by claims.

use std::collections::BTreeMap;

use nvlink_api::crd::{ClassIndex, GPU, class_index::ClassIndexSpec};
use serde_json::Value;
use strum::{IntoStaticStr, VariantArray};

/// The name of the only ClassIndex.
pub const INDEX: &str = "classes";
/// The key of the first lines of all restricted classes.
pub const RESTRICTED: &str = "_restricted";
/// The key of the names of the classes that give GPUs by claims, separated by `|`.
pub const CLAIMS: &str = "_claims";
/// The most bytes of keys and values. etcd refuses a request of more than 1.5 MiB.
pub const MOST_BYTES: usize = 1_000_000;

/// What the first line of a class tells, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE", const_into_str, prefix = "F_")]
pub(super) enum Field {
    Name,
    /// `Open` or `Restricted`.
    Mode,
    /// The labels of its nodes: `key=value`.
    Labels,
    /// The namespaces whose daemons it admits.
    Daemons,
    /// The resource of a whole GPU.
    Resource,
    /// The integration with a scheduler.
    Integration,
    /// Where the right to it must be granted.
    GrantedIn,
    /// How it gives GPUs.
    Mapping,
    /// What happens to a pod that finds no place.
    WhenUnavailable,
    /// `true` if it applies to pods that name no class.
    Applies,
}

/// What a line of a CI entry tells, after a `+`, which begins the name of no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE", const_into_str, prefix = "CI_")]
pub(super) enum CiField {
    Mark,
    Provider,
    /// The runners: `namespace:serviceAccount`.
    Runners,
    Projects,
    Groups,
    /// The accounts of the jobs: `namespace:serviceAccount`.
    Identities,
}

/// The classes do not fit into one object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the classes need {bytes} bytes in ClassIndex {INDEX}, which may have {MOST_BYTES}: class {largest:?} has most of them; list fewer CI projects there, or root namespaces instead"
)]
pub struct TooLarge {
    bytes: usize,
    largest: String,
}

/// Returns the index of classes, each a name and its object as the API server has
/// it: also one that this version cannot use counts.
///
/// # Errors
/// When they do not fit.
pub fn index<'a>(
    classes: impl IntoIterator<Item = (&'a str, &'a Value)>,
) -> Result<ClassIndex, TooLarge> {
    let mut data = BTreeMap::new();
    let (mut restricted, mut claims) = (Vec::new(), Vec::new());
    for (name, class) in classes {
        let spec = &class["spec"];
        let head = head(name, spec);
        if text(&spec["access"]["mode"], "Open") == "Restricted" {
            restricted.push(head.clone());
        }
        if text(&spec["devices"]["mapping"], "") == "Claim" {
            claims.push(name.to_owned());
        }
        let entries = items(&spec["access"]["ciProjects"]).map(entry);
        let lines: Vec<_> = std::iter::once(head).chain(entries).collect();
        data.insert(name.to_owned(), lines.join("\n"));
    }
    let size = |(key, value): (&String, &String)| key.len() + value.len();
    let largest = data.iter().max_by_key(|one| size(*one));
    let largest = largest.map(|(name, _)| name.clone()).unwrap_or_default();
    restricted.sort();
    claims.sort();
    data.insert(RESTRICTED.to_owned(), restricted.join("\n"));
    data.insert(CLAIMS.to_owned(), claims.join("|"));
    let bytes = data.iter().map(size).sum();
    match bytes > MOST_BYTES {
        true => Err(TooLarge { bytes, largest }),
        false => Ok(ClassIndex::new(INDEX, ClassIndexSpec { data, term: None })),
    }
}

/// Returns the first line of a class.
fn head(name: &str, spec: &Value) -> String {
    let labels = spec["nodeSelector"]["matchLabels"].as_object();
    let labels = labels.into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", text(value, "")));
    let access = &spec["access"];
    let fields = Field::VARIANTS.iter().map(|field| match field {
        Field::Name => name.to_owned(),
        Field::Mode => text(&access["mode"], "Open"),
        Field::Labels => list(labels.clone()),
        Field::Daemons => list(items(&access["daemonNamespaces"]).map(|one| text(one, ""))),
        Field::Resource => text(&spec["devices"]["resourceName"], GPU),
        Field::Integration => text(&spec["scheduler"]["integration"], ""),
        Field::GrantedIn => text(&access["grantedIn"], "Namespace"),
        Field::Mapping => text(&spec["devices"]["mapping"], ""),
        Field::WhenUnavailable => text(&spec["placement"]["whenUnavailable"], "Pending"),
        Field::Applies => spec["appliesTo"].is_object().to_string(),
    });
    fields.collect::<Vec<_>>().join(";")
}

/// Returns the line of a CI entry.
fn entry(entry: &Value) -> String {
    let numbers = |name: &str| list(items(&entry[name]).map(Value::to_string));
    let accounts = |name: &str| {
        list(items(&entry[name]).map(|one| {
            let part = |name: &str| text(&one[name], "");
            format!("{}:{}", part("namespace"), part("serviceAccount"))
        }))
    };
    let fields = CiField::VARIANTS.iter().map(|field| match field {
        CiField::Mark => "+".to_owned(),
        CiField::Provider => text(&entry["provider"], ""),
        CiField::Runners => accounts("runners"),
        CiField::Projects => numbers("projectIds"),
        CiField::Groups => numbers("rootNamespaceIds"),
        CiField::Identities => accounts("identities"),
    });
    fields.collect::<Vec<_>>().join(";")
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns a field as text. One with a separator is empty: nothing in a cluster has such a name.
fn text(field: &Value, default: &str) -> String {
    let text = field.as_str().unwrap_or(default);
    match text.contains([';', '|', '\n']) {
        true => String::new(),
        false => text.to_owned(),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join("|")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn data(classes: &[(&str, Value)]) -> BTreeMap<String, String> {
        let classes = classes
            .iter()
            .map(|(name, spec)| (*name, json!({"spec": spec})));
        let classes: Vec<_> = classes.collect();
        let index = index(classes.iter().map(|(name, class)| (*name, class)));
        index.unwrap().spec.data
    }

    #[test]
    fn a_class_is_a_line_of_fields_and_a_line_for_each_ci_entry() {
        let gold = json!({
            "access": {
                "mode": "Restricted", "grantedIn": "Cluster", "daemonNamespaces": ["logs", "net"],
                "ciProjects": [{
                    "provider": "gitlab", "projectIds": [4, 5], "rootNamespaceIds": [7],
                    "runners": [{"namespace": "ci", "serviceAccount": "runner"}],
                }],
            },
            "nodeSelector": {"matchLabels": {"pool": "gold", "rack": "r1"}},
            "devices": {"mapping": "Claim"},
            "placement": {"whenUnavailable": "Queue"},
        });
        let data = data(&[("gold", gold), ("open", json!({"appliesTo": {}}))]);
        let head =
            "gold;Restricted;pool=gold|rack=r1;logs|net;nvidia.com/gpu;;Cluster;Claim;Queue;false";
        assert_eq!(data["gold"], format!("{head}\n+;gitlab;ci:runner;4|5;7;"));
        assert_eq!(
            data["open"],
            "open;Open;;;nvidia.com/gpu;;Namespace;;Pending;true"
        );
        assert_eq!(data[RESTRICTED], head);
        assert_eq!(data[CLAIMS], "gold");
    }

    /// A field cannot become another one.
    #[test]
    fn a_separator_in_a_name_empties_it() {
        let runner = |name: &str| json!([{"namespace": "ci", "serviceAccount": name}]);
        let entry = |name: &str| json!({"access": {"ciProjects": [{"provider": "arc", "identities": runner(name), "runners": runner("r")}]}});
        for odd in ["a\n+;gitlab;ci:eve;1;1;", "a;b", "a|ci:eve"] {
            let data = data(&[("x", entry(odd))]);
            assert!(data["x"].ends_with("\n+;arc;ci:r;;;ci:"), "{}", data["x"]);
        }
    }

    #[test]
    fn two_hundred_classes_with_fifty_projects_fit_and_more_are_named() {
        let spec = |projects: u64| {
            let ids: Vec<u64> = (0..projects).map(|id| 70_000_000 + id).collect();
            json!({"access": {"mode": "Restricted", "ciProjects": [{
                "provider": "gitlab", "projectIds": ids,
                "runners": [{"namespace": "gitlab-runners", "serviceAccount": "runner"}],
            }]}})
        };
        let names: Vec<String> = (0..200).map(|number| format!("class-{number}")).collect();
        let mut classes: Vec<_> = names.iter().map(|name| (&**name, spec(50))).collect();
        let bytes: usize = data(&classes).iter().map(|(k, v)| k.len() + v.len()).sum();
        assert!(bytes < 200_000, "{bytes}");
        classes[7].1 = spec(120_000);
        let classes: Vec<_> = classes
            .into_iter()
            .map(|(name, spec)| (name, json!({"spec": spec})))
            .collect();
        let error = index(classes.iter().map(|(name, class)| (*name, class))).unwrap_err();
        assert!(
            error.to_string().contains("class \"class-7\" has most"),
            "{error}"
        );
    }
}
