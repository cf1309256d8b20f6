//! The memory that the admission endpoint uses, whatever arrives. It is a test
//! program of its own, so that nothing else raises the peak.

#![allow(clippy::unwrap_used)]

#[path = "../../crates/admission/tests/all/fixture/mod.rs"]
mod fixture;

use std::{fs, sync::Arc};

use axum::{body::Body, http::Request};
use fixture::{admission, pod, review};
use nvlink_webhook::admission::server::{MAX_BODY, PATH, Webhook, admission_router};
use serde_json::json;
use tower::ServiceExt;

/// Returns the peak memory of this process, in MiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

/// Returns a review of `size` bytes whose pod holds `head`, repetitions of `part`, and `tail`.
fn body(size: usize, (head, part, tail): (&str, &str, &str)) -> String {
    let whole = review(&pod(1, json!({"a": "@"}))).to_string();
    let count = (size - whole.len() - head.len() - tail.len()) / part.len();
    let parts = part.repeat(count);
    let list = format!("{head}{}{tail}", parts.trim_end_matches(','));
    whole.replace("\"containers\":[", &format!("{list},\"containers\":["))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_reviews_together_use_bounded_memory() {
    let webhook = Webhook {
        admission: admission(&[]),
        metrics: Arc::default(),
        recent: Default::default(),
    };
    let router = admission_router(Arc::new(webhook));
    let nested = r#"{"":{"":{"":{"":0}}}},"#;
    let container = r#"{"name":"c","resources":{"limits":{"nvidia.com/gpu":1}}},"#;
    let shapes = [
        ("\"x\":[", nested, "]"),
        ("\"x\":[", r#"{"":0},"#, "]"),
        ("\"x\":[", "[[[[[[[[0]]]]]]]],", "]"),
        ("\"x\":[", "0,", "]"),
        ("\"x\":[", r#"{"name":"NAME","value":"value"},"#, "]"),
        ("\"initContainers\":[", container, "]"),
    ];
    for shape in shapes {
        for size in [60 << 10, 1 << 20, MAX_BODY] {
            let body = body(size, shape);
            let posts = (0..((8 << 20) / size).clamp(2, 8)).map(|_| {
                let request = Request::post(PATH).body(Body::from(body.clone())).unwrap();
                tokio::spawn(router.clone().oneshot(request))
            });
            let answers = futures::future::join_all(posts.collect::<Vec<_>>()).await;
            let mut answers = answers.into_iter();
            assert!(answers.all(|answer| answer.unwrap().is_ok()));
        }
    }
    // The limit of the endpoint, the bodies here, and memory that the allocator
    // keeps. Without a limit, one review of the first shape takes 850 MiB.
    assert!(peak() < 384, "{} MiB", peak());
}
