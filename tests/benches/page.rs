//! Measures the page of the cluster in Chromium, with a real control plane and webhook:
//! 1,000 nodes of 8 GPUs, all with jobs. Prints what it took, and asserts nothing.
//! `NODES=100` makes it smaller.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use nvlink_tests::{
    Browser, ControlPlane, Webhook, http, port,
    programs::{self, EXPORTER},
    wait_until,
    webhook::install_crds,
};
use serde_json::{Value, json};

/// Objects written at a time.
const WRITERS: usize = 8;
/// How many nodes change between two refreshes of the page.
const CHANGES: usize = 100;
const LONG: Duration = Duration::from_secs(120);
const MIB: f64 = 1024.0;

fn main() -> Result<()> {
    let nodes = match std::env::var("NODES") {
        Ok(text) => text.parse().context("invalid NODES")?,
        Err(_) => 1000,
    };
    let arguments = ["topology", "--source", "sim:dgx-h100", "--output", "json"];
    let document = serde_json::from_str(&programs::run(EXPORTER, &arguments, "")?)?;
    let plane = ControlPlane::start()?;
    install_crds(plane.kubectl())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let cluster = runtime.block_on(Cluster::new(&plane, document))?;
    runtime.block_on(cluster.all(0..nodes, true, 0))?;
    let address = format!("127.0.0.1:{}", port::free()?);
    let without = memory(&Webhook::start(plane.kubeconfig())?)?;
    let webhook = Webhook::start_with(plane.kubeconfig(), &["--web.listen-address", &address])?;
    let url = format!("http://{address}/");
    let last = format!("node-{}", name(nodes - 1));
    wait_until("all nodes", LONG, || {
        Ok(http::text(&url)?.contains(&last).then_some(()))
    })?;
    println!("{nodes} nodes of 8 GPUs");
    let browser = Browser::start()?;
    browser.emulate(1280, "light")?;
    load(&browser, &url)?;
    println!(
        "  memory of the webhook   {:.0} MiB with the page, {without:.0} MiB without",
        memory(&webhook)?
    );
    search(&browser)?;
    scroll(&browser)?;
    browser.run("window.longest = 0; new PerformanceObserver((list) => list.getEntries().forEach(
        (one) => { window.longest = Math.max(window.longest, one.duration); })).observe({type: 'longtask'})")?;
    runtime.block_on(cluster.all(0..CHANGES.min(nodes), false, 1))?;
    wait_until("the changes", LONG, || {
        let shown = "return document.querySelector('.group').textContent.includes('changed-1')";
        Ok((browser.run(shown)? == true).then_some(()))
    })?;
    let changed = browser.run("return [...document.querySelectorAll('.held')].filter((one) => one.textContent.includes('changed-1')).length")?;
    let longest = number(&browser, "return window.longest")?;
    println!(
        "  update                  {changed} rows; the longest task took {longest:.0} ms (0: none over 50 ms)"
    );
    Ok(())
}

/// Opens the page and prints what it took.
fn load(browser: &Browser, url: &str) -> Result<()> {
    for _ in 0..3 {
        browser.open(url)?;
        let times = "const [page] = performance.getEntriesByType('navigation');
            const paint = performance.getEntriesByName('first-contentful-paint')[0];
            return [page.responseStart, paint?.startTime ?? 0, page.domContentLoadedEventEnd, page.decodedBodySize / 1024,
                document.querySelectorAll('*').length]";
        let times = browser.run(times)?;
        let at = |n: usize| times[n].as_f64().unwrap_or(f64::NAN);
        println!(
            "  load                    first byte {:.0} ms, first paint {:.0} ms, complete {:.0} ms; {:.0} KiB, {} elements",
            at(0),
            at(1),
            at(2),
            at(3),
            times[4]
        );
    }
    Ok(())
}

/// Searches, with the layout that follows.
fn search(browser: &Browser) -> Result<()> {
    for query in ["train-7", "is:free", ""] {
        let script = format!(
            "const q = document.getElementById('q'); const start = performance.now();
             q.value = '{query}'; q.dispatchEvent(new Event('input')); document.body.offsetHeight;
             return performance.now() - start"
        );
        let took = number(browser, &script)?;
        println!("  search {query:16} {took:.0} ms");
    }
    Ok(())
}

