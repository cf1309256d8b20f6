//! The pod's own annotations, parsed and checked.

use std::{fmt::Display, str::FromStr, time::Duration};

use nvlink_api::{class::duration, pod};
use nvlink_topology::{GROUP, Pattern, Scope, labels, multi_node::local};
use serde_json::Value;

use super::refusal::{Refusal, Rule};

/// The name of the scope in published recipes; `nvlink-locality` means `nvlink-domain`.
const ALIAS_POLICY: &str = "scheduling.run.ai/topology-policy";
/// The name of the gang in published recipes.
pub(crate) const ALIAS_GROUP: &str = "scheduling.run.ai/pod-group";
/// More pods than a gang can sensibly have.
const MAX_GANG: u32 = 100_000;

/// The pod's own annotations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// The class that the pod names.
    pub class: Option<String>,
    /// How close its GPUs must be; at most on one node.
    pub scope: Option<Scope>,
    /// How far apart the pods of its gang may be.
    pub gang_scope: Option<Scope>,
    /// How its GPUs communicate.
    pub pattern: Option<Pattern>,
    /// The gang that the pod belongs to; `None` for a gang of one pod.
    pub gang: Option<String>,
    /// Number of pods in the gang, if the pod says so.
    pub gang_size: Option<u32>,
    /// How long the job will run.
    pub expected_duration: Option<Duration>,
    /// The job resumes from a checkpoint when its pods are taken away.
    pub checkpoint: bool,
    /// The pod opts out of environment variables.
    pub no_environment: bool,
    /// Keys of the annotations that are set.
    pub said: Vec<&'static str>,
    /// Warnings about unknown keys with our prefix, one line each.
    pub unknown: Vec<String>,
}

impl Intent {
    /// Reads the annotations of `pod`.
    ///
    /// # Errors
    /// When one has an invalid value, or needs another annotation.
    pub fn of(pod: &Value) -> Result<Self, Refusal> {
        let mut said = Vec::new();
        let mut read = |key: &'static str| {
            let value = text(pod, key)?;
            said.extend(value.is_some().then_some(key));
            Ok::<_, Refusal>(value)
        };
        let class = read(labels::CLASS)?.map(str::to_owned);
        let scope = word(labels::SCOPE, read(labels::SCOPE)?)?;
        let gang_scope = gang_scope(read(labels::GANG_SCOPE)?)?;
        let pattern = word(labels::PATTERN, read(labels::PATTERN)?)?;
        let gang = read(labels::GANG)?;
        let size = read(labels::GANG_SIZE)?.map(gang_size).transpose()?;
        let expected = read(labels::EXPECTED_DURATION)?;
        let expected_duration = expected.map(expected_duration).transpose()?;
        let checkpoint = word(labels::CHECKPOINT, read(labels::CHECKPOINT)?)?;
        let no_environment = match read(labels::ENVIRONMENT)? {
            None => false,
            Some("none") => true,
            Some(other) => {
                return Err(invalid(
                    labels::ENVIRONMENT,
                    other,
                    "the only value is none",
                ));
            }
        };
        if gang == Some("") {
            return Err(invalid(labels::GANG, "", "set it to the gang's name"));
        }
        let alias = |key| pod::metadata(pod, "annotations", key).and_then(Value::as_str);
        let gang = gang.or_else(|| alias(ALIAS_GROUP).filter(|name| !name.is_empty()));
        if let (Some(size), None) = (size, gang) {
            let hint = format!("also name the gang in {}", labels::GANG);
            return Err(invalid(labels::GANG_SIZE, &size.to_string(), &hint));
        }
        let locality = alias(ALIAS_POLICY) == Some("nvlink-locality");
        let scope = scope.or(locality.then_some(Scope::NvlinkDomain));
        Ok(Self {
            class,
            scope: scope.map(local),
            gang_scope: gang_scope.or(scope.and_then(Scope::of_pods)),
            pattern,
            gang: gang.filter(|_| size != Some(1)).map(str::to_owned),
            gang_size: size.filter(|&size| size != 1),
            expected_duration,
            checkpoint: checkpoint.unwrap_or(false),
            no_environment,
            said,
            unknown: unknown(pod),
        })
    }
}

