//! Refusals of pods, and the rules behind them.

use nvlink_api::patch::WrongType;
use strum::{IntoStaticStr, VariantNames};

/// The rule that refuses a pod. The set is bounded, so the rule can be a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Rule {
    /// The named class does not exist.
    UnknownClass,
    /// The named class cannot be used.
    BrokenClass,
    /// Neither the user nor the pod's service account or CI project may use the class.
    NotAuthorized,
    /// The right to use the class could not be checked.
    ReviewFailed,
    /// An annotation has an invalid value.
    InvalidAnnotation,
    /// A label that only the webhook may write has another value.
    ReservedLabel,
    /// The pod already has an annotation that only the webhook may write.
    ReservedAnnotation,
    /// The pod has the gate of the queue, but does not wait in it.
    ReservedGate,
    /// The pod names a claim of the queue, or cannot get its GPUs by one.
    Claim,
    /// The pod tolerates the taint of a class that it may not use.
    Toleration,
    /// The pod names a node that may belong to a class that it may not use.
    NodeName,
    /// The pod selects the nodes of a class that it may not use.
    NodeSelector,
    /// The pod would use the GPUs of a class that queues without waiting there.
    PastQueue,
    /// A container selects the GPUs that it sees.
    VisibleDevices,
    /// The runtime of GPU containers, without a request for a GPU.
    RuntimeClass,
    /// A privileged container on the nodes of a restricted class.
    Privileged,
    /// A host path to GPUs on the nodes of a restricted class.
    HostPath,
    /// A change of something that the webhook wrote.
    Locked,
    /// An ephemeral container would see GPUs.
    EphemeralContainer,
    /// A change of a pod's GPUs.
    Resize,
    /// A namespace is exempted from the rules. Only the policies have this rule.
    OptOut,
    /// The pod has more parts than any real pod.
    Size,
    /// The GPUs cannot be as close as the scope says.
    Scope,
    /// The job has more GPUs than a project may hold.
    ProjectLimit,
    /// A job of several GPUs, on nodes that may be taken away, that does not resume.
    NoCheckpoint,
    /// Pod affinity would keep the pod's gang Pending forever.
    Affinity,
    /// The pod is not shaped like a pod.
    Malformed,
}

/// Why a pod is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub rule: Rule,
    /// What is wrong, and what to do.
    pub message: String,
    /// The class that the refusal is about, if it is known.
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

    /// Returns the text for the user: the rule's name, what is wrong, and what to do.
    #[must_use]
    pub fn answer(&self) -> String {
        format!("rule {}: {}", self.rule.into_str(), self.message)
    }

    /// Appends another remedy to the message.
    #[must_use]
    pub fn with(self, remedy: &str) -> Self {
        Self {
            message: format!("{}. {remedy}", self.message),
            ..self
        }
    }

    /// Sets the class that the refusal is about.
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
            format!("the webhook cannot change the pod: {error}"),
        )
    }
}
