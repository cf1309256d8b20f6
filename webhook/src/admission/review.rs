//! The AdmissionReview protocol: bytes in, a question or the reason why there
//! is none; an answer out, bytes again.
//!
//! Read leniently, so that whatever arrives gets an AdmissionReview back that
//! says what is wrong with it.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::Value;

use crate::{
    authorize::{Subject, User},
    decide::{self, Action, patch::Patch},
};

mod wire;

/// The only version of the protocol that API servers of this decade speak.
const API_VERSION: &str = "admission.k8s.io/v1";

/// More containers than any node runs in one pod. The patch of one that says
/// next to nothing is a hundred times its size.
const MOST_CONTAINERS: usize = 1000;

/// A pod to decide on.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Id of the request, to be given back.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Who stands behind it.
    pub subject: Subject,
    /// What is done to the pod.
    pub action: Action,
    /// The pod, untouched: as it will be.
    pub pod: Value,
    /// The pod as it was; null where it is created.
    pub old: Value,
}

/// What an AdmissionReview asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Review {
    /// A decision on a pod.
    Pod(Box<Request>),
    /// Nothing that concerns us; with the reason.
    Other {
        /// Id of the request.
        uid: String,
        /// Why it does not.
        reason: String,
    },
}

/// A review that cannot be answered on its merits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// Id of the request, as far as it could be read.
    pub uid: String,
    pub message: String,
}

/// Reads an AdmissionReview.
///
/// # Errors
/// When it is none, or not one of a pod.
pub fn read(body: &[u8]) -> Result<Review, Invalid> {
    let review = wire::read(body).map_err(|error| Invalid {
        uid: uid_of_prefix(body),
        message: format!("the request is not valid JSON: {error}"),
    })?;
    let checked = check(&review);
    let request = review.request.unwrap_or_default();
    let uid = request.uid.clone();
    let invalid = |message| Invalid {
        uid: uid.clone(),
        message,
    };
    checked.map_err(invalid)?;
    let action = match (&request.operation[..], &request.sub_resource[..]) {
        ("CREATE", "") => Action::Create,
        // Labels and annotations may be written with the status too.
        ("UPDATE", "" | "status") => Action::Update,
        ("UPDATE", "ephemeralcontainers") => Action::Debug,
        ("UPDATE", "resize") => Action::Resize,
        (operation, subresource) => return Ok(other(uid, operation, subresource)),
    };
    let question = question(request, action).map_err(invalid)?;
    Ok(Review::Pod(Box::new(question)))
}

/// What `request` asks.
fn question(request: wire::Request, action: Action) -> Result<Request, String> {
    let (pod, old) = (request.object.0, request.old_object.0);
    if action != Action::Create && !old.is_object() {
        return Err("request.oldObject is missing: there is no change to decide on".to_owned());
    }
    if !pod.is_object() {
        return Err("request.object is missing: there is no pod to decide on".to_owned());
    }
    let containers = decide::pod::containers(&pod).len();
    if containers > MOST_CONTAINERS {
        return Err(format!(
            "request.object has {containers} containers: no node runs more than {MOST_CONTAINERS} in a pod"
        ));
    }
    let own = decide::pod::at(&pod, &["metadata", "namespace"]).and_then(Value::as_str);
    let namespace = Some(request.namespace)
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| own.unwrap_or_default().to_owned());
    if namespace.is_empty() {
        return Err("request.namespace is missing: a pod is in a namespace".to_owned());
    }
    let wire::UserInfo {
        username,
        uid,
        groups,
        extra,
    } = request.user_info;
    let user = User {
        username,
        uid,
        groups,
        extra,
    };
    Ok(Request {
        uid: request.uid,
        namespace,
        subject: Subject {
            user,
            service_account: decide::pod::service_account(&pod).to_owned(),
        },
        action,
        pod,
        old,
    })
}

fn other(uid: String, operation: &str, subresource: &str) -> Review {
    let what = match subresource {
        "" => "pods".to_owned(),
        name => format!("pods/{}", name.chars().take(64).collect::<String>()),
    };
    let reason = format!(
        "not changed: {operation:?} of {what} is not handled, only CREATE of pods and UPDATE of pods, pods/ephemeralcontainers, pods/resize and pods/status"
    );
    Review::Other { uid, reason }
}

fn check(review: &wire::Review) -> Result<(), String> {
    let (kind, version) = (short(&review.kind), short(&review.api_version));
    if kind != "AdmissionReview" {
        return Err(format!(
            "the request's kind is {kind:?}, not \"AdmissionReview\""
        ));
    }
    if version != API_VERSION {
        return Err(format!(
            "the request's apiVersion is {version:?}, not {API_VERSION:?}"
        ));
    }
    let Some(request) = &review.request else {
        return Err("the review has no request".to_owned());
    };
    if request.uid.is_empty() {
        return Err("request.uid is missing".to_owned());
    }
    let wire::Kind {
        group,
        version,
        kind,
    } = &request.kind;
    let kind = [group, version, kind].map(|text| short(text));
    if kind != ["", "v1", "Pod"] {
        let [group, version, kind] = kind;
        return Err(format!(
            "the request is about {kind:?} of {group:?} {version:?}, not about a Pod of v1: check the rules of the webhook configuration"
        ));
    }
    Ok(())
}

