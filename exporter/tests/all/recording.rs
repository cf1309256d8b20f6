//! Recordings with counters and health: written, read back, replayed, changed and broken.

mod broken;
mod program;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use nvlink_exporter::{
    metrics::{self, Groups},
    snapshot::Latest,
};
use nvlink_source::{
    FabricHealth, FabricState, GpuHealth, Opener, Reading, RowRemap, Source, SourceSpec, file,
    recording::Recorder, sim, text,
};
use nvlink_topology::{RecoveryAction, labels, missing_gpus, missing_links};

/// Records the node of `source`, read at each of `seconds`.
fn record(source: &mut dyn Source, seconds: &[u64]) -> String {
    let mut recorder: Option<Recorder> = None;
    for &second in seconds {
        let at = Duration::from_secs(second);
        let reading = source.read(at).unwrap();
        let new = || Recorder::new(&reading.topology).unwrap();
        assert!(recorder.get_or_insert_with(new).add(at, &reading).unwrap());
    }
    recorder.unwrap().text()
}

fn simulated(profile: &str) -> Box<dyn Source> {
    let spec: SourceSpec = format!("sim:{profile}").parse().unwrap();
    spec.open(Some("node-a")).unwrap()
}

/// Returns a source that replays `text`, from a file in `directory`.
fn replayed(directory: &Path, text: &str) -> file::FileSource {
    let path = directory.join("node.json");
    fs::write(&path, text).unwrap();
    file::FileSource::new(path.display().to_string(), None)
}

fn parse(bytes: &[u8]) -> Result<Reading, String> {
    file::parse("x", bytes, None).map_err(|error| {
        let text = error.to_string();
        assert!(text.starts_with("x: ") && !text.contains('\n'), "{text}");
        text
    })
}

#[test]
fn a_recording_of_a_recording_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    for name in sim::names() {
        for seconds in [&[0][..], &[0, 5, 10, 60]] {
            let text = record(simulated(name).as_mut(), seconds);
            let again = record(&mut replayed(directory.path(), &text), seconds);
            assert!(text == again, "{name} {seconds:?} differs");
        }
    }
}

#[test]
fn a_replay_has_the_recorded_rates_and_never_decreases() {
    let seconds: Vec<_> = (0..=12).map(|n| 5 * n).collect();
    let text = record(simulated("h200-degraded").as_mut(), &seconds);
    let directory = tempfile::tempdir().unwrap();
    let mut source = replayed(directory.path(), &text);
    let mut real = simulated("h200-degraded");
    let total = |reading: &Reading| -> u64 {
        reading
            .counters
            .iter()
            .filter_map(|link| link.transmit_bytes)
            .sum()
    };
    let mut before = BTreeMap::new();
    for second in (0..=300).step_by(5) {
        let now = Duration::from_secs(second);
        let (replay, real) = (source.read(now).unwrap(), real.read(now).unwrap());
        assert_eq!(replay.counters.len(), real.counters.len());
        // The simulated job repeats itself each minute, and so does the recording.
        let (replayed, real) = (total(&replay) as f64, total(&real) as f64);
        assert!(
            (replayed - real).abs() <= real * 1e-6,
            "at {second} s: {replayed}, not {real}"
        );
        for link in replay.counters {
            let key = (link.gpu, link.link);
            let now = (link.transmit_bytes, link.receive_bytes, link.errors);
            let then = before.insert(key, now.clone()).unwrap_or_default();
            assert!(
                now.0 >= then.0 && now.1 >= then.1 && now.2 >= then.2,
                "{key:?} at {second} s"
            );
        }
    }
}

/// What `record` wrote on a virtual machine with one H200 of eight (driver 580.159.04) while a program
/// wrote to an invalid address there, and the topology file of NCCL 2.28.9 on the same machine.
const ALONE: (&str, &str) = (
    include_str!("../recordings/h200-alone.json"),
    include_str!("../recordings/h200-alone.xml"),
);

