//! The CA in its Secret, which all replicas share.
//!
//! The Secret is filled if it is empty, and created if it is missing. Replicas that start together,
//! or that find the CA due together, race: the API server lets one create or replace the Secret,
//! and the others use the result.

use std::{collections::BTreeMap, fmt, str::FromStr, time::SystemTime};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use super::{Authority, PkiError, certificates};

/// Keys of the Secret, the same as cert-manager's.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";
/// The number of CAs trusted at a time: the one that signs, and its predecessors.
const KEPT: usize = 3;
/// The annotation of Secrets whose CA the webhook created, and its value.
const RENEWED_BY: (&str, &str) = ("nvlink-domains.io/renewed-by", "nvlink-webhook");

/// `NAMESPACE/NAME` of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

impl SecretName {
    /// Returns the command that creates the Secret empty.
    pub(super) fn create(&self) -> String {
        let Self { namespace, name } = self;
        format!("kubectl create secret generic {name} --namespace {namespace}")
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for SecretName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err("use NAMESPACE/NAME".to_owned()),
        }
    }
}

/// The CA that signs, and all CAs that are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    pub signing: Authority,
    /// Certificates of all CAs that the API server must trust, PEM: first the one
    /// that signs, then its predecessors.
    pub bundle: String,
}

impl Trust {
    fn first(now: SystemTime) -> Result<Self, PkiError> {
        let signing = Authority::make(now)?;
        let bundle = signing.certificate.clone();
        Ok(Self { signing, bundle })
    }

    /// Returns a trust in which a new CA signs. Its predecessors stay trusted,
    /// because their certificates are in use until each replica has seen the new
    /// CA. Expired ones stay too, and the API server rejects them: a replica whose
    /// clock is fast would otherwise drop CAs that the others need.
    fn next(&self, now: SystemTime) -> Result<Self, PkiError> {
        let mut next = Self::first(now)?;
        for certificate in certificates(&self.bundle).take(KEPT - 1) {
            next.bundle.push_str(&certificate);
        }
        Ok(next)
    }

    fn read(secret: &Secret, name: &SecretName) -> Result<Self, PkiError> {
        let foreign = |reason: String| PkiError::Foreign {
            name: name.clone(),
            reason,
        };
        let text = |key: &str| {
            let data = secret.data.as_ref().and_then(|data| data.get(key));
            let bytes = data.ok_or_else(|| foreign(format!("it has no {key}")))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| foreign(format!("{key} is not text")))
        };
        let signing = Authority::parse(&text(CERTIFICATE)?, &text(KEY)?)
            .map_err(|error| foreign(error.to_string()))?;
        let bundle = text(BUNDLE)?;
        let trusted = certificates(&bundle).any(|one| one == signing.certificate);
        match trusted {
            true => Ok(Self { signing, bundle }),
            false => Err(foreign(format!(
                "{BUNDLE} lacks the certificate of {CERTIFICATE}"
            ))),
        }
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let pairs = [
            (CERTIFICATE, &self.signing.certificate),
            (KEY, &self.signing.key),
            (BUNDLE, &self.bundle),
        ];
        pairs
            .into_iter()
            .map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())))
            .collect()
    }
}

/// Returns the content of the Secret; `None` if it is missing or empty.
///
/// # Errors
/// When the API server does not answer, or when the Secret holds something that is not a CA.
pub(super) async fn read(client: &Client, name: &SecretName) -> Result<Option<Trust>, PkiError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &name.namespace);
    let present = api.get_opt(&name.name).await;
    let present = present.map_err(|error| failed("read", name, error))?;
    let filled = present.filter(|secret| !is_empty(secret));
    filled.map(|secret| Trust::read(&secret, name)).transpose()
}

/// Returns the content of the Secret. Fills the Secret if it is empty, creates it if it is
/// missing, and replaces the CA if it is due. If an administrator deletes or empties the Secret to
/// get a new CA, the CAs `known` so far stay trusted.
///
/// # Errors
/// When the API server does not answer, or when the Secret holds something that
/// is not a CA. Such a Secret is not changed, and neither is one that somebody
/// else filled.
pub(super) async fn ensure(
    client: &Client,
    name: &SecretName,
    known: Option<&Trust>,
    now: SystemTime,
) -> Result<Trust, PkiError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &name.namespace);
    let params = PostParams::default();
    // A replica loses a race at most once: the winner's CA is neither missing nor due.
    for _ in 0..3 {
        let present = api.get_opt(&name.name).await;
        let present = present.map_err(|error| failed("read", name, error))?;
        let held = match present.as_ref().filter(|secret| !is_empty(secret)) {
            None => None,
            Some(secret) => {
                let trust = Trust::read(secret, name)?;
                if !trust.signing.is_due(now) {
                    return Ok(trust);
                }
                if !is_ours(secret) {
                    return foreign(trust, name, now);
                }
                Some(trust)
            }
        };
        let trust = match held.as_ref().or(known) {
            Some(previous) => previous.next(now)?,
            None => Trust::first(now)?,
        };
        let (what, written) = match present {
            None => {
                let secret = filled(new(name), &trust);
                ("create", api.create(&params, &secret).await)
            }
            Some(secret) => {
                // It has the resourceVersion that was read.
                let secret = filled(secret, &trust);
                ("update", api.replace(&name.name, &params, &secret).await)
            }
        };
        match written {
            Ok(_) => {
                tracing::info!(secret = %name, what, "created a new CA");
                return Ok(trust);
            }
            Err(error) => lost(what, name, error)?,
        }
    }
    Err(PkiError::Foreign {
        name: name.clone(),
        reason: "it keeps changing".to_owned(),
    })
}

