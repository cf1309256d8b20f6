//! The webhook's page of the cluster in a real browser, with a real control plane: who holds
//! what comes from NodeTopologies, classes and projects from pods, decisions from the webhook.

use std::{fs, path::PathBuf, time::Duration};

use nvlink_tests::{
    Browser, ControlPlane, Kubectl, Node, Webhook, http, node, port,
    programs::{self, EXPORTER},
    wait_until,
    webhook::install_crds,
    workdir,
};
use serde_json::{Value, json};

use crate::{
    page::{inspect_at, wait_for_text},
    pods::gpu_pod,
};

/// The time of a few refreshes of the page, which are 3 s apart.
const SOON: Duration = Duration::from_secs(30);
const TAB: char = '\u{e004}';
const DOWN: char = '\u{e015}';
const UP: char = '\u{e013}';
const END: char = '\u{e010}';

/// A control plane with three nodes and a class, and a webhook with a page.
struct Cluster {
    plane: ControlPlane,
    webhook: Webhook,
    url: String,
}

impl Cluster {
    fn start(arguments: &[&str]) -> Self {
        let plane = ControlPlane::start().unwrap();
        install_crds(plane.kubectl()).unwrap();
        let address = format!("127.0.0.1:{}", port::free().unwrap());
        let page = ["--web.listen-address", &address];
        let webhook =
            Webhook::start_with(plane.kubeconfig(), &[&page, arguments].concat()).unwrap();
        let cluster = Self {
            url: format!("http://{address}/"),
            plane,
            webhook,
        };
        for (node, source) in [
            ("dgx-1", "sim:dgx-h100"),
            ("dgx-2", "sim:h200-degraded"),
            ("pairs", "sim:a100-pcie-pairs"),
        ] {
            cluster.publish(node, source);
        }
        cluster
    }

    fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    /// Creates the NodeTopology that an exporter on this board would publish.
    fn publish(&self, node: &str, source: &str) {
        let arguments = ["topology", "--source", source, "--node-name", node];
        let json = [&arguments[..], &["--output", "json"]].concat();
        let document = programs::run(EXPORTER, &json, "").unwrap();
        self.kubectl().apply(&document).unwrap();
        self.hold(node, &[]);
    }

    /// Sets who holds which GPUs of a node.
    fn hold(&self, node: &str, held: &[(&str, &[u32])]) {
        let held = held.iter().map(
            |(pod, gpus)| json!({"namespace": "ci", "pod": pod, "container": "main", "gpus": gpus}),
        );
        let status = json!({"status": {"allocations": held.collect::<Value>()}}).to_string();
        let patch = ["patch", "nodetopology", node, "--subresource=status"];
        let merge = ["--type=merge", "-p", &status];
        self.kubectl().run(&[&patch[..], &merge].concat()).unwrap();
    }

    /// Registers the webhook, and creates the class `open` and the namespace `ci`.
    fn admit(&self) -> Kubectl {
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": "open"}, "spec": {"placement": {"scope": "nvlink-domain"}},
        });
        self.kubectl().create(&class).unwrap();
        self.webhook.register(self.kubectl()).unwrap();
        let default = json!({"nvlink-domains.io/default-class": "open"});
        let ci = self.plane.namespace("ci", &json!({}), &default).unwrap();
        wait_until("the webhook to place pods", SOON, || {
            let stored = crate::shared::dry_run(&ci, &gpu_pod("probe", 1))?;
            Ok(crate::pods::decision(&stored).map(drop))
        })
        .unwrap();
        ci
    }
}

fn opened(cluster: &Cluster, path: &str) -> Browser {
    let browser = Browser::start().unwrap();
    browser.emulate(1280, "light").unwrap();
    browser.open(&format!("{}{path}", cluster.url)).unwrap();
    browser
}

/// Returns the names of the nodes that are shown.
fn shown(browser: &Browser) -> Value {
    let script =
        "return [...document.querySelectorAll('.row a')].filter((one) => one.checkVisibility())
        .map((one) => one.textContent)";
    browser.run(script).unwrap()
}

fn typed(browser: &Browser, text: &str) {
    text.chars().for_each(|key| browser.press(key).unwrap());
}

#[test]
fn decisions_and_allocations_appear_without_a_reload() {
    let cluster = Cluster::start(&[]);
    let browser = opened(&cluster, "");
    wait_for_text(&browser, "21 of 24 GPUs on 3 nodes are free");
    wait_for_text(
        &browser,
        "Broken: dgx-2 (GPU 5: 1 link missing; GPU 3: 2 links missing; GPUs 3,5: fabric; GPU 6: recovery-gpu-reset)",
    );
    run_jobs(&cluster, &browser);
    wait_in_line(&cluster, &browser);
    // The pod has the class and the project, which the search finds.
    let found = format!("{}#q=project:ci", cluster.url);
    browser.open(&found).unwrap();
    wait_until_shown(&browser, &["dgx-1"]);
    inspect_at(&browser, &cluster.url, "cluster-of-3");
    let node = format!("{}node?name=dgx-2", cluster.url);
    inspect_at(&browser, &node, "cluster-node");
    wait_for_text(&browser, "✕ 16 of 18");
    exchange_nodes(&cluster, &browser);
    drop(cluster);
    wait_for_text(&browser, "The webhook has not answered for");
    let last = shown(&browser).to_string();
    assert!(last.contains("dgx-10"), "the last data stay: {last}");
}

