//! Rights, as the API server knows them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use nvlink_topology::GROUP;

use super::{
    Authorizer, Grant, RELEASE, RESOURCE, Subject, USE, User,
    cache::{Cache, Right},
};

/// Asks the API server, by a SubjectAccessReview each for the user and the
/// service account. What was granted is believed for some seconds.
#[derive(Clone)]
pub struct ClusterAuthorizer {
    client: Client,
    timeout: Duration,
    granted: Arc<Cache>,
}

impl ClusterAuthorizer {
    /// Asks through `client`, and gives up after `timeout`.
    #[must_use]
    pub fn new(client: Client, timeout: Duration) -> Self {
        Self {
            client,
            timeout,
            granted: Arc::default(),
        }
    }

    /// Whether somebody has one of `rights`.
    async fn any(&self, rights: Vec<Right>, deadline: Instant) -> Grant {
        let now = Instant::now();
        if rights.iter().any(|right| self.granted.holds(right, now)) {
            return Grant::Granted;
        }
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Grant::Failed("the API server took too long over earlier reviews".to_owned());
        }
        let reviews = futures::future::join_all(rights.iter().map(|right| self.review(right)));
        let answers = match tokio::time::timeout(self.timeout.min(left), reviews).await {
            Ok(answers) => answers,
            Err(_) => {
                let class = rights.first().map(|right| &right.class);
                tracing::warn!(class, "access review timed out");
                return Grant::Failed(
                    "the API server took too long to answer the access review".to_owned(),
                );
            }
        };
        let mut grant = Grant::Denied;
        for (right, answer) in rights.into_iter().zip(answers) {
            match answer {
                Ok(true) => {
                    self.granted.keep(right, Instant::now());
                    return Grant::Granted;
                }
                Ok(false) => {}
                Err(error) => {
                    let Right {
                        class, namespace, ..
                    } = right;
                    tracing::warn!(%error, class, namespace, "access review failed");
                    grant =
                        Grant::Failed("the API server did not answer the access review".to_owned());
                }
            }
        }
        grant
    }

    async fn review(&self, right: &Right) -> Result<bool, kube::Error> {
        let user = right.user.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.username),
                uid: Some(user.uid).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups),
                extra: Some(user.extra).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    resource: Some(RESOURCE.to_owned()),
                    name: Some(right.class.clone()).filter(|name| !name.is_empty()),
                    namespace: Some(right.namespace.clone()),
                    verb: Some(right.verb.to_owned()),
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
        let right = |user| Right {
            user,
            verb: USE,
            class: class.to_owned(),
            namespace: namespace.to_owned(),
        };
        let rights = vec![
            right(subject.user.clone()),
            right(subject.as_user(namespace)),
        ];
        self.any(rights, deadline).await
    }

    async fn may_release(&self, user: &User, namespace: &str, deadline: Instant) -> Grant {
        let right = Right {
            user: user.clone(),
            verb: RELEASE,
            class: String::new(),
            namespace: namespace.to_owned(),
        };
        self.any(vec![right], deadline).await
    }
}
