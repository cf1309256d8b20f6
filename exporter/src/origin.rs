//! Where a request comes from.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

/// A page from elsewhere, open in the browser of someone who can reach this
/// port, must change nothing: browsers say where a request comes from.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let site = value(HeaderName::from_static("sec-fetch-site"));
    let host = value(header::HOST).unwrap_or_default();
    let origin = value(header::ORIGIN).map(|origin| origin.split("://").nth(1) == Some(host));
    if site.is_some_and(|site| !["same-origin", "none"].contains(&site)) || origin == Some(false) {
        let reason = "not from another site's page\n";
        return Err((StatusCode::FORBIDDEN, reason.to_owned()));
    }
    Ok(())
}
