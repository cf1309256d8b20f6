//! Style and script of a page, embedded in the program.

use axum::{
    Router,
    http::{HeaderName, header},
    response::IntoResponse,
    routing::get,
};

/// A file that a page loads.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    path: &'static str,
    content_type: &'static str,
    /// Its text, in parts.
    parts: &'static [&'static str],
    version: u64,
}

impl Asset {
    /// The path of a page's style.
    pub const STYLE: &str = "/page.css";
    /// The path of a page's script.
    pub const SCRIPT: &str = "/page.js";

    /// Returns the style of a page.
    #[must_use]
    pub const fn style(parts: &'static [&'static str]) -> Self {
        Self {
            path: Self::STYLE,
            content_type: "text/css; charset=utf-8",
            parts,
            version: version(parts),
        }
    }

    /// Returns the script of a page.
    #[must_use]
    pub const fn script(parts: &'static [&'static str]) -> Self {
        Self {
            path: Self::SCRIPT,
            content_type: "text/javascript; charset=utf-8",
            parts,
            version: version(parts),
        }
    }

    /// Returns the address of this version: it changes with the text, so that a browser
    /// may keep the text.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}?v={:x}", self.path, self.version)
    }

    /// Returns the route of the file.
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        Router::new().route(self.path, get(move || async move { self.answer() }))
    }

    fn answer(&self) -> impl IntoResponse + use<> {
        let headers: [(HeaderName, &str); 3] = [
            (header::CONTENT_TYPE, self.content_type),
            (header::CACHE_CONTROL, "private, max-age=86400"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (headers, self.parts.concat())
    }
}

/// Returns the FNV-1a hash of a text.
const fn version(parts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut part = 0;
    while part < parts.len() {
        let text = parts[part].as_bytes();
        let mut n = 0;
        while n < text.len() {
            hash = (hash ^ text[n] as u64).wrapping_mul(0x0100_0000_01b3);
            n += 1;
        }
        part += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::Asset;

    #[test]
    fn the_address_changes_with_the_text() {
        let address = |parts| Asset::style(parts).address();
        assert_eq!(address(&["a", "b"]), address(&["ab"]));
        assert_ne!(address(&["a", "b"]), address(&["a", "c"]));
        assert!(address(&["a"]).starts_with("/page.css?v="));
    }
}
