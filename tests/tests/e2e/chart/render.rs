//! What the chart renders, for many values; the API server accepts all of it.

use std::{fs, path::Path, process::Command};

use nvlink_tests::{CHART, ControlPlane, Helm, assets, workdir};
use serde_json::{Value, json};

use super::{chart, control_plane, documents, read};

/// Values that switch each option at least once.
const MATRIX: [(&str, &str); 22] = [
    ("the defaults", ""),
    ("no exporter", "exporter: {enabled: false}"),
    ("no webhook", "webhook: {enabled: false}"),
    ("no drain", "webhook: {drain: {enabled: false}}"),
    (
        "no policies, no CRDs",
        "policies: {enabled: false}\ncrds: {enabled: false}",
    ),
    (
        "one namespace",
        "exporter: {namespace: {name: ''}}\nnamespace: {create: true}",
    ),
    (
        "a platform without runtime",
        "exporter: {platform: gke, aliasLabels: true}",
    ),
    ("mounts of a platform", "exporter: {platform: bottlerocket}"),
    (
        "not root",
        "exporter: {platform: none, allocations: {enabled: false}, publish: false}",
    ),
    (
        "pods",
        "exporter: {podLabels: {a: b}, podSecurityContext: {seLinuxOptions: {type: spc_t}}, securityContext: {seccompProfile: {type: Unconfined}}, affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone, labelSelector: {}}}]}}}\nwebhook: {podLabels: {a: b}, podSecurityContext: {runAsUser: 7, fsGroup: null}, securityContext: {capabilities: null}, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}",
    ),
    (
        "no scrapers",
        "networkPolicy: {scrapers: []}\nlogFormat: text",
    ),
    (
        "nodes",
        "exporter: {nodeSelectorTerms: [], nodeSelector: {gpu: 'yes'}, tolerations: [], maxUnavailable: 1, calibration: {configMap: measured}}",
    ),
    (
        "TLS of the exporter",
        "exporter: {webConfig: {secret: web, tls: true}, extraArgs: [--alias-labels], extraEnv: [{name: A, value: b}]}\nmonitoring: {kind: PodMonitor, labels: {team: a}}",
    ),
    (
        "service monitors",
        "monitoring: {kind: ServiceMonitor, interval: 30s}\nimagePullSecrets: [pull]",
    ),
    (
        "rules and dashboards",
        "monitoring: {rules: {enabled: true, runbookUrl: 'https://wiki/ALERT.md', alertLabels: {team: hpc}}, dashboards: {enabled: true}}",
    ),
    (
        "a device plugin",
        "devicePlugin: {enabled: true, nodeSelector: {plugin: 'yes'}, podAnnotations: {a: b}, extraArgs: [--stale-after=1m]}\nexporter: {nodeSelector: {gpu: 'yes'}, calibration: {configMap: measured}}\nmonitoring: {kind: ServiceMonitor}",
    ),
    (
        "cert-manager",
        "webhook: {certManager: {enabled: true}, clientCa: {configMap: clients}, priorityQuota: true, replicas: 3, controller: {extraArgs: [--lease-name=x]}}",
    ),
    (
        "the page",
        "webhook: {page: {enabled: true, webConfig: {secret: web}, readers: [{namespaceSelector: {}}]}}",
    ),
    (
        "the extender",
        "webhook: {extender: {enabled: true}}\nnetworkPolicy: {schedulerCidrs: [10.0.0.1/32]}",
    ),
    (
        "an issuer",
        "webhook: {certManager: {enabled: true, issuerRef: {kind: ClusterIssuer, name: x}}, topologySpread: [], priorityClassName: ''}",
    ),
    (
        "classes, networks, tests",
        "classes: {nvlink: {appliesTo: {minGpus: 2}}, high: {minBandwidth: 400GBps, access: {mode: Restricted}}}\nnetworkPolicy: {apiServerCidrs: [10.0.0.0/8], scrapers: [{namespaceSelector: {}}]}\ntests: {class: nvlink, namespace: kube-public}",
    ),
    (
        "benchmarks",
        "benchmark: {image: 'nccl-tests:1', classes: {a: {gpus: 8, nodeSelector: {b: c}}, d: {gpus: 2, tests: [sendrecv_perf], args: [], env: {A: b}, schedule: '@daily', suspend: true, timeoutSeconds: 9, waitSeconds: 0, tolerations: [], runtimeClassName: nvidia}}}",
    ),
];

