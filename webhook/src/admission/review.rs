//! The AdmissionReview protocol: bytes in, a question or the reason why there
//! is none; an answer out, bytes again.
//!
//! Read by hand from raw JSON, so that whatever arrives gets an AdmissionReview
//! back that says what is wrong with it.

use base64::{Engine, engine::general_purpose::STANDARD};
use json_patch::PatchOperation;
use serde_json::{Value, json};

use crate::{
    authorize::{Subject, User},
    decide::Action,
};

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
    /// What is wrong.
    pub message: String,
}

/// Reads an AdmissionReview.
///
/// # Errors
/// When it is none, or not one of a pod.
pub fn read(body: &[u8]) -> Result<Review, Invalid> {
    let mut review: Value = serde_json::from_slice(body).map_err(|error| Invalid {
        uid: uid_of_prefix(body),
        message: format!("the request is not valid JSON: {error}"),
    })?;
    let uid = string(&review, &["request", "uid"]).to_owned();
    check(&review, &uid).map_err(|message| Invalid {
        uid: uid.clone(),
        message,
    })?;
    let request = &mut review["request"];
    let operation = string(request, &["operation"]);
    let subresource = string(request, &["subResource"]);
    let action = match (operation, subresource) {
        ("CREATE", "") => Action::Create,
        // Labels and annotations may be written with the status too.
        ("UPDATE", "" | "status") => Action::Update,
        ("UPDATE", "ephemeralcontainers") => Action::Debug,
        ("UPDATE", "resize") => Action::Resize,
        _ => return Ok(other(uid, operation, subresource)),
    };
    let question = question(request, action).map_err(|message| Invalid {
        uid: uid.clone(),
        message,
    })?;
    Ok(Review::Pod(Box::new(Request { uid, ..question })))
}

/// What `request` asks, without its id.
fn question(request: &mut Value, action: Action) -> Result<Request, String> {
    let old = request["oldObject"].take();
    if action != Action::Create && !old.is_object() {
        return Err("request.oldObject is missing: there is no change to decide on".to_owned());
    }
    let pod = request["object"].take();
    if !pod.is_object() {
        return Err("request.object is missing: there is no pod to decide on".to_owned());
    }
    let containers = crate::decide::pod::containers(&pod).len();
    if containers > MOST_CONTAINERS {
        return Err(format!(
            "request.object has {containers} containers: no node runs more than {MOST_CONTAINERS} in a pod"
        ));
    }
    let own = string(&pod, &["metadata", "namespace"]);
    let namespace = Some(string(request, &["namespace"]))
        .filter(|name| !name.is_empty())
        .unwrap_or(own);
    if namespace.is_empty() {
        return Err("request.namespace is missing: a pod is in a namespace".to_owned());
    }
    Ok(Request {
        uid: String::new(),
        namespace: namespace.to_owned(),
        subject: Subject {
            user: user(&request["userInfo"]),
            service_account: crate::decide::pod::service_account(&pod).to_owned(),
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

fn check(review: &Value, uid: &str) -> Result<(), String> {
    let field = |path: &[&str]| string(review, path).chars().take(64).collect::<String>();
    let (version, kind) = (field(&["apiVersion"]), field(&["kind"]));
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
    if uid.is_empty() {
        return Err("request.uid is missing".to_owned());
    }
    let kind = ["group", "version", "kind"].map(|name| field(&["request", "kind", name]));
    if kind != ["", "v1", "Pod"] {
        let [group, version, kind] = kind;
        return Err(format!(
            "the request is about {kind:?} of {group:?} {version:?}, not about a Pod of v1: check the rules of the webhook configuration"
        ));
    }
    Ok(())
}

/// The string at `path`; empty where there is none.
fn string<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter()
        .try_fold(value, |value, key| value.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn user(info: &Value) -> User {
    let extra = info
        .get("extra")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    User {
        username: string(info, &["username"]).to_owned(),
        uid: string(info, &["uid"]).to_owned(),
        groups: info.get("groups").map(strings).unwrap_or_default(),
        extra: extra
            .map(|(key, values)| (key.clone(), strings(values)))
            .collect(),
    }
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
    /// What to change.
    pub patch: Vec<PatchOperation>,
    /// Lines that kubectl prints.
    pub warnings: Vec<String>,
    /// What the API server's audit log keeps of the decision.
    pub audit: Option<String>,
}

/// API servers cut longer warnings.
const LONGEST_WARNING: usize = 256;

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
    #[must_use]
    pub fn to_review(&self) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": self.refused.is_none()});
        if let Some((code, message)) = &self.refused {
            let reason = if *code == 403 {
                "Forbidden"
            } else {
                "BadRequest"
            };
            response["status"] = json!({"code": code, "reason": reason, "message": message});
        }
        if !self.patch.is_empty() {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(STANDARD.encode(json!(self.patch).to_string()));
        }
        if !self.warnings.is_empty() {
            let warnings = self.warnings.iter().map(|line| warning(line));
            response["warnings"] = warnings.collect();
        }
        if let Some(audit) = &self.audit {
            // The API server puts the name of the webhook before the key.
            response["auditAnnotations"] = json!({"decision": audit});
        }
        json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
    }
}

/// Header values cannot hold control characters, and long ones are cut.
fn warning(line: &str) -> String {
    let line = format!("nvlink-domains: {}", line.replace(char::is_control, " "));
    match line.char_indices().nth(LONGEST_WARNING - 1) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
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
