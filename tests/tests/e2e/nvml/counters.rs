//! Counters: units, sources, errors.

use nvlink_tests::{FakeNvml, check_metrics, nvml::recording};
use serde_json::{Value, json};

use super::{
    scrape::{good, series, start, those, value, values, wait},
    wiring::{Board, Wiring, mesh},
};

/// Output of `nvidia-smi nvlink -gt d` for two A100 joined by a bridge, in KiB, link by link.
const SENT: [u64; 12] = [
    8_299_479, 8_299_472, 8_301_835, 8_301_982, 8_302_504, 8_303_175, 8_299_483, 8_298_793,
    8_301_854, 8_301_947, 8_303_158, 8_301_807,
];
const RECEIVED: [u64; 12] = [
    7_492_431, 7_493_112, 7_493_042, 7_492_261, 7_490_381, 7_490_403, 7_492_488, 7_493_947,
    7_492_317, 7_492_933, 7_490_425, 7_489_712,
];

fn a100_pair() -> Value {
    let board = Board {
        model: "NVIDIA A100-PCIE-40GB",
        gpus: 2,
        rate: 25_000,
        wiring: Wiring::Direct(mesh(2, 12)),
    };
    board.recording()
}

fn two_h100() -> Value {
    let board = Board {
        model: "NVIDIA H100 80GB HBM3",
        gpus: 2,
        rate: 26_562,
        wiring: Wiring::Switches(&[5, 5, 4, 4]),
    };
    board.recording()
}

fn two_b200() -> Value {
    let board = Board {
        model: "NVIDIA B200",
        gpus: 2,
        rate: 53_125,
        wiring: Wiring::Hidden(18),
    };
    board.recording()
}

/// Returns `gpus` of the fake's file: the counters of each link of GPU 0.
fn links(options: impl Fn(usize) -> Value, links: usize) -> Value {
    let links = (0..links).map(|link| (link.to_string(), options(link)));
    json!({"0": {"links": links.collect::<serde_json::Map<_, _>>()}})
}

#[test]
fn kib_are_converted_to_bytes_and_both_ends_of_a_link_agree() {
    let mut fake = FakeNvml::new(&a100_pair()).unwrap();
    let counted = |link| json!({"transmitKib": SENT[link], "receiveKib": RECEIVED[link]});
    let there = links(counted, 12);
    let back = links(|link| json!({"transmitKib": RECEIVED[link]}), 12);
    fake.put("gpus", json!({"0": there["0"], "1": back["0"]}))
        .unwrap();
    let text = good(&start(&fake, &[]));
    for link in 0..12 {
        let of = |gpu, name| value(&text, name, &[("gpu", gpu), ("link", &link.to_string())]);
        let (sent, received) = ("nvlink_transmit_bytes_total", "nvlink_receive_bytes_total");
        assert_eq!(of("0", sent), Some((SENT[link] * 1024) as f64));
        assert_eq!(of("0", received), Some((RECEIVED[link] * 1024) as f64));
        assert_eq!(of("0", sent), of("1", received), "link {link}");
        assert_eq!(of("1", sent), of("0", received), "link {link}");
    }
    let sources = those(
        &text,
        "nvlink_traffic_source_info",
        &[("source", "throughput_data")],
    );
    assert_eq!(sources.len(), 2, "one for each GPU");
    check_metrics(&text).unwrap();
}

/// Data that the eight links of an H800 had sent and received during training, in KiB.
const TRAINING: [(u64, u64); 8] = [
    (1_390_774_681, 1_387_831_436),
    (1_390_715_554, 1_387_856_699),
    (1_390_689_916, 1_387_846_800),
    (1_390_772_616, 1_387_795_114),
    (1_391_305_436, 1_387_910_526),
    (1_391_288_579, 1_387_888_125),
    (1_391_348_992, 1_387_832_695),
    (1_391_348_007, 1_387_855_953),
];

fn h800() -> Value {
    let board = Board {
        model: "NVIDIA H800",
        gpus: 1,
        rate: 26_562,
        wiring: Wiring::Switches(&[2, 2, 2, 2]),
    };
    board.recording()
}

#[test]
fn the_counters_of_an_h800_in_training_are_exact_to_the_kib() {
    let mut fake = FakeNvml::new(&h800()).unwrap();
    let counted =
        |link: usize| json!({"transmitKib": TRAINING[link].0, "receiveKib": TRAINING[link].1});
    fake.put("gpus", links(counted, 8)).unwrap();
    let text = good(&start(&fake, &[]));
    let bytes =
        |part: fn(&(u64, u64)) -> u64| TRAINING.each_ref().map(|kib| (part(kib) * 1024) as f64);
    let (sent, received) = ("nvlink_transmit_bytes_total", "nvlink_receive_bytes_total");
    assert_eq!(values(&text, sent, &[]), bytes(|kib| kib.0));
    assert_eq!(values(&text, received, &[]), bytes(|kib| kib.1));
}

