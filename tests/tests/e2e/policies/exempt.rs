//! Who may exempt a namespace from the rules.

use nvlink_tests::{ControlPlane, wait_until};
use serde_json::json;

use super::{SOON, allow, apply_with, control_plane};

#[test]
fn only_users_who_may_change_classes_may_exempt_a_namespace() {
    let (cluster, _turn) = control_plane();
    apply_with(cluster, &["--exempt-namespace", "policies-exempt"]);
    namespace_admins(cluster);
    let of = |user: &str| cluster.kubectl_as(user).unwrap();
    let set = |user: &str, arguments: &[&str]| {
        let label = [
            "label",
            "--overwrite",
            "--dry-run=server",
            "namespace",
            "policies-out",
        ];
        of(user).run(&[&label[..], arguments].concat())
    };
    let out = "nvlink-domains.io/webhook=ignore";
    let denied = wait_until("the policy to hold", SOON, || {
        Ok(set("nora", &[out]).err().map(|error| format!("{error:#}")))
    })
    .unwrap();
    assert!(
        denied.contains("rule opt-out:") && denied.contains("nora"),
        "{denied}"
    );
    set("nora", &["app=x"]).unwrap();
    wait_until("clara's right to be known", SOON, || {
        set("clara", &[out]).map(Some)
    })
    .unwrap();

    for (arguments, input) in other_doors() {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let denied = of("nora").refused(&arguments, &input).unwrap();
        assert!(denied.contains("rule opt-out:"), "{arguments:?}: {denied}");
        of("clara").run_with(&arguments, &input).unwrap();
    }
}

/// Creates a namespace, and two users who may change namespaces; `clara` may also change
/// classes.
fn namespace_admins(cluster: &ControlPlane) {
    let admin = cluster
        .namespace("policies-out", &json!({}), &json!({}))
        .unwrap();
    let change = "get,create,update,patch";
    for (user, verbs) in [("nora", "get"), ("clara", "get,update")] {
        let parts = "namespaces,namespaces/status,namespaces/finalize";
        allow(&admin, "clusterrole", user, "namespaces", &[change, parts]);
        let classes = "domainclasses.nvlink-domains.io";
        allow(&admin, "clusterrole", user, "classes", &[verbs, classes]);
    }
}

/// Returns other ways to exempt a namespace: the label set with the status, the label set
/// at creation, and an exempt name. Each is the arguments of kubectl and its input.
fn other_doors() -> [(Vec<String>, String); 3] {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let labels = json!({"nvlink-domains.io/webhook": "ignore"});
    let mut status =
        words("patch namespace policies-out --dry-run=server --subresource=status --type=merge -p");
    status.push(json!({"metadata": {"labels": labels}}).to_string());
    let fresh = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "policies-fresh", "labels": labels}
    });
    let create = words("create --dry-run=server -f -");
    let exempt = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "policies-exempt"}
    });
    [
        (status, String::new()),
        (create.clone(), fresh.to_string()),
        (create, exempt.to_string()),
    ]
}
