//! The rules of [`crate::decide::guard`] as ValidatingAdmissionPolicies, which also apply while the
//! webhook is down, or if the API server does not call it.
//!
//! They are the files `policies/policies.yaml` and `policies/own.yaml`. Their placeholders are replaced by the shared
//! expressions of `policies/shared.yaml` and by the tables of the rules, so that webhook and
//! policies use the same tables. The same list of cases tests both: `tests/cases`.

use nvlink_api::{
    class::provider::Identity,
    crd::access::{CiProvider, GrantedIn},
    pod::GPU_RESOURCES,
    yaml::{self, YamlError},
};
use serde_json::{Value, json};
use strum::VariantArray;

use crate::decide::{
    denial::role,
    devices::{FRACTION_CONTAINER, FRACTIONS, KAI},
    guard::{
        ANNOTATIONS, CAPABILITIES, HARMLESS, HOST_PATHS, LONGEST_PATH, MOST_PARTS, OPEN_DEVICES,
        VARIABLES, daemon,
    },
};

mod differing;
pub mod index;

pub use differing::Differing;
use index::{CLAIMS, CiField, Field, INDEX, RESTRICTED};

const POLICIES: &str = concat!(
    include_str!("policies/policies.yaml"),
    include_str!("policies/own.yaml")
);
const SHARED: &str = include_str!("policies/shared.yaml");

/// The namespace of the Lease of the leader where the chart installs the webhook by default.
pub const LEASE_NAMESPACE: &str = "nvlink-system";

/// What differs between the policies of two clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Namespaces whose pods they skip, besides `kube-system` and those with the opt-out label.
    pub exempt: Vec<String>,
    /// The namespace of the Lease of the leader, which serves the queue.
    pub lease_namespace: String,
}

/// Returns the policies and their bindings as YAML, ready to apply.
pub fn text(site: &Site) -> String {
    let mut tables = tables();
    tables.push(("EXEMPT", json!(exempt_names(&site.exempt)).to_string()));
    tables.push(("LEASE_NAMESPACE", json!(site.lease_namespace).to_string()));
    for (name, lane) in LANES {
        let lanes = lanes(lane, &tables);
        tables.push((name, lanes));
    }
    fill(POLICIES, &tables)
}

/// Returns the documents of [`text`].
///
/// # Errors
/// When the text is not YAML.
pub fn documents(site: &Site) -> Result<Vec<Value>, YamlError> {
    yaml::read(&text(site))
}

/// Returns the expression of the policies that selects the requests on pods that a rule is about.
/// It cannot fail.
pub fn concerns_a_rule() -> String {
    fill("${CONCERNS_A_RULE}", &tables())
}

/// Returns the names of the exempt namespaces: `kube-system` and `others`.
pub fn exempt_names(others: &[String]) -> Vec<String> {
    let mut names = vec!["kube-system".to_owned()];
    for other in others {
        if !names.contains(other) {
            names.push(other.clone());
        }
    }
    names
}

