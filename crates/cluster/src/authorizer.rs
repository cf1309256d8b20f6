//! Checks rights by access reviews of the API server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use nvlink_api::crd::access::GrantedIn;
use nvlink_topology::GROUP;
use tokio::time::sleep;

use nvlink_admission::authorize::{Authorizer, Grant, RELEASE, RESOURCE, Subject, USE, User};

mod cache;

use cache::{Cache, Right};

/// The pause before a retry when the API server is busy.
const PAUSE: Duration = Duration::from_millis(250);

/// Checks rights by one SubjectAccessReview for the user and one for the service
/// account. Grants are cached for a few seconds.
#[derive(Clone)]
pub struct ClusterAuthorizer {
    client: Client,
    granted: Arc<Cache>,
}

impl ClusterAuthorizer {
    /// Returns an authorizer that uses `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            granted: Arc::default(),
        }
    }

    /// Checks whether at least one of `rights` is granted.
    async fn any(&self, rights: Vec<Right>) -> Grant {
        let now = Instant::now();
        if rights.iter().any(|right| self.granted.holds(right, now)) {
            return Grant::Granted;
        }
        let reviews = rights.iter().map(|right| self.review(right));
        let answers = futures::future::join_all(reviews).await;
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
                    namespace: Some(right.namespace.clone()).filter(|name| !name.is_empty()),
                    verb: Some(right.verb.to_owned()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        loop {
            match api.create(&PostParams::default(), &review).await {
                Ok(answer) => return Ok(answer.status.is_some_and(|status| status.allowed)),
                Err(kube::Error::Api(status)) if is_busy(status.code) => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reports whether an API server that answers `code` is busy. That is no reason to
/// refuse a pod: the review is retried until the caller's deadline.
fn is_busy(code: u16) -> bool {
    matches!(code, 429 | 503 | 504)
}

impl Authorizer for ClusterAuthorizer {
    async fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        granted_in: GrantedIn,
    ) -> Grant {
        let place = match granted_in {
            GrantedIn::Namespace => namespace,
            GrantedIn::Cluster => "",
        };
        let right = |user| Right {
            user,
            verb: USE,
            class: class.to_owned(),
            namespace: place.to_owned(),
        };
        let rights = vec![
            right(subject.user.clone()),
            right(subject.as_user(namespace)),
        ];
        self.any(rights).await
    }

    async fn may_release(&self, user: &User, namespace: &str) -> Grant {
        let right = Right {
            user: user.clone(),
            verb: RELEASE,
            class: String::new(),
            namespace: namespace.to_owned(),
        };
        self.any(vec![right]).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server's answer to a review: whether it is allowed, or an HTTP error.
    type Answer = Result<bool, StatusCode>;

    /// Returns an authorizer whose API server gives `answers`, repeating the last
    /// one, and the reviews that the API server received.
    fn authorizer(answers: &[Answer]) -> (ClusterAuthorizer, Arc<Mutex<Vec<Value>>>) {
        let asked = Arc::<Mutex<Vec<Value>>>::default();
        let (seen, answers) = (Arc::clone(&asked), answers.to_vec());
        let api = tower::service_fn(move |request: Request<Body>| {
            let (seen, answers) = (Arc::clone(&seen), answers.clone());
            async move {
                let body = request.into_body().collect_bytes().await?;
                let mut review: Value = serde_json::from_slice(&body)?;
                let count = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(review["spec"].clone());
                    seen.len()
                };
                let answer = answers[(count - 1).min(answers.len() - 1)];
                let (status, body) = match answer {
                    Ok(allowed) => {
                        review["status"] = json!({"allowed": allowed});
                        (StatusCode::CREATED, review.to_string())
                    }
                    Err(status) => (status, "Try again later.\n".to_owned()),
                };
                let response = Response::builder().status(status);
                Ok::<_, tower::BoxError>(response.body(Body::from(body.into_bytes()))?)
            }
        });
        let client = Client::new(api, "default");
        (ClusterAuthorizer::new(client), asked)
    }

    async fn ask(authorizer: &ClusterAuthorizer, user: &str) -> Grant {
        let user = User {
            username: user.to_owned(),
            groups: vec!["dev".to_owned()],
            ..User::default()
        };
        let subject = Subject {
            user,
            service_account: "trainer".to_owned(),
        };
        let place = GrantedIn::Namespace;
        authorizer.may_use(&subject, "gold", "team", place).await
    }

    #[tokio::test]
    async fn the_user_and_the_service_account_are_reviewed() {
        let (authorizer, asked) = authorizer(&[Ok(false)]);
        assert_eq!(ask(&authorizer, "alice").await, Grant::Denied);
        let attributes = json!({
            "group": GROUP, "resource": RESOURCE, "name": "gold", "namespace": "team", "verb": USE
        });
        let mut asked = asked.lock().unwrap().clone();
        asked.sort_by_key(|spec| spec["user"].to_string());
        assert_eq!(
            asked,
            [
                json!({"user": "alice", "groups": ["dev"], "resourceAttributes": attributes}),
                json!({
                    "user": "system:serviceaccount:team:trainer",
                    "groups": ["system:serviceaccounts", "system:serviceaccounts:team", "system:authenticated"],
                    "resourceAttributes": attributes
                }),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn grants_are_cached_and_denials_are_reviewed_again() {
        let (authorizer, asked) = authorizer(&[Ok(false), Ok(false), Ok(true)]);
        let count = || asked.lock().unwrap().len();
        assert_eq!(ask(&authorizer, "alice").await, Grant::Denied);
        assert_eq!(count(), 2);
        // After a denial, a new right works at once.
        assert_eq!(ask(&authorizer, "alice").await, Grant::Granted);
        assert_eq!(count(), 4);
        for _ in 0..100 {
            assert_eq!(ask(&authorizer, "alice").await, Grant::Granted);
        }
        assert_eq!(count(), 4, "the right was cached");
    }

    #[tokio::test]
    async fn a_failed_review_is_reported_and_retried_by_the_next_pod() {
        let broken = Err(StatusCode::INTERNAL_SERVER_ERROR);
        let (authorizer, asked) = authorizer(&[broken, broken, Ok(true)]);
        let Grant::Failed(reason) = ask(&authorizer, "alice").await else {
            panic!("nobody answered");
        };
        assert!(
            reason.contains("did not answer the access review"),
            "{reason}"
        );
        assert_eq!(ask(&authorizer, "alice").await, Grant::Granted);
        assert_eq!(asked.lock().unwrap().len(), 4);
    }

    #[tokio::test]
    async fn one_grant_is_enough_if_the_other_review_fails() {
        for answers in [
            [Ok(true), Err(StatusCode::INTERNAL_SERVER_ERROR)],
            [Err(StatusCode::INTERNAL_SERVER_ERROR), Ok(true)],
        ] {
            let (authorizer, _) = authorizer(&answers);
            assert_eq!(ask(&authorizer, "alice").await, Grant::Granted);
        }
        let (authorizer, _) = authorizer(&[Ok(false), Err(StatusCode::BAD_GATEWAY)]);
        assert!(matches!(ask(&authorizer, "alice").await, Grant::Failed(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_are_retried_while_the_api_server_is_busy() {
        let busy = Err(StatusCode::TOO_MANY_REQUESTS);
        let answers = [busy, Err(StatusCode::SERVICE_UNAVAILABLE), busy, Ok(true)];
        let (authorizer, _) = authorizer(&answers);
        assert_eq!(ask(&authorizer, "alice").await, Grant::Granted);
    }
}
