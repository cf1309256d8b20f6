//! Faults that come and go while the program runs: in its log, and in its metrics.

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
    fn start(source: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"))
            .args(["serve", "--source", source, "--log-format", "json"])
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

    fn request(&self, head: &str, body: &str) -> String {
        let mut socket = TcpStream::connect(self.address()).unwrap();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    fn set(&self, faults: &str) {
        self.request("PUT /sim/faults", faults);
    }

    /// Returns the series of `nvlink_link_up` with their values, once `down` of them are 0.
    fn links(&self, down: usize) -> Vec<(String, String)> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let text = self.request("GET /metrics", "");
            let lines = text.lines();
            let links = lines.filter(|line| line.starts_with("nvlink_link_up{"));
            let links = links.map(|line| line.trim_end().rsplit_once(' ').unwrap());
            let links: Vec<_> = links.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
            if !links.is_empty() && links.iter().filter(|(_, up)| up == "0").count() == down {
                return links;
            }
            assert!(Instant::now() < until, "{text}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn the_beginning_and_the_end_of_each_fault_are_logged_once() {
    let serving = Serving::start("sim:dgx-h100");
    serving.address();
    assert_eq!(serving.wait(0, 0), [""; 0], "a healthy node");
    serving.set(
        r#"[{"gpu-lost": {"gpu": 1}}, {"link-down": {"gpu": 3, "link": 7}},
            {"link-down": {"gpu": 3, "link": 8}}, {"xid": {"gpu": 2, "xid": 74}},
            {"recovery-action": {"gpu": 2, "action": "gpu_reset"}},
            {"fabric-condition": {"gpu": 5, "condition": "route_unhealthy"}}]"#,
    );
    let mut told = serving.wait(0, 9);
    // Faults of several GPUs may be logged in any order.
    told.sort();
    let lost = told.remove(0);
    let expected = "WARN GPU 1: lost: it no longer answers (GPU-";
    assert!(lost.starts_with(expected), "{lost}");
    assert_eq!(
        told,
        [
            "WARN GPU 2: XID 74, 1 time since the start",
            &marked(2, "recovery-gpu-reset"),
            "WARN GPU 2: the driver asks for: gpu reset",
            "WARN GPU 3: 2 NVLink links missing",
            "WARN GPU 3: fabric reports degraded bandwidth",
            &marked(3, "missing-links, fabric"),
            "WARN GPU 5: fabric reports route unhealthy",
            &marked(5, "fabric"),
        ]
    );
    serving.set("[]");
    let mut told = serving.wait(9, 8);
    told.sort();
    assert_eq!(
        told,
        [
            "INFO GPU 1: answers again",
            "INFO GPU 2: no longer marked as broken",
            "INFO GPU 2: the driver asks for nothing more",
            "INFO GPU 3: all NVLink links are up again",
            "INFO GPU 3: fabric no longer reports degraded bandwidth",
            "INFO GPU 3: no longer marked as broken",
            "INFO GPU 5: fabric no longer reports route unhealthy",
            "INFO GPU 5: no longer marked as broken",
        ]
    );
}

fn marked(gpu: u32, faults: &str) -> String {
    format!("WARN GPU {gpu}: marked as broken ({faults}): placements leave it out or rank it last")
}

fn labels(links: &[(String, String)]) -> Vec<&str> {
    links.iter().map(|(labels, _)| &**labels).collect()
}

#[test]
fn the_labels_of_a_link_are_the_same_before_and_after_it_fails() {
    let links_down =
        r#"[{"link-down": {"gpu": 3, "link": 1}}, {"link-down": {"gpu": 3, "link": 2}}]"#;
    for source in ["sim:dgx-h100", "sim:dgx1-v100"] {
        let serving = Serving::start(source);
        let healthy = serving.links(0);
        serving.set(links_down);
        // On the DGX-1, the GPUs at the other ends lose the links, too.
        let down = if source == "sim:dgx-h100" { 2 } else { 4 };
        let broken = serving.links(down);
        assert_eq!(labels(&broken), labels(&healthy), "{source}");
        serving.set("[]");
        assert_eq!(serving.links(0), healthy, "{source}");
    }
}

#[test]
fn a_gpu_without_its_fabric_keeps_the_labels_of_its_links() {
    let serving = Serving::start("sim:dgx-h100");
    let healthy = serving.links(0);
    serving.set(r#"[{"fabric-down": {}}, {"link-down": {"gpu": 0, "link": 0}}]"#);
    assert_eq!(labels(&serving.links(1)), labels(&healthy));
}

#[test]
fn a_link_that_is_down_from_the_start_has_the_kind_of_the_others() {
    let links = Serving::start("sim:h200-degraded").links(3);
    let to_switch = |(labels, _): &&(String, String)| labels.contains("remote=\"switch\"");
    assert_eq!(links.iter().filter(to_switch).count(), 8 * 18);
}
