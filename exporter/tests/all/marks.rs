//! Which GPUs are marked as broken, for how long, and what survives a restart.

use std::{sync::Arc, time::Duration};

use nvlink_history::marks::{CALM, Marks, Record};
use nvlink_source::{Opener, Reading, Source, sim::Control};
use nvlink_topology::labels;

/// A simulated node, read once a second.
struct Node {
    source: Box<dyn Source>,
    control: Arc<Control>,
    marks: Marks,
    now: Duration,
}

impl Node {
    fn new(profile: &str) -> Self {
        let spec = format!("sim:{profile}").parse().unwrap();
        let opener = Opener::new(spec, Some("n".to_owned()));
        let mut node = Self {
            source: opener.open().unwrap(),
            control: opener.control().unwrap().clone(),
            marks: Marks::default(),
            now: Duration::from_secs(100),
        };
        node.read();
        node
    }

    fn read(&mut self) -> Reading {
        self.now += Duration::from_secs(1);
        let mut reading = self.source.read(self.now).unwrap();
        self.marks.observe(&mut reading);
        reading
    }

    /// Sets `faults`, and returns the marks of the next reading.
    fn with(&mut self, faults: &str) -> Vec<String> {
        self.control.replace(faults.as_bytes()).unwrap();
        self.marked()
    }

    /// Returns the marks of the next reading, as `GPU FAULT FAULT`.
    fn marked(&mut self) -> Vec<String> {
        marked(&self.read())
    }
}

fn marked(reading: &Reading) -> Vec<String> {
    let gpus = &reading.topology.spec.gpus;
    let broken = gpus.iter().filter(|gpu| !gpu.faults.is_empty());
    let line = broken.map(|gpu| {
        let faults = gpu.faults.iter().map(ToString::to_string);
        let faults: Vec<_> = faults.collect();
        format!("{} {}", gpu.index, faults.join(" "))
    });
    line.collect()
}

