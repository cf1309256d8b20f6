//! Runs a real Alertmanager, and a receiver to which it delivers.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use axum::{Router, body::Bytes, extract::Path, http::StatusCode, routing::post};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};

use crate::{
    assets, http, port,
    process::{Process, command},
    rules, workdir,
};

const START: Duration = Duration::from_secs(30);
const CONFIGURATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../alerts/alertmanager.yaml");

/// A running Alertmanager. It ends when dropped.
#[derive(Debug)]
pub struct Alertmanager {
    /// `127.0.0.1:PORT`.
    pub address: String,
    pub process: Process,
}

impl Alertmanager {
    /// Starts an Alertmanager with the project's routes and inhibitions. All its receivers are
    /// `receiver`, and it waits for nothing longer than a second: for a group half a second, which is
    /// a sixtieth of 30.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn start(receiver: &Receiver) -> Result<Self> {
        let mut config = configuration()?;
        redirect(&mut config, receiver, |_| true);
        hurry(&mut config["route"]);
        Self::launch(&config)
    }

    /// Starts an Alertmanager with the project's routes and inhibitions, each wait of which is divided by
    /// `factor`. All its receivers are `receiver`, and get what is resolved where they would.
    ///
    /// # Errors
    /// When it does not become ready; shows the end of its log.
    pub fn faster(receiver: &Receiver, factor: u32) -> Result<Self> {
        let mut config = configuration()?;
        // Alertmanager's default: all but mail.
        redirect(&mut config, receiver, |kinds| {
            kinds.get("email_configs").is_none()
        });
        divide(&mut config["route"], factor);
        Self::launch(&config)
    }

    fn launch(config: &Value) -> Result<Self> {
        let directory = workdir::fresh("alertmanager")?;
        let file = directory.join("alertmanager.yml");
        // YAML is a superset of JSON.
        fs::write(&file, config.to_string())?;
        let address = format!("127.0.0.1:{}", port::free()?);
        let mut program = command(assets::path("prometheus-alertmanager")?);
        program.arg("--config.file").arg(&file);
        program.arg("--storage.path").arg(directory.join("data"));
        program.args(["--web.listen-address", &address]);
        program.args(["--cluster.listen-address", ""]);
        let process = Process::start("alertmanager", &directory, program)?;
        process.wait_until("Alertmanager to be ready", START, || {
            http::text(&format!("http://{address}/-/ready")).map(Some)
        })?;
        Ok(Self { address, process })
    }

    /// Raises an alert as a Prometheus does. It ends after the `resolve_timeout`, five minutes.
    ///
    /// # Errors
    /// When it is refused.
    pub fn raise(&self, labels: &Value) -> Result<()> {
        self.post(&json!([{"labels": labels}]))
    }

    /// Sends alerts in the form of Alertmanager's API.
    ///
    /// # Errors
    /// When they are refused.
    pub fn post(&self, alerts: &Value) -> Result<()> {
        let url = format!("http://{}/api/v2/alerts", self.address);
        let answer = http::send("POST", &url, &alerts.to_string())?;
        ensure!(answer.status == 200, "{alerts}: {}", answer.body);
        Ok(())
    }

    /// Returns the labels of the alerts that others silence now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn inhibited(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let url = format!("http://{}/api/v2/alerts", self.address);
        let alerts: Vec<Value> = serde_json::from_str(&http::text(&url)?)?;
        let silent = alerts.into_iter().filter(|alert| {
            let by = alert["status"]["inhibitedBy"].as_array();
            by.is_some_and(|by| !by.is_empty())
        });
        let labels = silent.map(|mut alert| serde_json::from_value(alert["labels"].take()));
        Ok(labels.collect::<Result<_, _>>()?)
    }
}

fn configuration() -> Result<Value> {
    let text = fs::read_to_string(CONFIGURATION).context(CONFIGURATION)?;
    serde_saphyr::from_str(&text).context(CONFIGURATION)
}

/// Replaces what each receiver of the configuration notifies. `resolved` says of a receiver whether it is
/// told what is resolved.
fn redirect(config: &mut Value, to: &Receiver, resolved: impl Fn(&Value) -> bool) {
    for receiver in config["receivers"].as_array_mut().into_iter().flatten() {
        let name = receiver["name"].as_str().unwrap_or_default();
        let url = format!("{}/{name}", to.url);
        let hook = json!({"url": url, "send_resolved": resolved(receiver)});
        *receiver = json!({"name": name, "webhook_configs": [hook]});
    }
}

/// Divides the waits of a route and of those below it.
fn divide(route: &mut Value, factor: u32) {
    for key in ["group_wait", "group_interval", "repeat_interval"] {
        let wait = route.get(key).and_then(Value::as_str);
        if let Some(wait) = wait.and_then(|wait| rules::scaled(wait, factor)) {
            route[key] = wait.into();
        }
    }
    for below in route["routes"].as_array_mut().into_iter().flatten() {
        divide(below, factor);
    }
}

/// Shortens the waits of a route and of those below it.
fn hurry(route: &mut Value) {
    for (key, wait) in [("group_wait", "500ms"), ("group_interval", "1s")] {
        route[key] = wait.into();
    }
    for below in route["routes"].as_array_mut().into_iter().flatten() {
        hurry(below);
    }
}

/// One alert of a notification.
#[derive(Clone, Debug, Deserialize)]
pub struct Notification {
    /// `firing` or `resolved`.
    pub status: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// The receiver of the configuration.
    #[serde(skip)]
    pub receiver: String,
    #[serde(skip, default = "Instant::now")]
    pub at: Instant,
}

impl Notification {
    /// Returns the value of a label, empty if there is none.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// What Alertmanager posts at once: the news of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// `firing`, or `resolved` if all alerts are.
    pub status: String,
    /// The labels that the alerts of the group share.
    pub group_labels: BTreeMap<String, String>,
    pub alerts: Vec<Notification>,
    /// The receiver of the configuration.
    #[serde(skip)]
    pub receiver: String,
}

/// Accepts and keeps notifications. It ends when dropped.
#[derive(Debug)]
pub struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<Message>>>,
    _server: Runtime,
}

impl Receiver {
    /// Starts a receiver on a free port.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start() -> Result<Self> {
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = server.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("http://{}", listener.local_addr()?);
        let received = Arc::<Mutex<Vec<Message>>>::default();
        let inbox = Arc::clone(&received);
        let take = move |Path(receiver): Path<String>, body: Bytes| {
            let inbox = Arc::clone(&inbox);
            async move {
                let Ok(mut message) = serde_json::from_slice::<Message>(&body) else {
                    return StatusCode::BAD_REQUEST;
                };
                for alert in &mut message.alerts {
                    alert.receiver.clone_from(&receiver);
                }
                message.receiver = receiver;
                let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
                inbox.push(message);
                StatusCode::OK
            }
        };
        let router = Router::new().route("/{receiver}", post(take));
        server.spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            url,
            received,
            _server: server,
        })
    }

    /// Returns all alerts that were delivered so far, each as often as it was delivered.
    #[must_use]
    pub fn received(&self) -> Vec<Notification> {
        let messages = self.messages().into_iter();
        messages.flat_map(|message| message.alerts).collect()
    }

    /// Returns all messages that were delivered so far.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let received = self.received.lock();
        received.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
