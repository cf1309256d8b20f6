//! Who may use a restricted class.
//!
//! A pod may use the class if the user who creates it, or the service account that
//! it runs as, has the verb `use` on the class in the pod's namespace. A user with
//! the verb `release` on all classes in a namespace may change what the webhook
//! wrote into the pods there: the queue and administrators have it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
};

use nvlink_api::crd::access::GrantedIn;

/// The plural of `DomainClass`, as in RBAC rules.
pub const RESOURCE: &str = "domainclasses";
/// The verb for the right to use a class, as for PodSecurityPolicies in the past.
pub const USE: &str = "use";
/// The verb for the right to change what the webhook wrote into pods.
pub const RELEASE: &str = "release";
/// In place of a class's name: all classes, including those created later.
pub const ALL: &str = "";

/// A user, as the API server describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(default)]
pub struct User {
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The users behind a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The user who creates the pod.
    pub user: User,
    /// The service account that the pod runs as, in its namespace.
    pub service_account: String,
}

impl Subject {
    /// Returns the service account as a user, as the API server represents it.
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

/// The result of checking a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The subject has the right.
    Granted,
    Denied,
    /// The right could not be checked, for this reason.
    Failed(String),
}

/// The results of checking the right to use classes, by class.
pub type Grants = BTreeMap<String, Grant>;

/// Checks rights. It has no time limit of its own: the caller sets one.
pub trait Authorizer: Send + Sync {
    /// Reports whether `subject` may use `class`, or [`ALL`], for a pod in
    /// `namespace`, by a right granted in that namespace or in the whole cluster,
    /// as `granted_in` requires.
    fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        granted_in: GrantedIn,
    ) -> impl Future<Output = Grant> + Send;

    /// Reports whether `user` may change what the webhook wrote into the pods of
    /// `namespace`. By default nobody may.
    fn may_release(&self, _user: &User, _namespace: &str) -> impl Future<Output = Grant> + Send {
        async { Grant::Denied }
    }
}

/// Grants the classes of a list, for `preview` and for tests.
#[derive(Clone, Debug, Default)]
pub struct ListedAuthorizer {
    allowed: BTreeSet<String>,
}

impl ListedAuthorizer {
    /// Returns an authorizer that grants the classes in `allowed`; `*` grants all.
    #[must_use]
    pub fn new(allowed: impl IntoIterator<Item = String>) -> Self {
        Self {
            allowed: allowed.into_iter().collect(),
        }
    }

    /// Reports whether everybody may use `class`.
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