/// The beginning of `text`: more than any word is long that belongs here.
fn short(text: &str) -> &str {
    let cut = text.char_indices().nth(64);
    cut.map_or(text, |(cut, _)| &text[..cut])
}

/// The uid of a review that is cut off or broken further on: API servers write it first.
#[must_use]
pub fn uid_of_prefix(body: &[u8]) -> String {
    const KEY: &[u8] = b"\"request\":{\"uid\":\"";
    let head = &body[..body.len().min(4096)];
    let found = head.windows(KEY.len()).position(|window| window == KEY);
    let rest = found.map_or(&[][..], |at| &head[at + KEY.len()..]);
    let length = rest
        .iter()
        .take_while(|&&byte| byte.is_ascii_hexdigit() || byte == b'-')
        .count();
    let complete = rest.get(length) == Some(&b'"') && length <= 64;
    if complete {
        String::from_utf8_lossy(&rest[..length]).into_owned()
    } else {
        String::new()
    }
}

/// The answer to a review.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Id of the request.
    pub uid: String,
    /// The refusal, if it is one: HTTP status and text.
    pub refused: Option<(u16, String)>,
    pub patch: Patch,
    /// Lines that kubectl prints.
    pub warnings: Vec<String>,
    /// What the API server's audit log keeps of the decision.
    pub audit: Option<String>,
}

/// What each warning begins with.
const SPEAKER: &str = "nvlink-domains: ";
/// API servers cut longer warnings.
const LONGEST_WARNING: usize = 256;

/// An answer as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_annotations: Option<Audit<'a>>,
}

#[derive(Serialize)]
struct Status<'a> {
    code: u16,
    reason: &'static str,
    message: &'a str,
}

impl<'a> Status<'a> {
    fn of((code, message): &'a (u16, String)) -> Self {
        let reason = match code {
            403 => "Forbidden",
            _ => "BadRequest",
        };
        Self {
            code: *code,
            reason,
            message,
        }
    }
}

/// The API server puts the name of the webhook before the key.
#[derive(Serialize)]
struct Audit<'a> {
    decision: &'a str,
}

impl Answer {
    /// The answer to a review that could not be read.
    #[must_use]
    pub fn invalid(invalid: Invalid) -> Self {
        let refused = Some((
            400,
            format!(
                "nvlink-webhook cannot read this review: {}",
                invalid.message
            ),
        ));
        Self {
            uid: invalid.uid,
            refused,
            ..Self::default()
        }
    }

    /// The answer as an AdmissionReview.
    ///
    /// # Errors
    /// Never in practice: all of it is texts.
    pub fn to_review(&self) -> serde_json::Result<Vec<u8>> {
        let patch = !self.patch.is_empty();
        let patch = patch.then(|| STANDARD.encode(self.patch.to_json()));
        let decision = self.audit.as_deref();
        serde_json::to_vec(&Written {
            api_version: API_VERSION,
            kind: "AdmissionReview",
            response: Response {
                uid: &self.uid,
                allowed: self.refused.is_none(),
                status: self.refused.as_ref().map(Status::of),
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch,
                warnings: self.warnings.iter().map(|line| warning(line)).collect(),
                audit_annotations: decision.map(|decision| Audit { decision }),
            },
        })
    }
}

/// Header values cannot hold control characters, and long ones are cut.
fn warning(line: &str) -> String {
    let mut text = String::with_capacity(SPEAKER.len() + line.len());
    text.push_str(SPEAKER);
    text.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
    // As many bytes are as many characters at most.
    if text.len() >= LONGEST_WARNING
        && let Some((cut, _)) = text.char_indices().nth(LONGEST_WARNING - 1)
    {
        text.truncate(cut);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uid_of_a_broken_review() {
        let uid = |text: &str| uid_of_prefix(text.as_bytes());
        assert_eq!(
            uid(r#"{"kind":"AdmissionReview","request":{"uid":"705ab4f5-6393","ki"#),
            "705ab4f5-6393"
        );
        assert_eq!(uid(r#"{"request":{"uid":"705ab4f5"#), "");
        assert_eq!(uid(r#"{"request":{"uid":"7\u0041""#), "");
        assert_eq!(uid(""), "");
    }

    #[test]
    fn warnings_fit_a_header() {
        let line = warning(&"ä\n".repeat(400));
        assert_eq!(line.chars().count(), LONGEST_WARNING);
        assert!(!line.contains('\n') && line.ends_with('…'));
    }
}