/// Admits a pod, refuses another, and lets jobs hold GPUs: the open page shows it.
fn run_jobs(cluster: &Cluster, browser: &Browser) {
    let ci = cluster.admit();
    let reader = "window.here = true; const link = document.querySelector('#node-pairs a');
        link.focus(); window.at = scrollY";
    browser.run(reader).unwrap();
    let node = Node::new("dgx-1", 8).label("nvlink-domains.io/domain-size", "8");
    node::create(cluster.kubectl(), &[node]).unwrap();
    let mut train = gpu_pod("train", 4);
    train["metadata"]["annotations"] = json!({"nvlink-domains.io/expected-duration": "30m"});
    ci.create(&train).unwrap();
    let mut stranger = gpu_pod("stranger", 1);
    stranger["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "<nope>"});
    ci.create(&stranger).unwrap_err();
    cluster.hold("dgx-1", &[("train", &[0, 1, 2, 3]), ("other", &[4])]);
    cluster.hold("pairs", &[("across", &[1, 2])]);
    wait_for_text(browser, "14 of 24 GPUs on 3 nodes are free");
    wait_for_text(browser, "Placed below 70 % of the best: ci/across on pairs");
    wait_for_text(browser, "rule unknown-class");
    wait_for_text(browser, "ci/train class open, 4 GPUs, project ci");
    let cells = "return [...document.querySelectorAll('#node-dgx-1 .cells i')]
        .map((one) => one.className.slice(0, 2).trim() + one.textContent)";
    let expected = json!(["q3A", "q3A", "q3A", "q3A", "q3B", "f", "f", "f"]);
    assert_eq!(browser.run(cells).unwrap(), expected);
    let undisturbed =
        "return [window.here, document.activeElement.textContent, scrollY === window.at]";
    let same = json!([true, "pairs", true]);
    assert_eq!(browser.run(undisturbed).unwrap(), same);
}

/// Creates a pod that waits in the queue: the open page shows it, and the search finds it.
fn wait_in_line(cluster: &Cluster, browser: &Browser) {
    wait_for_text(browser, "No pod shows that it waits.");
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "line"}, "spec": {"placement": {"whenUnavailable": "Queue"}},
    });
    cluster.kubectl().create(&class).unwrap();
    let ci = cluster.kubectl().in_namespace("ci");
    let mut pod = gpu_pod("waits", 6);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "line"});
    wait_until("the class to queue", SOON, || ci.create(&pod).map(Some)).unwrap();
    wait_for_text(browser, "1 pod waits for 6 GPUs: 1 in class line (6 GPUs).");
    wait_for_text(browser, "it needs 6 GPUs in one NVLink domain");
    let start = "return document.querySelectorAll('#waiting time').length";
    assert_eq!(
        browser.run(start).unwrap(),
        2,
        "its expected start is known"
    );
    let text = browser.text().unwrap();
    assert!(
        !text.contains("no rule forbids"),
        "what the queue wrote: {text}"
    );
    needs_attention(&ci, browser);
    for (query, found) in [
        ("pod:ci/waits", "1 waiting job"),
        ("pod:x", "0 waiting jobs"),
    ] {
        browser.open(&format!("{}#q={query}", cluster.url)).unwrap();
        wait_for_text(browser, found);
    }
    wait_for_text(browser, "The search finds none of them.");
}

/// Creates a pod that no node can ever run: the open page names it and its reason until it is gone.
fn needs_attention(ci: &Kubectl, browser: &Browser) {
    let mut pod = gpu_pod("huge", 16);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "line"});
    ci.create(&pod).unwrap();
    let never = "Impossible: ci/huge cannot start: no node of its class can run it";
    wait_for_text(browser, never);
    let row = "return [...document.querySelectorAll('#waiting tbody tr')].map((row) =>
        [...row.querySelectorAll('td')].slice(0, 3).map((cell) => cell.textContent))";
    // The positions are those that the pods, their Events and `kubectl nvlink` show.
    let rows = json!([["ci/waits", "line", "1"], ["ci/huge", "line", "2"]]);
    assert_eq!(browser.run(row).unwrap(), rows);
    ci.run(&["delete", "pod", "huge", "--grace-period=0"])
        .unwrap();
    wait_until("the page to drop the pod", SOON, || {
        Ok((!browser.text()?.contains("ci/huge cannot start")).then_some(()))
    })
    .unwrap();
}

