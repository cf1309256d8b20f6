//! Who may use a restricted class.
//!
//! Whoever has the verb `use` on it in the pod's namespace: the user who
//! creates the pod, or the service account that the pod runs as. And whoever
//! has the verb `release` on all classes in a namespace may change what the
//! webhook wrote into the pods there: that is the queue, and administrators.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
};

use crate::crd::access::GrantedIn;

mod cache;
mod reviews;

pub use reviews::ClusterAuthorizer;

/// Plural of `DomainClass`, as RBAC rules name it.
pub const RESOURCE: &str = "domainclasses";
/// The right to use a class; a verb as PodSecurityPolicies had it in their time.
pub const USE: &str = "use";
/// The right to change what the webhook wrote into pods.
pub const RELEASE: &str = "release";
/// In place of a class's name: all classes, those that are made later too.
pub const ALL: &str = "";

/// A user, as the API server describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(default)]
pub struct User {
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// What else the authenticator said.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Who stands behind a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The user who creates it.
    pub user: User,
    /// The service account that it runs as, in the pod's namespace.
    pub service_account: String,
}

impl Subject {
    /// The service account as the user that it is to the API server.
    #[must_use]
    pub fn as_user(&self, namespace: &str) -> User {
        User {
            username: format!("system:serviceaccount:{namespace}:{}", self.service_account),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            ..User::default()
        }
    }
}

/// What was found out about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The subject has it.
    Granted,
    Denied,
    /// Nobody could say, because of this.
    Failed(String),
}

/// What was found out about the right to use classes, by class.
pub type Grants = BTreeMap<String, Grant>;

/// Finds out who has a right. Takes as long as it takes: whoever asks gives up.
pub trait Authorizer: Send + Sync {
    /// Whether `subject` may use `class`, or [`ALL`], for a pod in `namespace`, by a
    /// right that is `granted_in` it or in the whole cluster.
    fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        granted_in: GrantedIn,
    ) -> impl Future<Output = Grant> + Send;

    /// Whether `user` may change what the webhook wrote into the pods of
    /// `namespace`. Nobody, unless a cluster says otherwise.
    fn may_release(&self, _user: &User, _namespace: &str) -> impl Future<Output = Grant> + Send {
        async { Grant::Denied }
    }
}

/// Answers from a list of classes, for `preview` and for tests.
#[derive(Clone, Debug, Default)]
pub struct ListedAuthorizer {
    allowed: BTreeSet<String>,
}

impl ListedAuthorizer {
    /// Grants the classes in `allowed`; `*` grants each.
    #[must_use]
    pub fn new(allowed: impl IntoIterator<Item = String>) -> Self {
        Self {
            allowed: allowed.into_iter().collect(),
        }
    }

    /// Whether everybody may use `class`.
    #[must_use]
    pub fn allows(&self, class: &str) -> bool {
        self.allowed.contains(class) || self.allowed.contains("*")
    }
}

impl Authorizer for ListedAuthorizer {
    async fn may_use(&self, _: &Subject, class: &str, _: &str, _: GrantedIn) -> Grant {
        match self.allows(class) {
            true => Grant::Granted,
            false => Grant::Denied,
        }
    }
}
