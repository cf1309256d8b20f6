use std::{collections::BTreeMap, thread};

use nvlink_topology::{RemoteKind, descriptor::Capacity};
use proptest::prelude::*;

use super::*;
use crate::{CounterSource, ErrorKind, FabricState, LinkCounters, recording::Recorder};

fn source(name: &str) -> (SimSource, Arc<Control>) {
    let source = SimSource::new(profile(name).unwrap(), "node-a");
    let control = Arc::clone(&source.control);
    (source, control)
}

fn read(source: &mut SimSource, seconds: u64) -> Reading {
    source.read(Duration::from_secs(seconds)).unwrap()
}

fn counters(reading: &Reading) -> BTreeMap<(u32, u32), LinkCounters> {
    let all = reading.counters.iter();
    all.map(|one| ((one.gpu, one.link), one.clone())).collect()
}

fn set(control: &Control, faults: &str) {
    control.replace(faults.as_bytes()).unwrap();
}

#[test]
fn a_link_goes_down_at_both_ends_and_continues_from_its_last_value() {
    let (mut source, control) = source("dgx1-v100");
    let before = counters(&read(&mut source, 10));
    set(&control, r#"[{"link-down": {"gpu": 0, "link": 0}}]"#);
    let broken = read(&mut source, 20);
    let up = |reading: &Reading, gpu: usize| {
        let links = reading.topology.spec.gpus[gpu].links.clone().unwrap();
        links.iter().filter(|link| link.up).count()
    };
    assert_eq!((up(&broken, 0), up(&broken, 1), up(&broken, 2)), (5, 5, 6));
    assert!(
        !broken
            .topology
            .spec
            .edges
            .iter()
            .any(|edge| (edge.a, edge.b) == (0, 1))
    );
    assert!(!counters(&broken).contains_key(&(0, 0)));
    control.clear();
    let healed = counters(&read(&mut source, 30));
    let sent = |all: &BTreeMap<_, LinkCounters>, at| all[&at].transmit_bytes.unwrap();
    let (old, new) = (sent(&before, (0, 0)), sent(&healed, (0, 0)));
    assert!(old < new && new < sent(&healed, (0, 1)), "{old} {new}");
    assert_eq!(
        healed[&(0, 0)].transmit_bytes,
        healed[&(1, 0)].receive_bytes
    );
    assert_eq!(
        healed[&(0, 0)].receive_bytes,
        healed[&(1, 0)].transmit_bytes
    );
}

#[test]
fn one_end_alone_may_report_a_link_as_down() {
    let (mut source, control) = source("dgx1-v100");
    set(
        &control,
        r#"[{"link-down": {"gpu": 0, "link": 0, "oneSided": true}}]"#,
    );
    let reading = read(&mut source, 1);
    assert_eq!(reading.warnings.len(), 1, "{:?}", reading.warnings);
    assert!(reading.warnings[0].contains("using the smaller"));
}

#[test]
fn errors_occur_at_the_set_rate_and_stay_counted() {
    let (mut source, control) = source("h200-degraded");
    let count = |reading: &Reading, at: (u32, u32)| {
        let all = counters(reading);
        let errors = &all[&at].errors;
        errors
            .iter()
            .find(|(kind, _)| *kind == ErrorKind::Replay)
            .unwrap()
            .1
    };
    assert_eq!(count(&read(&mut source, 10), (6, 4)), 5);
    set(
        &control,
        r#"[{"errors": {"gpu": 6, "link": 4, "kind": "replay", "perHour": 3600}},
            {"errors": {"gpu": 0, "link": 0, "kind": "replay", "perHour": 7200}}]"#,
    );
    let reading = read(&mut source, 20);
    assert_eq!((count(&reading, (6, 4)), count(&reading, (0, 0))), (20, 20));
    control.clear();
    let reading = read(&mut source, 30);
    assert_eq!((count(&reading, (6, 4)), count(&reading, (0, 0))), (25, 20));
}

