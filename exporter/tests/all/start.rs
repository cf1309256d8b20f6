//! The program from start to end: it serves and can be stopped, whatever hangs.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long any step may take on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

/// A running program, killed with its test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs the program, with the kubeconfig of `directory`.
fn start(directory: &TempDir, arguments: &[&str], stderr: impl Into<Stdio>) -> Program {
    let child = Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"))
        .args(["--node-name", "n", "--web.listen-address", "127.0.0.1:0"])
        .args(["--kubelet-socket", "none", "--collection-interval", "100ms"])
        .args(arguments)
        .env("KUBECONFIG", directory.path().join("kubeconfig"))
        .stdin(Stdio::null())
        .stderr(stderr)
        .spawn();
    Program(child.unwrap())
}

fn wait<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + SOON;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        sleep(Duration::from_millis(20));
    }
}

fn terminate(program: &mut Program) -> ExitStatus {
    let id = program.0.id().to_string();
    let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
    assert!(sent.unwrap().success());
    wait("the end after SIGTERM", || program.0.try_wait().unwrap())
}

/// Returns the served address, from the log.
fn address(log: &str) -> Option<String> {
    let at = log.split("address=").nth(1)?;
    Some(at.split_whitespace().next()?.to_owned())
}

/// Returns the answer to a request for `path`.
fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn the_begin_and_the_end_of_a_hang_are_logged_once() {
    let directory = TempDir::new().unwrap();
    let (pipe, log) = (directory.path().join("pipe"), directory.path().join("log"));
    fifo(&pipe);
    let source = format!("file:{}", pipe.display());
    let arguments = ["--source", &source, "--stale-after", "500ms"];
    let mut program = start(&directory, &arguments, File::create(&log).unwrap());
    let said = |text: &str| fs::read_to_string(&log).unwrap().matches(text).count();
    wait("the hang in the log", || {
        (said("the source hangs") > 0).then_some(())
    });
    sleep(Duration::from_millis(300));
    assert_eq!(said("the source hangs"), 1);
    let address = address(&fs::read_to_string(&log).unwrap()).unwrap();
    assert!(
        get(&address, "/livez").starts_with("HTTP/1.1 200"),
        "a new process would wait, too"
    );
    assert!(get(&address, "/readyz").starts_with("HTTP/1.1 503"));
    fs::write(&pipe, crate::support::PAIRS).unwrap();
    wait("its end in the log", || {
        (said("the source answers again") > 0).then_some(())
    });
    wait("the next hang in the log", || {
        (said("the source hangs") > 1).then_some(())
    });
    assert_eq!(said("the source answers again"), 1);
    assert!(terminate(&mut program).success());
}

#[test]
fn a_log_that_nobody_reads_does_not_stop_the_program() {
    let directory = TempDir::new().unwrap();
    let matrix = directory.path().join("matrix");
    fs::write(&matrix, crate::support::PAIRS).unwrap();
    let source = format!("file:{}", matrix.display());
    let mut program = start(&directory, &["--source", &source], Stdio::piped());
    let mut log = BufReader::new(program.0.stderr.take().unwrap());
    let address = wait("an address", || {
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        address(&line)
    });
    drop(log);
    // Each change is a line that cannot be written.
    for content in [
        "nonsense",
        crate::support::PAIRS,
        "nonsense",
        crate::support::PAIRS,
    ] {
        fs::write(&matrix, content).unwrap();
        let success = u8::from(content != "nonsense");
        let line =
            format!("nvlink_exporter_collector_success{{collector=\"topology\"}} {success}\n");
        wait("a collection", || {
            get(&address, "/metrics").contains(&line).then_some(())
        });
    }
    assert!(get(&address, "/livez").starts_with("HTTP/1.1 200"));
    assert!(terminate(&mut program).success());
}

#[test]
fn sigterm_ends_a_start_that_waits_for_credentials() {
    let directory = TempDir::new().unwrap();
    let asked = directory.path().join("asked");
    // A credential plugin that never returns credentials.
    let script = format!("echo > {}; exec sleep 60", asked.display());
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", script]}}}],
    });
    fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let arguments = ["--source", "sim:l40s", "--kubernetes"];
    let mut program = start(&directory, &arguments, Stdio::null());
    wait("the request for credentials", || {
        asked.exists().then_some(())
    });
    assert!(terminate(&mut program).success());
}
