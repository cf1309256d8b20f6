//! The schema of the values.

use nvlink_tests::Helm;

/// Values that are refused, with a part of the error.
const WRONG: &[(&str, &str)] = &[
    ("exportr: {}", "exportr"),
    ("exporter: {tolerance: []}", "tolerance"),
    ("exporter: {image: {tagg: x}}", "tagg"),
    (
        "exporter: {image: {digest: latest}}",
        "/exporter/image/digest",
    ),
    ("exporter: {platform: openshift}", "bottlerocket"),
    ("exporter: {source: nvm}", "/exporter/source"),
    (
        "exporter: {maxUnavailable: 10}\nwebhook: {replicas: 0}",
        "/webhook/replicas",
    ),
    ("exporter: {tolerations: [{kee: x}]}", "kee"),
    (
        "exporter: {nodeSelectorTerms: [{matchExpression: []}]}",
        "matchExpression",
    ),
    ("webhook: {drainSeconds: soon}", "/webhook/drainSeconds"),
    ("webhook: {certManager: {issuerRef: {nam: x}}}", "nam"),
    ("webhook: {page: {enable: true}}", "enable"),
    ("classes: {fast: {minBandwith: 400GBps}}", "minBandwith"),
    ("classes: {Fast: {}}", "Fast"),
    ("classes: {a..b: {}}", "a..b"),
    (
        "webhook: {image: {repository: 'reg:5000/x:0.1.0'}}",
        "/webhook/image/repository",
    ),
    ("exporter: {maxUnavailable: 0}", "/exporter/maxUnavailable"),
    // No rule applies to the pods of the exporter's namespace.
    ("exporter: {namespace: {name: default}}", "name another one"),
    // The policies would refuse all pods.
    ("crds: {enabled: false}", "apply the CRDs first"),
    ("exemptNamespaces: [Kube_System]", "/exemptNamespaces/0"),
    ("monitoring: {kind: podmonitor}", "PodMonitor"),
    ("webhook: {podSecurityContext: {runAsUsr: 1}}", "runAsUsr"),
    ("exporter: {affinity: {nodeAfinity: {}}}", "nodeAfinity"),
    (
        "exporter: {podLabels: {team: 1}}",
        "/exporter/podLabels/team",
    ),
    (
        "benchmark: {classes: {a: {gpus: 8}}}",
        "benchmark.image is empty",
    ),
    ("benchmark: {classes: {a: {}}}", "/benchmark/classes/a"),
    ("logFormat: xml", "/logFormat"),
    (
        "networkPolicy: {apiServerPorts: []}",
        "/networkPolicy/apiServerPorts",
    ),
];

#[test]
fn typos_and_wrong_values_are_refused() {
    let helm = Helm::new().unwrap();
    for (values, part) in WRONG {
        let error = helm.release("template", values, &[]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(part), "{values}: {error}");
    }
}

/// No images are published, so a release without a registry could not run.
#[test]
fn a_registry_is_required() {
    let helm = Helm::new().unwrap();
    let error = helm.without_registry("template", "", &[]).unwrap_err();
    let error = format!("{error:#}");
    for part in [
        "global.registry is empty",
        "for example --set global.registry=registry.example.com/gpu",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let address = "global: {registry: 'https://registry'}";
    let error = helm.without_registry("template", address, &[]).unwrap_err();
    assert!(error.to_string().contains("/global/registry"), "{error:#}");
    let hosts = "exporter: {image: {repository: localhost/a}}\n\
        webhook: {image: {repository: 'registry:5000/b', tag: c}}";
    let rendered = helm.without_registry("template", hosts, &[]).unwrap();
    for image in ["localhost/a:", "registry:5000/b:c\n"] {
        assert!(rendered.contains(&format!("image: {image}")), "{image}");
    }
}