#[test]
fn only_the_gpus_that_jobs_use_send() {
    let (mut source, control) = source("dgx-h100");
    let rate = source.profile.link_rate;
    // In the busy part of a minute each.
    let mut sent = |from: u64, gpu: u32| {
        let (before, after) = (read(&mut source, from), read(&mut source, from + 10));
        let of = |reading: &Reading| counters(reading)[&(gpu, 0)].transmit_bytes.unwrap();
        (of(&after) - of(&before)) as f64 / 10.0 / rate as f64
    };
    assert!(sent(0, 5) > 0.4, "nobody knows which GPUs are used");
    control.use_links(Some([(0, 0), (1, 0)].into()));
    assert!(sent(60, 0) > 0.4);
    assert!(sent(120, 5) < 1e-4);
    set(&control, r#"[{"traffic": {"gpu": 5, "percent": 10}}]"#);
    assert!((sent(180, 5) - 0.1).abs() < 1e-4, "a fault counts more");
    set(&control, "[]");
    control.use_links(None);
    assert!(sent(240, 5) > 0.4);
}

/// Behind switches and on direct links, a GPU receives only from those of its job. Another job is idle.
#[test]
fn only_the_gpus_that_jobs_use_receive() {
    for profile in ["dgx-h100", "dgx1-v100"] {
        let (mut source, control) = source(profile);
        let rate = source.profile.link_rate;
        control.use_links(Some([(0, 0), (1, 0), (2, 1), (3, 1)].into()));
        let idle = [2, 3].map(|gpu| format!(r#"{{"traffic": {{"gpu": {gpu}, "percent": 0}}}}"#));
        set(&control, &format!("[{}]", idle.join(",")));
        let (before, after) = (read(&mut source, 0), read(&mut source, 10));
        let (before, after) = (counters(&before), counters(&after));
        let received = |gpu: u32| {
            let of = |all: &BTreeMap<(u32, u32), LinkCounters>| -> u64 {
                let own = all.iter().filter(|((of, _), _)| *of == gpu);
                own.map(|(_, link)| link.receive_bytes.unwrap()).sum()
            };
            (of(&after) - of(&before)) as f64 / 10.0 / rate as f64
        };
        assert!(received(0) > 0.4 && received(1) > 0.4, "{profile}");
        assert!((2..8).all(|gpu| received(gpu) < 1e-2), "{profile}");
    }
}

#[test]
fn the_traffic_of_a_gpu_can_be_set() {
    let (mut source, control) = source("dgx-h100");
    set(
        &control,
        r#"[{"traffic": {"gpu": 0, "percent": 10}}, {"traffic": {"gpu": 1, "percent": 0}}]"#,
    );
    let rate = source.profile.link_rate;
    // In the idle part of the simulated job's minute, and in the busy one.
    for (from, to) in [(46, 56), (60, 70)] {
        let (before, after) = (read(&mut source, from), read(&mut source, to));
        let (before, after) = (counters(&before), counters(&after));
        let sent = |gpu: u32| {
            let of = |all: &BTreeMap<_, LinkCounters>| all[&(gpu, 0)].transmit_bytes.unwrap();
            (of(&after) - of(&before)) as f64 / 10.0 / rate as f64
        };
        assert!((sent(0) - 0.1).abs() < 1e-4, "{}", sent(0));
        assert!(sent(1) < 1e-4, "{}", sent(1));
        let received = |all: &BTreeMap<_, LinkCounters>| all[&(1, 0)].receive_bytes.unwrap();
        let received = (received(&after) - received(&before)) as f64 / 10.0 / rate as f64;
        assert!(
            (received - 0.1).abs() < 1e-4,
            "GPU 1 receives what GPU 0 sends"
        );
        assert_eq!(sent(2) > 0.4, from == 60, "{}", sent(2));
    }
    let refused = control.replace(br#"[{"traffic": {"gpu": 0, "percent": 101}}]"#);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "faults[0].traffic.percent: more than 100"
    );
}

#[test]
fn a_lost_gpu_leaves_the_document() {
    let (mut source, control) = source("a100-pcie-pairs");
    set(&control, r#"[{"gpu-lost": {"gpu": 2}}]"#);
    let reading = read(&mut source, 10);
    let spec = &reading.topology.spec;
    let indices: Vec<_> = spec.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!(indices, [0, 1, 3, 4, 5, 6, 7]);
    assert_eq!((spec.domains.len(), spec.paths.len()), (3, 21));
    assert!(spec.nics.iter().all(|nic| !nic.gpus.contains(&2)));
    assert!(
        reading
            .counters
            .iter()
            .all(|one| one.gpu != 2 && one.gpu != 3)
    );
    assert_eq!(reading.lost[0].index, 2);
    assert!(reading.lost[0].uuid.as_deref().unwrap().starts_with("GPU-"));
    assert_eq!(reading.matrix.unwrap().gpus.len(), 7);
    control.clear();
    assert_eq!(read(&mut source, 20).topology.spec.gpus.len(), 8);
}

#[test]
fn a_fabric_that_is_down_joins_nobody() {
    for (name, told) in [
        ("gb200-nvl72", true),
        ("dgx-h100", true),
        ("dgx-a100", false),
    ] {
        let (mut source, control) = source(name);
        set(&control, r#"[{"fabric-down": {"state": "in_progress"}}]"#);
        let reading = read(&mut source, 10);
        let spec = &reading.topology.spec;
        assert!(spec.edges.is_empty() && spec.domains.is_empty(), "{name}");
        let links: Vec<_> = spec
            .gpus
            .iter()
            .flat_map(|gpu| gpu.links.iter().flatten())
            .collect();
        assert!(links.iter().all(|link| link.up));
        let kind = |link: &&nvlink_topology::Link| link.remote.as_ref().unwrap().kind;
        assert!(
            links.iter().all(|link| kind(link) == RemoteKind::Unknown),
            "{name}"
        );
        let state = reading.health[0].fabric.as_ref().map(|fabric| fabric.state);
        assert_eq!(state, told.then_some(FabricState::InProgress), "{name}");
        let sent: u64 = reading
            .counters
            .iter()
            .filter_map(|one| one.transmit_bytes)
            .sum();
        assert_eq!(sent, 0);
        assert_eq!(reading.warnings.len(), 1, "{:?}", reading.warnings);
        // A recording of it is read back unchanged.
        let text = Recorder::new(&reading.topology).unwrap().text();
        let again = crate::file::parse("x", text.as_bytes(), None).unwrap();
        assert_eq!(again.topology, reading.topology, "{name}");
    }
}

#[test]
fn faults_that_the_driver_reports() {
    let (mut source, control) = source("hgx-b200");
    let faults = r#"[{"xid": {"gpu": 1, "xid": 149}}, {"rates-only": {"gpu": 2}},
        {"fabric-condition": {"gpu": 3, "condition": "route_unhealthy"}}]"#;
    set(&control, faults);
    read(&mut source, 10);
    // Setting the same list again does not count a second error.
    set(&control, faults);
    let reading = read(&mut source, 20);
    assert_eq!(reading.health[1].xids, Some(vec![(149, 1)]));
    assert_eq!(reading.health[0].xids, Some(vec![]));
    let holds = |gpu: usize| {
        let fabric = reading.health[gpu].fabric.clone().unwrap();
        fabric.conditions.iter().filter(|(_, holds)| *holds).count()
    };
    assert_eq!((holds(2), holds(3)), (0, 1));
    let all = counters(&reading);
    let (rates, bytes) = (&all[&(2, 0)], &all[&(0, 0)]);
    assert_eq!(rates.source, Some(CounterSource::Gpm));
    assert!(rates.transmit_bytes.is_none() && rates.transmit_bytes_per_second > Some(1e9));
    assert_eq!(bytes.source, Some(CounterSource::Nvlink5Bytes));
    assert!(bytes.transmit_bytes > Some(0) && bytes.bit_error_ratios.len() == 2);
    control.clear();
    set(&control, faults);
    assert_eq!(read(&mut source, 30).health[1].xids, Some(vec![(149, 2)]));
}

#[test]
fn a_hang_ends_when_it_is_cleared_and_time_passes_meanwhile() {
    let (mut source, control) = source("dgx-h100");
    let old = read(&mut source, 1).counters[0].transmit_bytes.unwrap();
    set(&control, r#"["hang"]"#);
    let reader = thread::spawn(move || read(&mut source, 1));
    thread::sleep(Duration::from_millis(200));
    assert!(!reader.is_finished());
    // More faults can be set meanwhile.
    set(&control, r#"["hang", {"gpu-lost": {"gpu": 0}}]"#);
    set(&control, "[]");
    let reading = reader.join().unwrap();
    assert!(reading.counters[0].transmit_bytes.unwrap() > old);
    assert_eq!(reading.topology.spec.gpus.len(), 8);
}

/// Profile, list, part of the error.
const REFUSED: &str = r#"
dgx-h100 |  | faults: EOF while parsing a value at line 1 column 0
dgx-h100 | [] [] | faults: trailing characters at line 1 column 4
dgx-h100 | [{"fire": {}}] | faults[0]: unknown variant `fire`, expected one of `link-down`
dgx-h100 | ["hang", {"gpu-lost": {"gpu": "x"}}] | faults[1].gpu-lost.gpu: invalid type: string "x", expected u32
dgx-h100 | ["hang", {"link-down": {"gpu": 8, "link": 0}}] | faults[1].link-down.gpu: no GPU 8; dgx-h100 has GPUs 0 to 7
dgx1-v100 | [{"link-down": {"gpu": 1, "link": 6}}] | faults[0].link-down.link: no link 6; GPU 1 has links 0 to 5
l40s | [{"link-down": {"gpu": 1, "link": 0}}] | faults[0].link-down.link: no link 0; l40s has no NVLink
dgx-h100 | [{"link-down": {"gpu": 1, "link": 0, "oneSided": true}}] | faults[0].link-down.oneSided: dgx-h100 has no link from GPU to GPU
dgx-h100 | [{"errors": {"gpu": 1, "link": 0, "kind": "symbol", "perHour": 1}}] | faults[0].errors.kind: dgx-h100 does not count symbol; it counts crc_flit, replay, recovery, ecc_data
dgx-h100 | [{"errors": {"gpu": 1, "link": 0, "kind": "replay", "perHour": -1}}] | faults[0].errors.perHour: invalid value: integer `-1`, expected u64
dgx-h100 | [{"errors": {"gpu": 1, "link": 0, "kind": "replay"}}] | missing field `perHour`
dgx-h100 | [{"xid": {"gpu": 1, "xid": 79, "when": 0}}] | unknown field `when`
dgx1-v100 | [{"fabric-down": {}}] | faults[0].fabric-down: dgx1-v100 has no switches
dgx-a100 | [{"fabric-condition": {"gpu": 0, "condition": "route_recovery"}}] | faults[0].fabric-condition: the GPUs of dgx-a100 do not report on their fabric
dgx-h100 | [{"recovery-action": {"gpu": 0, "action": "none"}}] | faults[0].recovery-action.action: none is not a fault
dgx1-v100 | [{"recovery-action": {"gpu": 0, "action": "gpu_reset"}}] | faults[0].recovery-action: the driver does not report it of the GPUs of dgx1-v100
dgx1-v100 | [{"row-remap": {"gpu": 0, "state": "failed"}}] | faults[0].row-remap: the driver does not report it of the GPUs of dgx1-v100
dgx-h100 | [{"nic-down": {"nic": "eth0"}}] | faults[0].nic-down.nic: no NIC "eth0"; dgx-h100 has mlx5_0, mlx5_1
hgx-a100-4 | [{"nic-down": {"nic": "mlx5_99"}}] | faults[0].nic-down.nic: no NIC "mlx5_99"; hgx-a100-4 has
dgx-h100 | [{"fabric-down": {"state": "completed"}}] | faults[0].fabric-down.state: completed is not a fault
"#;

#[test]
fn faults_that_the_board_cannot_have_are_refused_with_their_path() {
    for line in REFUSED.lines().skip(1) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, text, expected] = cells[..] else {
            panic!("{line}")
        };
        let (_, control) = source(name);
        set(&control, r#"["hang"]"#);
        let error = control.replace(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1);
        assert_eq!(control.faults(), [Fault::Hang], "nothing changes");
    }
}

/// Any fault that the board may have, as JSON.
fn any_fault() -> impl Strategy<Value = String> {
    let place = (0..8u32, 0..12u32);
    prop_oneof![
        place
            .clone()
            .prop_map(|(gpu, link)| format!(r#"{{"link-down":{{"gpu":{gpu},"link":{link}}}}}"#)),
        (0..8u32).prop_map(|gpu| format!(r#"{{"gpu-lost":{{"gpu":{gpu}}}}}"#)),
        (0..8u32).prop_map(|gpu| format!(r#"{{"xid":{{"gpu":{gpu},"xid":79}}}}"#)),
        (place, 0..100_000u64).prop_map(|((gpu, link), rate)| format!(
            r#"{{"errors":{{"gpu":{gpu},"link":{link},"kind":"crc_flit","perHour":{rate}}}}}"#
        )),
        Just(r#"{"fabric-down":{}}"#.to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// With any sequence of faults, no counter decreases, and the sums of sent
    /// and received bytes agree.
    #[test]
    fn counters_never_go_down(rounds in prop::collection::vec(prop::collection::vec(any_fault(), 0..4), 1..12)) {
        for name in ["dgx-a100", "a100-pcie-pairs"] {
            let (mut source, control) = source(name);
            let mut known: BTreeMap<(u32, u32), LinkCounters> = BTreeMap::new();
            for (n, faults) in rounds.iter().enumerate() {
                let keep = |fault: &&String| name == "dgx-a100" || !fault.contains("fabric");
                let faults: Vec<_> = faults.iter().filter(keep).cloned().collect();
                set(&control, &format!("[{}]", faults.join(",")));
                let now = counters(&read(&mut source, 7 * n as u64));
                for (at, one) in now {
                    if let Some(old) = known.insert(at, one.clone()) {
                        prop_assert!(old.transmit_bytes <= one.transmit_bytes, "{at:?}");
                        prop_assert!(old.receive_bytes <= one.receive_bytes, "{at:?}");
                        prop_assert!(old.errors.iter().zip(&one.errors).all(|(a, b)| a.1 <= b.1));
                    }
                }
                let sum = |value: fn(&LinkCounters) -> Option<u64>| known.values().filter_map(value).sum::<u64>();
                prop_assert_eq!(sum(|one| one.transmit_bytes), sum(|one| one.receive_bytes));
            }
        }
    }
}

#[test]
fn a_nic_without_an_active_port_is_down_and_counts_in_the_share_of_the_network() {
    let (mut source, control) = source("dgx-h100");
    let share = |source: &mut SimSource| Capacity::of(&read(source, 0).topology.spec).inter_node;
    assert_eq!(share(&mut source), Some(50_000_000_000));
    set(&control, r#"[{"nic-down": {"nic": "mlx5_0"}}]"#);
    let reading = read(&mut source, 1);
    let down = reading.topology.spec.nics.iter().filter(|nic| nic.down);
    let down: Vec<_> = down.map(|nic| (&*nic.name, nic.bytes_per_second)).collect();
    assert_eq!(down, [("mlx5_0", None)]);
    assert_eq!(share(&mut source), Some(25_000_000_000), "two share one");
    set(&control, "[]");
    assert_eq!(share(&mut source), Some(50_000_000_000));
}
