//! An exporter with the chart's rights and policies, while what it publishes to fails.

use std::time::Duration;

use nvlink_tests::{
    ControlPlane, Exporter, FaultyApi, Kubectl, Node, Wrong, http, node,
    programs::{self, WEBHOOK},
    wait_until,
};
use serde_json::Value;

use super::{
    Installed, SOON, control_plane, documents,
    node::{forget, on},
};

/// A wrong answer, what the log says of it, and the reason in the metric.
struct Case {
    wrong: Wrong,
    said: &'static str,
    reason: &'static str,
}

const fn case(
    method: Option<&'static str>,
    (status, body): (u16, &'static str),
    said: &'static str,
    reason: &'static str,
) -> Case {
    Case {
        wrong: Wrong {
            method,
            status,
            body,
        },
        said,
        reason,
    }
}

const CONFLICT: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"message":"the object has been modified; please apply your changes to the latest version"}"#;
const INTERNAL: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":"Internal error occurred: etcdserver: request timed out"}"#;
const SUCCESS: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#;
const NO_NODE: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"nodes \"n1\" not found"}"#;
const PORTAL: &str = "<html><body>Sign in to the network</body></html>";

/// Of answers that are none of the API server.
const OTHER: &str = "something other than the API server answered";

const CASES: [Case; 10] = [
    case(
        Some("PATCH"),
        (409, CONFLICT),
        "the object has been modified",
        "refused",
    ),
    case(
        Some("PATCH"),
        (500, INTERNAL),
        "etcdserver: request timed out",
        "refused",
    ),
    case(None, (500, ""), "the API server answers 500", "refused"),
    case(
        None,
        (503, "upstream connect error"),
        "the API server answers 503",
        "refused",
    ),
    case(None, (200, PORTAL), OTHER, "unreachable"),
    case(
        None,
        (200, "{\"kind\":\"Node\",\"apiVer"),
        OTHER,
        "unreachable",
    ),
    case(None, (200, SUCCESS), OTHER, "unreachable"),
    case(None, (200, ""), OTHER, "unreachable"),
    case(
        None,
        (404, "404 page not found"),
        "404 page not found",
        "refused",
    ),
    case(None, (404, NO_NODE), "there is no Node", "no_node"),
];

struct Publisher {
    api: FaultyApi,
    exporter: Exporter,
}

