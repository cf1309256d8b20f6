//! The log has one line when a fault begins, and one when it ends.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// The program on a simulated node, and its log so far.
struct Serving {
    child: Child,
    lines: Arc<Mutex<Vec<serde_json::Value>>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Serving {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"))
            .args(["serve", "--source", "sim:dgx-h100", "--log-format", "json"])
            .args(["--web.listen-address", "127.0.0.1:0"])
            .args(["--collection-interval", "100ms", "--kubelet-socket", "none"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (log, seen) = (child.stderr.take().unwrap(), Arc::clone(&lines));
        thread::spawn(move || {
            for line in BufReader::new(log).lines() {
                let line = serde_json::from_str(&line.unwrap()).unwrap();
                seen.lock().unwrap().push(line);
            }
        });
        Self { child, lines }
    }

    /// Returns level and message of the log lines about GPUs, from line `from` on.
    fn told(&self, from: usize) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        let text = |line: &serde_json::Value| {
            let message = line["message"].as_str().unwrap();
            format!("{} {message}", line["level"].as_str().unwrap())
        };
        let all = lines.iter().map(text);
        let about_gpus = all.filter(|line| line.contains(" GPU "));
        about_gpus.skip(from).collect()
    }

    /// Waits for `count` lines from line `from` on and for some more readings. Returns
    /// all lines from `from` on.
    fn wait(&self, from: usize, count: usize) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(30);
        while self.told(from).len() < count && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(500));
        self.told(from)
    }

    fn address(&self) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let lines = self.lines.lock().unwrap().clone();
            let address = lines.iter().find_map(|line| line["address"].as_str());
            if let Some(address) = address {
                return address.to_owned();
            }
            assert!(Instant::now() < until, "{lines:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn set(&self, faults: &str) {
        let mut socket = TcpStream::connect(self.address()).unwrap();
        let head = "PUT /sim/faults HTTP/1.1\r\nHost: localhost\r\nConnection: close";
        let kind = "Content-Type: application/json";
        let length = faults.len();
        let request = format!("{head}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{faults}");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn the_beginning_and_the_end_of_each_fault_are_logged_once() {
    let serving = Serving::start();
    serving.address();
    assert_eq!(serving.wait(0, 0), [""; 0], "a healthy node");
    serving.set(
        r#"[{"gpu-lost": {"gpu": 1}}, {"link-down": {"gpu": 3, "link": 7}},
            {"link-down": {"gpu": 3, "link": 8}}, {"xid": {"gpu": 2, "xid": 74}},
            {"fabric-condition": {"gpu": 5, "condition": "route_unhealthy"}}]"#,
    );
    let mut told = serving.wait(0, 5);
    // Faults of several GPUs may be logged in any order.
    told.sort();
    let lost = told.remove(0);
    let expected = "WARN GPU 1: lost: it no longer answers (GPU-";
    assert!(lost.starts_with(expected), "{lost}");
    assert_eq!(
        told,
        [
            "WARN GPU 2: XID 74, 1 time since the start",
            "WARN GPU 3: 2 NVLink links missing",
            "WARN GPU 3: fabric reports degraded bandwidth",
            "WARN GPU 5: fabric reports route unhealthy",
        ]
    );
    serving.set("[]");
    let mut told = serving.wait(5, 4);
    told.sort();
    assert_eq!(
        told,
        [
            "INFO GPU 1: answers again",
            "INFO GPU 3: all NVLink links are up again",
            "INFO GPU 3: fabric no longer reports degraded bandwidth",
            "INFO GPU 5: fabric no longer reports route unhealthy",
        ]
    );
}
