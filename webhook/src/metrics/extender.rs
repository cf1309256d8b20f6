//! The label values of the scheduler extender's calls.

use prometheus_client::encoding::EncodeLabelSet;

/// A verb of kube-scheduler's extender API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Filter,
    Prioritize,
}

/// The outcome of a call of the extender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Answered,
    /// Could not be parsed, or was too large.
    Invalid,
    /// There was no time or no room.
    Overloaded,
}

impl Verb {
    /// Returns the word used in logs and label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
        }
    }
}

impl Call {
    /// Returns the word used in logs and label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Invalid => "invalid",
            Self::Overloaded => "overloaded",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByCall {
    pub(super) verb: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByVerb {
    pub(super) verb: &'static str,
}
