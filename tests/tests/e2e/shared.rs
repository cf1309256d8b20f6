//! The control plane that all tests share, and its webhook. Each test has its own
//! namespaces, classes and nodes.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nvlink_tests::{ControlPlane, Kubectl, Webhook, wait_until, webhook};
use serde_json::{Value, json};

use crate::pods;

/// Returns the control plane; the first call starts it.
pub(crate) fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
    let start = || {
        let control_plane = ControlPlane::start()?;
        webhook::install_crds(control_plane.kubectl())?;
        Ok(control_plane)
    };
    shared(&SHARED, start)
}

/// Control planes for tests that change what concerns a whole cluster: each has one to itself, for its
/// turn.
pub(crate) struct Turns<const N: usize> {
    planes: [(Mutex<()>, OnceLock<ControlPlane>); N],
    waiting: AtomicUsize,
}

impl<const N: usize> Turns<N> {
    pub(crate) const fn new() -> Self {
        Self {
            planes: [const { (Mutex::new(()), OnceLock::new()) }; N],
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for a control plane that no other test has, and returns it with the guard that keeps it.
    /// Starts it, if it is the first time.
    pub(crate) fn take(
        &'static self,
        start: impl FnOnce() -> ControlPlane,
    ) -> (&'static ControlPlane, MutexGuard<'static, ()>) {
        let free = self.planes.iter().find_map(|(turn, plane)| {
            let turn = match turn.try_lock() {
                Err(TryLockError::WouldBlock) => return None,
                Err(TryLockError::Poisoned(failed)) => failed.into_inner(),
                Ok(turn) => turn,
            };
            Some((plane, turn))
        });
        let (plane, turn) = free.unwrap_or_else(|| {
            let (turn, plane) = &self.planes[self.waiting.fetch_add(1, Ordering::Relaxed) % N];
            (plane, turn.lock().unwrap_or_else(PoisonError::into_inner))
        });
        (plane.get_or_init(start), turn)
    }
}

/// Returns the webhook, registered with the control plane.
pub(crate) fn webhook() -> &'static Webhook {
    static SHARED: OnceLock<Result<Webhook, String>> = OnceLock::new();
    let start = || {
        let control_plane = control_plane();
        let webhook = Webhook::start(control_plane.kubeconfig())?;
        control_plane.kubectl().apply(&exempting(&webhook)?)?;
        Ok(webhook)
    };
    shared(&SHARED, start)
}

/// Returns the webhook's registration with one more exemption: namespaces with the label
/// `webhook=off`.
fn exempting(webhook: &Webhook) -> anyhow::Result<String> {
    let mut registration = registration(webhook)?;
    each_webhook(&mut registration, |entry| {
        let exempt = json!({"key": "webhook", "operator": "NotIn", "values": ["off"]});
        match &mut entry["namespaceSelector"]["matchExpressions"] {
            Value::Array(expressions) => expressions.push(exempt),
            absent => *absent = json!([exempt]),
        }
    });
    Ok(registration.to_string())
}

/// Returns the webhook's registration as an object.
pub(crate) fn registration(webhook: &Webhook) -> anyhow::Result<Value> {
    let arguments = ["create", "--dry-run=client", "-f", "-", "-o", "json"];
    let text = control_plane()
        .kubectl()
        .run_with(&arguments, &webhook.registration()?)?;
    Ok(serde_json::from_str(&text)?)
}

/// Changes each webhook entry of a registration.
pub(crate) fn each_webhook(registration: &mut Value, change: impl FnMut(&mut Value)) {
    registration["webhooks"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(change);
}

/// Creates a namespace whose GPU pods have the open class `class` by default, and waits
/// until the webhook applies it.
pub(crate) fn namespace_with_class(name: &str, class: &str) -> Kubectl {
    webhook();
    let annotations = json!({"nvlink-domains.io/default-class": class});
    let kubectl = control_plane()
        .namespace(name, &json!({}), &annotations)
        .unwrap();
    wait_until_decided(&kubectl, &pods::gpu_pod("probe", 1));
    kubectl
}

/// Creates a namespace for which the API server does not call the webhook.
pub(crate) fn namespace_without_webhook(name: &str) -> Kubectl {
    webhook();
    control_plane()
        .namespace(name, &json!({"webhook": "off"}), &json!({}))
        .unwrap()
}

/// Creates the class `name`.
pub(crate) fn create_class(name: &str, spec: &Value) {
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1",
        "kind": "DomainClass",
        "metadata": {"name": name},
        "spec": spec,
    });
    control_plane().kubectl().create(&class).unwrap();
    let mut probe = pods::gpu_pod("probe", 1);
    probe["metadata"]["annotations"] = json!({"nvlink-domains.io/class": name});
    wait_until_decided(control_plane().kubectl(), &probe);
}

/// Waits until the webhook has seen the classes and namespaces that `pod` depends on.
fn wait_until_decided(kubectl: &Kubectl, pod: &Value) {
    webhook();
    wait_until(
        "the webhook to see the class",
        Duration::from_secs(30),
        || {
            let stored = dry_run(kubectl, pod)?;
            Ok(pods::decision(&stored).map(drop))
        },
    )
    .unwrap();
}

/// Returns the object that the API server would store, from `kubectl create --dry-run=server`.
pub(crate) fn dry_run(kubectl: &Kubectl, object: &Value) -> anyhow::Result<Value> {
    let arguments = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
    Ok(serde_json::from_str(
        &kubectl.run_with(&arguments, &object.to_string())?,
    )?)
}

pub(crate) fn shared<T>(
    cell: &'static OnceLock<Result<T, String>>,
    start: impl FnOnce() -> anyhow::Result<T>,
) -> &'static T {
    match cell.get_or_init(|| start().map_err(|error| format!("{error:#}"))) {
        Ok(value) => value,
        Err(error) => panic!("the cluster did not start: {error}"),
    }
}
