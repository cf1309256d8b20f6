//! The ways in which a pod is refused.

use crate::decide::patch::WrongType;

/// The rule that refuses a pod; bounded, so that it can be a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The named class does not exist.
    UnknownClass,
    /// The named class cannot be used.
    BrokenClass,
    /// The class asks for what this version cannot do.
    NotSupported,
    /// Nobody who stands behind the pod may use the class.
    NotAuthorized,
    /// Whether the class may be used could not be found out.
    ReviewFailed,
    /// An annotation has a value that means nothing.
    InvalidAnnotation,
    /// A label that only the webhook writes has another value.
    ReservedLabel,
    /// An annotation that only the webhook writes is there already.
    ReservedAnnotation,
    /// The pod tolerates the taint of a class that it may not use.
    Toleration,
    /// The pod names a node, which may be of a class that it may not use.
    NodeName,
    /// The pod selects the nodes of a class that it may not use.
    NodeSelector,
    /// A container says itself which GPUs it sees.
    VisibleDevices,
    /// The runtime of GPU containers, without a request for a GPU.
    RuntimeClass,
    /// A privileged container on the nodes of a restricted class.
    Privileged,
    /// A host path to GPUs on the nodes of a restricted class.
    HostPath,
    /// A change of what the webhook wrote.
    Locked,
    /// An ephemeral container that would see GPUs.
    EphemeralContainer,
    /// A change of a pod's GPUs.
    Resize,
    /// A namespace taken out of the rules; the policies alone know it.
    OptOut,
    /// More parts than any pod has.
    Size,
    /// The GPUs cannot be as close as the scope says.
    Scope,
    /// Pod affinity that would keep the pod's gang out for ever.
    Affinity,
    /// The pod is not shaped like a pod.
    Malformed,
}

impl Rule {
    /// The word used in logs and label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownClass => "unknown-class",
            Self::BrokenClass => "broken-class",
            Self::NotSupported => "not-supported",
            Self::NotAuthorized => "not-authorized",
            Self::ReviewFailed => "review-failed",
            Self::InvalidAnnotation => "invalid-annotation",
            Self::ReservedLabel => "reserved-label",
            Self::ReservedAnnotation => "reserved-annotation",
            Self::Toleration => "toleration",
            Self::NodeName => "node-name",
            Self::NodeSelector => "node-selector",
            Self::VisibleDevices => "visible-devices",
            Self::RuntimeClass => "runtime-class",
            Self::Privileged => "privileged",
            Self::HostPath => "host-path",
            Self::Locked => "locked",
            Self::EphemeralContainer => "ephemeral-container",
            Self::Resize => "resize",
            Self::OptOut => "opt-out",
            Self::Size => "size",
            Self::Scope => "scope",
            Self::Affinity => "affinity",
            Self::Malformed => "malformed",
        }
    }
}

/// Why a pod is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The rule that refuses it.
    pub rule: Rule,
    /// What is wrong, and what to do.
    pub message: String,
    /// The class it is about, if the decision came that far.
    pub class: Option<String>,
}

impl Refusal {
    pub fn new(rule: Rule, message: impl Into<String>) -> Self {
        Self {
            rule,
            message: message.into(),
            class: None,
        }
    }

    /// What the user is told: the rule by name, what is wrong, and what to do.
    #[must_use]
    pub fn answer(&self) -> String {
        format!("rule {}: {}", self.rule.as_str(), self.message)
    }

    /// The same, with what else helps.
    #[must_use]
    pub fn with(self, remedy: &str) -> Self {
        Self {
            message: format!("{}. {remedy}", self.message),
            ..self
        }
    }

    /// The same, about a class.
    #[must_use]
    pub fn about(self, class: &str) -> Self {
        Self {
            class: Some(class.to_owned()),
            ..self
        }
    }
}

impl From<WrongType> for Refusal {
    fn from(error: WrongType) -> Self {
        Self::new(
            Rule::Malformed,
            format!("the pod cannot be changed: {error}"),
        )
    }
}
