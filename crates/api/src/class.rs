//! A `DomainClass` in the form that decisions need: parsed, checked, with defaults.

use nvlink_topology::{BrokenGpus, Pattern, Scope, multi_node::local};

use crate::crd::{
    access::{CiProject, GrantedIn},
    domain_class::{
        self, AccessMode, AppliesTo, DomainClassSpec, Environment, GangScopeName, Mapping, Nics,
        PatternName, Placement, Scheduler, ScopeName,
    },
    environment::{MNNVL, Mnnvl},
};

mod accepted;
mod access;
mod broken;
mod contradiction;
pub mod duration;
mod environment;
pub mod provider;
mod queue;
pub mod syntax;

pub use accepted::{accepted, condition};
pub use broken::Broken;
pub use environment::InvalidEnvironment;
pub use queue::Queue;

pub use crate::crd::GPU;

/// A parsed class, as decisions use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    /// Using the class needs the verb `use` on it.
    pub restricted: bool,
    /// Where the verb must be granted.
    pub granted_in: GrantedIn,
    /// CI projects that may use it as well.
    pub ci_projects: Vec<CiProject>,
    /// Namespaces whose daemons may run on its nodes.
    pub daemon_namespaces: Vec<String>,
    /// Node labels that must match, by key.
    pub selector: Vec<(String, String)>,
    /// Minimum bandwidth per GPU, in GB/s.
    pub min_bandwidth: Option<u32>,
    /// Pods that get the class without naming it.
    pub applies_to: Option<AppliesTo>,
    /// The scope of the GPUs of a pod that names none; at most a node.
    pub scope: Scope,
    /// The scope of the pods of a gang that names none.
    pub gang_scope: Scope,
    /// Whether the pods of a gang on one node reach each other over NVLink.
    pub shared_host: bool,
    /// The nodes may be taken away while a job runs.
    pub preemptible: bool,
    /// Whether its pods avoid GPUs that are marked as broken, or get them last.
    pub broken_gpus: BrokenGpus,
    /// The resource that stands for one whole GPU.
    pub resource: String,
    /// Variables for the containers.
    pub environment: Environment,
    /// The scheduler that places its pods.
    pub scheduler: Scheduler,
    /// What allocates GPUs to containers.
    pub mapping: Mapping,
    /// The device class of whole GPUs, for claims.
    pub device_class: String,
    /// The NICs that its pods get with each GPU, by their claims.
    pub nics: Option<Nics>,
    /// Its pods wait in the queue; `None`: they are Pending.
    pub queue: Option<Queue>,
}

