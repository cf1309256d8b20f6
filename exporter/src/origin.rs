//! The origin of a request.

use axum::http::{HeaderMap, HeaderName, StatusCode, header};

/// Refuses requests that come from a page, open in the browser of someone who can reach this port. No page
/// of ours makes these requests. That of another site may have a name that leads to this address (DNS
/// rebinding), and is then of the same origin by all that a browser sends. Scripts can neither set these
/// headers nor leave them out.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
    let site = headers.get(HeaderName::from_static("sec-fetch-site"));
    let of_page = site.is_some_and(|site| site != "none");
    if of_page || headers.contains_key(header::ORIGIN) {
        let reason = "requests from a page are refused: use curl, without the header Origin\n";
        return Err((StatusCode::FORBIDDEN, reason.to_owned()));
    }
    Ok(())
}
