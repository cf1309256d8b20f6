//! The schema of the values.

use nvlink_tests::Helm;

#[test]
fn typos_and_wrong_values_are_refused() {
    let helm = Helm::new().unwrap();
    for (values, part) in [
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
        ("benchmark: {enabled: true}", "benchmark.image is empty"),
        ("benchmark: {classes: {a: {}}}", "/benchmark/classes/a"),
        (
            "networkPolicy: {apiServerPorts: []}",
            "/networkPolicy/apiServerPorts",
        ),
    ] {
        let error = helm.release("template", values, &[]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(part), "{values}: {error}");
    }
}
