//! What the running exporter costs: memory, CPU per scrape, the time of a
//! collection and the size of the program. Prints a table and what is above its goal.

#![allow(missing_docs, clippy::expect_used)]

#[path = "../tests/support/full.rs"]
mod full;

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nvlink_exporter::{snapshot::View, source::recording::Recorder};

const PROGRAM: &str = env!("CARGO_BIN_EXE_nvlink-exporter");
const SCRAPES: u32 = 1000;
/// The kernel's unit of CPU times in `/proc`; the same on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// A node, and what it may cost.
struct Case {
    name: &'static str,
    source: String,
    megabytes: f64,
    cpu_milliseconds: f64,
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let cases = [
        Case {
            name: "8 GPUs",
            source: format!(
                "file:{}",
                recording(directory.path(), "8.json", &full::eight())
            ),
            megabytes: 15.0,
            cpu_milliseconds: 1.0,
        },
        Case {
            name: "8 GPUs, sim:dgx-h100",
            source: "sim:dgx-h100".to_owned(),
            megabytes: 15.0,
            cpu_milliseconds: 1.0,
        },
        Case {
            name: "72 GPUs",
            source: format!(
                "file:{}",
                recording(directory.path(), "72.json", &full::seventy_two())
            ),
            megabytes: 40.0,
            cpu_milliseconds: 10.0,
        },
    ];
    let size = fs::metadata(PROGRAM).expect("the program").len();
    println!(
        "program: {:.1} MiB (goal 12)",
        size as f64 / f64::from(1 << 20)
    );
    println!("after {SCRAPES} scrapes:");
    for case in cases {
        case.measure();
    }
}

/// Writes the node as `nvlink-exporter record` would.
fn recording(directory: &Path, name: &str, view: &View) -> String {
    let document = view.document().expect("a document");
    let mut recorder = Recorder::new(&document).expect("a recorder");
    let data = view.data().expect("data");
    for seconds in 0..2 {
        let added = recorder.add(Duration::from_secs(seconds), data);
        assert!(added.expect("a sample"), "it fits");
    }
    let path = directory.join(name);
    fs::write(&path, recorder.text()).expect("a file");
    path.display().to_string()
}

impl Case {
    fn measure(&self) {
        let mut exporter = Exporter::start(&self.source);
        let before = exporter.cpu();
        let start = Instant::now();
        let (mut bytes, mut text) = (0, String::new());
        for _ in 0..SCRAPES {
            text = exporter.scrape();
            bytes += text.len();
        }
        let took = start.elapsed() / SCRAPES;
        let cpu = (exporter.cpu() - before) * 1000.0 / f64::from(SCRAPES);
        let memory = exporter.memory();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        let collection = text.lines().find_map(|line| {
            line.strip_prefix(
                "nvlink_exporter_collection_duration_seconds{collector=\"topology\"} ",
            )
        });
        let collection: f64 = collection
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(f64::NAN);
        println!(
            "  {:22} {series:6} series {:5} KiB   RSS {memory:5.1} MiB (goal {})   CPU {cpu:5.2} ms a scrape (goal {})   answer in {took:.2?}   collection {:.2} ms",
            self.name,
            (bytes / SCRAPES as usize) >> 10,
            self.megabytes,
            self.cpu_milliseconds,
            collection * 1000.0,
        );
        if memory > self.megabytes || cpu > self.cpu_milliseconds {
            println!("  above its goal");
        }
        exporter.child.kill().expect("it can be ended");
    }
}

struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    fn start(source: &str) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
        let address = free.expect("a port").to_string();
        let child = Command::new(PROGRAM)
            .args([
                "serve",
                "--source",
                source,
                "--web.listen-address",
                &address,
            ])
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut this = Self { child, address };
        let until = Instant::now() + Duration::from_secs(30);
        while !this
            .ask("/readyz")
            .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        {
            assert!(Instant::now() < until, "it does not become ready");
            thread::sleep(Duration::from_millis(20));
        }
        this
    }

    fn scrape(&mut self) -> String {
        let answer = self.ask("/metrics").expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        body.to_owned()
    }

    fn ask(&mut self, path: &str) -> std::io::Result<String> {
        let mut socket = TcpStream::connect(&self.address)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// User and system time so far, in seconds.
    fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("it runs");
        // The name, in brackets, may have spaces.
        let (_, fields) = stat.rsplit_once(") ").expect("fields");
        let times = fields.split(' ').skip(11).take(2);
        let ticks: f64 = times.filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / TICKS_PER_SECOND
    }

    /// Resident memory, in MiB.
    fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.expect("a size") / 1024.0
    }
}