/// A class that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidClass {
    /// The name cannot be a label value.
    #[error("the name {0:?} is longer than the 63 characters of a label value")]
    Name(String),
    /// The bandwidth is not of the form `400GBps`.
    #[error(
        "spec.minBandwidth {0:?} is not a whole number of gigabytes per second of at least 1, such as 400GBps (Gbps would be gigabits)"
    )]
    Bandwidth(String),
    /// An empty range of GPU counts.
    #[error("spec.appliesTo.maxGpus {max} is below minGpus {min}")]
    Range { min: u32, max: u32 },
    #[error(transparent)]
    Environment(#[from] InvalidEnvironment),
    /// The scheduler's fields do not fit its integration.
    #[error("spec.scheduler: {0}")]
    Scheduler(&'static str),
    /// `whenUnavailable` contradicts the rest of the class.
    #[error("spec.placement: {0}")]
    Placement(&'static str),
    /// A time that is not of the form `150s`.
    #[error("{field} {text:?} is not a time with the unit s, m or h, such as 150s")]
    Duration {
        field: &'static str,
        /// The value, truncated.
        text: String,
    },
    /// An entry of `spec.access.ciProjects` does not fit its provider.
    #[error("spec.access.ciProjects[{0}]: {1}")]
    CiProject(usize, &'static str),
    /// The resource cannot be a whole GPU.
    #[error(
        "spec.devices.resourceName {0:?} is not a resource of whole NVIDIA GPUs, such as nvidia.com/gpu"
    )]
    Resource(String),
    /// A value that Kubernetes would reject in every pod of the class.
    #[error("{field} has {text:?}, which is not a valid {what}")]
    Word {
        field: &'static str,
        /// The value, truncated.
        text: String,
        /// What it should be.
        what: &'static str,
    },
}

impl Class {
    /// Parses the class `name`. Makes the same checks as the CRD's rules, because a
    /// class may also come from a file.
    ///
    /// # Errors
    /// When the class contradicts itself.
    pub fn new(name: &str, spec: &DomainClassSpec) -> Result<Self, InvalidClass> {
        if name.len() > 63 {
            return Err(InvalidClass::Name(name.to_owned()));
        }
        if let Some(applies) = &spec.applies_to
            && let Some(max) = applies.max_gpus.filter(|&max| max < applies.min_gpus)
        {
            return Err(InvalidClass::Range {
                min: applies.min_gpus,
                max,
            });
        }
        let resource = whole_gpu(&spec.devices.resource_name)?;
        let environment = spec.environment.clone().unwrap_or_default();
        environment::check(&environment, spec.devices.nics.is_some())?;
        contradiction::check(spec)?;
        access::check(&spec.access)?;
        let selector = spec.node_selector.clone().unwrap_or_default().match_labels;
        for (key, value) in &selector {
            let field = "spec.nodeSelector.matchLabels";
            word(field, key, "label key", syntax::is_label_key)?;
            word(field, value, "label value", syntax::is_label_value)?;
        }
        Ok(Self {
            name: name.to_owned(),
            restricted: spec.access.mode == AccessMode::Restricted,
            granted_in: spec.access.granted_in,
            ci_projects: spec.access.ci_projects.clone(),
            daemon_namespaces: spec.access.daemon_namespaces.clone(),
            selector: selector.into_iter().collect(),
            min_bandwidth: spec.min_bandwidth.as_deref().map(bandwidth).transpose()?,
            applies_to: spec.applies_to.clone(),
            scope: local(scope(spec.placement.scope)),
            gang_scope: gang_scope(&spec.placement),
            shared_host: spec.placement.shared_host,
            preemptible: spec.placement.preemptible,
            broken_gpus: match spec.placement.broken_gpus {
                domain_class::BrokenGpus::RankLast => BrokenGpus::Last,
                domain_class::BrokenGpus::Avoid => BrokenGpus::Avoid,
            },
            resource,
            environment,
            scheduler: spec.scheduler.clone(),
            mapping: spec.devices.mapping,
            device_class: spec.devices.device_class_name.clone(),
            nics: spec.devices.nics.clone(),
            queue: Queue::of(spec)?,
        })
    }

    /// Reports whether NCCL may not use NVLink between the pods of the class, also in one fabric.
    #[must_use]
    pub fn without_fabrics(&self) -> bool {
        let environment = &self.environment;
        environment.mnnvl == Some(Mnnvl::Disabled)
            || environment
                .extra
                .get(MNNVL)
                .is_some_and(|value| value == "0")
    }

    /// Reports whether the class claims a pod with `gpus` GPUs and communication `pattern`.
    #[must_use]
    pub fn claims(&self, gpus: u32, pattern: &Pattern) -> bool {
        self.applies_to.as_ref().is_some_and(|applies| {
            gpus >= applies.min_gpus
                && applies.max_gpus.is_none_or(|max| gpus <= max)
                && (applies.patterns.is_empty()
                    || applies.patterns.iter().any(|&name| covers(name, pattern)))
        })
    }
}

fn word(
    field: &'static str,
    text: &str,
    what: &'static str,
    fits: fn(&str) -> bool,
) -> Result<(), InvalidClass> {
    if fits(text) {
        return Ok(());
    }
    let text = text.chars().take(64).collect();
    Err(InvalidClass::Word { field, text, what })
}

/// Returns the resource if it may be one of whole GPUs.
fn whole_gpu(resource: &str) -> Result<String, InvalidClass> {
    let shared = resource.starts_with("nvidia.com/mig-") || resource.ends_with(".shared");
    match resource.starts_with("nvidia.com/") && !shared {
        true => Ok(resource.to_owned()),
        false => Err(InvalidClass::Resource(resource.to_owned())),
    }
}

fn bandwidth(text: &str) -> Result<u32, InvalidClass> {
    let number = text
        .strip_suffix("GBps")
        .filter(|number| !number.starts_with(['+', '0']));
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| InvalidClass::Bandwidth(text.to_owned()))
}

