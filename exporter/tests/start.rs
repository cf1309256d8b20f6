//! The start of the program: whatever hangs in it, the program can be ended.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A machine that is busy with other tests may take so long for anything.
const SOON: Duration = Duration::from_secs(30);

/// Runs the program, with the kubeconfig of `directory`.
fn start(directory: &TempDir, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_nvlink-exporter"))
        .args(["--source", "sim:l40s", "--node-name", "n"])
        .args(["--web.listen-address", "127.0.0.1:0"])
        .args(arguments)
        .env("KUBECONFIG", directory.path().join("kubeconfig"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait<T>(what: &str, probe: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + SOON;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn sigterm_ends_a_start_that_waits_for_credentials() {
    let directory = TempDir::new().unwrap();
    let asked = directory.path().join("asked");
    // A program of credentials that never has any.
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
    let mut child = start(&directory, &["--kubernetes"]);
    wait("credentials to be asked for", || {
        asked.exists().then_some(())
    });
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", "TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let until = Instant::now() + SOON;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < until => sleep(Duration::from_millis(20)),
            None => {
                drop(child.kill());
                panic!("SIGTERM is not obeyed");
            }
        }
    };
    assert!(status.success(), "{status}");
}
