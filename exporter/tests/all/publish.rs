//! Publishing to the cluster: what is written, what stays, and what is removed.

mod api_server;
mod marks;
mod status;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use self::api_server::{Cluster, start};
use crate::support::reading;
use kube::Client;
use nvlink_exporter::{
    metrics::{self, Groups},
    publish::{self, PublishError, Publisher, Written, unpublish},
    snapshot::Latest,
    statistics::{Publishing, Statistics},
};

fn publisher(client: &Client, aliases: bool) -> Publisher {
    Publisher::new(client.clone(), "gpu-7".to_owned(), aliases)
}

const SIZE: &str = "nvlink-domains.io/domain-size";
const DOMAIN: &str = "nvlink-domains.io/domain";

#[tokio::test]
async fn publishing_writes_only_changes() {
    let (client, cluster) = start(Cluster::default());
    let mut publisher = publisher(&client, false);
    let h100 = reading("sim:dgx-h100").topology;
    let first = publisher.publish(&h100).await.unwrap();
    assert_eq!(
        first,
        Written {
            node: true,
            aliases: false,
            object: true,
            taints: false
        }
    );
    assert_eq!(cluster.lock().unwrap().writes, 2);
    assert_eq!(publisher.publish(&h100).await.unwrap(), Written::default());
    assert_eq!(cluster.lock().unwrap().writes, 2);
    let cluster = cluster.lock().unwrap();
    assert_eq!(cluster.label(SIZE), Some("8"));
    assert_eq!(cluster.label(DOMAIN), Some("node-a.0"));
    let object = cluster.object.as_ref().unwrap();
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "uid-7");
    assert_eq!(object["spec"]["gpus"].as_array().unwrap().len(), 8);
}

#[tokio::test]
async fn labels_that_no_longer_apply_are_removed() {
    let (client, cluster) = start(Cluster::default());
    let mut publisher = publisher(&client, false);
    publisher
        .publish(&reading("sim:dgx-h100").topology)
        .await
        .unwrap();
    publisher
        .publish(&reading("sim:a100-pcie-pairs").topology)
        .await
        .unwrap();
    let cluster = cluster.lock().unwrap();
    assert_eq!(cluster.label(SIZE), Some("2"));
    assert_eq!(
        cluster.label(DOMAIN),
        None,
        "no domain holds the whole node"
    );
}

#[tokio::test]
async fn unknown_values_are_not_published() {
    let (client, cluster) = start(Cluster::default());
    let mut publisher = publisher(&client, true);
    publisher
        .publish(&reading("sim:dgx-h100").topology)
        .await
        .unwrap();
    // The kernel's tree shows eight GPUs and the network, but no NVLink.
    let sysfs = crate::machine::virtual_machine().read().unwrap().topology;
    publisher.publish(&sysfs).await.unwrap();
    assert_eq!(publisher.publish(&sysfs).await.unwrap(), Written::default());
    let cluster = cluster.lock().unwrap();
    let published: Vec<_> = cluster
        .fields
        .iter()
        .map(|((_, name), (value, _))| (&name[..], &value[..]))
        .collect();
    assert_eq!(
        published,
        [
            ("nvlink-domains.io/capacity", "inter-node=25GBps"),
            ("node.k8s.io/gpu-count", "8")
        ]
    );
    let spec = &cluster.object.as_ref().unwrap()["spec"];
    assert!(spec.get("edges").is_none() && spec.get("domains").is_none());
    assert_eq!(spec["source"]["kind"], "sysfs");
    assert_eq!(spec["paths"].as_array().unwrap().len(), 28);
}