#[test]
fn counters_past_32_and_33_bits_keep_every_kib() {
    // Counters of an H800 during training, and of an H200 after weeks.
    let sent = [
        1_390_774_681,
        14_984_231_343,
        u64::from(u32::MAX) + 1,
        5_863_784,
    ];
    let mut fake = FakeNvml::new(&h800()).unwrap();
    fake.put("gpus", links(|link| json!({"transmitKib": sent[link]}), 4))
        .unwrap();
    let text = good(&start(&fake, &[]));
    for (link, kib) in sent.iter().enumerate() {
        let line = format!("link=\"{link}\"}} {}", kib * 1024);
        let mut lines = text.lines();
        assert!(
            lines.any(
                |one| one.starts_with("nvlink_transmit_bytes_total{gpu=\"0\"")
                    && one.ends_with(&line)
            ),
            "{line}"
        );
    }
}

#[test]
fn nvlink_5_byte_counters_are_preferred_and_the_source_never_changes() {
    let mut fake = FakeNvml::new(&two_b200()).unwrap();
    let raw = |kib: u64, bytes: u64| {
        json!({"0": {"links": {"0": {"fields": {
            "138": kib, "139": kib, "202": bytes, "204": bytes + 1,
        }}}}})
    };
    fake.put("gpus", raw(1_000, 5_000_001)).unwrap();
    let exporter = start(&fake, &[]);
    let first = [("gpu", "0"), ("link", "0")];
    let sent = |text: &str| value(text, "nvlink_transmit_bytes_total", &first);
    let text = good(&exporter);
    assert_eq!(sent(&text), Some(5_000_001.0));
    assert_eq!(
        value(&text, "nvlink_receive_bytes_total", &first),
        Some(5_000_002.0)
    );
    let source = those(&text, "nvlink_traffic_source_info", &[("gpu", "0")]);
    assert_eq!(source[0].0["source"], "nvlink5_bytes");
    // The other counter does not replace it: the metric is absent until the first counter
    // answers again.
    let refuse = |field: u32| json!({"gpu": 0, "link": 0, "field": field, "error": 3});
    fake.put("faults", json!([refuse(202), refuse(204)]))
        .unwrap();
    wait(&exporter, "the counter to go", |text| sent(text).is_none());
    fake.put("faults", json!([])).unwrap();
    wait(&exporter, "the counter to come back", |text| {
        sent(text) == Some(5_000_001.0)
    });
}

#[test]
fn without_byte_counters_rates_have_another_name() {
    let mut fake = FakeNvml::new(&two_h100()).unwrap();
    let rate = json!({"transmitKibPerSecond": 20_480_000, "receiveKibPerSecond": 1_024_000});
    let mut gpus = links(|_| rate.clone(), 18);
    gpus["0"]["counters"] = json!(["gpm"]);
    fake.put("gpus", gpus).unwrap();
    let exporter = start(&fake, &[]);
    let first = [("gpu", "0"), ("link", "3")];
    let near = |name, kib: f64| {
        move |text: &str| {
            let rate = value(text, name, &first).unwrap_or_default();
            (rate / (kib * 1024.0) - 1.0).abs() < 0.2
        }
    };
    let text = wait(
        &exporter,
        "rates",
        near("nvlink_transmit_bytes_per_second", 20_480_000.0),
    );
    assert!(near("nvlink_receive_bytes_per_second", 1_024_000.0)(&text));
    let source = those(&text, "nvlink_traffic_source_info", &[("gpu", "0")]);
    assert_eq!(source[0].0["source"], "gpm");
    assert_eq!(
        those(&text, "nvlink_transmit_bytes_total", &[("gpu", "0")]),
        []
    );
    // The neighbour GPU counts bytes.
    assert_eq!(
        those(&text, "nvlink_transmit_bytes_total", &[("gpu", "1")]).len(),
        18
    );
    assert_eq!(
        those(&text, "nvlink_transmit_bytes_per_second", &[("gpu", "1")]),
        []
    );
    // The counters of GPUs cover both.
    let total = |text: &str, gpu| value(text, "nvlink_gpu_transmit_bytes_total", &[("gpu", gpu)]);
    assert_eq!(total(&text, "1"), Some(0.0));
    let second = 18.0 * 20_480_000.0 * 1024.0;
    let later = total(&text, "0").unwrap() + second;
    wait(&exporter, "a second of traffic", |text| {
        total(text, "0").is_some_and(|total| total > later)
    });
    check_metrics(&text).unwrap();
}