/// Returns the matrix, and the files for usual set-ups.
fn cases() -> Vec<(String, String)> {
    let matrix = MATRIX.map(|(name, values)| (name.to_owned(), values.to_owned()));
    let mut presets: Vec<_> = fs::read_dir(chart("presets"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| (path.display().to_string(), read(&path)))
        .collect();
    presets.sort();
    assert_eq!(presets.len(), 3);
    matrix.into_iter().chain(presets).collect()
}

/// What `helm template` gets on OpenShift.
pub(super) const OPENSHIFT: [&str; 4] = [
    "--api-versions",
    "security.openshift.io/v1",
    "--api-versions",
    "nvlink-domains.io/v1alpha1",
];

/// Asks the API server whether it would accept a manifest.
const STRICT: [&str; 7] = [
    "apply",
    "--server-side",
    "--force-conflicts",
    "--dry-run=server",
    "--validate=strict",
    "-f",
    "-",
];

/// Stands for a kind of an operator that the tests do not have.
fn stand_in(group: &str, version: &str, kind: &str) -> Value {
    let scope = match kind {
        "SecurityContextConstraints" => "Cluster",
        _ => "Namespaced",
    };
    let plural = format!("{}s", kind.to_lowercase());
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/78458",
        }},
        "spec": {
            "group": group, "scope": scope,
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": open}}],
        },
    })
}

/// Creates what the chart refers to: namespaces, and the kinds of operators and of the project.
fn prepare(control_plane: &ControlPlane) {
    let kubectl = control_plane.kubectl();
    let apply = ["apply", "--server-side", "-f", "-"];
    for (group, version, kind) in [
        ("monitoring.coreos.com", "v1", "PodMonitor"),
        ("monitoring.coreos.com", "v1", "ServiceMonitor"),
        ("monitoring.coreos.com", "v1", "PrometheusRule"),
        ("cert-manager.io", "v1", "Certificate"),
        ("cert-manager.io", "v1", "Issuer"),
        ("security.openshift.io", "v1", "SecurityContextConstraints"),
    ] {
        let crd = stand_in(group, version, kind).to_string();
        kubectl.run_with(&apply, &crd).unwrap();
    }
    let crds = Helm::new().unwrap().template("crds.yaml", "").unwrap();
    kubectl
        .run_with(&[&apply[..], &["--force-conflicts"]].concat(), &crds)
        .unwrap();
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    kubectl
        .run(&[&established[..], &["--timeout=60s"]].concat())
        .unwrap();
    for name in ["nvlink-system", "nvlink-exporter"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        kubectl.run_with(&apply, &namespace.to_string()).unwrap();
    }
}