#[tokio::test]
async fn foreign_values_under_our_names_are_removed() {
    let key = |field: &str, name: &str| (field.to_owned(), format!("nvlink-domains.io/{name}"));
    let by_hand = |value: &str| (value.to_owned(), "kubectl-label".to_owned());
    let mut cluster = Cluster::default();
    // A wrong domain, a wrong size, a name that this program does not use, a wrong annotation.
    for (key, value) in [
        (key("labels", "domain"), "foo.0"),
        (key("labels", "domain-size"), "8"),
        (key("labels", "team"), "a"),
        (key("annotations", "topology"), "x"),
    ] {
        cluster.fields.insert(key, by_hand(value));
    }
    let (client, cluster) = start(cluster);
    let mut publisher = publisher(&client, false);
    let pairs = reading("sim:a100-pcie-pairs").topology;
    assert!(publisher.publish(&pairs).await.unwrap().node);
    {
        let cluster = cluster.lock().unwrap();
        assert_eq!(cluster.label(DOMAIN), None);
        assert_eq!(cluster.label(SIZE), Some("2"));
        assert_eq!(cluster.label("nvlink-domains.io/team"), Some("a"));
        let topology = &cluster.fields[&key("annotations", "topology")];
        assert!(topology.0.starts_with("nvlink-domain:"), "{topology:?}");
    }
    assert_eq!(publisher.publish(&pairs).await.unwrap(), Written::default());
    // Another program sets it again.
    let again = (key("labels", "domain"), by_hand("foo.0"));
    cluster.lock().unwrap().fields.extend([again]);
    assert!(publisher.publish(&pairs).await.unwrap().node);
    assert_eq!(cluster.lock().unwrap().label(DOMAIN), None);
}

#[tokio::test]
async fn foreign_changes_are_reverted() {
    let (client, cluster) = start(Cluster::default());
    let mut publisher = publisher(&client, false);
    let h100 = reading("sim:dgx-h100").topology;
    publisher.publish(&h100).await.unwrap();
    let key = ("labels".to_owned(), SIZE.to_owned());
    cluster
        .lock()
        .unwrap()
        .fields
        .insert(key, ("4".into(), "kubectl-label".into()));
    assert!(publisher.publish(&h100).await.unwrap().node);
    assert_eq!(cluster.lock().unwrap().label(SIZE), Some("8"));
    assert_eq!(publisher.publish(&h100).await.unwrap(), Written::default());
}

/// The log lines of this thread from now on.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let builder = tracing_subscriber::fmt().with_ansi(false);
        tracing::subscriber::set_default(builder.with_writer(move || log.clone()).finish())
    }

    fn count(&self, words: &str) -> usize {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.matches(words).count()
    }
}

#[tokio::test]
async fn two_exporters_of_one_node_are_logged() {
    let log = Log::default();
    let _guard = log.start();
    let (client, _cluster) = start(Cluster::default());
    let (mut one, mut other) = (publisher(&client, false), publisher(&client, false));
    let (h100, l40s) = (
        reading("sim:dgx-h100").topology,
        reading("sim:l40s").topology,
    );
    for look in 0..7 {
        assert!(one.publish(&h100).await.unwrap().node);
        assert!(other.publish(&l40s).await.unwrap().node);
        let told = log.count("something else keeps changing what is published about this Node");
        assert_eq!(told, look / 3 * 2, "look {look}");
    }
}

#[tokio::test]
async fn alias_labels_yield_to_others() {
    let taken = "nvidia.com/nvswitch.present";
    let mut cluster = Cluster::default();
    let key = ("labels".to_owned(), taken.to_owned());
    cluster
        .fields
        .insert(key, ("someone".into(), "gpu-feature-discovery".into()));
    let (client, cluster) = start(cluster);
    let h100 = reading("sim:dgx-h100").topology;
    assert!(
        publisher(&client, true)
            .publish(&h100)
            .await
            .unwrap()
            .aliases
    );
    assert_eq!(cluster.lock().unwrap().label(taken), Some("someone"));
    assert_eq!(
        cluster.lock().unwrap().label("node.k8s.io/gpu-count"),
        Some("8")
    );
    assert_eq!(
        publisher(&client, true).publish(&h100).await.unwrap(),
        Written::default()
    );
    // Without the flag, they are removed again.
    assert!(
        publisher(&client, false)
            .publish(&h100)
            .await
            .unwrap()
            .aliases
    );
    assert_eq!(cluster.lock().unwrap().label("node.k8s.io/gpu-count"), None);
}

