//! A queue without work follows nothing but classes, and pods of classes without a node.

use nvlink_tests::wait_until;
use serde_json::json;

use super::cluster::{Cluster, SOON, waits};

const SERVES: &str = "serving the queue";
const RESTS: &str = "the queue rests";

#[test]
fn the_queue_begins_with_the_first_class_and_rests_after_the_last() {
    let cluster = Cluster::start(&["n1"], json!({"whenUnavailable": "Pending"}));
    let log = || cluster.webhook.as_ref().unwrap().replica.process.log();
    let says = |words: &str, times: usize| {
        wait_until(words, SOON, || {
            Ok((log().matches(words).count() >= times).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", log()));
    };
    cluster.create("before", 8);
    cluster.bound("before");
    assert!(!log().contains(SERVES), "{}", log());

    // It knows of pods that came before.
    cluster.set_class(json!({}));
    says(SERVES, 1);
    cluster.settle_class();
    cluster.create("after", 8);
    assert!(waits(&cluster.pod("after")));
    cluster.end("before");
    cluster.bound("after");

    cluster.set_class(json!({"whenUnavailable": "Pending"}));
    says(RESTS, 1);
    cluster.set_class(json!({}));
    says(SERVES, 2);
}