#[test]
fn each_fault_marks_its_gpus() {
    let eight = |word: &str| (0..8).map(|gpu| format!("{gpu} {word}")).collect();
    let one = |text: &str| vec![text.to_owned()];
    let cases: [(&str, Vec<String>); 13] = [
        // The fabric reports that the bandwidth is degraded, too.
        (
            r#"[{"link-down": {"gpu": 3, "link": 7}}]"#,
            one("3 missing-links fabric"),
        ),
        (r#"[{"fabric-down": {}}]"#, eight("fabric")),
        (r#"[{"fabric-down": {"state": "failed"}}]"#, eight("fabric")),
        (
            r#"[{"fabric-condition": {"gpu": 5, "condition": "route_unhealthy"}}]"#,
            one("5 fabric"),
        ),
        (
            r#"[{"recovery-action": {"gpu": 2, "action": "gpu_reset"}}]"#,
            one("2 recovery-gpu-reset"),
        ),
        (
            r#"[{"recovery-action": {"gpu": 2, "action": "drain_p2p"}}]"#,
            one("2 recovery-drain-p2p"),
        ),
        (
            r#"[{"recovery-action": {"gpu": 2, "action": "other"}}]"#,
            one("2 recovery-other"),
        ),
        // It is about the processes that share memory between nodes.
        (
            r#"[{"recovery-action": {"gpu": 2, "action": "recover_imex_domain"}}]"#,
            vec![],
        ),
        (
            r#"[{"row-remap": {"gpu": 2, "state": "pending"}}]"#,
            one("2 row-remap-pending"),
        ),
        (
            r#"[{"row-remap": {"gpu": 2, "state": "failed"}}]"#,
            one("2 row-remap-failed"),
        ),
        // The driver asks for no action.
        (r#"[{"xid": {"gpu": 2, "xid": 74}}]"#, vec![]),
        (r#"[{"xid": {"gpu": 2, "xid": 79}}]"#, vec![]),
        (
            r#"[{"errors": {"gpu": 5, "link": 2, "kind": "crc_flit", "perHour": 36000}}]"#,
            vec![],
        ),
    ];
    for (faults, expected) in cases {
        assert_eq!(Node::new("dgx-h100").with(faults), expected, "{faults}");
    }
}

/// Takes down a link of each of the GPUs.
fn down(gpus: std::ops::Range<u32>, link: u32) -> String {
    let faults = gpus.map(|gpu| format!(r#"{{"link-down": {{"gpu": {gpu}, "link": {link}}}}}"#));
    faults.collect::<Vec<_>>().join(",")
}

#[test]
fn what_all_gpus_of_a_domain_have_alike_is_a_fault_of_the_domain() {
    for (profile, gpus) in [("gb200-nvl72", 4), ("dgx-h100", 8), ("dgx2-v100", 16)] {
        let mut node = Node::new(profile);
        let fabric: &[&str] = match profile {
            "dgx2-v100" => &[],
            _ => &["fabric"],
        };
        let shared = [&["missing-links"], fabric].concat();
        let one_switch = node.with(&format!("[{}]", down(0..gpus, 3)));
        assert_eq!(one_switch, [""; 0], "{profile}");
        let topology = node.read().topology;
        let [domain] = &topology.spec.domains[..] else {
            panic!("{:?}", topology.spec.domains)
        };
        let faults: Vec<_> = domain.faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, shared, "{profile}");
        let healthy = labels::node_labels(&topology);
        assert_eq!(
            healthy[labels::HEALTHY_DOMAIN_SIZE],
            gpus.to_string(),
            "{profile}"
        );

        // One GPU lacks another link.
        let two = format!("[{}, {}]", down(0..gpus, 3), down(2..3, 5));
        assert_eq!(node.with(&two), ["2 missing-links"], "{profile}");
        // All but one lack the same link: the first is as it should be.
        let most = down(1..gpus, 3);
        let marks = node.with(&format!("[{most}]"));
        assert_eq!(marks.len(), gpus as usize - 1, "{profile}: {marks:?}");
        assert!(node.read().topology.spec.domains[0].faults.is_empty());
    }
}

#[test]
fn a_link_from_gpu_to_gpu_is_a_fault_of_both() {
    // Each GPU of the board lacks a link.
    let marks = Node::new("hgx-a100-4").with(&format!("[{}]", down(0..4, 0)));
    assert!(marks.len() > 1, "{marks:?}");
}

#[test]
fn healthy_nodes_have_no_marks() {
    for profile in nvlink_source::sim::names() {
        let marks = Node::new(profile).marked();
        let expected: &[&str] = match profile {
            "h200-degraded" => &[
                "3 missing-links fabric",
                "5 missing-links fabric",
                "6 recovery-gpu-reset",
            ],
            _ => &[],
        };
        assert_eq!(marks, expected, "{profile}");
    }
}

#[test]
fn the_verdict_of_the_driver_is_unmarked_when_it_ends() {
    for profile in ["hgx-b200", "dgx-a100"] {
        let mut node = Node::new(profile);
        let faults =
            r#"{"xid": {"gpu": 2, "xid": 145}}, {"row-remap": {"gpu": 1, "state": "pending"}}"#;
        let action = |action: &str| {
            let action = format!(r#"{{"recovery-action": {{"gpu": 2, "action": "{action}"}}}}"#);
            format!("[{faults}, {action}]")
        };
        let drain = ["1 row-remap-pending", "2 recovery-drain-p2p"];
        assert_eq!(node.with(&action("drain_p2p")), drain, "{profile}");
        let reset = ["1 row-remap-pending", "2 recovery-gpu-reset"];
        assert_eq!(node.with(&action("gpu_reset")), reset, "{profile}");
        assert_eq!(node.with("[]"), [""; 0], "{profile}: at the next reading");
    }
}

#[test]
fn a_verdict_that_cannot_be_read_stays() {
    let mut node = Node::new("dgx-h100");
    let fault = r#"[{"recovery-action": {"gpu": 2, "action": "gpu_reset"}}, {"xid": {"gpu": 2, "xid": 74}}]"#;
    assert_eq!(node.with(fault), ["2 recovery-gpu-reset"]);
    let mut reading = node.read();
    reading.topology.spec.gpus[2].faults.clear();
    reading.health[2].recovery = None;
    reading.health[2].xids = Some(vec![(74, 2)]);
    node.marks.observe(&mut reading);
    assert_eq!(marked(&reading), ["2 recovery-gpu-reset"]);
}

/// By NVIDIA's catalog: those that need a reset or a restart, whatever their sub-code.
#[test]
fn xids_that_need_a_reset_mark_gpus_of_drivers_without_a_verdict() {
    let needs_reset = [
        46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 150, 156, 158,
    ];
    for xid in 1..=172 {
        let marked =
            Node::new("dgx2-v100").with(&format!(r#"[{{"xid": {{"gpu": 2, "xid": {xid}}}}}]"#));
        let expected = needs_reset.contains(&xid).then(|| format!("2 xid-{xid}"));
        assert_eq!(marked, Vec::from_iter(expected));
    }
}

#[test]
fn the_first_verdict_ends_the_marks_of_xids() {
    let mut node = Node::new("dgx-h100");
    node.control
        .replace(br#"[{"xid": {"gpu": 2, "xid": 74}}]"#)
        .unwrap();
    // Another driver, which gives none.
    let silent = |node: &mut Node| {
        let mut reading = node.source.read(node.now).unwrap();
        reading
            .health
            .iter_mut()
            .for_each(|one| one.recovery = None);
        node.marks.observe(&mut reading);
        marked(&reading)
    };
    node.marks = Marks::default();
    assert_eq!(silent(&mut node), ["2 xid-74"]);
    let record = kept(&node);
    assert!(!record.is_empty());
    assert_eq!(node.marked(), [""; 0]);
    assert!(kept(&node).is_empty());
    // What an earlier process recorded does not count either.
    node.marks.restore(&record);
    assert_eq!(node.marked(), [""; 0]);
}

#[test]
fn a_state_is_unmarked_after_a_while_without_it() {
    let mut node = Node::new("dgx1-v100");
    let down = r#"[{"link-down": {"gpu": 0, "link": 0}}]"#;
    let both = node.with(down);
    assert_eq!(both.len(), 2, "the GPUs at both ends: {both:?}");
    // The link comes and goes: the mark stays.
    for _ in 0..3 {
        assert_eq!(node.with("[]"), both);
        for _ in 2..CALM {
            assert_eq!(node.marked(), both);
        }
        assert_eq!(node.with(down), both);
    }
    assert_eq!(node.with("[]"), both);
    for _ in 2..CALM {
        assert_eq!(node.marked(), both);
    }
    assert_eq!(node.marked(), [""; 0]);
}

#[test]
fn an_xid_is_unmarked_by_a_reset_of_its_gpu() {
    let mut node = Node::new("dgx2-v100");
    let xids = r#"{"xid": {"gpu": 2, "xid": 74}}, {"xid": {"gpu": 4, "xid": 79}}"#;
    let both = ["2 xid-74", "4 xid-79"];
    assert_eq!(node.with(&format!("[{xids}]")), both);
    for _ in 0..2 * CALM {
        assert_eq!(node.marked(), both, "an event does not pass by itself");
    }
    let reset = format!(r#"[{xids}, {{"gpu-reset": {{"gpu": 2}}}}]"#);
    assert_eq!(node.with(&reset), ["4 xid-79"]);
    assert_eq!(node.marked(), ["4 xid-79"]);
    // The same XID again.
    assert_eq!(node.with("[]"), ["4 xid-79"]);
    assert_eq!(node.with(&format!("[{xids}]")), both);
}

#[test]
fn the_counters_of_one_link_are_no_reset() {
    let mut node = Node::new("dgx2-v100");
    node.with(r#"[{"xid": {"gpu": 2, "xid": 74}}]"#);
    let mut reading = node.read();
    // A link that is trained again may count from zero; the others of the GPU do not.
    let of_link = |reading: &mut Reading, all: bool| {
        let links = reading.counters.iter_mut().filter(|one| one.gpu == 2);
        for link in links.filter(|one| all || one.link == 5) {
            (link.transmit_bytes, link.receive_bytes) = (Some(1), Some(1));
        }
    };
    of_link(&mut reading, false);
    node.marks.observe(&mut reading);
    let mut next = node.read();
    assert_eq!(marked(&next), ["2 xid-74"]);
    next.topology.spec.gpus[2].faults.clear();
    of_link(&mut next, true);
    node.marks.observe(&mut next);
    assert_eq!(marked(&next), [""; 0]);
}

#[test]
fn a_lost_gpu_is_listed_apart_and_its_xid_marks_it_on_its_return() {
    let mut node = Node::new("dgx2-v100");
    node.control
        .replace(br#"[{"xid": {"gpu": 1, "xid": 79}}, {"gpu-lost": {"gpu": 1}}]"#)
        .unwrap();
    let reading = node.read();
    let spec = &reading.topology.spec;
    assert_eq!((spec.gpus.len(), spec.lost.len()), (15, 1));
    assert_eq!(spec.lost[0].index, 1);
    assert!(spec.lost[0].uuid.as_ref().unwrap().starts_with("GPU-"));
    assert_eq!(marked(&reading), [""; 0]);
    assert_eq!(node.with("[]"), ["1 xid-79"]);
}

/// Returns the record as the next process reads it.
fn kept(node: &Node) -> Record {
    let text = serde_json::to_string(&node.marks.record()).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn xids_survive_a_restart_of_the_exporter_until_the_gpu_is_reset() {
    let mut before = Node::new("dgx2-v100");
    assert!(kept(&before).is_empty());
    before.with(r#"[{"xid": {"gpu": 2, "xid": 74}}, {"link-down": {"gpu": 3, "link": 5}}]"#);
    let record = kept(&before);
    for _ in 0..5 {
        before.read();
        assert_eq!(
            kept(&before),
            record,
            "it is written only when an XID is new"
        );
    }
    // The counters go on, as they do in the driver.
    let mut after = Node::new("dgx2-v100");
    after.now = before.now;
    after.read();
    assert_eq!(
        after.marked(),
        [""; 0],
        "the driver does not report events again"
    );
    after.marks.restore(&record);
    assert_eq!(after.marked(), ["2 xid-74"]);
    assert_eq!(kept(&after), record);
    assert!(after.marks.record().is_restored() && !before.marks.record().is_restored());
    // The record may come before the first reading.
    let mut early = Node::new("dgx2-v100");
    early.marks = Marks::default();
    early.marks.restore(&record);
    early.now = before.now;
    assert_eq!(early.marked(), ["2 xid-74"]);
    // Here it was reset in between: its counters are lower.
    let mut reset = Node::new("dgx2-v100");
    reset
        .control
        .replace(br#"[{"gpu-reset": {"gpu": 2}}]"#)
        .unwrap();
    reset.read();
    reset.marks.restore(&record);
    assert_eq!(reset.marked(), [""; 0]);
}

#[test]
fn a_boot_ends_all_marks() {
    let mut before = Node::new("dgx2-v100");
    before.with(r#"[{"xid": {"gpu": 2, "xid": 74}}]"#);
    let mut json = serde_json::to_value(before.marks.record()).unwrap();
    json["boot"] = "00000000-0000-4000-8000-000000000000".into();
    let record: Record = serde_json::from_value(json).unwrap();
    assert!(!record.is_empty());
    let mut after = Node::new("dgx2-v100");
    after.now = before.now;
    after.marks.restore(&record);
    assert_eq!(after.marked(), [""; 0]);
}

#[test]
fn marks_that_a_recording_has_stay() {
    let mut reading = Node::new("dgx-h100").read();
    reading.topology.spec.gpus[6].faults = vec!["row-remap".to_owned().into()];
    Marks::default().observe(&mut reading);
    assert_eq!(marked(&reading), ["6 row-remap"]);
    let labels = labels::node_labels(&reading.topology);
    assert_eq!(labels[labels::HEALTHY_DOMAIN_SIZE], "7");
}
