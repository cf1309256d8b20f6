//! What holds for every review.

use base64::{Engine, engine::general_purpose::STANDARD};
use nvlink_admission::authorize::Authorizer;
use nvlink_topology::labels;
use nvlink_webhook::admission::server::Webhook;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::patch;

/// Bytes of a refusal: more is a dump of what the user sent, not a reason.
const MESSAGE: usize = 4096;

/// What became of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Let in and changed.
    Changed,
    /// Let in as it is.
    Untouched,
    /// Refused.
    Denied,
    /// Could not be read.
    Invalid,
}

/// Sends a review to `webhook` and looks at the answer; the error says what is wrong with it.
pub(crate) async fn check<A: Authorizer>(
    webhook: &Webhook<A>,
    body: &[u8],
) -> Result<Kind, String> {
    let review: Option<Value> = serde_json::from_slice(body).ok();
    let response = send(webhook, body).await?;
    well_formed(&response, review.as_ref())?;
    if response["allowed"] == false {
        let invalid = response["status"]["code"] == 400;
        return Ok(if invalid { Kind::Invalid } else { Kind::Denied });
    }
    let Some(mut review) = review else {
        // What nobody looks at may nest deeper than a document, or hold a number
        // that is too large or half a surrogate, but it must be JSON.
        let text = std::str::from_utf8(body).map_err(|why| why.to_string());
        let json = text.map(serde_json::from_str::<IgnoredAny>)?;
        return match json {
            Ok(_) => Ok(Kind::Untouched),
            Err(why) => Err(format!("let in, and it is no JSON: {why}")),
        };
    };
    let Some(text) = response["patch"].as_str() else {
        return Ok(Kind::Untouched);
    };
    let text = STANDARD.decode(text).map_err(|why| why.to_string())?;
    let operations = serde_json::from_slice(&text).map_err(|why| why.to_string())?;
    if review["request"]["operation"] != "CREATE" || operations == json!([]) {
        return Err(format!("a patch that has no place here: {operations}"));
    }
    let before = review["request"]["object"].clone();
    patch::apply(&mut review["request"]["object"], &operations)?;
    let after = &review["request"]["object"];
    let requested = without_claimed(before.clone(), after)?;
    kept(&requested, after, "").and_then(|()| environment(&before, after))?;
    let again = send(webhook, review.to_string().as_bytes()).await?;
    if again["allowed"] != true || again.get("patch").is_some() {
        return Err(format!("the second pass says {again} after {operations}"));
    }
    Ok(Kind::Changed)
}

/// The `response` of the answer, as the API server gets it.
async fn send<A: Authorizer>(webhook: &Webhook<A>, body: &[u8]) -> Result<Value, String> {
    let text = webhook.answer(body).await.to_review();
    let text = text.map_err(|why| why.to_string())?;
    let mut review: Value = serde_json::from_slice(&text).map_err(|why| why.to_string())?;
    if review["apiVersion"] != "admission.k8s.io/v1" || review["kind"] != "AdmissionReview" {
        return Err(format!("no AdmissionReview: {review}"));
    }
    Ok(review["response"].take())
}

/// That the API server takes the response, and knows which request it belongs to.
fn well_formed(response: &Value, review: Option<&Value>) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}: {response}"));
    let uid = review.and_then(|review| review.get("request")?.get("uid")?.as_str());
    if response["uid"].as_str().is_none() || uid.is_some_and(|uid| response["uid"] != uid) {
        return wrong("another uid");
    }
    let patched = response.get("patch").is_some();
    if patched != response.get("patchType").is_some() {
        return wrong("a patch and its type go together");
    }
    let message = response["status"]["message"].as_str().unwrap_or_default();
    match response["allowed"].as_bool() {
        Some(true) => {}
        Some(false) if !message.is_empty() && message.len() <= MESSAGE && !patched => {}
        _ => return wrong("neither let in nor refused with a reason that can be read"),
    }
    let warnings = response["warnings"].as_array().into_iter().flatten();
    for line in warnings {
        // The API server sends them on in a header.
        let line = line.as_str().unwrap_or_default();
        if line.is_empty() || line.contains(char::is_control) || line.chars().count() > 256 {
            return wrong("a warning that the API server drops");
        }
    }
    Ok(())
}

