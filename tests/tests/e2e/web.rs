//! `--web.config.file` and several addresses, with a real Prometheus.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nvlink_tests::{
    Exporter, Prometheus,
    certificates::{Authority, ServerFiles},
    http, port, wait_until, workdir,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// The bcrypt hash of [`PASSWORD`] with cost 10, as `htpasswd -nBC 10` prints it.
const HASH: &str = "$2y$10$abcdefghijklmnopqrstuu6ZX0WN26XJKJTsyHceCGNcg2QmDxQ6a";
const PASSWORD: &str = "a scraper's";

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// An exporter that requires a certificate and a password, on two addresses.
struct Guarded {
    directory: PathBuf,
    exporter: Exporter,
    second: String,
    ca: String,
    client: ServerFiles,
}

impl Guarded {
    fn start() -> Self {
        let directory = workdir::fresh("web").unwrap();
        let ours = Authority::new("ours").unwrap();
        ours.issue("server", &directory).unwrap();
        let ca = write(&directory, "ca.pem", &ours.certificate);
        let config = json!({
            "tls_server_config": {
                "cert_file": "server.pem", "key_file": "server.key",
                "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem",
            },
            "basic_auth_users": {"prometheus": HASH},
        });
        let config = write(&directory, "web.yml", &config.to_string());
        let second = format!("[::1]:{}", port::free().unwrap());
        let node = [
            "--source",
            "sim:dgx-h100",
            "--web.telemetry-path",
            "/nvlink",
        ];
        let web = [
            "--web.config.file",
            &config,
            "--web.listen-address",
            &second,
        ];
        Self {
            exporter: Exporter::guarded(&[node, web].concat()).unwrap(),
            client: ours.client("prometheus", &directory).unwrap(),
            directory,
            second,
            ca,
        }
    }

    /// Returns a scrape configuration that should work.
    fn scrape(&self, name: &str) -> Value {
        let mut scrape = json!({
            "job_name": name, "scheme": "https", "metrics_path": "/nvlink",
            // Checking the hash of a password takes long while other tests run.
            "scrape_interval": "5s", "scrape_timeout": "5s",
            "static_configs": [{"targets": [&self.exporter.address]}],
            "basic_auth": {"username": "prometheus", "password": PASSWORD},
            "tls_config": {"ca_file": &self.ca, "server_name": "localhost"},
        });
        show(&mut scrape, &self.client);
        scrape
    }
}

/// Adds this client certificate to a scrape configuration.
fn show(scrape: &mut Value, files: &ServerFiles) {
    scrape["tls_config"]["cert_file"] = json!(&files.certificate);
    scrape["tls_config"]["key_file"] = json!(&files.key);
}

/// Waits until the target of `job` is up (1) or down (0).
fn wait_for_up(prometheus: &Prometheus, job: &str, up: u8) {
    let query = format!("up{{job=\"{job}\"}} == {up}");
    let one = |samples: &[_]| samples.len() == 1;
    prometheus.wait_for(&query, SOON, one).unwrap();
}

#[test]
fn prometheus_scrapes_with_a_certificate_and_a_password() {
    let guarded = Guarded::start();
    let mut second = guarded.scrape("second address");
    second["static_configs"][0]["targets"] = json!([&guarded.second]);
    let mut guesser = guarded.scrape("wrong password");
    guesser["basic_auth"]["password"] = json!("guessed");
    let mut stranger = guarded.scrape("stranger");
    let theirs = Authority::new("theirs").unwrap();
    let files = theirs.client("stranger", &guarded.directory).unwrap();
    show(&mut stranger, &files);
    let good = guarded.scrape("good");
    let prometheus = Prometheus::scraping(vec![good, second, guesser, stranger]).unwrap();
    wait_for_up(&prometheus, "good", 1);
    wait_for_up(&prometheus, "second address", 1);
    wait_for_up(&prometheus, "wrong password", 0);
    wait_for_up(&prometheus, "stranger", 0);
    let gpus = prometheus
        .query("count(nvlink_gpu_info{job=\"good\"})")
        .unwrap();
    assert_eq!(gpus[0].value, 8.0);
    wait_until("the reason", SOON, || {
        let refused = last_error(&prometheus, "wrong password");
        anyhow::ensure!(refused.contains("401"), "{refused}");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
fn a_new_certificate_is_served_without_a_restart() {
    let guarded = Guarded::start();
    let rotated = Authority::new("rotated").unwrap();
    rotated.issue("server", &guarded.directory).unwrap();
    logged(&guarded.exporter, "web configuration reloaded");
    // Open connections keep the old certificate, so this uses new ones.
    let mut renewed = guarded.scrape("renewed");
    let ca = write(&guarded.directory, "ca.pem.new", &rotated.certificate);
    renewed["tls_config"]["ca_file"] = json!(ca);
    let old = guarded.scrape("old authority");
    let prometheus = Prometheus::scraping(vec![renewed, old]).unwrap();
    wait_for_up(&prometheus, "renewed", 1);
    wait_for_up(&prometheus, "old authority", 0);
}

#[test]
fn passwords_work_without_tls_and_sigterm_ends_the_exporter() {
    let directory = workdir::fresh("web").unwrap();
    let config = json!({"basic_auth_users": {"prometheus": HASH}});
    let config = write(&directory, "web.yml", &config.to_string());
    let exporter =
        Exporter::guarded(&["--source", "sim:l40s", "--web.config.file", &config]).unwrap();
    for path in [
        "/metrics",
        "/",
        "/livez",
        "/readyz",
        "/api/v1/topology",
        "/nothing",
    ] {
        let answer = http::get(&exporter.url(path), &[], "*/*").unwrap();
        assert_eq!(answer.status, 401, "{path}");
    }
    // An invalid file keeps the configuration in use, and is logged once.
    write(&directory, "web.yml", "basic_auth_user: {}");
    logged(&exporter, "cannot reload the web configuration");
    let answer = http::get(&exporter.url("/metrics"), &[], "*/*").unwrap();
    assert_eq!(answer.status, 401);
    // An emptied file does not disable the passwords.
    write(&directory, "web.yml", "");
    logged(&exporter, "passwords can be switched off only by a restart");
    let answer = http::get(&exporter.url("/metrics"), &[], "*/*").unwrap();
    assert_eq!(answer.status, 401);
    let headers = json!({"headers": {"X-Frame-Options": "deny"}});
    let config = json!({"basic_auth_users": {"prometheus": HASH}, "http_server_config": headers});
    write(&directory, "web.yml", &config.to_string());
    logged(&exporter, "web configuration reloaded");

    let status = exporter.process.terminate(SOON).unwrap();
    assert!(status.success(), "{status}");
    assert!(
        exporter
            .process
            .log()
            .contains("received SIGTERM, stopping")
    );
}

fn logged(exporter: &Exporter, line: &str) {
    let seen = || Ok(exporter.process.log().contains(line).then_some(()));
    exporter
        .process
        .wait_until(&format!("the log line {line:?}"), SOON, seen)
        .unwrap();
}

/// Returns the reason why the last scrape of a job failed.
fn last_error(prometheus: &Prometheus, job: &str) -> String {
    let targets = http::text(&format!("{}/api/v1/targets", prometheus.url)).unwrap();
    let targets: Value = serde_json::from_str(&targets).unwrap();
    let mut targets = targets["data"]["activeTargets"].as_array().unwrap().iter();
    let target = targets.find(|one| one["labels"]["job"] == job).unwrap();
    target["lastError"].as_str().unwrap().to_owned()
}
