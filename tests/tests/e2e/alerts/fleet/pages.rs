//! The pages of the real exporter: one on each kind of simulated machine, in each state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
    time::Duration,
};

use nvlink_tests::{Exporter, Kubelet, Rules, http, kubelet::Container, promql, wait_until};
use serde_json::{Value, json};

use super::super::watch::{set, start};

/// How machines and jobs are called on the pages.
pub(super) const NODE: &str = "the-node";
pub(super) const NAMESPACE: &str = "the-namespace";
pub(super) const POD: &str = "the-pod";

/// The link of the eight-GPU machine that fails, and those of each GPU of a rack to one switch tray, with the XID that
/// they raise.
pub(super) const BROKEN_GPU: u32 = 3;
const BROKEN_LINK: u32 = 7;
const TRAY_LINKS: [u32; 2] = [6, 7];
const TRAY_XID: u64 = 149;

const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Eight GPUs.
    Board,
    /// A compute tray of a rack: four GPUs of an NVLink fabric.
    Tray,
}

impl Kind {
    pub(super) fn gpus(self) -> u32 {
        match self {
            Self::Board => 8,
            Self::Tray => 4,
        }
    }

    fn profile(self) -> &'static str {
        match self {
            Self::Board => "dgx-h100",
            Self::Tray => "gb200-nvl72",
        }
    }

    fn faults(self) -> Value {
        let down = |gpu: u32, link: u32| json!({"link-down": {"gpu": gpu, "link": link}});
        match self {
            Self::Board => json!([down(BROKEN_GPU, BROKEN_LINK)]),
            Self::Tray => (0..self.gpus())
                .flat_map(|gpu| {
                    let links = TRAY_LINKS.iter().map(move |link| down(gpu, *link));
                    links.chain([json!({"xid": {"gpu": gpu, "xid": TRAY_XID}})])
                })
                .collect(),
        }
    }
}

/// What an exporter that answers reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// A pod holds all GPUs.
    Held,
    /// It does, and links are down.
    Broken,
    /// No pod.
    Empty,
    /// No pod, and the GPUs register with their fabric.
    Joining,
    /// The driver is released.
    Released,
}

/// The value of each series.
pub(super) type Page = BTreeMap<String, f64>;

/// Returns the page of an exporter, with the series that rules read.
pub(super) fn page(kind: Kind, condition: Condition) -> &'static Page {
    static PAGES: OnceLock<BTreeMap<(Kind, Condition), Page>> = OnceLock::new();
    let pages = PAGES.get_or_init(|| {
        let rules = Rules::read().unwrap();
        let exprs = rules.all().filter_map(|rule| rule["expr"].as_str());
        let read: BTreeSet<&str> = exprs.flat_map(promql::metrics).collect();
        [Kind::Board, Kind::Tray]
            .into_iter()
            .flat_map(|kind| capture(kind, &read))
            .collect()
    });
    &pages[&(kind, condition)]
}

fn capture(kind: Kind, read: &BTreeSet<&str>) -> Vec<((Kind, Condition), Page)> {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let arguments = ["--kubelet-socket", &socket, "--web.enable-lifecycle"];
    let exporter = start(NODE, kind.profile(), &arguments);
    let text = http::text(&exporter.url("/api/v1/topology")).unwrap();
    let topology: Value = serde_json::from_str(&text).unwrap();
    let gpus = topology["spec"]["gpus"].as_array().unwrap().iter();
    let gpus: Vec<&str> = gpus.map(|gpu| gpu["uuid"].as_str().unwrap()).collect();
    let run = || {
        let container = Container::named("main").holding("nvidia.com/gpu", &gpus);
        kubelet.run_pod(NAMESPACE, POD, [container]);
    };
    run();
    let take = |condition, is_so: &dyn Fn(&str) -> bool| {
        let text = wait_for(&exporter, condition, is_so);
        ((kind, condition), parse(&text, read))
    };
    // A GPU stays marked for twelve readings.
    let is_well = |text: &str| !text.contains("nvlink_gpu_unhealthy{");
    let is_held = |text: &str| text.contains("nvlink_placement_quality_ratio{");
    let held = take(Condition::Held, &is_held);
    kubelet.remove_pod(NAMESPACE, POD);
    let empty = take(Condition::Empty, &|text| !is_held(text));
    set(&exporter, r#"[{"fabric-down": {"state": "in_progress"}}]"#);
    let joining = take(Condition::Joining, &|text| {
        text.contains(r#"state="in_progress"} 1"#)
    });
    set(&exporter, "");
    run();
    wait_for(&exporter, Condition::Held, &|text| {
        is_well(text) && is_held(text)
    });
    // Last, because the exporter keeps XIDs.
    set(&exporter, &kind.faults().to_string());
    let broken = take(Condition::Broken, &|text| {
        text.contains(&format!(r#"link="{BROKEN_LINK}",remote="switch"}} 0"#))
    });
    http::send("POST", &exporter.url("/-/release"), "").unwrap();
    let released = take(Condition::Released, &|text| {
        text.contains("nvlink_exporter_source_released 1")
    });
    vec![held, broken, empty, joining, released]
}

fn wait_for(exporter: &Exporter, condition: Condition, is_so: &dyn Fn(&str) -> bool) -> String {
    wait_until(&format!("a page that is {condition:?}"), SOON, || {
        let text = exporter.metrics()?;
        Ok(is_so(&text).then_some(text))
    })
    .unwrap()
}

fn parse(text: &str, read: &BTreeSet<&str>) -> Page {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| line.rsplit_once(' ').unwrap());
    samples
        .filter(|(series, _)| read.contains(name(series)))
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Returns the name of the metric of a series.
pub(super) fn name(series: &str) -> &str {
    series.split('{').next().unwrap_or(series)
}
