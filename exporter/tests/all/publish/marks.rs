//! Marks of broken GPUs in the cluster, and the record of their XIDs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nvlink_exporter::{
    publish,
    snapshot::{Latest, Snapshot},
    statistics::Publishing,
};
use nvlink_history::marks::{Marks, Record};
use nvlink_source::{Opener, Reading};
use serde_json::{Value, json};

use super::{
    api_server::{Cluster, Shared, start},
    publisher,
};
use crate::support;

const HEALTHY: &str = "nvlink-domains.io/healthy-domain-size";
const XIDS: &str = "nvlink-domains.io/xids";

/// Reads the simulated node with `faults` after `seconds`, without marks.
fn unmarked(faults: &str, seconds: u64) -> Reading {
    let opener = Opener::new("sim:dgx2-v100".parse().unwrap(), Some("gpu-7".to_owned()));
    let mut source = opener.open().unwrap();
    opener
        .control()
        .unwrap()
        .replace(faults.as_bytes())
        .unwrap();
    source.read(Duration::from_secs(seconds)).unwrap()
}

fn snapshot(marks: &mut Marks, mut reading: Reading) -> Snapshot {
    marks.observe(&mut reading);
    Snapshot {
        record: marks.record(),
        ..support::snapshot("sim", reading, Instant::now())
    }
}

/// Starts to publish what `latest` has.
fn run(client: &kube::Client, latest: &Arc<Latest>) {
    let (publisher, recheck) = (publisher(client, false), Duration::from_secs(60));
    let latest = Arc::clone(latest);
    tokio::spawn(publish::run(
        publisher,
        latest,
        recheck,
        Publishing::default(),
    ));
}

/// Waits until the cluster is as `wanted` says.
async fn until(cluster: &Shared, wanted: impl Fn(&Cluster) -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !wanted(&cluster.lock().unwrap()) {
        assert!(
            Instant::now() < until,
            "{:?}",
            cluster.lock().unwrap().object
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn faults(cluster: &Cluster) -> Value {
    let object = cluster.object.as_ref().unwrap();
    object["spec"]["gpus"][2]
        .get("faults")
        .cloned()
        .unwrap_or_default()
}

fn record(cluster: &Cluster) -> Option<Record> {
    let object = cluster.object.as_ref().unwrap();
    let text = object["metadata"]["annotations"][XIDS].as_str()?;
    Some(serde_json::from_str(text).unwrap())
}

#[tokio::test]
async fn an_xid_stays_published_while_the_exporter_restarts() {
    let (client, cluster) = start(Cluster::default());
    let latest = Arc::new(Latest::default());
    let mut marks = Marks::default();
    run(&client, &latest);
    latest.publish(snapshot(&mut marks, unmarked("[]", 100)));
    until(&cluster, |cluster| cluster.label(HEALTHY) == Some("16")).await;
    until(&cluster, |cluster| cluster.object.is_some()).await;
    assert_eq!(record(&cluster.lock().unwrap()), None);

    let xid = r#"[{"xid": {"gpu": 2, "xid": 74}}]"#;
    latest.publish(snapshot(&mut marks, unmarked(xid, 101)));
    until(&cluster, |cluster| cluster.label(HEALTHY) == Some("15")).await;
    until(&cluster, |cluster| faults(cluster) == json!(["xid-74"])).await;
    let writes = cluster.lock().unwrap().writes;

    // The next process does not know of the XID until it has read the record.
    let latest = Arc::new(Latest::default());
    let mut marks = Marks::default();
    latest.publish(snapshot(&mut marks, unmarked("[]", 102)));
    run(&client, &latest);
    while latest.earlier().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(cluster.lock().unwrap().writes, writes, "it waits");
    marks.restore(&latest.earlier().unwrap());
    latest.publish(snapshot(&mut marks, unmarked("[]", 103)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    {
        let cluster = cluster.lock().unwrap();
        assert_eq!(cluster.writes, writes, "nothing has changed");
        assert_eq!(faults(&cluster), json!(["xid-74"]));
    }

    // The GPU was reset: its counters are lower.
    latest.publish(snapshot(&mut marks, unmarked("[]", 5)));
    until(&cluster, |cluster| cluster.label(HEALTHY) == Some("16")).await;
    until(&cluster, |cluster| faults(cluster).is_null()).await;
    assert_eq!(record(&cluster.lock().unwrap()), None);
}
