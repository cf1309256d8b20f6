//! The web configuration file, parsed.
//!
//! The format: <https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md>
//!
//! It has each key of that page, PEM inside the file, curves and rate limits among them, because
//! one file serves all exporters of a node: a key that one of them refuses is of use to none.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Config {
    pub(super) tls_server_config: Option<Tls>,
    pub(super) http_server_config: Option<Http>,
    /// User → bcrypt hash.
    pub(super) basic_auth_users: Option<BTreeMap<String, String>>,
    pub(super) rate_limit: Option<RateLimit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tls {
    #[serde(deserialize_with = "filled")]
    pub(super) cert: Option<String>,
    #[serde(deserialize_with = "filled")]
    pub(super) key: Option<String>,
    #[serde(deserialize_with = "filled")]
    pub(super) client_ca: Option<String>,
    #[serde(deserialize_with = "filled")]
    pub(super) cert_file: Option<PathBuf>,
    #[serde(deserialize_with = "filled")]
    pub(super) key_file: Option<PathBuf>,
    #[serde(deserialize_with = "filled")]
    pub(super) client_ca_file: Option<PathBuf>,
    pub(super) client_auth_type: Option<ClientAuth>,
    #[serde(deserialize_with = "or_default")]
    pub(super) client_allowed_sans: Vec<String>,
    pub(super) min_version: Option<Version>,
    pub(super) max_version: Option<Version>,
    /// Cipher suites of TLS 1.2, by their names in the standard.
    #[serde(deserialize_with = "or_default")]
    pub(super) cipher_suites: Vec<String>,
    pub(super) prefer_server_cipher_suites: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub(super) curve_preferences: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum ClientAuth {
    #[default]
    #[serde(alias = "")]
    NoClientCert,
    RequestClientCert,
    #[serde(alias = "RequireClientCert")]
    RequireAnyClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

/// The versions of TLS. The older ones are parsed so that they can be refused with a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Version {
    Tls10,
    Tls11,
    Tls12,
    Tls13,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Http {
    pub(super) http2: Option<bool>,
    pub(super) headers: Option<Headers>,
}

/// The headers that can be added to answers; an empty one is not set.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Headers {
    #[serde(rename = "Content-Security-Policy", deserialize_with = "or_default")]
    pub(super) content_security_policy: String,
    #[serde(rename = "X-Frame-Options", deserialize_with = "or_default")]
    pub(super) x_frame_options: String,
    #[serde(rename = "X-Content-Type-Options", deserialize_with = "or_default")]
    pub(super) x_content_type_options: String,
    #[serde(rename = "X-XSS-Protection", deserialize_with = "or_default")]
    pub(super) x_xss_protection: String,
    #[serde(rename = "Strict-Transport-Security", deserialize_with = "or_default")]
    pub(super) strict_transport_security: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RateLimit {
    /// Time between two requests; 0 for no limit.
    pub(super) interval: Option<Interval>,
    #[serde(deserialize_with = "or_default")]
    pub(super) burst: u32,
}

/// A duration as the toolkit accepts it.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a duration such as 1s or 1m30s")]
pub(super) enum Interval {
    /// A number means nanoseconds, as in Go; in practice it is 0.
    Nanos(u64),
    Text(String),
}

/// Parses an optional text. In this format an empty text is the same as none.
fn filled<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: From<String>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(T::from))
}

/// Parses a value; a key without a value means the default.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Config {
    /// Reports whether the file has no content at all.
    pub(super) fn is_empty(&self) -> bool {
        self.tls_server_config.is_none()
            && self.http_server_config.is_none()
            && self.basic_auth_users.is_none()
            && self.rate_limit.is_none()
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// What is wrong, with its path in the file.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
        let options = serde_saphyr::options! { with_snippet: false };
        let value: Value = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| one_line(&error.to_string()))?;
        if value.is_null() {
            return Ok(Self::default());
        }
        serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            one_line(&format!("{path}: {}", error.inner()))
        })
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Tls {
    /// Reports whether nothing is set, which is the same as no TLS.
    pub(super) fn is_empty(&self) -> bool {
        let texts = [&self.cert, &self.key, &self.client_ca];
        let files = [&self.cert_file, &self.key_file, &self.client_ca_file];
        texts.iter().all(|text| text.is_none())
            && files.iter().all(|file| file.is_none())
            && self.client_auth_type.unwrap_or_default() == ClientAuth::NoClientCert
    }

    /// Reports whether a client needs a certificate.
    pub(super) fn wants_certificates(&self) -> bool {
        let policy = self.client_auth_type.unwrap_or_default();
        matches!(
            policy,
            ClientAuth::RequireAnyClientCert | ClientAuth::RequireAndVerifyClientCert
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_path_in_the_file() {
        let cases = [
            (
                "tls_server_config:\n  cert_fiel: x\n",
                "tls_server_config.cert_fiel: unknown field `cert_fiel`",
            ),
            (
                "tls_server_config:\n  min_version: TLS9\n",
                "tls_server_config.min_version: unknown variant `TLS9`",
            ),
            (
                "basic_auth_users:\n  alice: [1]\n",
                "basic_auth_users.alice: invalid type",
            ),
            (
                "http_server_config:\n  headers:\n    X-Powered-By: x\n",
                "http_server_config.headers.X-Powered-By: unknown field",
            ),
            ("basic_auth_users: {a: x, a: y}\n", "duplicate"),
            ("tls: [\n", "line"),
            (
                "rate_limit: {burst: -1}\n",
                "rate_limit.burst: invalid value",
            ),
        ];
        for (text, expected) in cases {
            let error = Config::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
    }

    #[test]
    fn empty_values_mean_the_defaults() {
        for text in [
            "",
            "# nothing\n",
            "{}",
            "tls_server_config:\nbasic_auth_users:\n",
            "tls_server_config: {client_auth_type: ''}",
            "tls_server_config: {cipher_suites: , client_allowed_sans: }",
            "rate_limit: {interval: , burst: }\nhttp_server_config: {headers: {X-Frame-Options: }}",
            "tls_server_config: {cert_file: '', key_file: '', client_ca_file: '', cert: ''}",
        ] {
            let config = Config::parse(text.as_bytes()).unwrap();
            assert!(
                config.tls_server_config.unwrap_or_default().is_empty(),
                "{text}"
            );
            assert!(config.basic_auth_users.unwrap_or_default().is_empty());
        }
    }
}
