//! An exporter with the chart's rights and policies, while what it publishes to fails.

use nvlink_tests::{Exporter, FaultyApi, Kubectl, Node, Wrong, http, node, wait_until};

use super::{Installed, SOON, control_plane, node::on};

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
const PORTAL: &str = "<html><body>Sign in to the network</body></html>";

const CASES: [Case; 9] = [
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
    case(None, (500, ""), "500", "refused"),
    case(None, (503, "upstream connect error"), "503", "refused"),
    case(None, (200, PORTAL), "expected value", "unreachable"),
    case(
        None,
        (200, "{\"kind\":\"Node\",\"apiVer"),
        "EOF while parsing",
        "unreachable",
    ),
    case(None, (200, SUCCESS), "kind", "unreachable"),
    case(None, (200, ""), "EOF while parsing", "unreachable"),
    case(
        None,
        (404, "404 page not found"),
        "there is no Node",
        "no_node",
    ),
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

/// The exporter serves its data meanwhile, asks at growing intervals, says what is wrong, and
/// publishes once the answers are right.
#[test]
fn a_publisher_outlives_each_answer_of_the_api_server() {
    let (control_plane, _turn) = control_plane();
    let _installed = Installed::with(control_plane, "");
    let kubectl = control_plane.kubectl();
    node::create(kubectl, &[Node::new("n1", 8).pool("n1")]).unwrap();
    let token = on(control_plane, "n1");
    let api = FaultyApi::start_as(control_plane, &token).unwrap();
    let arguments = ["--source", "sim:dgx-h100", "--collection-interval", "100ms"];
    let exporter = Exporter::publishing(&api.kubeconfig, "n1", &arguments).unwrap();
    let publisher = Publisher { api, exporter };
    shows(kubectl, false, &publisher);
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
}
