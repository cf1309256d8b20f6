//! Passwords, headers and limits.

use std::{fs, net::SocketAddr, time::Duration};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode, header},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use nvlink_runtime::web::Web;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};
use tower::ServiceExt;

use crate::{Authority, TLS, directory, load, router, start};

/// Sends a request to `web` as `user:password`.
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
    // The minimum cost: this is not a test of bcrypt.
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
        // The second time, the result is remembered.
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
async fn a_flood_of_passwords_is_rejected() {
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
    assert_eq!(
        right.status(),
        StatusCode::OK,
        "a known password does not wait"
    );
}

#[tokio::test]
async fn a_right_password_is_admitted_while_others_guess() {
    let config = format!("basic_auth_users: {{alice: '{}'}}\n", hash("right"));
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    let guesses: Vec<String> = (0..24).map(|n| format!("alice:{n}")).collect();
    let flood = guesses.iter().map(|guess| log_in(&web, Some(guess)));
    // No request was admitted before, so no password is remembered.
    let (_, right) = tokio::join!(
        futures::future::join_all(flood),
        log_in(&web, Some("alice:right"))
    );
    assert_eq!(right.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_wrong_password_that_is_repeated_is_checked_once() {
    let config = format!("basic_auth_users: {{alice: '{}'}}\n", hash("right"));
    let directory = directory(&Authority::new(), &config);
    let web = load(&directory).unwrap();
    let wrong = || log_in(&web, Some("alice:wrong"));
    assert_eq!(wrong().await.status(), StatusCode::UNAUTHORIZED);
    // If each were checked, most of them would get status 429.
    let flood = futures::future::join_all((0..200).map(|_| wrong())).await;
    let denied = |response: &Response<Body>| response.status() == StatusCode::UNAUTHORIZED;
    assert!(flood.iter().all(denied));
}

/// Returns the status that a client at 127.0.0.`peer` gets for `user:password`.
async fn ask_as(peer: u8, address: SocketAddr, credentials: String) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, peer], 0).into()).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let credentials = BASE64_STANDARD.encode(credentials);
    let request = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {credentials}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn peers_that_guess_do_not_keep_another_out() {
    // Each check takes long enough for all requests to arrive in the meantime.
    let hash = bcrypt::hash("right", 7).unwrap();
    let config = format!("basic_auth_users: {{alice: '{hash}'}}\n");
    let directory = directory(&Authority::new(), &config);
    let (_servers, address) = start(&load(&directory).unwrap());
    let guess = |n: u8| ask_as(3 + n % 3, address, format!("alice:{n}"));
    let flood = futures::future::join_all((0..90).map(guess));
    let right = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ask_as(2, address, "alice:right".to_owned()).await
    };
    let (_, right) = tokio::join!(flood, right);
    assert_eq!(right, "200");
}

#[tokio::test]
async fn a_scraper_that_gives_up_early_is_let_in_while_many_peers_guess() {
    let hash = bcrypt::hash("right", 7).unwrap();
    let config = format!("basic_auth_users: {{alice: '{hash}'}}\n");
    let directory = directory(&Authority::new(), &config);
    let (_servers, address) = start(&load(&directory).unwrap());
    // Each has a new password as soon as the one before is refused.
    let guess = |peer: u8| async move {
        for n in 0.. {
            ask_as(peer, address, format!("alice:{peer}-{n}")).await;
        }
    };
    let flood: Vec<_> = (10..110).map(|peer| tokio::spawn(guess(peer))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut refused = 0;
    let right = || ask_as(2, address, "alice:right".to_owned());
    while tokio::time::timeout(Duration::from_millis(300), right())
        .await
        .is_err()
    {
        refused += 1;
        assert!(refused < 100, "its check never ends");
    }
    // A friend does not wait for strangers, also with another password.
    let wrong = ask_as(2, address, "alice:wrong".to_owned());
    let wrong = tokio::time::timeout(Duration::from_millis(300), wrong).await;
    assert_eq!(wrong.as_deref(), Ok("401"));
    flood.iter().for_each(|one| one.abort());
}

#[test]
fn hashes_that_no_password_could_match_in_time_are_refused() {
    for (cost, accepted) in [
        ("03", false),
        ("04", true),
        ("16", true),
        ("17", false),
        ("31", false),
        ("99", false),
    ] {
        let hash = format!("$2b${cost}$CwTycUXWue0Thq9StjUM0uJ8iRUcLGWYSkiXh3HwkyzGZ8a6Q0U9K");
        let config = format!("# users\nbasic_auth_users: {{alice: '{hash}'}}\n");
        let directory = directory(&Authority::new(), &config);
        let loaded = load(&directory)
            .map(drop)
            .map_err(|error| error.to_string());
        match (accepted, loaded) {
            (true, Ok(())) => {}
            (false, Err(error)) => {
                let parts = ["basic_auth_users.alice (line 2): ", "htpasswd -nBC 10"];
                assert!(parts.iter().all(|part| error.contains(part)), "{error}");
                assert!(!error.contains("CwTycUXW"), "{error}");
            }
            (_, loaded) => panic!("{cost}: {loaded:?}"),
        }
    }
}

#[tokio::test]
async fn a_file_that_is_being_written_changes_nothing() {
    let headers = "http_server_config: {headers: {X-Frame-Options: deny}}\n";
    let directory = directory(&Authority::new(), headers);
    let mut web = load(&directory).unwrap();
    for text in ["", "# headers\n", "http_server_config:\n"] {
        fs::write(directory.path().join("web.yml"), text).unwrap();
        let refused = web.reload().unwrap_err().to_string();
        assert!(refused.contains("the file is empty"), "{refused}");
        let response = log_in(&web, None).await;
        assert_eq!(response.headers()["x-frame-options"], "deny");
    }
}

#[tokio::test]
async fn a_file_that_loses_its_passwords_is_not_used() {
    let users = format!("basic_auth_users: {{alice: '{}'}}\n", hash("one"));
    let directory = directory(&Authority::new(), &users);
    let mut web = load(&directory).unwrap();
    for text in ["", "basic_auth_users:\n", "# basic_auth_users: {}\n"] {
        fs::write(directory.path().join("web.yml"), text).unwrap();
        let refused = web.reload().unwrap_err().to_string();
        assert!(refused.contains("passwords can be switched off only by a restart"));
        assert_eq!(log_in(&web, None).await.status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn rate_limits_are_parsed_as_in_the_toolkit() {
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
    assert!(!web.reload().unwrap(), "nothing changed");
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
            .contains("only by a restart")
    );
}
