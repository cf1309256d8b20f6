//! The AdmissionReview protocol: parses a review from bytes, or reports why it
//! cannot, and serializes the answer.
//!
//! Parsing is lenient, so that every input gets an AdmissionReview back that
//! reports what is wrong with it.

use base64::{Engine, engine::general_purpose::STANDARD};
use json_patch::Patch;
use nvlink_api::pod::{self, text};
use serde::Serialize;
use serde_json::Value;

use nvlink_admission::{
    authorize::{Subject, User},
    decide::Action,
};

mod wire;

/// The only version of the protocol that current API servers use.
const API_VERSION: &str = "admission.k8s.io/v1";

/// More containers than any node runs in one pod. The patch of an almost empty
/// container is a hundred times as large as the container.
const MOST_CONTAINERS: usize = 1000;

/// A pod to decide on.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Id of the request, which the answer repeats.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// The users behind the pod.
    pub subject: Subject,
    /// What the request does to the pod.
    pub action: Action,
    /// The new pod, unchanged by the webhook.
    pub pod: Value,
    /// The pod before the change; null if it is created.
    pub old: Value,
}

/// The subject of an AdmissionReview.
#[derive(Clone, Debug, PartialEq)]
pub enum Review {
    /// A pod to decide on.
    Pod(Box<Request>),
    /// A request that the webhook does not handle.
    Other {
        /// Id of the request.
        uid: String,
        /// Why it does not.
        reason: String,
    },
}

/// A review that cannot be decided on because it is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// Id of the request, as far as it could be read.
    pub uid: String,
    pub message: String,
}

/// Parses an AdmissionReview.
///
/// # Errors
/// When the body is not an AdmissionReview, or not one of a pod.
pub fn read(body: &[u8]) -> Result<Review, Invalid> {
    let mut review = wire::read(body).map_err(|error| Invalid {
        uid: uid_of_prefix(body),
        message: format!("the request is not valid JSON: {error}"),
    })?;
    let uid = text(&review, &["request", "uid"]).to_owned();
    let invalid = |message| Invalid {
        uid: uid.clone(),
        message,
    };
    check(&review).map_err(invalid)?;
    let request = &mut review["request"];
    let operation = text(request, &["operation"]);
    let action = match (operation, text(request, &["subResource"])) {
        ("CREATE", "") => Action::Create,
        ("UPDATE", "") => Action::Update,
        ("UPDATE", "ephemeralcontainers") => Action::Debug,
        ("UPDATE", "resize") => Action::Resize,
        (operation, subresource) => return Ok(other(uid, operation, subresource)),
    };
    let question = question(request, action).map_err(invalid)?;
    Ok(Review::Pod(Box::new(question)))
}

/// Returns the pod to decide on.
fn question(request: &mut Value, action: Action) -> Result<Request, String> {
    let mut object = |key: &str| {
        let object = request.get_mut(key).filter(|object| object.is_object());
        object.map(Value::take).unwrap_or_default()
    };
    let (pod, old) = (object("object"), object("oldObject"));
    if action != Action::Create && !old.is_object() {
        return Err("request.oldObject is missing: there is no change to decide on".to_owned());
    }
    if !pod.is_object() {
        return Err("request.object is missing: there is no pod to decide on".to_owned());
    }
    let containers = pod::containers(&pod).len();
    if containers > MOST_CONTAINERS {
        return Err(format!(
            "request.object has {containers} containers: no node runs more than {MOST_CONTAINERS} in a pod"
        ));
    }
    let namespace = match text(request, &["namespace"]) {
        "" => text(&pod, &["metadata", "namespace"]),
        namespace => namespace,
    };
    if namespace.is_empty() {
        return Err("request.namespace is missing: every pod has a namespace".to_owned());
    }
    Ok(Request {
        uid: text(request, &["uid"]).to_owned(),
        namespace: namespace.to_owned(),
        subject: Subject {
            user: user(request),
            service_account: pod::service_account(&pod).to_owned(),
        },
        action,
        pod,
        old,
    })
}

