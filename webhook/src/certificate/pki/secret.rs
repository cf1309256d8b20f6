//! The authority in its Secret, which all replicas share.
//!
//! Two replicas that start together, or that find it due together, race: the
//! API server lets one create or replace it, and the other takes what is there.

use std::{collections::BTreeMap, fmt, str::FromStr, time::SystemTime};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use super::{Authority, PkiError};

/// Keys of the Secret, as cert-manager calls them.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";
/// Authorities that are trusted at a time: the one that signs, and those before it.
const KEPT: usize = 3;
/// The label of Secrets that we made, and its value.
const MADE_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "nvlink-webhook");

/// `NAMESPACE/NAME` of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
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

/// The authority that signs, and all that are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    pub signing: Authority,
    /// Certificates of all authorities that the API server is to trust, PEM:
    /// the one that signs first, then those before it.
    pub bundle: String,
}

impl Trust {
    fn first(now: SystemTime) -> Result<Self, PkiError> {
        let signing = Authority::make(now)?;
        let bundle = signing.certificate.clone();
        Ok(Self { signing, bundle })
    }

    /// A new authority signs; those before it stay trusted, since their
    /// certificates are in use until each replica has seen the new one. Which
    /// of them have expired is for the API server to say: a replica whose clock
    /// is ahead would drop what the others need.
    fn next(&self, now: SystemTime) -> Result<Self, PkiError> {
        let mut next = Self::first(now)?;
        for certificate in certificates(&self.bundle).take(KEPT - 1) {
            next.bundle.push_str(&certificate);
        }
        Ok(next)
    }

    fn read(secret: &Secret, name: &SecretName) -> Result<Self, PkiError> {
        let foreign = |reason: String| PkiError::Foreign {
            name: name.to_string(),
            reason,
        };
        let text = |key: &str| {
            let data = secret.data.as_ref().and_then(|data| data.get(key));
            let bytes = data.ok_or_else(|| foreign(format!("it has no {key}")))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| foreign(format!("{key} is no text")))
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

/// The certificates of a PEM text, each as it stands.
fn certificates(bundle: &str) -> impl Iterator<Item = String> + '_ {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .filter(|part| part.contains(END))
        .map(|part| format!("{}\n", part.trim_start()))
}

/// What the Secret holds: made where it is not there, replaced where it is due.
/// Where it is gone while we run (how an administrator asks for a new
/// authority), what was `known` stays trusted.
///
/// # Errors
/// When the API server cannot be asked, or when the Secret holds something
/// that is no authority, which is left alone, as is one that somebody else made.
pub(super) async fn ensure(
    client: &Client,
    name: &SecretName,
    known: Option<&Trust>,
    now: SystemTime,
) -> Result<Trust, PkiError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &name.namespace);
    let params = PostParams::default();
    // A race is lost at most once: what won it is neither missing nor due.
    for _ in 0..3 {
        let present = api.get_opt(&name.name).await;
        let present = present.map_err(|error| failed("read", name, error))?;
        let (what, written) = match present {
            None => {
                let trust = match known {
                    Some(known) => known.next(now)?,
                    None => Trust::first(now)?,
                };
                let made = api.create(&params, &new(name, &trust)).await;
                ("create", made.map(|_| trust))
            }
            Some(secret) => {
                let trust = Trust::read(&secret, name)?;
                if !trust.signing.is_due(now) {
                    return Ok(trust);
                }
                if !is_ours(&secret) {
                    return foreign(trust, name, now);
                }
                let next = trust.next(now)?;
                // Carries the resourceVersion that was read.
                let changed = Secret {
                    data: Some(next.data()),
                    ..secret
                };
                let replaced = api.replace(&name.name, &params, &changed).await;
                ("update", replaced.map(|_| next))
            }
        };
        match written {
            Ok(trust) => {
                tracing::info!(secret = %name, what, "made a certificate authority");
                return Ok(trust);
            }
            Err(kube::Error::Api(status)) if what == "create" && status.code == 404 => {
                return Err(PkiError::NoNamespace(name.namespace.clone()));
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
            Err(error) => return Err(failed(what, name, error)),
        }
    }
    Err(PkiError::Foreign {
        name: name.to_string(),
        reason: "it changes all the time".to_owned(),
    })
}

fn is_ours(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(MADE_BY.0));
    label.is_some_and(|value| value == MADE_BY.1)
}

/// An authority that somebody else made and keeps: it is used for as long as
/// it is valid, and its Secret is never written to.
fn foreign(trust: Trust, name: &SecretName, now: SystemTime) -> Result<Trust, PkiError> {
    if trust.signing.is_valid(now) {
        return Ok(trust);
    }
    Err(PkiError::Foreign {
        name: name.to_string(),
        reason: format!(
            "its certificate is not valid now, and without the label {}={} it is not ours to replace",
            MADE_BY.0, MADE_BY.1
        ),
    })
}

fn new(name: &SecretName, trust: &Trust) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            labels: Some(BTreeMap::from([(
                MADE_BY.0.to_owned(),
                MADE_BY.1.to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(trust.data()),
        ..Secret::default()
    }
}

fn failed(what: &'static str, name: &SecretName, error: kube::Error) -> PkiError {
    PkiError::Api {
        what,
        name: name.to_string(),
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
    fn the_old_authority_stays_trusted_whatever_the_clock_says() {
        let now = SystemTime::now();
        let first = Trust::first(now).unwrap();
        assert!(!first.signing.is_due(now + 6 * YEAR) && first.signing.is_due(now + 7 * YEAR));
        let second = first.next(now + 7 * YEAR).unwrap();
        assert_eq!(
            second.bundle,
            second.signing.certificate.clone() + &first.signing.certificate
        );
        // By the clock of this replica the first has expired.
        let third = second.next(now + 14 * YEAR).unwrap();
        assert!(third.bundle.contains(first.signing.certificate.trim()));
        assert!(third.bundle.contains(second.signing.certificate.trim()));
        let fourth = third.next(now + 21 * YEAR).unwrap();
        assert_eq!(certificates(&fourth.bundle).count(), KEPT);
        assert!(!fourth.bundle.contains(first.signing.certificate.trim()));
        let read = Trust::read(&new(&name(), &third), &name()).unwrap();
        assert_eq!(read, third);
    }

    #[test]
    fn what_somebody_else_made_is_used_while_it_is_valid() {
        let now = SystemTime::now();
        let trust = Trust::first(now).unwrap();
        let mut secret = new(&name(), &trust);
        assert!(is_ours(&secret));
        secret.metadata.labels = None;
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
            let mut secret = new(&name(), &trust);
            secret.data.as_mut().unwrap().remove(key);
            let error = Trust::read(&secret, &name()).unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("nvlink/ca"),
                "{error}"
            );
        }
        let mut secret = new(&name(), &trust);
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