/// Reads how far apart the pods of a gang may be: no two pods are on one GPU.
fn gang_scope(value: Option<&str>) -> Result<Option<Scope>, Refusal> {
    let scope = word(labels::GANG_SCOPE, value)?;
    if scope == Some(Scope::Gpu) {
        let hint = "set it to nvlink-domain, node, rack, zone or cluster";
        return Err(invalid(labels::GANG_SCOPE, "gpu", hint));
    }
    Ok(scope)
}

/// The annotations that a job may set.
const KEYS: [&str; 9] = [
    labels::CLASS,
    labels::SCOPE,
    labels::GANG_SCOPE,
    labels::PATTERN,
    labels::GANG,
    labels::GANG_SIZE,
    labels::EXPECTED_DURATION,
    labels::CHECKPOINT,
    labels::ENVIRONMENT,
];
/// The most unknown keys to warn about; nobody misspells more.
const MOST_UNKNOWN: usize = 3;
/// The most letters that may be wrong in a misspelt key.
const SLIPS: usize = 2;

/// Returns warnings about unknown annotations with our prefix: a misspelt one would be ignored
/// silently.
fn unknown(pod: &Value) -> Vec<String> {
    let annotations = pod::entries(pod, &["metadata", "annotations"]);
    let strange = annotations.filter_map(|(key, _)| {
        let name = key.strip_prefix(GROUP)?.strip_prefix('/')?;
        let known = key == labels::DECISION || KEYS.contains(&key.as_str());
        (!known).then(|| meant(key, name))
    });
    strange.take(MOST_UNKNOWN).collect()
}

/// Returns the warning that `key` is unknown, with the known key that is most similar to `name`.
fn meant(key: &str, name: &str) -> String {
    let names = KEYS.map(|key| key.rsplit('/').next().unwrap_or(key));
    let distance = |known: &&str| strsim::osa_distance(known, name);
    match names.iter().min_by_key(|known| distance(known)) {
        Some(near) if distance(near) <= SLIPS => {
            format!("annotation {key} is unknown; did you mean {near}?")
        }
        _ => format!(
            "annotation {key} is unknown; the known ones are {}",
            names.join(", ")
        ),
    }
}

/// Returns the gang that the pod names, if its annotations are valid.
pub(super) fn gang(pod: &Value) -> Option<String> {
    Intent::of(pod).ok()?.gang
}

fn text<'a>(pod: &'a Value, key: &str) -> Result<Option<&'a str>, Refusal> {
    match pod::metadata(pod, "annotations", key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(invalid(key, &other.to_string(), "annotations are strings")),
    }
}

fn word<T: FromStr<Err: Display>>(key: &str, value: Option<&str>) -> Result<Option<T>, Refusal> {
    let parse = |text: &str| {
        text.parse()
            .map_err(|error: T::Err| invalid(key, text, &error.to_string()))
    };
    value.map(parse).transpose()
}

fn gang_size(text: &str) -> Result<u32, Refusal> {
    let size = text
        .parse()
        .ok()
        .filter(|size| (1..=MAX_GANG).contains(size));
    size.ok_or_else(|| {
        invalid(
            labels::GANG_SIZE,
            text,
            "set it to the number of pods, such as \"4\"",
        )
    })
}

fn expected_duration(text: &str) -> Result<Duration, Refusal> {
    duration::parse(text).ok_or_else(|| {
        invalid(
            labels::EXPECTED_DURATION,
            text,
            "set it to a time with the unit s, m or h, such as \"90m\"",
        )
    })
}