/// Removes a node and adds another: the open page shows it.
fn exchange_nodes(cluster: &Cluster, browser: &Browser) {
    browser.open(&cluster.url).unwrap();
    browser.run("window.here = true").unwrap();
    let delete = ["delete", "nodetopology", "dgx-2"];
    cluster.kubectl().run(&delete).unwrap();
    cluster.publish("dgx-10", "sim:dgx-h100");
    wait_until_shown(browser, &["pairs", "dgx-1", "dgx-10"]);
    assert_eq!(browser.run("return window.here").unwrap(), true);
    let console = browser.console().unwrap();
    assert!(console.is_empty(), "{console:?}");
}

fn wait_until_shown(browser: &Browser, nodes: &[&str]) {
    let what = format!("the page to show {nodes:?}");
    wait_until(&what, SOON, || {
        Ok((shown(browser) == json!(nodes)).then_some(()))
    })
    .unwrap();
}

#[test]
fn the_page_can_be_searched_and_used_with_the_keyboard() {
    let cluster = Cluster::start(&[]);
    cluster.hold("pairs", &[("train-1", &[0, 1])]);
    let browser = opened(&cluster, "");
    wait_for_text(&browser, "ci/train-1");
    let active = || {
        let script = "const at = document.activeElement;
            return [at.textContent || at.id, getComputedStyle(at).outlineStyle]";
        let [text, outline] =
            <[Value; 2]>::try_from(browser.run(script).unwrap().as_array().unwrap().clone())
                .unwrap();
        assert_ne!(outline, "none", "{text} shows no focus");
        text.as_str().unwrap().to_owned()
    };
    browser.press(TAB).unwrap();
    assert_eq!(active(), "Skip to the content");
    browser.press('/').unwrap();
    assert_eq!(active(), "q");
    typed(&browser, "pod:ci/train");
    assert_eq!(shown(&browser), json!(["pairs"]));
    wait_for_text(&browser, "1 of 3 nodes");
    let address = "return decodeURIComponent(location.search)";
    assert_eq!(browser.run(address).unwrap(), "?q=pod:ci/train");
    browser.run("const q = document.getElementById('q'); q.value = ''; q.dispatchEvent(new Event('input')); q.focus()").unwrap();
    assert_eq!(shown(&browser).as_array().unwrap().len(), 3);
    // Find, the colours, and then one row, from which the arrows lead to the others.
    for expected in ["Find", "by-quality", "pairs"] {
        browser.press(TAB).unwrap();
        assert_eq!(active(), expected);
    }
    for (key, expected) in [
        (DOWN, "dgx-1"),
        (DOWN, "dgx-2"),
        (UP, "dgx-1"),
        (END, "dgx-2"),
    ] {
        browser.press(key).unwrap();
        assert_eq!(active(), expected);
    }
    browser.press(TAB).unwrap();
    assert_eq!(active(), "The cluster as JSON");
    let order = shown(&browser);
    assert_eq!(order, json!(["pairs", "dgx-1", "dgx-2"]), "groups by model");
    // An address that cannot be decoded is a search like others, and the page keeps updating.
    browser
        .open(&format!("{}?new#q=100%", cluster.url))
        .unwrap();
    wait_for_text(&browser, "0 of 3 nodes");
    let console = browser.console().unwrap();
    assert!(console.is_empty(), "{console:?}");
}

#[test]
fn the_page_is_complete_without_scripts() {
    let cluster = Cluster::start(&[]);
    cluster.hold("dgx-1", &[("train-1", &[0, 1])]);
    wait_until("the allocation", SOON, || {
        let page = http::text(&cluster.url)?;
        Ok(page.contains("ci/train-1").then_some(()))
    })
    .unwrap();
    let browser = Browser::start().unwrap();
    browser.forbid_scripts().unwrap();
    browser.open(&format!("{}?q=train-1", cluster.url)).unwrap();
    let text = browser.text().unwrap();
    for part in [
        "Without JavaScript",
        "19 of 24 GPUs",
        "ci/train-1",
        "6 free",
        "dgx-2 (GPU 5",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(shown(&browser), json!(["dgx-1"]));
}

#[test]
fn the_web_configuration_protects_the_page_and_not_admission() {
    let directory: PathBuf = workdir::fresh("cluster-page").unwrap();
    let config = directory.join("web.yml");
    let hash = "$2y$10$abcdefghijklmnopqrstuu6ZX0WN26XJKJTsyHceCGNcg2QmDxQ6a";
    fs::write(&config, format!("basic_auth_users: {{ada: \"{hash}\"}}\n")).unwrap();
    let file = config.display().to_string();
    let cluster = Cluster::start(&["--web.config.file", &file]);
    cluster.admit();
    for path in ["", "api/v1/cluster", "changes", "node?name=dgx-1"] {
        let answer = http::get(&format!("{}{path}", cluster.url), &[], "*/*").unwrap();
        assert_eq!(answer.status, 401, "{path}");
    }
}