#[test]
fn the_linter_finds_nothing() {
    let helm = Helm::new().unwrap();
    let registry = Helm::registry();
    let lint = [
        "lint", "--strict", CHART, "--values", "-", "--set", &registry,
    ];
    for (name, values) in cases() {
        let said = helm.run(&lint, &values);
        said.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

#[test]
fn the_api_server_accepts_all_that_is_rendered() {
    let (control_plane, _turn) = control_plane();
    prepare(control_plane);
    let helm = Helm::new().unwrap();
    let (_, known) = OPENSHIFT.split_at(2);
    for (name, values) in cases() {
        for known in [known, &OPENSHIFT] {
            let rendered = helm.release("template", &values, known).unwrap();
            let said = control_plane.kubectl().run_with(&STRICT, &rendered);
            said.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
}

#[test]
fn the_plain_manifests_are_accepted_too() {
    let (control_plane, _turn) = control_plane();
    prepare(control_plane);
    let directory = workdir::fresh("manifests").unwrap();
    let script = Path::new(CHART).join("../../manifests");
    let mut render = Command::new(script);
    render.arg(&directory).args(["--set", &Helm::registry()]);
    render.env("HELM", assets::helm().unwrap());
    let output = render.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for file in ["crds.yaml", "nvlink-domains.yaml"] {
        let text = fs::read_to_string(directory.join(file)).unwrap();
        assert!(!text.contains("helm.sh/hook"), "{file} has hooks");
        control_plane.kubectl().run_with(&STRICT, &text).unwrap();
    }
}

/// Returns the rendered object of a kind and a name.
pub(super) fn find<'d>(documents: &'d [Value], kind: &str, name: &str) -> &'d Value {
    let found = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
    documents.iter().find(found).unwrap()
}

#[test]
fn the_pods_have_no_more_rights_than_they_need() {
    let rendered = Helm::new().unwrap().release("template", "", &[]).unwrap();
    let rendered = documents(&rendered);
    for (kind, name) in [
        ("DaemonSet", "nvlink-exporter"),
        ("Deployment", "nvlink-webhook"),
        ("Deployment", "nvlink-webhook-controller"),
    ] {
        let pod = &find(&rendered, kind, name)["spec"]["template"]["spec"];
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let container = &pod["containers"][0];
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
        let limits = container["resources"]["limits"].as_object().unwrap();
        assert!(!limits.contains_key("nvidia.com/gpu"), "it requests a GPU");
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            assert_eq!(mount["readOnly"], true, "{mount}");
        }
    }
    for (name, ports) in [("nvlink-webhook", 2), ("nvlink-webhook-controller", 1)] {
        let pod = &find(&rendered, "Deployment", name)["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["serviceAccountName"], name);
        let listens = pod["containers"][0]["ports"].as_array().map(Vec::len);
        assert_eq!(listens, Some(ports), "{name}");
    }
}

/// A class is a hook only where the API server does not know the kind yet.
#[test]
fn classes_wait_for_their_crd_on_the_first_installation() {
    let helm = Helm::new().unwrap();
    let values = "classes: {nvlink: {appliesTo: {minGpus: 2}}}";
    let hook = |flags: &[&str]| {
        let rendered = helm.release("template", values, flags).unwrap();
        let rendered = documents(&rendered);
        let class = find(&rendered, "DomainClass", "nvlink");
        assert_eq!(class["spec"]["appliesTo"]["minGpus"], 2);
        class["metadata"]["annotations"]["helm.sh/hook"].clone()
    };
    assert_eq!(hook(&[]), "post-install");
    assert_eq!(hook(&["--is-upgrade"]), Value::Null);
    let known = ["--api-versions", "nvlink-domains.io/v1alpha1"];
    assert_eq!(hook(&known), Value::Null);
}

#[test]
fn rules_and_dashboards_are_rendered_as_they_are() {
    let helm = Helm::new().unwrap();
    let both = "labels: {team: a}, rules: {enabled: true}, dashboards: {enabled: true}";
    let values = format!("monitoring: {{{both}}}\ndevicePlugin: {{enabled: true}}");
    let rendered = documents(&helm.release("template", &values, &[]).unwrap());
    for name in [
        "recording",
        "fabric",
        "jobs",
        "exporter",
        "device-plugin",
        "webhook",
        "queue",
    ] {
        let rule = find(
            &rendered,
            "PrometheusRule",
            &format!("nvlink-domains-{name}"),
        );
        let file = read(&chart(&format!("alerts/{name}.yaml")));
        assert_eq!(rule["spec"], documents(&file)[0], "{name}");
        assert_eq!(rule["metadata"]["labels"]["team"], "a");
    }
    let map = find(&rendered, "ConfigMap", "nvlink-domains-fabric");
    let file = read(&chart("dashboards/fabric.json"));
    assert_eq!(
        map["data"]["fabric.json"].as_str().unwrap().trim_end(),
        file.trim_end()
    );
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
}

/// The rules about the webhook say that it is down where there is none, and the device plugin is off.
#[test]
fn rules_follow_the_values() {
    let helm = Helm::new().unwrap();
    let values = "webhook: {enabled: false}\n\
        monitoring: {rules: {enabled: true, runbookUrl: 'https://wiki/ALERT.md', alertLabels: {team: hpc}}}";
    let rendered = documents(&helm.release("template", values, &[]).unwrap());
    let rule = find(&rendered, "PrometheusRule", "nvlink-domains-fabric");
    let alert = &rule["spec"]["groups"][0]["rules"][0];
    let url = format!("https://wiki/{}.md", alert["alert"].as_str().unwrap());
    assert_eq!(alert["annotations"]["runbook_url"], url);
    assert_eq!(alert["labels"]["team"], "hpc");
    for name in ["nvlink-domains-webhook", "nvlink-domains-device-plugin"] {
        assert!(rendered.iter().all(|one| one["metadata"]["name"] != name));
    }
}

#[test]
fn values_that_yaml_would_take_for_something_else_stay_text() {
    let helm = Helm::new().unwrap();
    let values = "classes: {'123': {}}\nimagePullSecrets: ['1e3']\n\
        webhook: {log: 'info # x: y', rackLabel: 'on'}\nexporter: {allocations: {directory: '/x, type: y'}}";
    let rendered = documents(&helm.release("template", values, &[]).unwrap());
    find(&rendered, "DomainClass", "123");
    let webhook = &find(&rendered, "Deployment", "nvlink-webhook")["spec"]["template"]["spec"];
    assert_eq!(webhook["imagePullSecrets"][0]["name"], "1e3");
    let arguments = webhook["containers"][0]["args"].as_array().unwrap();
    for wanted in ["--log=info # x: y", "--rack-label=on"] {
        assert!(arguments.iter().any(|one| one == wanted), "{arguments:?}");
    }
    let exporter = &find(&rendered, "DaemonSet", "nvlink-exporter")["spec"]["template"]["spec"];
    let directory = &exporter["volumes"][0]["hostPath"];
    assert_eq!(
        *directory,
        json!({"path": "/x, type: y", "type": "Directory"})
    );
}

/// Anybody may create pods there, and a release without `--namespace` lands there.
#[test]
fn the_namespace_default_keeps_its_rules() {
    let helm = Helm::new().unwrap();
    let registry = Helm::registry();
    let rendered = helm.run(&["template", "x", CHART, "--set", &registry], "");
    let rendered = rendered.unwrap();
    let controller = documents(&rendered);
    let controller = find(&controller, "Deployment", "nvlink-webhook-controller");
    let arguments = &controller["spec"]["template"]["spec"]["containers"][0]["args"];
    let exempt = "--exempt-namespace=nvlink-exporter";
    assert!(
        arguments
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one == exempt),
        "{arguments}"
    );
}

#[test]
fn the_device_plugin_judges_by_the_calibration_of_the_exporter() {
    let helm = Helm::new().unwrap();
    let values = "exporter: {calibration: {configMap: measured}}\ndevicePlugin: {enabled: true}";
    let rendered = documents(&helm.release("template", values, &[]).unwrap());
    for name in ["nvlink-exporter", "nvlink-device-plugin"] {
        let spec = &find(&rendered, "DaemonSet", name)["spec"]["template"]["spec"];
        let container = &spec["containers"][0];
        let named = |list: &Value| -> Value {
            let mut all = list.as_array().unwrap().iter();
            all.find(|one| one["name"] == "calibration")
                .unwrap()
                .clone()
        };
        let file = format!(
            "{}/calibration.json",
            named(&container["volumeMounts"])["mountPath"]
                .as_str()
                .unwrap()
        );
        let wanted = json!(format!("--calibration={file}"));
        let arguments = container["args"].as_array().unwrap();
        assert!(arguments.contains(&wanted), "{name}: {arguments:?}");
        let source = &named(&spec["volumes"])["configMap"];
        assert_eq!(
            *source,
            json!({"name": "measured", "optional": true}),
            "{name}"
        );
    }
}