impl Publisher {
    fn failures(&self, reason: &str) -> anyhow::Result<u64> {
        let name = format!(
            "nvlink_exporter_publish_failures_total{{what=\"topology\",reason=\"{reason}\"}} "
        );
        let text = self.exporter.metrics()?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(&*name));
        Ok(value.unwrap_or("0").parse()?)
    }

    /// Breaks a link of GPU 0, or repairs it, so that there is something to publish.
    fn set_link(&self, down: bool) {
        let url = self.exporter.url("/sim/faults");
        let faults = match down {
            true => r#"[{"link-down": {"gpu": 0, "link": 3}}]"#,
            false => "[]",
        };
        let answer = http::send("PUT", &url, faults).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

/// Waits until the cluster shows that a link is down, or that none is.
fn shows(kubectl: &Kubectl, down: bool, publisher: &Publisher) {
    wait_until("the topology to be published", SOON, || {
        let topology = kubectl.get(&["nodetopology", "n1"])?;
        let faults = &topology["spec"]["gpus"][0]["faults"];
        let has = faults.as_array().is_some_and(|faults| !faults.is_empty());
        Ok((has == down).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", publisher.exporter.process.log()));
}

/// Starts an exporter on the node `n1` with the rights that its pod has there.
fn publisher(control_plane: &ControlPlane) -> Publisher {
    let kubectl = control_plane.kubectl();
    node::create(kubectl, &[Node::new("n1", 8).pool("n1")]).unwrap();
    let api = FaultyApi::start_as(control_plane, &on(control_plane, "n1")).unwrap();
    let arguments = [
        "--source",
        "sim:dgx-h100",
        "--collection-interval",
        "100ms",
        "--publish-interval",
        "1s",
    ];
    let exporter = Exporter::publishing(&api.kubeconfig, "n1", &arguments).unwrap();
    let publisher = Publisher { api, exporter };
    shows(kubectl, false, &publisher);
    publisher
}

/// The exporter serves its data meanwhile, asks at growing intervals, says what is wrong, and
/// publishes once the answers are right.
#[test]
fn a_publisher_outlives_each_answer_of_the_api_server() {
    let (control_plane, _turn) = control_plane();
    let _installed = Installed::with(control_plane, "");
    let kubectl = control_plane.kubectl();
    let publisher = publisher(control_plane);
    let mut down = false;
    for Case {
        wrong,
        said,
        reason,
    } in CASES
    {
        let before = publisher.failures(reason).unwrap();
        let log = publisher.exporter.process.log().len();
        publisher.api.set_wrong(Some(wrong));
        down = !down;
        publisher.set_link(down);
        wait_until(&format!("the failure of {wrong:?}"), SOON, || {
            Ok((publisher.failures(reason)? > before).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", publisher.exporter.process.log()));
        http::text(&publisher.exporter.url("/readyz")).unwrap();
        let log = publisher.exporter.process.log()[log..].to_owned();
        println!("{wrong:?}: {} requests\n{log}", publisher.api.wronged());
        assert!(log.contains(said), "{wrong:?}: {log}");
        publisher.api.set_wrong(None);
        shows(kubectl, down, &publisher);
    }
    forget(kubectl);
}

/// An earlier version of the CRD lacks fields.
#[test]
fn an_older_crd_is_named_until_it_is_updated() {
    let (control_plane, _turn) = control_plane();
    let _installed = Installed::with(control_plane, "");
    let kubectl = control_plane.kubectl();
    let publisher = publisher(control_plane);
    let crds = programs::run(WEBHOOK, &["crds"], "").unwrap();
    let mut crd = documents(&crds)
        .into_iter()
        .find(|crd| crd["spec"]["names"]["kind"] == "NodeTopology")
        .unwrap();
    let gpu =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/gpus/items/properties";
    let fields = crd.pointer_mut(gpu).and_then(Value::as_object_mut);
    fields.unwrap().remove("faults").unwrap();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    kubectl.run_with(&apply, &crd.to_string()).unwrap();
    let mut down = false;
    wait_until("the older CRD to be named", SOON, || {
        // The API server takes a moment to use the other CRD.
        down = !down;
        publisher.set_link(down);
        std::thread::sleep(Duration::from_secs(3));
        let log = publisher.exporter.process.log();
        let told = "the CRD in the cluster is older than this program: run `helm upgrade`";
        Ok(log.contains(told).then_some(()))
    })
    .unwrap();
    kubectl.run_with(&apply, &crds).unwrap();
    shows(kubectl, down, &publisher);
    forget(kubectl);
}

/// The Node is deleted, and comes again: what is published is about the new one.
#[test]
fn a_node_that_is_replaced_gets_all_again_and_none_is_created() {
    let (control_plane, _turn) = control_plane();
    let _installed = Installed::with(control_plane, "");
    let kubectl = control_plane.kubectl();
    let publisher = publisher(control_plane);
    kubectl.run(&["delete", "node", "n1"]).unwrap();
    wait_until("the lack to be counted", SOON, || {
        Ok((publisher.failures("no_node")? > 0).then_some(()))
    })
    .unwrap();
    kubectl.run(&["get", "node", "n1"]).unwrap_err();
    node::create(kubectl, &[Node::new("n1", 8).pool("n1")]).unwrap();
    let uid = kubectl.get(&["node", "n1"]).unwrap()["metadata"]["uid"].clone();
    wait_until("the new Node to be described", SOON, || {
        let topology = kubectl.get(&["nodetopology", "n1"])?;
        let owners = topology["metadata"]["ownerReferences"].as_array();
        let owner = owners.filter(|owners| owners.len() == 1);
        Ok(owner.filter(|owners| owners[0]["uid"] == uid).map(drop))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", publisher.exporter.process.log()));
    let labels = &kubectl.get(&["node", "n1"]).unwrap()["metadata"]["labels"];
    assert_eq!(labels["nvlink-domains.io/domain-size"], "8");
    forget(kubectl);
}