#[tokio::test]
async fn labels_are_published_without_the_crd() {
    let log = Log::default();
    let _guard = log.start();
    let (client, cluster) = start(Cluster {
        no_crd: true,
        ..Cluster::default()
    });
    let written = publisher(&client, false)
        .publish(&reading("sim:l40s").topology)
        .await
        .unwrap();
    assert_eq!(
        written,
        Written {
            node: true,
            aliases: false,
            object: false,
            taints: false
        }
    );
    assert_eq!(cluster.lock().unwrap().label(SIZE), Some("1"));
    assert_eq!(
        log.count("`nvlink-webhook crds | kubectl apply --server-side -f -`"),
        1
    );
    unpublish(&client, "gpu-7").await.unwrap();
}

#[tokio::test]
async fn an_error_contains_the_message_of_the_api_server() {
    let (client, _cluster) = start(Cluster {
        denied: true,
        ..Cluster::default()
    });
    let l40s = reading("sim:l40s").topology;
    let error = publisher(&client, false).publish(&l40s).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "applying to Node gpu-7: Forbidden; grant the rights in the chart's templates/exporter/rbac.yaml"
    );
}

/// Waits for a scrape that contains `wanted`.
async fn scraped(latest: &Latest, wanted: &str) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let text = metrics::render(&latest.view(Instant::now()), Groups::ALL).unwrap();
        if text.contains(wanted) {
            return text;
        }
        assert!(Instant::now() < until, "{text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn metrics_report_how_publishing_goes() {
    let (client, cluster) = start(Cluster {
        denied: true,
        ..Cluster::default()
    });
    let publishing = Publishing::default();
    let statistics = Statistics {
        publishing: vec![("topology", publishing.clone())],
        ..Statistics::default()
    };
    let latest = Arc::new(Latest::default().with(statistics));
    let l40s = crate::support::snapshot("sim:l40s", reading("sim:l40s"), Instant::now());
    latest.publish(l40s);
    let publisher = publisher(&client, false);
    let recheck = Duration::from_secs(60);
    tokio::spawn(publish::run(
        publisher,
        Arc::clone(&latest),
        recheck,
        publishing,
    ));
    let failures = |reason: &str, count: u32| {
        format!("publish_failures_total{{what=\"topology\",reason=\"{reason}\"}} {count}\n")
    };
    let text = scraped(&latest, &failures("forbidden", 1)).await;
    assert!(text.contains(&failures("unreachable", 0)), "{text}");
    let success = "nvlink_exporter_published_timestamp_seconds{what=\"topology\"} ";
    assert!(!text.contains(success), "{text}");
    cluster.lock().unwrap().denied = false;
    scraped(&latest, success).await;
}

#[tokio::test]
async fn no_node_is_created() {
    let (client, cluster) = start(Cluster {
        no_node: true,
        ..Cluster::default()
    });
    let result = publisher(&client, false)
        .publish(&reading("sim:l40s").topology)
        .await;
    assert!(matches!(result, Err(PublishError::NoNode(name)) if name == "gpu-7"));
    assert_eq!(cluster.lock().unwrap().writes, 0);
    unpublish(&client, "gpu-7").await.unwrap();
}

#[tokio::test]
async fn unpublishing_leaves_what_others_set() {
    let mut cluster = Cluster::default();
    let key = ("labels".to_owned(), "team".to_owned());
    cluster
        .fields
        .insert(key, ("ml".into(), "kubectl-label".into()));
    let (client, cluster) = start(cluster);
    publisher(&client, true)
        .publish(&reading("sim:dgx-h100").topology)
        .await
        .unwrap();
    assert_eq!(cluster.lock().unwrap().managers().len(), 3);
    unpublish(&client, "gpu-7").await.unwrap();
    let after = cluster.lock().unwrap();
    assert_eq!(after.managers(), ["kubectl-label"].into());
    assert!(after.object.is_none());
}