fn invalid(key: &str, value: &str, hint: &str) -> Refusal {
    let value: String = value.chars().take(64).collect();
    Refusal::new(
        Rule::InvalidAnnotation,
        format!("annotation {key} has the value {value:?}: {hint}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(annotations: Value) -> Result<Intent, Refusal> {
        Intent::of(&json!({"metadata": {"annotations": annotations}}))
    }

    #[test]
    fn a_pod_without_our_annotations_has_no_intent() {
        assert_eq!(Intent::of(&json!({})).unwrap(), Intent::default());
        assert_eq!(
            read(json!({labels::CLASS: null, "other": "x"})).unwrap(),
            Intent::default()
        );
    }

    #[test]
    fn our_annotations_win_over_aliases() {
        let alias = json!({ALIAS_POLICY: "nvlink-locality", ALIAS_GROUP: "g"});
        let intent = read(alias.clone()).unwrap();
        assert_eq!(
            (intent.scope, intent.gang.as_deref()),
            (Some(Scope::NvlinkDomain), Some("g"))
        );
        let mut both = alias;
        both[labels::SCOPE] = json!("rack");
        both[labels::GANG] = json!("own");
        let intent = read(both).unwrap();
        assert_eq!(
            (intent.scope, intent.gang_scope, intent.gang.as_deref()),
            (Some(Scope::Node), Some(Scope::Rack), Some("own"))
        );
        assert_eq!(read(json!({ALIAS_POLICY: "other"})).unwrap().scope, None);
    }

    #[test]
    fn a_misspelt_annotation_is_warned_about() {
        let told = |annotations| read(annotations).unwrap().unknown;
        let key = |name: &str| format!("{GROUP}/{name}");
        for (name, near) in [
            ("clas", "class"),
            ("patern", "pattern"),
            ("gang-zise", "gang-size"),
            ("Scope", "scope"),
        ] {
            let said = told(json!({key(name): "x"}));
            let hint = format!("{GROUP}/{name} is unknown; did you mean {near}?");
            assert!(said.len() == 1 && said[0].ends_with(&hint), "{said:?}");
        }
        let far = told(json!({key("default-class"): "x"}));
        assert!(
            far[0].contains("the known ones are class, scope"),
            "{far:?}"
        );
        let own = json!({labels::CLASS: "a", labels::DECISION: "{}", "other.io/clas": "x"});
        assert_eq!(told(own), Vec::<String>::new());
        let many: serde_json::Map<_, _> =
            (0..9).map(|i| (key(&i.to_string()), json!(""))).collect();
        assert_eq!(told(Value::Object(many)).len(), MOST_UNKNOWN);
    }

    #[test]
    fn a_gang_of_one_pod_is_no_gang() {
        let intent = read(json!({labels::GANG: "g", labels::GANG_SIZE: "1"})).unwrap();
        assert_eq!(intent.gang, None);
    }

    #[test]
    fn an_invalid_value_is_named_with_a_hint() {
        for (key, value, hint) in [
            (labels::SCOPE, json!("galaxy"), "nvlink-domain"),
            (labels::GANG_SCOPE, json!("gpu"), "cluster"),
            (labels::PATTERN, json!("ring"), "all-reduce"),
            (labels::GANG, json!(""), "name"),
            (labels::GANG_SIZE, json!("4"), "nvlink-domains.io/gang"),
            (labels::GANG_SIZE, json!("many"), "number"),
            (labels::GANG_SIZE, json!("0"), "number"),
            (labels::ENVIRONMENT, json!("off"), "none"),
            (labels::EXPECTED_DURATION, json!("90"), "90m"),
            (labels::CLASS, json!(7), "strings"),
        ] {
            let refusal = read(json!({key: value.clone()})).unwrap_err();
            assert_eq!(refusal.rule, Rule::InvalidAnnotation);
            let text = value.as_str().unwrap_or("7");
            for part in [key, text, hint] {
                assert!(
                    refusal.message.contains(part),
                    "{refusal} should name {part}"
                );
            }
        }
    }
}
