//! Style and script of the page, embedded in the program.

use axum::{
    Router,
    http::{HeaderName, header},
    response::IntoResponse,
    routing::get,
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page's `Content-Security-Policy`: it may load its own style and script, fetch
/// from its own origin, and nothing else.
pub const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of style and script. Their addresses change with their content.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(
            "/page.css",
            get(|| async { typed("text/css; charset=utf-8", STYLE) }),
        )
        .route(
            "/page.js",
            get(|| async { typed("text/javascript; charset=utf-8", SCRIPT) }),
        )
}

fn typed(content_type: &'static str, body: &'static str) -> impl IntoResponse {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "private, max-age=86400"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body)
}

/// Returns the address of this version's style.
pub(super) fn style_address() -> String {
    const VERSION: u64 = version(STYLE.as_bytes());
    format!("/page.css?v={VERSION:x}")
}

/// Returns the address of this version's script.
pub(super) fn script_address() -> String {
    const VERSION: u64 = version(SCRIPT.as_bytes());
    format!("/page.js?v={VERSION:x}")
}

/// Returns the FNV-1a hash of a text.
const fn version(text: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut n = 0;
    while n < text.len() {
        hash = (hash ^ text[n] as u64).wrapping_mul(0x0100_0000_01b3);
        n += 1;
    }
    hash
}