/// Scrolls through the page, and prints how long frames took.
fn scroll(browser: &Browser) -> Result<()> {
    browser.run(
        "window.frames_ = []; let last = performance.now(); let step = 0;
         const frame = (now) => { window.frames_.push(now - last); last = now;
            scrollBy(0, 400); if (++step < 90) requestAnimationFrame(frame); };
         requestAnimationFrame(frame)",
    )?;
    wait_until("the end of the page", LONG, || {
        Ok((number(browser, "return window.frames_.length")? >= 90.0).then_some(()))
    })?;
    let sorted = "return window.frames_.slice(1).sort((a, b) => a - b)";
    let frames = browser.run(sorted)?;
    let frames = frames.as_array().context("no frames")?;
    let at = |share: usize| {
        frames[(frames.len() - 1) * share / 100]
            .as_f64()
            .unwrap_or(f64::NAN)
    };
    println!(
        "  scrolling               a frame takes {:.0} ms (median), {:.0} ms (95 %), {:.0} ms (longest)",
        at(50),
        at(95),
        at(100)
    );
    browser.run("scrollTo(0, 0)").map(drop)
}

fn number(browser: &Browser, script: &str) -> Result<f64> {
    browser.run(script)?.as_f64().context("not a number")
}

/// Returns the resident memory of a webhook, in MiB.
fn memory(webhook: &Webhook) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", webhook.replica.process.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.context("no VmRSS")? / MIB)
}

fn name(index: usize) -> String {
    format!("gpu-node-{index:04}.cluster.example")
}

struct Cluster {
    topologies: Api<DynamicObject>,
    document: Value,
}

impl Cluster {
    async fn new(plane: &ControlPlane, document: Value) -> Result<Self> {
        let kind = GroupVersionKind::gvk("nvlink-domains.io", "v1alpha1", "NodeTopology");
        let resource = ApiResource::from_gvk_with_plural(&kind, "nodetopologies");
        Ok(Self {
            topologies: Api::all_with(plane.client().await?, &resource),
            document,
        })
    }

    /// Creates nodes if `new`, and sets who holds their GPUs in a `round`.
    async fn all(&self, nodes: std::ops::Range<usize>, new: bool, round: usize) -> Result<()> {
        let each = |index| self.node(index, new, round);
        let writes = stream::iter(nodes).map(each).buffer_unordered(WRITERS);
        writes.try_collect::<Vec<()>>().await.map(drop)
    }

    async fn node(&self, index: usize, new: bool, round: usize) -> Result<()> {
        let name = name(index);
        if new {
            let mut document = self.document.clone();
            document["metadata"] = json!({ "name": name });
            document["spec"]["domains"][0]["id"] = json!(format!("{name}.0"));
            for gpu in document["spec"]["gpus"].as_array_mut().context("no GPUs")? {
                let uuid = format!(
                    "GPU-{index:08x}-b0d2-b7c5-2dfe-{:012x}",
                    gpu["index"].as_u64().unwrap_or(0)
                );
                gpu["uuid"] = json!(uuid);
            }
            let object = serde_json::from_value(document)?;
            self.topologies
                .create(&PostParams::default(), &object)
                .await?;
        }
        // One to four jobs on a node, and some free GPUs.
        let word = if round == 0 { "train" } else { "changed" };
        let size = 1 + index % 4;
        let held = (0..8 / size).filter(|job| !(index + job + round).is_multiple_of(3)).map(|job| {
            let gpus: Vec<_> = (job * size..(job + 1) * size).collect();
            json!({
                "namespace": format!("team-{}", index % 12), "pod": format!("{word}-{round}-{index}-{job}"),
                "container": "main", "gpus": gpus,
            })
        });
        let status = json!({"status": {"allocations": held.collect::<Value>()}});
        let patch = Patch::Merge(status);
        self.topologies
            .patch_status(&name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }
}