/// Returns nothing if another replica won the race to write the Secret.
///
/// # Errors
/// When the Secret could not be written for another reason.
fn lost(what: &'static str, name: &SecretName, error: kube::Error) -> Result<(), PkiError> {
    let code = match &error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    };
    match (what, code) {
        ("create", 404) => Err(PkiError::NoNamespace(name.namespace.clone())),
        ("create", 403) => Err(PkiError::Missing {
            name: name.clone(),
            error: Box::new(error),
        }),
        (_, 409 | 404) => Ok(()),
        _ => Err(failed(what, name, error)),
    }
}

/// Reports whether the Secret has no keys, or only keys without values.
fn is_empty(secret: &Secret) -> bool {
    let mut values = secret.data.iter().flat_map(BTreeMap::values);
    values.all(|value| value.0.is_empty())
}

fn is_ours(secret: &Secret) -> bool {
    let annotations = secret.metadata.annotations.as_ref();
    let value = annotations.and_then(|annotations| annotations.get(RENEWED_BY.0));
    value.is_some_and(|value| value == RENEWED_BY.1)
}

/// Returns a CA that somebody else created and maintains, as long as it is valid.
/// The webhook never writes to its Secret.
fn foreign(trust: Trust, name: &SecretName, now: SystemTime) -> Result<Trust, PkiError> {
    if trust.signing.is_valid(now) {
        return Ok(trust);
    }
    Err(PkiError::Foreign {
        name: name.clone(),
        reason: format!(
            "its certificate is not valid now, and without the annotation {}={} the webhook does not replace it",
            RENEWED_BY.0, RENEWED_BY.1
        ),
    })
}

fn new(name: &SecretName) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    }
}

/// Returns the Secret with the CA of `trust`, and with the annotation that it is ours.
fn filled(mut secret: Secret, trust: &Trust) -> Secret {
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(RENEWED_BY.0.to_owned(), RENEWED_BY.1.to_owned());
    secret.data = Some(trust.data());
    secret
}

fn failed(what: &'static str, name: &SecretName, error: kube::Error) -> PkiError {
    PkiError::Api {
        what,
        name: name.clone(),
        error: Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn name() -> SecretName {
        "nvlink/ca".parse().unwrap()
    }

    #[test]
    fn names() {
        assert_eq!(name().to_string(), "nvlink/ca");
        for bad in ["ca", "/ca", "nvlink/", "a/b/c"] {
            assert!(bad.parse::<SecretName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_old_ca_stays_trusted_whatever_the_clock_shows() {
        let now = SystemTime::now();
        let first = Trust::first(now).unwrap();
        assert!(!first.signing.is_due(now + 6 * YEAR) && first.signing.is_due(now + 7 * YEAR));
        let second = first.next(now + 7 * YEAR).unwrap();
        assert_eq!(
            second.bundle,
            second.signing.certificate.clone() + &first.signing.certificate
        );
        // By the clock of this replica, the first CA has expired.
        let third = second.next(now + 14 * YEAR).unwrap();
        assert!(third.bundle.contains(first.signing.certificate.trim()));
        assert!(third.bundle.contains(second.signing.certificate.trim()));
        let fourth = third.next(now + 21 * YEAR).unwrap();
        assert_eq!(certificates(&fourth.bundle).count(), KEPT);
        assert!(!fourth.bundle.contains(first.signing.certificate.trim()));
        let read = Trust::read(&filled(new(&name()), &third), &name()).unwrap();
        assert_eq!(read, third);
    }

    #[test]
    fn a_ca_of_somebody_else_is_used_while_it_is_valid() {
        let now = SystemTime::now();
        let trust = Trust::first(now).unwrap();
        let mut secret = filled(new(&name()), &trust);
        assert!(is_ours(&secret));
        secret.metadata.annotations = None;
        assert!(!is_ours(&secret));
        let later = |years: u32| foreign(trust.clone(), &name(), now + years * YEAR);
        assert_eq!(later(8).unwrap(), trust);
        let error = later(11).unwrap_err().to_string();
        assert!(error.contains("not valid now"), "{error}");
    }

    #[test]
    fn a_foreign_secret_is_refused_with_the_reason() {
        let trust = Trust::first(SystemTime::now()).unwrap();
        for (key, reason) in [
            (BUNDLE, "no ca.crt"),
            (KEY, "no tls.key"),
            (CERTIFICATE, "no tls.crt"),
        ] {
            let mut secret = filled(new(&name()), &trust);
            secret.data.as_mut().unwrap().remove(key);
            let error = Trust::read(&secret, &name()).unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("nvlink/ca"),
                "{error}"
            );
        }
        let mut secret = filled(new(&name()), &trust);
        let other = ByteString(Trust::first(SystemTime::now()).unwrap().bundle.into_bytes());
        secret
            .data
            .as_mut()
            .unwrap()
            .insert(BUNDLE.to_owned(), other);
        let error = Trust::read(&secret, &name()).unwrap_err().to_string();
        assert!(error.contains("lacks the certificate"), "{error}");
    }
}
