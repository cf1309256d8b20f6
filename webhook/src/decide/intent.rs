//! What a pod says about itself: its annotations, checked.

use std::{fmt::Display, str::FromStr};

use nvlink_topology::{GROUP, Pattern, Scope, labels};
use serde_json::Value;

use super::refusal::{Refusal, Rule};
use crate::decide::pod;

/// Published recipes' name for the scope; `nvlink-locality` means `nvlink-domain`.
const ALIAS_POLICY: &str = "scheduling.run.ai/topology-policy";
/// Published recipes' name for the gang.
pub(crate) const ALIAS_GROUP: &str = "scheduling.run.ai/pod-group";
/// More pods than a gang can sensibly have.
const MAX_GANG: u32 = 100_000;

/// What a pod says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intent {
    /// The class that it names.
    pub class: Option<String>,
    /// How close its GPUs must be.
    pub scope: Option<Scope>,
    /// How its GPUs communicate.
    pub pattern: Option<Pattern>,
    /// The gang that it belongs to; a gang of one is none.
    pub gang: Option<String>,
    /// Pods in the gang, if it says so.
    pub gang_size: Option<u32>,
    /// It wants no environment variables.
    pub no_environment: bool,
    /// Keys of the annotations that said so.
    pub said: Vec<&'static str>,
    /// Keys with our prefix that mean nothing, as a line for the user each.
    pub unknown: Vec<String>,
}

impl Intent {
    /// Reads the annotations of `pod`.
    ///
    /// # Errors
    /// When one has a value that means nothing, or needs another.
    pub fn of(pod: &Value) -> Result<Self, Refusal> {
        let mut said = Vec::new();
        let mut read = |key: &'static str| {
            let value = text(pod, key)?;
            said.extend(value.is_some().then_some(key));
            Ok::<_, Refusal>(value)
        };
        let class = read(labels::CLASS)?.map(str::to_owned);
        let scope = word(labels::SCOPE, read(labels::SCOPE)?)?;
        let pattern = word(labels::PATTERN, read(labels::PATTERN)?)?;
        let gang = read(labels::GANG)?;
        let size = read(labels::GANG_SIZE)?.map(gang_size).transpose()?;
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
            return Err(invalid(labels::GANG, "", "give the gang a name"));
        }
        let alias = |key| pod::metadata(pod, "annotations", key).and_then(Value::as_str);
        let gang = gang.or_else(|| alias(ALIAS_GROUP).filter(|name| !name.is_empty()));
        if let (Some(size), None) = (size, gang) {
            let hint = format!("name the gang in {} as well", labels::GANG);
            return Err(invalid(labels::GANG_SIZE, &size.to_string(), &hint));
        }
        let local = alias(ALIAS_POLICY) == Some("nvlink-locality");
        Ok(Self {
            class,
            scope: scope.or(local.then_some(Scope::NvlinkDomain)),
            pattern,
            gang: gang.filter(|_| size != Some(1)).map(str::to_owned),
            gang_size: size.filter(|&size| size != 1),
            no_environment,
            said,
            unknown: unknown(pod),
        })
    }
}

/// What a job may say.
const KEYS: [&str; 6] = [
    labels::CLASS,
    labels::SCOPE,
    labels::PATTERN,
    labels::GANG,
    labels::GANG_SIZE,
    labels::ENVIRONMENT,
];
/// Keys that are told of; nobody misspells more.
const MOST_UNKNOWN: usize = 3;
/// Letters that a misspelt key may have wrong.
const SLIPS: usize = 2;

/// Annotations with our prefix that nobody reads: a misspelt one would be
/// ignored in silence.
fn unknown(pod: &Value) -> Vec<String> {
    let annotations = pod::entries(pod, &["metadata", "annotations"]);
    let strange = annotations.filter_map(|(key, _)| {
        let name = key.strip_prefix(GROUP)?.strip_prefix('/')?;
        let known = key == labels::DECISION || KEYS.contains(&key.as_str());
        (!known).then(|| meant(key, name))
    });
    strange.take(MOST_UNKNOWN).collect()
}

/// That `key` is unknown, and what may have been meant by its `name`.
fn meant(key: &str, name: &str) -> String {
    let names = KEYS.map(|key| key.rsplit('/').next().unwrap_or(key));
    let distance = |known: &&str| strsim::osa_distance(known, name);
    match names.iter().min_by_key(|known| distance(known)) {
        Some(near) if distance(near) <= SLIPS => {
            format!("annotation {key} is unknown; did you mean {near}?")
        }
        _ => format!(
            "annotation {key} is unknown; a pod's are {}",
            names.join(", ")
        ),
    }
}

/// The gang that the pod names, if what it says of it can be read.
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
            "use the number of pods, such as \"4\"",
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
    fn nothing_said() {
        assert_eq!(Intent::of(&json!({})).unwrap(), Intent::default());
        assert_eq!(
            read(json!({labels::CLASS: null, "other": "x"})).unwrap(),
            Intent::default()
        );
    }

    #[test]
    fn aliases_stand_back() {
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
            (intent.scope, intent.gang.as_deref()),
            (Some(Scope::Rack), Some("own"))
        );
        assert_eq!(read(json!({ALIAS_POLICY: "other"})).unwrap().scope, None);
    }

    #[test]
    fn what_is_misspelt_is_told() {
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
        assert!(far[0].contains("a pod's are class, scope"), "{far:?}");
        let own = json!({labels::CLASS: "a", labels::DECISION: "{}", "other.io/clas": "x"});
        assert_eq!(told(own), Vec::<String>::new());
        let many: serde_json::Map<_, _> =
            (0..9).map(|i| (key(&i.to_string()), json!(""))).collect();
        assert_eq!(told(Value::Object(many)).len(), MOST_UNKNOWN);
    }

    #[test]
    fn a_gang_of_one_is_none() {
        let intent = read(json!({labels::GANG: "g", labels::GANG_SIZE: "1"})).unwrap();
        assert_eq!(intent.gang, None);
    }

    #[test]
    fn what_means_nothing_is_named() {
        for (key, value, hint) in [
            (labels::SCOPE, json!("galaxy"), "nvlink-domain"),
            (labels::PATTERN, json!("ring"), "all-reduce"),
            (labels::GANG, json!(""), "name"),
            (labels::GANG_SIZE, json!("4"), "nvlink-domains.io/gang"),
            (labels::GANG_SIZE, json!("many"), "number"),
            (labels::GANG_SIZE, json!("0"), "number"),
            (labels::ENVIRONMENT, json!("off"), "none"),
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