/// Returns the user who makes the request.
fn user(request: &Value) -> User {
    let extra = pod::entries(request, &["userInfo", "extra"]);
    User {
        username: text(request, &["userInfo", "username"]).to_owned(),
        uid: text(request, &["userInfo", "uid"]).to_owned(),
        groups: texts(request, &["userInfo", "groups"]),
        extra: extra
            .map(|(key, values)| (key.clone(), texts(values, &[])))
            .collect(),
    }
}

/// Returns the strings of the list at `path`.
fn texts(value: &Value, path: &[&str]) -> Vec<String> {
    let items = pod::list(value, path);
    items
        .filter_map(|item| Some(item.as_str()?.to_owned()))
        .collect()
}

fn other(uid: String, operation: &str, subresource: &str) -> Review {
    let what = match subresource {
        "" => "pods".to_owned(),
        name => format!("pods/{}", name.chars().take(64).collect::<String>()),
    };
    let reason = format!(
        "not changed: {operation:?} of {what} is not handled, only CREATE of pods and UPDATE of pods, pods/ephemeralcontainers and pods/resize"
    );
    Review::Other { uid, reason }
}

fn check(review: &Value) -> Result<(), String> {
    let at = |path: &[&str]| short(text(review, path));
    let (kind, version) = (at(&["kind"]), at(&["apiVersion"]));
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
    if !review["request"].is_object() {
        return Err("the review has no request".to_owned());
    }
    if text(review, &["request", "uid"]).is_empty() {
        return Err("request.uid is missing".to_owned());
    }
    let kind = ["group", "version", "kind"].map(|field| at(&["request", "kind", field]));
    if kind != ["", "v1", "Pod"] {
        let [group, version, kind] = kind;
        return Err(format!(
            "the request is about {kind:?} of {group:?} {version:?}, not about a Pod of v1: check the rules of the webhook configuration"
        ));
    }
    Ok(())
}

/// Returns the beginning of `text`: longer than any valid value.
fn short(text: &str) -> &str {
    let cut = text.char_indices().nth(64);
    cut.map_or(text, |(cut, _)| &text[..cut])
}

/// Returns the uid of a review that is truncated or broken further on. API servers
/// write the uid first.
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
    /// HTTP status and message of the refusal, if the request is refused.
    pub refused: Option<(u16, String)>,
    pub patch: Patch,
    /// Lines that kubectl prints.
    pub warnings: Vec<String>,
    /// The decision, for the API server's audit log.
    pub audit: Option<String>,
}

/// The prefix of each warning.
const SPEAKER: &str = "nvlink-domains: ";
/// API servers truncate longer warnings.
const LONGEST_WARNING: usize = 256;

/// The serialized form of an answer.
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

/// Audit annotations. The API server prefixes the key with the webhook's name.
#[derive(Serialize)]
struct Audit<'a> {
    decision: &'a str,
}

impl Answer {
    /// Returns the answer to a review that could not be parsed.
    #[must_use]
    pub fn invalid(invalid: Invalid) -> Self {
        let refused = Some((
            400,
            format!(
                "nvlink-webhook cannot parse this review: {}",
                invalid.message
            ),
        ));
        Self {
            uid: invalid.uid,
            refused,
            ..Self::default()
        }
    }

    /// Returns the answer as an AdmissionReview.
    ///
    /// # Errors
    /// Never in practice: all fields serialize.
    pub fn to_review(&self) -> serde_json::Result<Vec<u8>> {
        let patch = !self.patch.is_empty();
        let patch = patch.then(|| serde_json::to_vec(&self.patch)).transpose()?;
        let decision = self.audit.as_deref();
        serde_json::to_vec(&Written {
            api_version: API_VERSION,
            kind: "AdmissionReview",
            response: Response {
                uid: &self.uid,
                allowed: self.refused.is_none(),
                status: self.refused.as_ref().map(Status::of),
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch: patch.map(|patch| STANDARD.encode(patch)),
                warnings: self.warnings.iter().map(|line| warning(line)).collect(),
                audit_annotations: decision.map(|decision| Audit { decision }),
            },
        })
    }
}

/// Returns a warning that fits an HTTP header: without control characters, and
/// truncated if it is too long.
fn warning(line: &str) -> String {
    let mut text = String::with_capacity(SPEAKER.len() + line.len());
    text.push_str(SPEAKER);
    text.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
    // A text has at most as many characters as bytes.
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
    fn a_broken_review_still_has_a_uid() {
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
