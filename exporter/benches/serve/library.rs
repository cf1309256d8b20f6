//! Collections from a stand-in for the driver's library (`tests/fake-nvml`), for
//! each board, and scrapes while the library hangs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nvlink_source::sim;

use crate::exporter::{Exporter, collection, program, value};

const COLLECTIONS: usize = 30;
/// The minimum that the exporter accepts.
const INTERVAL: Duration = Duration::from_millis(100);
/// Goal for a collection, and limit for an answer while the library hangs.
const MILLISECONDS: f64 = 5.0;
const SCRAPES: usize = 200;

pub(crate) fn measure(directory: &Path) {
    let library = build();
    println!("collections from the stand-in library, goal {MILLISECONDS} ms:");
    for profile in sim::names() {
        let board = Board::new(directory, profile);
        let exporter = board.exporter(&library);
        let mut times: Vec<f64> = (0..COLLECTIONS)
            .map(|_| {
                thread::sleep(INTERVAL);
                collection(&exporter.scrape())
            })
            .collect();
        let (median, most) = median_and_most(&mut times);
        let above = if median > MILLISECONDS {
            "  above its goal"
        } else {
            ""
        };
        println!("  {profile:18} median {median:6.2} ms, longest {most:6.2} ms{above}");
    }
    hanging(directory, &library);
}

/// Measures the answers of an exporter whose library hangs.
fn hanging(directory: &Path, library: &Path) {
    let board = Board::new(directory, "dgx-h100");
    let exporter = board.exporter(library);
    board.write("[{\"function\": \"nvmlDeviceGetFieldValues\", \"hang\": true}]");
    thread::sleep(5 * INTERVAL);
    let age = |text: &str| value(text, "nvlink_exporter_snapshot_age_seconds ").unwrap_or_default();
    let before = age(&exporter.scrape());
    let mut times: Vec<f64> = (0..SCRAPES)
        .map(|_| {
            let start = Instant::now();
            exporter.scrape();
            start.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    // Scrapes of one moment share a rendering, and so its age.
    thread::sleep(2 * INTERVAL);
    let after = age(&exporter.scrape());
    assert!(after > before, "it does not hang");
    let (median, most) = median_and_most(&mut times);
    println!(
        "scrapes while the library hangs: median {median:.2} ms, longest {most:.2} ms of {SCRAPES}; the data are {after:.1} s old"
    );
    // Otherwise only the end of the process ends the hang.
    board.write("[]");
}

fn median_and_most(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() - 1])
}

/// Builds the library with cargo, because no target of this package depends on it.
fn build() -> PathBuf {
    let program = program();
    let directory = program.parent().expect("a directory");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--locked", "-p", "nvlink-fake-nvml"]);
    if directory.ends_with("release") {
        command.arg("--release");
    }
    let built = command.status().expect("cargo");
    assert!(built.success(), "the library does not compile");
    directory.join("libfake_nvml.so")
}

/// A simulated machine, in the files that the library reads.
struct Board {
    recording: String,
    config: String,
}

impl Board {
    fn new(directory: &Path, profile: &str) -> Self {
        let path = |name: String| directory.join(name).display().to_string();
        let this = Self {
            recording: path(format!("{profile}.json")),
            config: path(format!("{profile}-config.json")),
        };
        let source = format!("sim:{profile}");
        let recorded = Command::new(program())
            .args(["record", "--source", &source, "--to", &this.recording])
            .status();
        assert!(recorded.expect("the program").success());
        this.write("[]");
        this
    }

    /// Writes the configuration of the library: the machine with `faults`.
    fn write(&self, faults: &str) {
        let text = format!("{{\"board\": {:?}, \"faults\": {faults}}}", self.recording);
        let new = format!("{}.new", self.config);
        fs::write(&new, text).expect("a file");
        fs::rename(new, &self.config).expect("a file");
    }

    fn exporter(&self, library: &Path) -> Exporter {
        let source = format!("nvml:{}", library.display());
        let interval = format!("{}ms", INTERVAL.as_millis());
        Exporter::start(
            &["--source", &source, "--collection-interval", &interval],
            &[("FAKE_NVML_CONFIG", &self.config)],
        )
    }
}
