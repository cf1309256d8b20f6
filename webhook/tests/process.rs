//! The program as a process: signals, and logs that nobody reads.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    fs::{self, File},
    io::{Read, Write, pipe},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(20);

/// Starts an API server that accepts connections and never answers, and writes a
/// kubeconfig for it.
fn frozen(directory: &Path) -> TcpListener {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "{{current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
         users: [{{name: a, user: {{}}}}], \
         clusters: [{{name: a, cluster: {{server: 'http://{}'}}}}]}}",
        server.local_addr().unwrap()
    );
    fs::write(directory.join("kubeconfig"), config).unwrap();
    server
}

/// Returns the flags of the certificate, for two cases that wait for the API server at different
/// points.
fn arguments(directory: &Path) -> [Vec<String>; 2] {
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    fs::write(path("tls.crt"), made.cert.pem()).unwrap();
    fs::write(path("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let texts = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
    [
        texts(&["--ca-secret", "a/b", "--url", "https://127.0.0.1:1"]),
        texts(&[
            "--tls-cert",
            &path("tls.crt"),
            "--tls-key",
            &path("tls.key"),
        ]),
    ]
}

/// A running webhook, which is killed when dropped.
struct Running {
    child: Child,
    admin: SocketAddr,
}

impl Running {
    fn start(directory: &Path, arguments: &[String], log: impl Into<Stdio>) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = free.local_addr().unwrap();
        drop(free);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvlink-webhook"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen"])
            .arg(admin.to_string())
            .args(arguments)
            .env("KUBECONFIG", directory.join("kubeconfig"))
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().unwrap();
        Self { child, admin }
    }

    fn get(&self, path: &str) -> std::io::Result<String> {
        let mut connection = TcpStream::connect(self.admin)?;
        connection.set_read_timeout(Some(SOON))?;
        write!(connection, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Waits until the response at `path` fits.
    fn says(&self, path: &str, fits: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        loop {
            match self.get(path) {
                Ok(answer) if fits(&answer) => return,
                answer => assert!(begin.elapsed() < SOON, "{answer:?}"),
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn terminate(mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").arg(id).status().unwrap().success());
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < SOON, "it does not end");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn sigterm_works_while_the_api_server_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in arguments(directory.path()) {
        // A server for each case: a client may have sent its request twice.
        let server = frozen(directory.path());
        let running = Running::start(directory.path(), &arguments, Stdio::null());
        // The webhook has sent a request, and waits for the response.
        let (mut asked, _) = server.accept().unwrap();
        asked.read_exact(&mut [0; 16]).unwrap();
        assert_eq!(running.terminate().code(), Some(0), "{arguments:?}");
    }
}

fn healthy(answer: &str) -> bool {
    answer.ends_with("ok\n")
}

/// Returns how many lines of the log the metrics say were dropped.
fn dropped(metrics: &str) -> u64 {
    let name = "nvlink_webhook_log_lines_dropped_total ";
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    value.unwrap().parse().unwrap()
}

#[test]
fn a_log_that_nobody_reads_neither_ends_nor_blocks_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let _server = frozen(directory.path());
    let [_, arguments] = arguments(directory.path());
    let (unread, mut full) = pipe().unwrap();
    // The capacity of a pipe on Linux.
    full.write_all(&[b'x'; 1 << 16]).unwrap();
    let (reader, closed) = pipe().unwrap();
    drop(reader);
    let disk = File::options().write(true).open("/dev/full").unwrap();
    // If the pipe still has a reader, lines wait in memory and none is dropped.
    for (log, drops) in [
        (Stdio::from(full), false),
        (Stdio::from(closed), true),
        (Stdio::from(disk), true),
    ] {
        let running = Running::start(directory.path(), &arguments, log);
        running.says("/livez", healthy);
        running.says("/metrics", |answer| (dropped(answer) > 0) == drops);
        assert_eq!(running.terminate().code(), Some(0));
    }
    drop(unread);
}

#[test]
fn a_wrong_variable_is_named_and_not_the_flag() {
    let variable = "NVLINK_WEBHOOK_DRAIN_SECONDS";
    let run = |args: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_nvlink-webhook"));
        let output = program.arg("serve").args(args).env(variable, "soon");
        let output = output.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = run(&[]);
    assert!(
        error.contains(&format!("'the environment variable {variable}'")),
        "{error}"
    );
    let error = run(&["--drain-seconds", "late"]);
    assert!(!error.contains("environment variable"), "{error}");
}

/// Returns the error of a wrong command line.
fn error_of(args: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_nvlink-webhook"));
    let output = program.args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_error_names_both_flags_for_the_address_of_the_webhook() {
    let error = error_of(&["registration", "--ca-file", "ca.crt"]);
    assert!(
        error.contains("<--url <URL>|--service <NS/NAME>>"),
        "{error}"
    );
    let both = ["--url", "https://h:1", "--service", "a/b"];
    let error = error_of(&[&["registration", "--ca-file", "ca.crt"], &both[..]].concat());
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn an_invalid_namespace_is_rejected() {
    for name in ["Bad_Name", "", "a,,b"] {
        let error = error_of(&["policies", "--exempt-namespace", name]);
        assert!(error.contains("not a namespace name"), "{error}");
    }
}

#[test]
fn silent_connections_keep_no_probe_out() {
    let directory = tempfile::tempdir().unwrap();
    let _server = frozen(directory.path());
    let [_, arguments] = arguments(directory.path());
    let running = Running::start(directory.path(), &arguments, Stdio::null());
    running.says("/livez", healthy);
    let connect = |_| TcpStream::connect(running.admin).unwrap();
    let mut silent: Vec<_> = (0..100).map(connect).collect();
    running.says("/livez", healthy);
    // The first connection was closed to make room.
    silent[0].set_read_timeout(Some(SOON)).unwrap();
    match silent[0].read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        Ok(_) => panic!("it was sent something"),
    }
}
