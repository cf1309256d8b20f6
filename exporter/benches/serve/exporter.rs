//! The exporter as a process, queried and measured from outside.

use std::{
    env, fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Returns the program that `NVLINK_EXPORTER` names, such as a released one, else
/// the one that was built for this benchmark.
pub(crate) fn program() -> PathBuf {
    let named = env::var_os("NVLINK_EXPORTER").map(PathBuf::from);
    named.unwrap_or_else(|| env!("CARGO_BIN_EXE_nvlink-exporter").into())
}

/// The kernel's unit of CPU times in `/proc`; the same on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running exporter, which is killed when dropped.
pub(crate) struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    /// Starts an exporter and waits until it is ready.
    pub(crate) fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
        let address = free.expect("a port").to_string();
        let child = Command::new(program())
            .args(["serve", "--web.listen-address", &address])
            .args(arguments)
            .envs(environment.iter().copied())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut this = Self { child, address };
        let until = Instant::now() + Duration::from_secs(30);
        while !this
            .ask("/readyz")
            .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        {
            let ended = this.child.try_wait().expect("a state");
            assert!(
                ended.is_none() && Instant::now() < until,
                "it does not become ready: {ended:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        this
    }

    /// Returns the metrics.
    pub(crate) fn scrape(&self) -> String {
        let answer = self.ask("/metrics").expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        body.to_owned()
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        let mut socket = TcpStream::connect(&self.address)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns the user and system time so far, in seconds.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("it runs");
        // The name, in parentheses, may contain spaces.
        let (_, fields) = stat.rsplit_once(") ").expect("fields");
        let times = fields.split(' ').skip(11).take(2);
        let ticks: f64 = times.filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / TICKS_PER_SECOND
    }

    /// Returns the resident memory, in MiB.
    pub(crate) fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.expect("a size") / 1024.0
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // Killing fails if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the value of a series that has no other labels than those in `series`.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    let lines = text.lines();
    let mut values = lines.filter_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    values.next()
}

/// Returns the duration of the last collection, in milliseconds.
pub(crate) fn collection(text: &str) -> f64 {
    let series = "nvlink_exporter_collection_duration_seconds{collector=\"topology\"} ";
    value(text, series).expect("a collection") * 1000.0
}