#[test]
fn counters_that_pascal_lacks_are_absent() {
    let board = Board {
        model: "Tesla P100-SXM2-16GB",
        gpus: 2,
        rate: 20_000,
        wiring: Wiring::Direct(mesh(2, 4)),
    };
    let text = good(&start(&FakeNvml::new(&board.recording()).unwrap(), &[]));
    assert_eq!(values(&text, "nvlink_link_up", &[]), [1.0; 8]);
    for absent in [
        "nvlink_transmit_bytes_total",
        "nvlink_receive_bytes_total",
        "nvlink_transmit_bytes_per_second",
        "nvlink_traffic_source_info",
        "nvlink_bit_error_ratio",
        "nvlink_fabric_state",
    ] {
        assert_eq!(series(&text, absent), [], "{absent}");
    }
}

/// Returns the errors of link 0 of GPU 0, by kind.
fn errors(text: &str) -> Vec<(String, f64)> {
    let found = those(text, "nvlink_errors_total", &[("gpu", "0"), ("link", "0")]);
    let found = found.into_iter();
    found
        .map(|(labels, count)| (labels["kind"].clone(), count))
        .collect()
}

#[test]
fn each_generation_reports_its_kinds_of_errors() {
    let counted = |kinds: &[&str]| -> Value {
        let kinds = kinds
            .iter()
            .zip(1..)
            .map(|(kind, count)| ((*kind).to_owned(), json!(count)));
        let kinds = kinds.collect::<serde_json::Map<_, _>>();
        json!({"0": {"links": {"0": {"errors": kinds}}}})
    };
    let ampere = &["crc_flit", "crc_data", "replay", "recovery", "ecc_data"][..];
    let hopper = &["crc_flit", "replay", "recovery", "ecc_data"][..];
    let blackwell = &[
        "recovery",
        "recovery_failed",
        "malformed_packet",
        "buffer_overrun",
        "receive",
        "receive_remote",
        "receive_general",
        "local_link_integrity",
        "transmit_discard",
        "effective",
        "symbol",
    ][..];
    for (recording, kinds) in [
        (a100_pair(), ampere),
        (two_h100(), hopper),
        (two_b200(), blackwell),
    ] {
        let mut fake = FakeNvml::new(&recording).unwrap();
        fake.put("gpus", counted(kinds)).unwrap();
        let text = good(&start(&fake, &[]));
        let wanted: Vec<_> = kinds
            .iter()
            .zip(1..)
            .map(|(kind, n)| ((*kind).to_owned(), f64::from(n)))
            .collect();
        assert_eq!(
            errors(&text),
            wanted,
            "{}",
            recording["spec"]["gpus"][0]["model"]
        );
        check_metrics(&text).unwrap();
    }
}

#[test]
fn bit_error_ratios_are_decoded() {
    let mut fake = FakeNvml::new(&two_b200()).unwrap();
    // The mantissa is in bits 8 to 11, the exponent in bits 0 to 7.
    let fields = json!({"220": 3 << 8 | 12, "222": 15 << 8 | 255});
    fake.put("gpus", json!({"0": {"links": {"0": {"fields": fields}}}}))
        .unwrap();
    let text = good(&start(&fake, &[]));
    let ratio = |kind| {
        let labels = [("gpu", "0"), ("link", "0"), ("kind", kind)];
        value(&text, "nvlink_bit_error_ratio", &labels)
    };
    let effective = ratio("effective").unwrap();
    assert!((effective / 3e-12 - 1.0).abs() < 1e-9, "{effective}");
    assert_eq!(ratio("symbol"), Some(0.0), "no errors at all");
}

#[test]
fn counters_of_links_follow_the_driver_and_those_of_gpus_do_not_show_a_reset() {
    let mut fake = FakeNvml::new(&recording("hgx-a100-4").unwrap()).unwrap();
    let sending = |kib: u64| json!({"transmitKib": kib, "transmitKibPerSecond": 1_000_000});
    fake.put("gpus", links(|_| sending(1 << 30), 12)).unwrap();
    let exporter = start(&fake, &[]);
    let first = [("gpu", "0"), ("link", "0")];
    let sent = |text: &str| value(text, "nvlink_transmit_bytes_total", &first).unwrap_or(0.0);
    let all = |text: &str| value(text, "nvlink_gpu_transmit_bytes_total", &[("gpu", "0")]);
    let before = sent(&good(&exporter));
    let wanted = before + 100e6;
    let text = wait(&exporter, "the counter to move", |text| sent(text) > wanted);
    let total = all(&text).unwrap();
    fake.put("gpus", links(|_| sending(1), 12)).unwrap();
    let text = wait(&exporter, "the reset", |text| {
        (1.0..before).contains(&sent(text))
    });
    // In the total of the GPU, the reset is neither a reset nor a jump.
    let more = all(&text).unwrap() - total;
    assert!((0.0..before).contains(&more), "{total}, then {more} more");
}