/// The name of a placeholder, and its replacement.
type Table = (&'static str, String);

/// Returns the tables of the rules as CEL literals.
fn tables() -> Vec<Table> {
    let (mut by_account, mut by_labels) = (Vec::new(), Vec::new());
    for provider in CiProvider::VARIANTS {
        let word = provider.into_str();
        match provider.identity() {
            Identity::Labels { project, group } => by_labels.push(format!(
                "{{'word': '{word}', 'project': '{project}', 'group': '{group}'}}"
            )),
            Identity::Account => by_account.push(word),
        }
    }
    let mut tables = vec![
        ("ANNOTATIONS", strings(&ANNOTATIONS)),
        ("BY_ACCOUNT", strings(&by_account)),
        ("BY_LABELS", format!("[{}]", by_labels.join(", "))),
        ("CAPABILITIES", strings(&CAPABILITIES)),
        ("DEBUGGING", said(&daemon::debugging("@node"), " ")),
        ("EXEMPTION", said(&daemon::exemption("@namespace"), " ")),
        ("FRACTIONS", strings(&FRACTIONS)),
        ("FRACTION_CONTAINER", format!("'{FRACTION_CONTAINER}'")),
        ("GPU_RESOURCES", strings(&GPU_RESOURCES)),
        ("GRANT", of_held(&grant(GrantedIn::Namespace))),
        ("GRANT_TARGET", of_target(&grant(GrantedIn::Namespace))),
        (
            "GRANT_TARGET_IN_CLUSTER",
            of_target(&grant(GrantedIn::Cluster)),
        ),
        ("HARMLESS", strings(&HARMLESS)),
        ("HOST_PATHS", strings(&HOST_PATHS)),
        ("KAI", format!("'{KAI}'")),
        (
            "LISTING",
            said(&daemon::listing("@class", "@namespace"), " "),
        ),
        (
            "LISTING_OF_TARGET",
            of_target(&said(&daemon::listing("@class", "@namespace"), " ")),
        ),
        ("LONGEST_PATH", LONGEST_PATH.to_string()),
        ("MOST_PARTS", MOST_PARTS.to_string()),
        ("OPEN_DEVICES", strings(&OPEN_DEVICES)),
        ("VARIABLES", strings(&VARIABLES)),
        ("INDEX", INDEX.to_owned()),
        ("INDEX_CLAIMS", format!("'{CLAIMS}'")),
        ("INDEX_RESTRICTED", format!("'{RESTRICTED}'")),
        ("MOST_TARGETS", MOST_TARGETS.to_string()),
    ];
    tables.extend(positions());
    tables
}

/// Returns where the fields of a class are in its lines.
fn positions() -> impl Iterator<Item = Table> {
    let fields = Field::VARIANTS.iter().map(|one| (*one).into_str());
    let of_entries = CiField::VARIANTS.iter().map(|one| (*one).into_str());
    // The rule that requires the right to a class follows its fields.
    let fields = fields.chain(["F_WAY"]).enumerate();
    let all = fields.chain(of_entries.enumerate());
    all.map(|(number, name)| (name, number.to_string()))
}

/// The restricted classes for which the rights of a request are checked one by one: an expression of
/// the API server can ask for two rights, so each class has expressions of its own. A pod that
/// targets more needs the right to all classes.
const MOST_TARGETS: usize = 4;
/// The placeholders of what each of these classes has, and the shared text of one.
const LANES: [(&str, &str); 2] = [
    ("RIGHTS_OF_TARGETS", "RIGHT_OF_A_TARGET"),
    ("RULES_OF_TARGETS", "RULE_OF_A_TARGET"),
];

/// Returns a text about the class whose toleration somebody wrote by hand.
fn of_held(text: &str) -> String {
    text.replace("variables.name", "variables.held")
}

/// Returns a text about the class of one lane.
fn of_target(text: &str) -> String {
    let name = Field::Name as usize;
    text.replace("variables.name", &format!("variables.target@lane[{name}]"))
}

/// Returns the shared text `name` once for each class of [`MOST_TARGETS`], with its number in place of
/// `@lane`.
fn lanes(name: &str, tables: &[Table]) -> String {
    let lane = fill(&shared(name), tables);
    let lanes = (0..MOST_TARGETS).map(|number| lane.replace("@lane", &number.to_string()));
    lanes.collect::<Vec<_>>().join("\n")
}

fn strings(items: &[&str]) -> String {
    let quoted: Vec<_> = items.iter().map(|item| format!("'{item}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Returns the commands that grant the right, as in the webhook's refusals.
fn grant(granted_in: GrantedIn) -> String {
    said(
        &role("@class", "@account", "@namespace", granted_in),
        " && ",
    )
}

/// Turns a text of the webhook into a part of a CEL string: on one line, as the API server
/// requires, and with the variables of the expressions.
fn said(text: &str, newline: &str) -> String {
    let text = text.replace('\n', newline).replace('\'', "\\'");
    [
        ("@class", "variables.name"),
        ("@account", "variables.account"),
        ("@namespace", "request.namespace"),
        ("@node", "variables.node"),
    ]
    .iter()
    .fold(text, |text, (place, name)| {
        text.replace(place, &format!("' + {name} + '"))
    })
}

/// Replaces each `${NAME}` in `text` by the table of that name, or by the shared text of that name.
/// All lines of a replacement get the indentation of the placeholder's line.
fn fill(text: &str, tables: &[Table]) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let mut parts = line.split("${");
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').unwrap_or((part, ""));
            let table = tables.iter().find(|(known, _)| *known == name);
            let value = match table {
                Some((_, value)) => value.clone(),
                None => fill(&shared(name), tables),
            };
            filled += &value.replace('\n', &format!("\n{indent}"));
            filled += rest;
        }
        lines.push(filled);
    }
    lines.join("\n")
}

/// Returns the shared text of `name`: the indented lines below it.
fn shared(name: &str) -> String {
    let start = SHARED.split_once(&format!("\n{name}: |-\n"));
    let lines = start.map_or("", |(_, rest)| rest).lines();
    let lines: Vec<_> = lines.map_while(|line| line.strip_prefix("  ")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nvlink_api::{crd::GPU, pod::DEVICE_CLASSES};
    use nvlink_topology::{GROUP, labels};

    use super::*;
    use crate::{
        authorize::{RELEASE, RESOURCE, USE},
        decide::{
            Rule,
            guard::{DEVICE_MOUNTS, KAI_CONFIG_MAPS},
            intent::ALIAS_GROUP,
        },
    };

    fn site(exempt: &[&str]) -> Site {
        Site {
            exempt: exempt.iter().map(|name| (*name).to_owned()).collect(),
            lease_namespace: "n: [".to_owned(),
        }
    }

    /// Returns the names of the placeholders in `text`.
    fn placeholders(text: &str) -> BTreeSet<&str> {
        let names = text.split("${").skip(1);
        names.map(|rest| rest.split_once('}').unwrap().0).collect()
    }

    #[test]
    fn each_placeholder_is_filled_and_each_table_is_used() {
        let shared = yaml::read(SHARED).unwrap().remove(0);
        let mut known: BTreeSet<_> = tables().into_iter().map(|(name, _)| name).collect();
        known.extend(["EXEMPT", "LEASE_NAMESPACE"]);
        known.extend(LANES.map(|(name, _)| name));
        for (name, value) in shared.as_object().unwrap() {
            assert_eq!(super::shared(name), value.as_str().unwrap(), "{name}");
            assert!(known.insert(name), "{name} exists twice");
        }
        let file = [POLICIES, SHARED].concat();
        let mut used = placeholders(&file);
        used.extend(LANES.map(|(_, lane)| lane));
        assert_eq!(used, known);
        let text = text(&site(&["own"]));
        assert!(!text.contains("${"), "{text}");
        for (name, value) in tables() {
            let value = value.replace("@lane", "0");
            assert!(text.contains(&value), "{name}: {value}");
        }
        assert!(text.contains(&concerns_a_rule().replace('\n', "\n      ")));
    }

    #[test]
    fn the_tables_are_cel_literals() {
        let tables: std::collections::BTreeMap<_, _> = tables().into_iter().collect();
        assert_eq!(
            tables["VARIABLES"],
            "['NVIDIA_VISIBLE_DEVICES', 'NVIDIA_IMEX_CHANNELS', 'NVIDIA_NVSWITCH', \
             'NVIDIA_MIG_CONFIG_DEVICES', 'NVIDIA_MIG_MONITOR_DEVICES']"
        );
        assert_eq!(tables["BY_ACCOUNT"], "['buildkite', 'tekton', 'arc']");
        assert_eq!(
            tables["BY_LABELS"],
            "[{'word': 'gitlab', 'project': 'project.runner.gitlab.com/id', \
             'group': 'project.runner.gitlab.com/root-namespace-id'}]"
        );
        assert!(
            tables["GRANT"].starts_with("echo \\'{\"apiVersion\"")
                && tables["GRANT"].contains("--role=use-' + variables.held + ' "),
            "{}",
            tables["GRANT"]
        );
        for (name, text) in tables {
            assert!(!text.contains('\n'), "{name}");
        }
    }

    /// The YAML files repeat names for which the program has constants.
    #[test]
    fn the_yaml_files_use_the_names_of_the_program() {
        let file = [POLICIES, SHARED].concat();
        for name in [
            labels::CLASS,
            labels::DEFAULT_CLASS,
            labels::DECISION,
            labels::GANG,
            labels::GANG_SIZE,
            labels::OPT_OUT,
            labels::PROJECT,
            ALIAS_GROUP,
            DEVICE_CLASSES,
            DEVICE_MOUNTS,
            labels::QUEUE_GATE,
            labels::QUEUE_PLACEMENT,
            labels::QUEUE_STATE,
            labels::QUEUE_TERM,
            GPU,
            GROUP,
            KAI_CONFIG_MAPS,
            RELEASE,
            RESOURCE,
            USE,
        ] {
            assert!(file.contains(&format!("'{name}'")), "{name}");
        }
    }

    #[test]
    fn the_yaml_files_use_the_rules_of_the_program() {
        let file = [POLICIES, SHARED].concat();
        let rules = [
            Rule::ReservedAnnotation,
            Rule::ReservedLabel,
            Rule::ReservedGate,
            Rule::Locked,
            Rule::Claim,
            Rule::NotAuthorized,
            Rule::Toleration,
            Rule::NodeName,
            Rule::NodeSelector,
            Rule::Privileged,
            Rule::HostPath,
            Rule::EphemeralContainer,
            Rule::VisibleDevices,
            Rule::RuntimeClass,
            Rule::Resize,
            Rule::UnknownClass,
            Rule::OptOut,
            Rule::Size,
        ]
        .map(Into::into);
        for rule in rules {
            let named = [format!("'rule {rule}: "), format!("'{rule}'")];
            assert!(named.iter().any(|name| file.contains(name)), "{rule}");
        }
        let said = file
            .lines()
            .filter_map(|line| line.trim().strip_prefix("message: rule "));
        for rule in said {
            // The webhook does not know who leads, and decides nothing about its own accounts or about classes.
            assert!(
                rules.contains(&rule) || ["own", "term", "index", "isolated"].contains(&rule),
                "{rule} is not a rule"
            );
        }
    }

    #[test]
    fn each_validation_names_its_rule() {
        for policy in documents(&site(&[])).unwrap() {
            for validation in policy["spec"]["validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let message = validation["message"].as_str().unwrap();
                let said = validation["messageExpression"].as_str().unwrap();
                let own = said.starts_with(&format!("'{message}: "));
                assert!(own || message == "the class is restricted", "{said}");
                assert_eq!(validation["reason"], "Forbidden", "{said}");
                assert!(!said.contains('\n'), "{said}");
            }
        }
    }

    /// No name of a namespace can change the structure of the policies.
    #[test]
    fn names_of_namespaces_are_quoted() {
        let odd = ["it's", "a\"b", "${CAPABILITIES}", "c: [d", "kube-system"];
        let documents = documents(&site(&odd)).unwrap();
        let selector = &documents[0]["spec"]["matchConstraints"]["namespaceSelector"];
        let names = &selector["matchExpressions"][0]["values"];
        assert_eq!(
            *names,
            json!(["kube-system", "it's", "a\"b", "${CAPABILITIES}", "c: [d"])
        );
        assert_eq!(documents.len(), 22);
    }
}
