//! The origin of a request.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

/// Refuses requests that come from a page of another site. Such a page, open in
/// the browser of someone who can reach this port, must not change anything.
/// Browsers send the origin of a request.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let site = value(HeaderName::from_static("sec-fetch-site"));
    let host = value(header::HOST).unwrap_or_default();
    let origin = value(header::ORIGIN).map(|origin| origin.split("://").nth(1) == Some(host));
    if site.is_some_and(|site| !["same-origin", "none"].contains(&site)) || origin == Some(false) {
        let reason = "requests from a page of another site are refused\n";
        return Err((StatusCode::FORBIDDEN, reason.to_owned()));
    }
    Ok(())
}