fn scope(name: ScopeName) -> Scope {
    match name {
        ScopeName::Gpu => Scope::Gpu,
        ScopeName::NvlinkDomain => Scope::NvlinkDomain,
        ScopeName::Node => Scope::Node,
        ScopeName::Rack => Scope::Rack,
        ScopeName::Zone => Scope::Zone,
    }
}

/// Returns the closer of what `gangScope` and `scope` say.
fn gang_scope(placement: &Placement) -> Scope {
    let named = match placement.gang_scope {
        GangScopeName::NvlinkDomain => Scope::NvlinkDomain,
        GangScopeName::Node => Scope::Node,
        GangScopeName::Rack => Scope::Rack,
        GangScopeName::Zone => Scope::Zone,
        GangScopeName::Cluster => Scope::Cluster,
    };
    let older = scope(placement.scope).of_pods();
    older.map_or(named, |older| older.min(named))
}

/// Reports whether a pattern is the named one or, for a shape, contains it.
fn covers(name: PatternName, pattern: &Pattern) -> bool {
    match (name, pattern) {
        (PatternName::AllReduce, Pattern::AllReduce)
        | (PatternName::AllToAll, Pattern::AllToAll)
        | (PatternName::Pipeline, Pattern::Pipeline)
        | (PatternName::ParameterServer, Pattern::ParameterServer)
        | (PatternName::None, Pattern::None) => true,
        (PatternName::AllReduce, Pattern::Shape(shape)) => shape.tensor > 1 || shape.data > 1,
        (PatternName::Pipeline, Pattern::Shape(shape)) => shape.pipeline > 1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(spec: Value) -> Result<Class, InvalidClass> {
        Class::new("c", &serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn defaults() {
        let class = class(json!({})).unwrap();
        assert!(!class.restricted && class.selector.is_empty() && class.applies_to.is_none());
        assert_eq!(
            (class.scope, class.resource.as_str()),
            (Scope::NvlinkDomain, GPU)
        );
    }

    #[test]
    fn a_shape_counts_as_the_patterns_of_its_dimensions() {
        let shape = |text: &str| text.parse().unwrap();
        for (name, text, expected) in [
            (PatternName::AllReduce, "tp=4,pp=2", true),
            (PatternName::AllReduce, "dp=2,pp=2", true),
            (PatternName::AllReduce, "pp=4", false),
            (PatternName::AllToAll, "tp=4,dp=2", false),
            (PatternName::Pipeline, "tp=4,pp=2", true),
        ] {
            assert_eq!(covers(name, &shape(text)), expected, "{name:?} {text}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        let check = |spec, expected: &str| {
            let error = class(spec).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(json!({"minBandwidth": "400"}), "minBandwidth \"400\"");
        check(json!({"minBandwidth": "+4GBps"}), "minBandwidth");
        check(
            json!({"appliesTo": {"minGpus": 4, "maxGpus": 2}}),
            "maxGpus 2 is below",
        );
        check(
            json!({"devices": {"resourceName": "nvidia.com/mig-1g.10gb"}}),
            "resourceName",
        );
        for (labels, expected) in [
            (
                json!({"pool ": "gpu"}),
                "\"pool \", which is not a valid label key",
            ),
            (json!({"": "gpu"}), "\"\", which is not a valid label key"),
            (
                json!({"pool": "x y"}),
                "\"x y\", which is not a valid label value",
            ),
        ] {
            check(json!({"nodeSelector": {"matchLabels": labels}}), expected);
        }
        assert!(Class::new(&"x".repeat(64), &DomainClassSpec::default()).is_err());
    }

    #[test]
    fn claims_by_count_and_pattern() {
        let class = class(json!({"appliesTo": {
            "minGpus": 2, "maxGpus": 8, "patterns": ["all-reduce", "all-to-all"]
        }}))
        .unwrap();
        let claims = |gpus, pattern: &str| class.claims(gpus, &pattern.parse().unwrap());
        assert!(claims(2, "all-reduce") && claims(8, "all-to-all") && claims(8, "tp=4,pp=2"));
        assert!(!claims(1, "all-reduce") && !claims(9, "all-reduce"));
        assert!(!claims(4, "pipeline") && !claims(4, "pp=4") && !claims(4, "none"));
    }
}
