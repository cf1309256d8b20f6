//! The exporter releases the driver's library on request.

use std::{fs, time::Duration};

use nvlink_tests::{Exporter, FakeNvml, http};
use serde_json::json;

use super::{
    scrape::{good, series, start, value, wait},
    wiring::{Board, Wiring},
};

const SOON: Duration = Duration::from_secs(20);

fn board() -> FakeNvml {
    let board = Board {
        model: "NVIDIA H100 80GB HBM3",
        gpus: 2,
        rate: 26_562,
        wiring: Wiring::Switches(&[5, 5, 4, 4]),
    };
    FakeNvml::new(&board.recording()).unwrap()
}

/// Reports whether the process has a device of the driver open, which prevents others
/// from replacing the driver.
fn holds(fake: &FakeNvml, exporter: &Exporter) -> bool {
    let device = fake.environment().1.into_string().unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", exporter.process.id())).unwrap();
    let mut files = open.filter_map(|one| fs::read_link(one.unwrap().path()).ok());
    files.any(|file| file.to_string_lossy().starts_with(&device))
}

fn post(exporter: &Exporter, path: &str) -> (u16, String) {
    let answer = http::send("POST", &exporter.url(path), "").unwrap();
    (answer.status, answer.body)
}

fn calls(fake: &FakeNvml, function: &str) -> bool {
    fake.trace().contains(&format!("call {function}"))
}

fn is_released(text: &str) -> bool {
    value(text, "nvlink_exporter_source_released", &[]) == Some(1.0)
}

#[test]
fn the_driver_is_released_until_it_is_opened_again() {
    let fake = board();
    let exporter = start(&fake, &["--web.enable-lifecycle"]);
    good(&exporter);
    assert!(holds(&fake, &exporter));
    fake.clear_trace();
    let (status, said) = post(&exporter, "/-/release?for=1h");
    assert_eq!(status, 200, "{said}");
    assert!(calls(&fake, "nvmlShutdown"), "{:?}", fake.trace());
    assert!(!holds(&fake, &exporter));
    let text = exporter.metrics().unwrap();
    assert!(is_released(&text));
    assert_eq!(series(&text, "nvlink_gpu_info"), []);
    // Waits for longer than several collections take.
    fake.clear_trace();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!holds(&fake, &exporter));
    assert_eq!(fake.trace(), [""; 0]);
    assert_eq!(post(&exporter, "/-/open").0, 200);
    let text = good(&exporter);
    assert!(!is_released(&text));
    assert_eq!(series(&text, "nvlink_gpu_info").len(), 2);
}

#[test]
fn a_library_that_hangs_is_released_when_it_answers_and_not_called_again() {
    let mut fake = board();
    let exporter = start(&fake, &["--web.enable-lifecycle"]);
    good(&exporter);
    let hang = json!([{"function": "nvmlDeviceGetFieldValues", "hang": true}]);
    fake.put("faults", hang).unwrap();
    let hangs = || {
        let trace = fake.trace();
        Ok(trace
            .iter()
            .any(|one| one.starts_with("hang "))
            .then_some(()))
    };
    exporter.process.wait_until("a hang", SOON, hangs).unwrap();
    // The request waits for a while, and then reports that the library does not answer.
    let (status, said) = post(&exporter, "/-/release?for=1h");
    assert_eq!(status, 202, "{said}");
    assert!(!is_released(&exporter.metrics().unwrap()));
    fake.put("faults", json!([])).unwrap();
    wait(&exporter, "the library to be released", is_released);
    assert!(!holds(&fake, &exporter));
}
