//! As whom the pods of the chart run, and who reaches them.

use nvlink_tests::Helm;
use serde_json::{Value, json};

use super::{
    documents,
    render::{OPENSHIFT, find},
};

/// There, a pod with a user outside the range of its namespace is refused, and so is one with directories
/// of the host, unless an object of this kind names its account.
#[test]
fn openshift_assigns_the_users_of_pods() {
    let helm = Helm::new().unwrap();
    let values = "devicePlugin: {enabled: true}";
    let rendered = helm.release("template", values, &OPENSHIFT).unwrap();
    let rendered = documents(&rendered);
    for name in ["nvlink-webhook", "nvlink-webhook-controller"] {
        let pod = &find(&rendered, "Deployment", name)["spec"]["template"]["spec"];
        let wanted = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(pod["securityContext"], wanted, "{name}");
    }
    let allowed = find(&rendered, "SecurityContextConstraints", "nvlink-exporter");
    let mut users = Vec::new();
    for name in ["nvlink-exporter", "nvlink-device-plugin"] {
        let pod = &find(&rendered, "DaemonSet", name)["spec"]["template"]["spec"];
        let security = &pod["securityContext"];
        assert_eq!(security["runAsUser"], 0, "{name}");
        assert_eq!(
            security["seLinuxOptions"]["type"],
            "container_device_plugin_t"
        );
        users.push(format!("system:serviceaccount:nvlink-exporter:{name}"));
    }
    assert_eq!(allowed["users"], json!(users));
    assert_eq!(allowed["allowPrivilegedContainer"], false);
    let alone = "exporter: {allocations: {enabled: false}}";
    let rendered = helm.release("template", alone, &OPENSHIFT).unwrap();
    assert!(!rendered.contains("SecurityContextConstraints"));
    assert!(!rendered.contains("runAsUser"));
    let elsewhere = helm.release("template", values, &[]).unwrap();
    assert!(!elsewhere.contains("SecurityContextConstraints"));
}

/// It may be installed where the exporters run outside the release.
#[test]
fn the_device_plugin_alone_has_its_namespace_and_no_rule_there() {
    let helm = Helm::new().unwrap();
    let values = "exporter: {enabled: false}\ndevicePlugin: {enabled: true}";
    let rendered = documents(&helm.release("template", values, &[]).unwrap());
    let plugin = &find(&rendered, "DaemonSet", "nvlink-device-plugin")["metadata"];
    let namespace = plugin["namespace"].as_str().unwrap();
    find(&rendered, "Namespace", namespace);
    let pod = &find(&rendered, "Deployment", "nvlink-webhook-controller")["spec"]["template"];
    let arguments = pod["spec"]["containers"][0]["args"].to_string();
    let exempt = format!("--exempt-namespace=nvlink-system,{namespace}");
    assert!(arguments.contains(&exempt), "{arguments}");
}

/// Labels of the values do not replace those that select the pods.
#[test]
fn fields_of_pods_are_those_of_the_values() {
    let helm = Helm::new().unwrap();
    let values = "webhook: {podLabels: {team: a, app.kubernetes.io/name: other}, \
        podSecurityContext: {runAsUser: 7, fsGroup: null}, \
        securityContext: {readOnlyRootFilesystem: false}}";
    let rendered = documents(&helm.release("template", values, &[]).unwrap());
    let pod = &find(&rendered, "Deployment", "nvlink-webhook")["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["team"], "a");
    assert_eq!(labels["app.kubernetes.io/name"], "nvlink-webhook");
    let security = &pod["spec"]["securityContext"];
    assert_eq!(security["runAsUser"], 7);
    assert_eq!(security["runAsGroup"], 65532);
    assert!(!security.as_object().unwrap().contains_key("fsGroup"));
    let container = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(container["readOnlyRootFilesystem"], false);
    assert_eq!(container["allowPrivilegeEscalation"], false);
}

/// A rule of a NetworkPolicy without peers admits everybody.
#[test]
fn metrics_are_for_the_scrapers_only() {
    let helm = Helm::new().unwrap();
    let ports = |values: &str| -> Vec<Value> {
        let rendered = documents(&helm.release("template", values, &[]).unwrap());
        let policies = rendered.iter().filter(|one| one["kind"] == "NetworkPolicy");
        let rules =
            policies.flat_map(|one| one["spec"]["ingress"].as_array().into_iter().flatten());
        let open = |rule: &&Value| rule["from"].is_null();
        rules
            .filter(open)
            .map(|rule| rule["ports"][0]["port"].clone())
            .collect()
    };
    // The API servers have no address that a policy could select.
    for values in ["", "networkPolicy: {scrapers: []}"] {
        assert_eq!(ports(values), [json!(8443)], "{values}");
    }
    let rendered = helm.template("exporter/network.yaml", "").unwrap();
    assert!(rendered.contains("monitoring"), "{rendered}");
}