#[test]
fn a_recording_of_a_real_gpu_without_its_fabric_shows_its_fault_and_no_missing_link() {
    let directory = tempfile::tempdir().unwrap();
    let mut source = replayed(directory.path(), ALONE.0);
    let xids = |reading: &Reading| reading.health[0].xids.clone().unwrap();
    let before = source.read(Duration::from_secs(3)).unwrap();
    let after = source.read(Duration::from_secs(4)).unwrap();
    assert_eq!((xids(&before), xids(&after)), (vec![], vec![(31, 1)]));

    let spec = &after.topology.spec;
    let missing = (missing_links(&spec.gpus[0], &spec.gpus), missing_gpus(spec));
    let why = "the hypervisor decides which links it has";
    assert_eq!(missing, (None, None), "{why}");
    let nccl = parse(ALONE.1.as_bytes()).unwrap().topology;
    let places = |topology: &nvlink_topology::NodeTopology| {
        let gpus = topology.spec.gpus.iter();
        gpus.map(|gpu| (gpu.pci_bus_id.clone(), gpu.links.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(places(&nccl), places(&after.topology));
}

#[test]
fn health_is_recorded() {
    let mut reading = crate::support::reading("sim:rtx-a6000-pairs");
    let fabric = FabricHealth {
        state: FabricState::Failed,
        conditions: Vec::new(),
    };
    reading.health = vec![GpuHealth {
        gpu: 1,
        fabric: Some(fabric),
        recovery: Some(RecoveryAction::DrainAndReset),
        row_remap: vec![(RowRemap::Pending, true), (RowRemap::Failed, false)],
        xids: Some(vec![(74, 2)]),
    }];
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    recorder.add(Duration::ZERO, &reading).unwrap();
    let again = parse(recorder.text().as_bytes()).unwrap();
    assert_eq!(
        (again.health, again.counters),
        (reading.health, reading.counters)
    );
}

#[test]
fn without_counters_and_health_only_the_document_is_written() {
    let reading = file::parse("x", crate::support::PAIRS.as_bytes(), Some("n")).unwrap();
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    recorder.add(Duration::ZERO, &reading).unwrap();
    let document = nvlink_exporter::output::json(&reading.topology).unwrap();
    assert_eq!(recorder.text(), document);
    assert!(!recorder.is_moving());
}

#[test]
fn a_recording_accepts_no_samples_beyond_the_readable_size() {
    let reading = crate::support::reading("sim:gb200-nvl72");
    let mut recorder = Recorder::new(&reading.topology).unwrap();
    let added = (0..2000).take_while(|&n| recorder.add(Duration::from_secs(n), &reading).unwrap());
    assert!((2..2000).contains(&added.count()));
    assert!(text::read(recorder.text().as_bytes()).is_ok());
}

/// Nothing else shows it: the links of the others are up, and no GPU was seen that is lost now.
#[test]
fn a_gpu_that_is_gone_since_the_boot_is_missing_on_its_board() {
    let board = sim::profile("dgx-h100").unwrap();
    let opener = Opener::new("sim:dgx-h100".parse().unwrap(), Some("n".to_owned()));
    let mut source = opener.open().unwrap();
    let missing = |reading: Reading| {
        let labels = labels::node_labels(&reading.topology);
        let label = labels.get(labels::MISSING_GPUS).cloned();
        let snapshot = crate::support::snapshot("x", reading, Instant::now());
        let latest = Latest::default();
        latest.publish(snapshot);
        let text = metrics::render(&latest.view(Instant::now()), Groups::ALL).unwrap();
        let series = text
            .lines()
            .find(|line| line.starts_with("nvlink_missing_gpus"));
        assert!(
            !text
                .lines()
                .any(|line| line.starts_with("nvlink_gpu_lost{"))
        );
        (label, series.map(str::to_owned))
    };
    let whole = parse(record(source.as_mut(), &[1, 2]).as_bytes()).unwrap();
    assert_eq!(whole.topology.spec.gpus.len(), board.gpus.len());
    let none = Some("nvlink_missing_gpus{node=\"n\"} 0".to_owned());
    assert_eq!(missing(whole), (None, none));
    let gone = br#"[{"gpu-absent": {"gpu": 3}}]"#;
    opener.control().unwrap().replace(gone).unwrap();
    let seven = record(source.as_mut(), &[3, 4]);
    let one = Some("nvlink_missing_gpus{node=\"n\"} 1".to_owned());
    let found = missing(parse(seven.as_bytes()).unwrap());
    assert_eq!(found, (Some("1".to_owned()), one));
    // A virtual machine may have a part of the board.
    let machine = seven.replacen(
        "\"index\": 0,",
        "\"index\": 0, \"virtualMachine\": true,",
        1,
    );
    assert_eq!(missing(parse(machine.as_bytes()).unwrap()), (None, None));
}
