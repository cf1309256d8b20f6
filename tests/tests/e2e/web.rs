//! `--web.config.file` and several addresses, by a real Prometheus.

use std::{fs, path::Path, time::Duration};

use nvlink_tests::{
    Exporter, Prometheus,
    certificates::{Authority, ServerFiles},
    http, port, workdir,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(40);
/// bcrypt of cost 10, as `htpasswd -nBC 10` makes it, of the password below it.
const HASH: &str = "$2y$10$abcdefghijklmnopqrstuu6ZX0WN26XJKJTsyHceCGNcg2QmDxQ6a";
const PASSWORD: &str = "a scraper's";

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn prometheus_comes_with_a_certificate_and_a_password() {
    let directory = workdir::fresh("web").unwrap();
    let (ours, theirs) = (
        Authority::new("ours").unwrap(),
        Authority::new("theirs").unwrap(),
    );
    ours.issue("server", &directory).unwrap();
    let client = ours.client("prometheus", &directory).unwrap();
    let stranger = theirs.client("stranger", &directory).unwrap();
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
    let arguments = [
        "--source",
        "sim:dgx-h100",
        "--web.config.file",
        &config,
        "--web.listen-address",
        &second,
        "--web.telemetry-path",
        "/nvlink",
    ];
    let exporter = Exporter::guarded(&arguments).unwrap();

    let scrape = |name: &str, address: &str, files: &ServerFiles, password: &str| {
        json!({
            "job_name": name, "scheme": "https", "metrics_path": "/nvlink",
            "static_configs": [{"targets": [address]}],
            "basic_auth": {"username": "prometheus", "password": password},
            "tls_config": {
                "ca_file": &ca, "server_name": "localhost",
                "cert_file": &files.certificate, "key_file": &files.key,
            },
        })
    };
    let prometheus = Prometheus::scraping(vec![
        scrape("good", &exporter.address, &client, PASSWORD),
        scrape("second address", &second, &client, PASSWORD),
        scrape("wrong password", &exporter.address, &client, "guessed"),
        scrape("stranger", &exporter.address, &stranger, PASSWORD),
    ])
    .unwrap();
    let is = |job: &str, up: f64| {
        let query = format!("up{{job=\"{job}\"}} == {up}");
        prometheus
            .wait_for(&query, SOON, |samples| samples.len() == 1)
            .unwrap();
    };
    is("good", 1.0);
    is("second address", 1.0);
    is("wrong password", 0.0);
    is("stranger", 0.0);
    let gpus = prometheus
        .query("count(nvlink_gpu_info{job=\"good\"})")
        .unwrap();
    assert_eq!(gpus[0].value, 8.0);
    let refused = last_error(&prometheus, "wrong password");
    assert!(refused.contains("401"), "{refused}");

    // A new certificate of a new authority is served without a restart, and
    // connections that are open stay: so ask with one that is new.
    let rotated = Authority::new("rotated").unwrap();
    rotated.issue("server", &directory).unwrap();
    write(&directory, "ca.pem.new", &rotated.certificate);
    logged(&exporter, "web configuration reloaded");
    let mut renewed = scrape("renewed", &exporter.address, &client, PASSWORD);
    renewed["tls_config"]["ca_file"] = json!(directory.join("ca.pem.new"));
    let after = Prometheus::scraping(vec![
        renewed,
        scrape("old authority", &exporter.address, &client, PASSWORD),
    ])
    .unwrap();
    after
        .wait_for("up{job=\"renewed\"} == 1", SOON, |samples| {
            samples.len() == 1
        })
        .unwrap();
    after
        .wait_for("up{job=\"old authority\"} == 0", SOON, |samples| {
            samples.len() == 1
        })
        .unwrap();
}

#[test]
fn passwords_alone_and_the_end() {
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
    // A mistake keeps what is in use, and says so once.
    write(&directory, "web.yml", "basic_auth_user: {}");
    logged(&exporter, "keeping the web configuration in use");
    let answer = http::get(&exporter.url("/metrics"), &[], "*/*").unwrap();
    assert_eq!(answer.status, 401);
    write(&directory, "web.yml", "");
    logged(&exporter, "web configuration reloaded");
    http::text(&exporter.url("/metrics")).unwrap();

    let status = exporter.process.terminate(SOON).unwrap();
    assert!(status.success(), "{status}");
    assert!(exporter.process.log().contains("SIGTERM: ending"));
}

fn logged(exporter: &Exporter, line: &str) {
    let seen = || Ok(exporter.process.log().contains(line).then_some(()));
    exporter
        .process
        .wait_until(&format!("the log to say {line:?}"), SOON, seen)
        .unwrap();
}

/// Why the last scrape of a job failed.
fn last_error(prometheus: &Prometheus, job: &str) -> String {
    let targets = http::text(&format!("{}/api/v1/targets", prometheus.url)).unwrap();
    let targets: Value = serde_json::from_str(&targets).unwrap();
    let mut targets = targets["data"]["activeTargets"].as_array().unwrap().iter();
    let target = targets.find(|one| one["labels"]["job"] == job).unwrap();
    target["lastError"].as_str().unwrap().to_owned()
}
