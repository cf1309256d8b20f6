//! Who may use a restricted class.
//!
//! Whoever has the verb `use` on it in the pod's namespace: the user who
//! creates the pod, or the service account that the pod runs as.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    time::{Duration, Instant},
};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use nvlink_topology::GROUP;
use serde_json::json;

/// Plural of `DomainClass`, as RBAC rules name it.
const RESOURCE: &str = "domainclasses";
/// The verb, as for PodSecurityPolicies in their time.
const VERB: &str = "use";

/// A user, as the API server describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct User {
    /// Name.
    pub username: String,
    /// Stable id.
    pub uid: String,
    /// Groups.
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
    /// Why the subject may not use `class`, and the commands that would change that.
    ///
    /// The Role is applied as a document, because `kubectl create role` takes
    /// the verb `use` for PodSecurityPolicies alone.
    #[must_use]
    pub fn denial(&self, class: &str, origin: &str, namespace: &str) -> String {
        let Self {
            user,
            service_account,
        } = self;
        let role = format!("use-{class}");
        let document = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": role, "namespace": namespace},
            "rules": [{
                "apiGroups": [GROUP], "resources": [RESOURCE], "resourceNames": [class], "verbs": [VERB]
            }]
        });
        format!(
            "class {class:?}{origin} is restricted: neither user {:?} nor service account {:?} has the verb {VERB:?} on {RESOURCE}.{GROUP}/{class} in namespace {namespace}. To grant it to the service account:\n\
             echo '{document}' | kubectl apply -f -\n\
             kubectl create rolebinding {role}-{service_account} --role={role} --serviceaccount={namespace}:{service_account} -n {namespace}",
            user.username,
            format!("{namespace}/{service_account}"),
        )
    }

    /// The service account as the user that it is to the API server.
    fn as_user(&self, namespace: &str) -> User {
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

/// What was found out about a restricted class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The subject may use it.
    Granted,
    /// It may not.
    Denied,
    /// Nobody could say, because of this.
    Failed(String),
}

/// What was found out, by class.
pub type Grants = BTreeMap<String, Grant>;

/// Finds out who may use a class.
pub trait Authorizer: Send + Sync {
    /// Whether `subject` may use `class` in `namespace`; not found out after `deadline`.
    fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        deadline: Instant,
    ) -> impl Future<Output = Grant> + Send;
}

/// Asks the API server, by a SubjectAccessReview each for the user and the service account.
#[derive(Clone)]
pub struct ClusterAuthorizer {
    client: Client,
    timeout: Duration,
}

impl ClusterAuthorizer {
    /// Asks through `client`, and gives up after `timeout`.
    #[must_use]
    pub fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    async fn review(&self, user: User, class: &str, namespace: &str) -> Result<bool, kube::Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.username),
                uid: Some(user.uid).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups),
                extra: Some(user.extra).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    resource: Some(RESOURCE.to_owned()),
                    name: Some(class.to_owned()),
                    namespace: Some(namespace.to_owned()),
                    verb: Some(VERB.to_owned()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

impl Authorizer for ClusterAuthorizer {
    async fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        deadline: Instant,
    ) -> Grant {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Grant::Failed("the API server took too long over earlier reviews".to_owned());
        }
        let both = async {
            tokio::join!(
                self.review(subject.user.clone(), class, namespace),
                self.review(subject.as_user(namespace), class, namespace),
            )
        };
        match tokio::time::timeout(self.timeout.min(left), both).await {
            Ok((Ok(true), _) | (_, Ok(true))) => Grant::Granted,
            Ok((Ok(false), Ok(false))) => Grant::Denied,
            Ok((Err(error), _) | (_, Err(error))) => {
                tracing::warn!(%error, class, namespace, "access review failed");
                Grant::Failed("the API server did not answer the access review".to_owned())
            }
            Err(_) => {
                tracing::warn!(class, namespace, "access review timed out");
                Grant::Failed("the API server took too long to answer the access review".to_owned())
            }
        }
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
}

impl Authorizer for ListedAuthorizer {
    async fn may_use(&self, _: &Subject, class: &str, _: &str, _: Instant) -> Grant {
        if self.allowed.contains(class) || self.allowed.contains("*") {
            Grant::Granted
        } else {
            Grant::Denied
        }
    }
}