/// Returns the pod without the requests that became as many requests of the queue's claim.
fn without_claimed(mut before: Value, after: &Value) -> Result<Value, String> {
    const GPU: &str = "nvidia.com/gpu";
    for list in ["containers", "initContainers"] {
        let pointer = format!("/spec/{list}");
        let old = before.pointer_mut(&pointer).and_then(Value::as_array_mut);
        let new = after.pointer(&pointer).and_then(Value::as_array);
        for (old, new) in old.into_iter().flatten().zip(new.into_iter().flatten()) {
            let claims = new.pointer("/resources/claims").and_then(Value::as_array);
            let claims = claims.into_iter().flatten();
            let claimed = claims.filter(|one| one["name"] == labels::CLAIM).count();
            if claimed == 0 {
                continue;
            }
            let mut amounts = Vec::new();
            for kind in ["limits", "requests"] {
                let found = old.pointer_mut(&format!("/resources/{kind}"));
                amounts.extend(found.and_then(|all| all.as_object_mut()?.remove(GPU)));
            }
            // Hostile pods have two numbers, of which the larger counts, or other spellings.
            let number = |amount: &Value| match amount {
                Value::String(text) => text.parse().ok(),
                other => other.as_u64(),
            };
            let number = amounts.iter().filter_map(number).max();
            if number.is_some_and(|number: u64| number != claimed as u64) {
                return Err(format!(
                    "{number:?} GPUs became {claimed} requests of a claim"
                ));
            }
        }
    }
    Ok(before)
}

/// That everything in `before` is in `after`: lists grow only, and nulls may be filled.
fn kept(before: &Value, after: &Value, path: &str) -> Result<(), String> {
    match (before, after) {
        (Value::Null, _) => Ok(()),
        (Value::Object(old), Value::Object(new)) => {
            // What was decided before is not the user's, and what the queue wrote is of another pod.
            let ours = |key: &str| {
                let wrote = key == labels::DECISION || key.starts_with(labels::QUEUE_STATE);
                path == "/metadata/annotations" && wrote
            };
            for (key, value) in old.iter().filter(|(key, _)| !ours(key)) {
                let path = format!("{path}/{key}");
                let new = new.get(key).ok_or_else(|| format!("{path} is lost"))?;
                kept(value, new, &path)?;
            }
            Ok(())
        }
        (Value::Array(old), Value::Array(new)) if old.len() <= new.len() => {
            let pairs = old.iter().zip(new).enumerate();
            for (index, (old, new)) in pairs {
                kept(old, new, &format!("{path}/{index}"))?;
            }
            Ok(())
        }
        // A claim that the queue made for another pod, in a copy of that pod: the copy gets its own.
        (Value::String(old), Value::String(new))
            if path.ends_with("/resourceClaimName")
                && [old, new]
                    .iter()
                    .all(|name| name.starts_with(labels::CLAIM_PREFIX)) =>
        {
            Ok(())
        }
        (old, new) if old == new => Ok(()),
        (old, new) => Err(format!("{path} was {old} and is {new}")),
    }
}

/// That no variable that the user set is set again, by which it would lose its value.
fn environment(before: &Value, after: &Value) -> Result<(), String> {
    for list in ["containers", "initContainers"] {
        let containers = |pod: &Value| pod["spec"][list].as_array().cloned().unwrap_or_default();
        for (old, new) in containers(before).iter().zip(&containers(after)) {
            let env = |container: &Value| match &container["env"] {
                Value::Array(env) => env.iter().map(|one| one["name"].clone()).collect(),
                _ => Vec::new(),
            };
            let (old, new) = (env(old), env(new));
            let added = &new[old.len()..];
            let twice = |index: &usize| {
                let earlier = &new[..old.len() + index];
                earlier.contains(&added[*index])
            };
            if let Some(index) = (0..added.len()).find(twice) {
                return Err(format!("variable {} is set twice", added[index]));
            }
        }
    }
    Ok(())
}
