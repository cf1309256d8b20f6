//! HTTP requests on loopback, as from a scraper or a browser.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of an answer. Screenshots are large.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The `Content-Type` header, empty if there is none.
    pub content_type: String,
    pub body: String,
}

/// Fetches `url`. Accepts any status.
///
/// # Errors
/// When there is no answer.
pub fn get(url: &str, query: &[(&str, &str)], accept: &str) -> Result<Answer> {
    let mut request = ureq::get(url)
        .config()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .build();
    for (name, value) in query {
        request = request.query(name, value);
    }
    let mut response = request
        .header("Accept", accept)
        .call()
        .with_context(|| format!("GET {url}"))?;
    let content_type = response
        .headers()
        .get("content-type")
        .and_then(|value| value.to_str().ok());
    Ok(Answer {
        status: response.status().as_u16(),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: response
            .body_mut()
            .read_to_string()
            .with_context(|| format!("GET {url}"))?,
    })
}

/// Fetches the text at `url`.
///
/// # Errors
/// When there is no answer, or its status is not 200.
pub fn text(url: &str) -> Result<String> {
    let answer = get(url, &[], "*/*")?;
    ensure!(
        answer.status == 200,
        "GET {url}: status {}: {}",
        answer.status,
        answer.body.trim_end()
    );
    Ok(answer.body)
}

/// Sends `method` with a JSON body, or none if `body` is empty. Accepts any status.
///
/// # Errors
/// When there is no answer.
pub fn send(method: &str, url: &str, body: &str) -> Result<Answer> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT * 6));
    let agent = ureq::Agent::new_with_config(config.build());
    let request = ureq::http::Request::builder().method(method).uri(url);
    let response = match body.is_empty() {
        true => agent.run(request.body(())?),
        false => {
            let request = request.header("Content-Type", "application/json");
            agent.run(request.body(body.to_owned())?)
        }
    };
    let mut response = response.with_context(|| format!("{method} {url}"))?;
    Ok(Answer {
        status: response.status().as_u16(),
        content_type: String::new(),
        body: response
            .body_mut()
            .with_config()
            .limit(MOST_BYTES)
            .read_to_string()
            .with_context(|| format!("{method} {url}"))?,
    })
}
