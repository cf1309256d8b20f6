//! The settings that result from the web configuration file and the files that it names.

use std::{
    collections::BTreeMap, ops::RangeInclusive, path::Path, str::FromStr, sync::Arc, time::Duration,
};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use rustls::ServerConfig;

use super::{
    config::{Config, Headers, Interval, RateLimit, Tls},
    files::{Files, WebError},
    rate::Bucket,
    tls,
};
use crate::duration;

/// How requests are admitted.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) http2: bool,
    pub(super) headers: HeaderMap,
    /// User → bcrypt hash. If it is empty, no password is required.
    pub(super) users: BTreeMap<String, String>,
    pub(super) rate: Option<Bucket>,
    /// Whether a client needs a certificate.
    certificates: bool,
    /// Whether the file has no content.
    is_empty: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tls: None,
            http2: true,
            headers: HeaderMap::new(),
            users: BTreeMap::new(),
            rate: None,
            certificates: false,
            is_empty: true,
        }
    }
}

impl Settings {
    /// Returns why a running server must not use `new`: a file that is being written
    /// is empty or incomplete for a moment, which must not remove any protection.
    pub(super) fn loses_in(&self, new: &Self) -> Option<&'static str> {
        if new.users.is_empty() && !self.users.is_empty() {
            return Some("passwords can be switched off only by a restart");
        }
        if self.certificates && !new.certificates {
            return Some("client certificates can be made optional only by a restart");
        }
        (new.is_empty && !self.is_empty)
            .then_some("the file is empty: its old settings can be removed only by a restart")
    }

    /// Returns the settings of the configuration at `path`.
    pub(super) fn new(path: &Path, files: &Files) -> Result<Self, WebError> {
        Self::of(files).map_err(|reason| WebError::invalid(path, reason))
    }

    fn of(files: &Files) -> Result<Self, String> {
        let config = Config::parse(&files.config)?;
        let is_empty = config.is_empty();
        let http = config.http_server_config.unwrap_or_default();
        let http2 = http.http2.unwrap_or(true);
        let tls = config.tls_server_config.filter(|tls| !tls.is_empty());
        let certificates = tls.as_ref().is_some_and(Tls::wants_certificates);
        let tls = tls.map(|config| server_config(&config, files, http2));
        Ok(Self {
            tls: tls.transpose()?.map(Arc::new),
            certificates,
            is_empty,
            http2,
            headers: headers(&http.headers.unwrap_or_default())?,
            users: users(config.basic_auth_users.unwrap_or_default(), &files.config)?,
            rate: rate(&config.rate_limit.unwrap_or_default())?,
        })
    }
}

fn server_config(config: &Tls, files: &Files, http2: bool) -> Result<ServerConfig, String> {
    let mut server =
        tls::server(config, files).map_err(|why| format!("tls_server_config.{why}"))?;
    server.alpn_protocols = match http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    Ok(server)
}

/// The costs of hashes that are accepted. bcrypt computes none below, and each step takes twice as long:
/// with 16, one wrong password takes some seconds, and with 31, days.
const COSTS: RangeInclusive<u32> = 4..=16;

/// Checks the hashes of users, which are in `text`.
fn users(users: BTreeMap<String, String>, text: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let text = String::from_utf8_lossy(text);
    for (user, hash) in &users {
        // The library's error message may contain parts of the hash.
        let fault = match bcrypt::HashParts::from_str(hash).map(|parts| parts.get_cost()) {
            Ok(cost) if COSTS.contains(&cost) => continue,
            Ok(cost) => format!(
                "the hash has the cost {cost}, and {} to {} are accepted",
                COSTS.start(),
                COSTS.end()
            ),
            Err(_) => "not a bcrypt hash".to_owned(),
        };
        let line = text.lines().position(|line| line.contains(&**hash));
        let line = line.map_or_else(String::new, |at| format!(" (line {})", at + 1));
        return Err(format!(
            "basic_auth_users.{user}{line}: {fault}; create one with: htpasswd -nBC 10 \"\" | tr -d ':\\n'"
        ));
    }
    Ok(users)
}

fn headers(config: &Headers) -> Result<HeaderMap, String> {
    const X_XSS_PROTECTION: HeaderName = HeaderName::from_static("x-xss-protection");
    let wanted: [(HeaderName, &str, &[&str]); 5] = [
        (
            header::CONTENT_SECURITY_POLICY,
            &config.content_security_policy,
            &[],
        ),
        (
            header::X_FRAME_OPTIONS,
            &config.x_frame_options,
            &["deny", "sameorigin"],
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            &config.x_content_type_options,
            &["nosniff"],
        ),
        (X_XSS_PROTECTION, &config.x_xss_protection, &[]),
        (
            header::STRICT_TRANSPORT_SECURITY,
            &config.strict_transport_security,
            &[],
        ),
    ];
    let mut headers = HeaderMap::new();
    for (name, value, accepted) in wanted {
        let known = accepted.is_empty() || accepted.contains(&&*value.to_ascii_lowercase());
        match HeaderValue::from_str(value) {
            _ if value.is_empty() => {}
            Ok(value) if known => drop(headers.insert(name, value)),
            _ if known => {
                return Err(format!(
                    "http_server_config.headers.{name}: {value:?} is not a valid header value"
                ));
            }
            _ => {
                let accepted = accepted.join(" or ");
                return Err(format!(
                    "http_server_config.headers.{name}: {value:?} is not {accepted}"
                ));
            }
        }
    }
    Ok(headers)
}

fn rate(config: &RateLimit) -> Result<Option<Bucket>, String> {
    let interval = match &config.interval {
        None => Duration::ZERO,
        Some(Interval::Nanos(nanos)) => Duration::from_nanos(*nanos),
        Some(Interval::Text(text)) => duration::parse(text).ok_or_else(|| {
            format!("rate_limit.interval: {text:?} is not a duration such as 1s or 1m30s")
        })?,
    };
    if interval.is_zero() {
        return Ok(None);
    }
    match config.burst {
        0 => Err("rate_limit.burst: with 0 no request would ever be admitted".to_owned()),
        burst => Ok(Some(Bucket::new(interval, burst))),
    }
}
