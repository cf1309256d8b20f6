//! Passwords, headers and limits.

use std::fs;

use axum::{
    body::Body,
    http::{Request, Response, StatusCode, header},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use nvlink_exporter::web::Web;
use tower::ServiceExt;

use crate::{Authority, TLS, directory, load, router};

/// Asks `web` as `user:password`.
async fn log_in(web: &Web, credentials: Option<&str>) -> Response<Body> {
    let mut request = Request::get("/");
    if let Some(credentials) = credentials {
        let value = format!("Basic {}", BASE64_STANDARD.encode(credentials));
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request.body(Body::empty()).unwrap();
    web.protect(router()).oneshot(request).await.unwrap()
}

fn hash(password: &str) -> String {
    // The least cost: this is no test of bcrypt.
    bcrypt::hash(password, 4).unwrap()
}

#[tokio::test]
async fn passwords_and_headers() {
    let config = format!(
        "basic_auth_users: {{alice: '{}', bob: '{}'}}\n\
         http_server_config: {{headers: {{X-Frame-Options: deny, Strict-Transport-Security: ''}}}}\n",
        hash("a:b"),
        hash("bob's")
    );
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    let cases = [
        (None, false),
        (Some("alice:a:b"), true),
        (Some("alice:a:c"), false),
        (Some("alice:bob's"), false),
        (Some("bob:bob's"), true),
        (Some("carol:bob's"), false),
        (Some("alice:"), false),
        // The second time it is remembered.
        (Some("alice:a:b"), true),
        (Some("alice:a:c"), false),
    ];
    for (credentials, expected) in cases {
        let response = log_in(&web, credentials).await;
        let status = if expected {
            StatusCode::OK
        } else {
            StatusCode::UNAUTHORIZED
        };
        assert_eq!(response.status(), status, "{credentials:?}");
        assert_eq!(response.headers()["x-frame-options"], "deny");
        assert!(!response.headers().contains_key("strict-transport-security"));
        assert_eq!(
            response.headers().contains_key(header::WWW_AUTHENTICATE),
            !expected
        );
    }
}

#[tokio::test]
async fn a_flood_of_passwords_is_sent_away() {
    let config = format!("basic_auth_users: {{alice: '{}'}}\n", hash("right"));
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    assert_eq!(
        log_in(&web, Some("alice:right")).await.status(),
        StatusCode::OK
    );
    let guesses: Vec<String> = (0..100).map(|n| format!("alice:{n}")).collect();
    let flood = guesses.iter().map(|guess| log_in(&web, Some(guess)));
    let mut statuses = Vec::new();
    let (flood, right) = tokio::join!(
        futures::future::join_all(flood),
        log_in(&web, Some("alice:right"))
    );
    statuses.extend(flood.iter().map(Response::status));
    assert!(statuses.contains(&StatusCode::TOO_MANY_REQUESTS));
    assert!(!statuses.contains(&StatusCode::OK));
    assert_eq!(right.status(), StatusCode::OK, "who is known does not wait");
}

#[tokio::test]
async fn who_knows_gets_in_while_others_guess() {
    let config = format!("basic_auth_users: {{alice: '{}'}}\n", hash("right"));
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    let guesses: Vec<String> = (0..24).map(|n| format!("alice:{n}")).collect();
    let flood = guesses.iter().map(|guess| log_in(&web, Some(guess)));
    // Nobody was let in before, so that nobody is known.
    let (_, right) = tokio::join!(
        futures::future::join_all(flood),
        log_in(&web, Some("alice:right"))
    );
    assert_eq!(right.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_file_that_loses_its_passwords_opens_nothing() {
    let users = format!("basic_auth_users: {{alice: '{}'}}\n", hash("one"));
    let directory = directory(&Authority::new(), &users);
    let mut web = load(&directory).unwrap();
    for text in ["", "basic_auth_users:\n", "# basic_auth_users: {}\n"] {
        fs::write(directory.path().join("web.yml"), text).unwrap();
        let refused = web.reload().unwrap_err().to_string();
        assert!(refused.contains("passwords are switched off by a restart only"));
        assert_eq!(log_in(&web, None).await.status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn rate_limits_as_the_toolkit_takes_them() {
    let limits = [
        ("0", false),
        ("'0'", false),
        ("1m30s", true),
        ("1.5h", true),
        ("2540400h", true),
    ];
    for (interval, limited) in limits {
        let config = format!("rate_limit: {{interval: {interval}, burst: 1}}\n");
        let directory = directory(&Authority::new(), &config);
        let web = load(&directory).unwrap();
        assert_eq!(log_in(&web, None).await.status(), StatusCode::OK);
        let expected = match limited {
            true => StatusCode::TOO_MANY_REQUESTS,
            false => StatusCode::OK,
        };
        assert_eq!(log_in(&web, None).await.status(), expected, "{interval}");
    }
}

#[tokio::test]
async fn requests_are_limited() {
    let config = "rate_limit: {interval: 1h, burst: 2}\n";
    let directory = directory(&Authority::new(), config);
    let web = load(&directory).unwrap();
    for expected in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        assert_eq!(log_in(&web, None).await.status(), expected);
    }
}

#[tokio::test]
async fn passwords_change_without_a_restart() {
    let directory = directory(&Authority::new(), "");
    let write = |text: &str| fs::write(directory.path().join("web.yml"), text).unwrap();
    let mut web = load(&directory).unwrap();
    assert!(!web.reload().unwrap(), "nothing is new");
    assert_eq!(log_in(&web, None).await.status(), StatusCode::OK);
    write(&format!("basic_auth_users: {{alice: '{}'}}\n", hash("one")));
    assert!(web.reload().unwrap());
    assert_eq!(log_in(&web, None).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(
        log_in(&web, Some("alice:one")).await.status(),
        StatusCode::OK
    );
    write("basic_auth_user: {}\n");
    assert!(
        web.reload()
            .unwrap_err()
            .to_string()
            .contains("unknown field")
    );
    assert_eq!(log_in(&web, None).await.status(), StatusCode::UNAUTHORIZED);
    write(&format!("basic_auth_users: {{alice: '{}'}}\n", hash("two")));
    assert!(web.reload().unwrap());
    assert_eq!(
        log_in(&web, Some("alice:one")).await.status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        log_in(&web, Some("alice:two")).await.status(),
        StatusCode::OK
    );
    write(TLS);
    assert!(
        web.reload()
            .unwrap_err()
            .to_string()
            .contains("by a restart")
    );
}
