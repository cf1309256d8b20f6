//! `nvlink-webhook policies` on a cluster whose API server calls no webhook: the comparison with the
//! cluster, also by a webhook that runs, a refusal with its remedy, and who may exempt a namespace.
//!
//! It uses its own control planes, because the policies apply to all namespaces. Each runs
//! one test at a time.

mod claims;
mod domains;
mod enforced;
mod exempt;
mod own;
mod size;

use std::{process::Command, sync::MutexGuard, time::Duration};

use nvlink_tests::{
    ControlPlane, Kubectl, Replica,
    certificates::Authority,
    programs::{self, WEBHOOK},
    wait_until, webhook, workdir,
};
use serde_json::{Value, json};

use crate::{pods::gpu_pod, shared::Turns};

const SOON: Duration = Duration::from_secs(60);
const NAMES: [&str; 11] = [
    "pods",
    "status",
    "bindings",
    "namespaces",
    "claims",
    "index",
    "classes",
    "own-pods",
    "own-placeholders",
    "own-claims",
    "own-registration",
];
const MISSING: &str = "to create what is missing: ";
const CHANGED: &str = "to repair what was changed: ";
const KINDS: [&str; 2] = [
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Returns a control plane, and a guard that reserves it for one test.
fn control_plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static TURNS: Turns<2> = Turns::new();
    TURNS.take(|| {
        let control_plane = ControlPlane::start().unwrap();
        webhook::install_crds(control_plane.kubectl()).unwrap();
        control_plane
    })
}

/// Applies the policies as documented.
fn apply(cluster: &ControlPlane) {
    apply_with(cluster, &[]);
}

fn apply_with(cluster: &ControlPlane, flags: &[&str]) {
    let printed = programs::run(WEBHOOK, &[&["policies"], flags].concat(), "").unwrap();
    let apply = ["apply", "--server-side", "-f", "-"];
    cluster.kubectl().run_with(&apply, &printed).unwrap();
    index(cluster);
}

/// Writes the index of the classes, which no controller does here.
fn index(cluster: &ControlPlane) {
    webhook::write_index(cluster.kubectl()).unwrap();
}

/// Creates a class that the policies know.
fn create_class(cluster: &ControlPlane, class: &Value) {
    cluster.kubectl().create(class).unwrap();
    index(cluster);
}

/// Runs the command that follows `what` in `said`.
fn repair(cluster: &ControlPlane, said: &str, what: &str) {
    let line = said.lines().find_map(|line| line.strip_prefix(what));
    let (program, arguments) = line.expect(said).split_once(' ').unwrap();
    assert_eq!(program, WEBHOOK);
    let program = programs::path(WEBHOOK).unwrap();
    let line = format!("{} {arguments}", program.display());
    let output = cluster.kubectl().shell(&line).unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    let (status, said) = check(cluster, &[]);
    assert_eq!(status, Some(0), "after {line}: {said}");
    assert!(said.contains("are up to date"), "{said}");
}

/// Runs `policies --check` and returns its exit status and output.
fn check(cluster: &ControlPlane, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(programs::path(WEBHOOK).unwrap());
    command.args(["policies", "--check"]).args(arguments);
    let command = command.env("KUBECONFIG", cluster.kubeconfig());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Returns the documents, such as `missing policies: NAME`, that `said` names.
fn named(said: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in said.lines() {
        if let Some((what, names)) = line.split_once("): ")
            && let Some((what, count)) = what.split_once(" (")
        {
            let names: Vec<_> = names.split(", ").collect();
            assert_eq!(count.parse(), Ok(names.len()), "{line}");
            all.extend(names.iter().map(|name| format!("{what}: {name}")));
        }
    }
    all
}

/// Removes the policies that other tests left.
fn remove(kubectl: &Kubectl) {
    for name in NAMES {
        for kind in KINDS {
            let name = format!("{name}.nvlink-domains.io");
            let delete = ["delete", kind, &name, "--ignore-not-found"];
            kubectl.run(&delete).unwrap();
        }
    }
}

#[test]
fn check_reports_the_differences() {
    let (cluster, _turn) = control_plane();
    let (kubectl, all) = (cluster.kubectl(), NAMES.len());
    remove(kubectl);
    let (status, said) = check(cluster, &[]);
    assert_eq!((status, named(&said).len()), (Some(1), 2 * all), "{said}");
    // Names and remedies, and no CEL.
    assert_eq!(said.lines().count(), 4, "{said}");
    repair(cluster, &said, MISSING);

    for (what, patch, differs) in [
        (
            "validatingadmissionpolicy/pods.nvlink-domains.io",
            json!({"spec": {"failurePolicy": "Ignore"}}),
            "-failurePolicy: Ignore\n+failurePolicy: Fail",
        ),
        (
            "validatingadmissionpolicybinding/status.nvlink-domains.io",
            json!({"spec": {"validationActions": ["Warn"]}}),
            "-- Warn\n+- Deny",
        ),
    ] {
        let patch = patch.to_string();
        let command = ["patch", what, "--type=merge", "-p", &patch];
        kubectl.run(&command).unwrap();
        let (status, said) = check(cluster, &[]);
        assert_eq!((status, named(&said).len()), (Some(1), 1), "{said}");
        assert!(!said.contains(differs), "{said}");
        let (status, diff) = check(cluster, &["--diff"]);
        assert_eq!(status, Some(1));
        assert!(diff.contains(differs), "{diff}");
        repair(cluster, &said, CHANGED);
    }

    let binding = "validatingadmissionpolicybinding/namespaces.nvlink-domains.io";
    kubectl.run(&["delete", binding]).unwrap();
    let (status, said) = check(cluster, &[]);
    let missing = "missing bindings: namespaces.nvlink-domains.io";
    assert_eq!(
        (status, named(&said)),
        (Some(1), vec![missing.to_owned()]),
        "{said}"
    );

    repair(cluster, &said, MISSING);
    let (status, said) = check(cluster, &["--exempt-namespace", "elsewhere"]);
    for differing in [
        "changed policies (4): pods.nvlink-domains.io, status.nvlink-domains.io, \
         namespaces.nvlink-domains.io, claims.nvlink-domains.io",
        "changed bindings (4): pods.nvlink-domains.io, status.nvlink-domains.io, \
         bindings.nvlink-domains.io, claims.nvlink-domains.io",
    ] {
        assert!(said.contains(differing), "{said}");
    }
    assert_eq!((status, named(&said).len()), (Some(1), 8), "{said}");
}

/// Starts a webhook that checks the policies. The API server does not call it.
fn checking(cluster: &ControlPlane) -> Replica {
    let directory = workdir::fresh("policies").unwrap();
    let authority = Authority::new("policies").unwrap();
    let files = authority.issue("tls", &directory).unwrap();
    let [cert, key] = [&files.certificate, &files.key].map(|path| path.to_string_lossy());
    let certificate = ["--tls-cert", &cert, "--tls-key", &key];
    // The namespace that `policies` prints without flags.
    let lease = ["--lease-namespace", "nvlink-system"];
    let arguments = [&certificate[..], &lease, &["--check-policies"]].concat();
    Replica::start(cluster.kubeconfig(), &arguments).unwrap()
}

fn wait_for_log(replica: &Replica, part: &str, times: usize) {
    wait_until(part, SOON, || {
        Ok((replica.process.log().matches(part).count() == times).then_some(()))
    })
    .unwrap();
}

#[test]
fn a_running_webhook_reports_whether_the_policies_are_current() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let replica = checking(cluster);
    let wait_for = |current: u8| {
        let series = format!("\nnvlink_webhook_policies_current {current}\n");
        wait_until("the metric", SOON, || {
            Ok(replica.metrics()?.contains(&series).then_some(()))
        })
        .unwrap();
    };
    wait_for(1);
    let binding = "validatingadmissionpolicybinding/pods.nvlink-domains.io";
    cluster.kubectl().run(&["delete", binding]).unwrap();
    wait_for(0);
    // The metric changes a moment before the line is written.
    for part in [
        "missing bindings (1): pods.nvlink-domains.io",
        "to create what is missing: nvlink-webhook policies --exempt-namespace=nvlink-system | ",
    ] {
        wait_for_log(&replica, part, 1);
    }
    apply(cluster);
    wait_for(1);
    wait_for_log(&replica, "the policies in the cluster are up to date", 2);
}

#[test]
fn a_refusal_by_the_policies_names_the_remedy() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "gold"}, "spec": {"access": {"mode": "Restricted"}}
    });
    create_class(cluster, &class);
    let admin = cluster
        .namespace("policies-remedy", &json!({}), &json!({}))
        .unwrap();
    allow(&admin, "role", "alice", "pods", &["create", "pods"]);
    let alice = cluster.kubectl_as("alice").unwrap();
    let alice = alice.in_namespace("policies-remedy");
    let mut pod = gpu_pod("train", 2);
    pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "gold"});
    pod["spec"]["serviceAccountName"] = json!("trainer");
    admin.run(&["create", "serviceaccount", "trainer"]).unwrap();
    let create = |pod: &Value| {
        let create = ["create", "--dry-run=server", "-f", "-"];
        alice.run_with(&create, &pod.to_string())
    };
    let denied = wait_until("the policy to hold", SOON, || {
        Ok(create(&pod).err().map(|error| format!("{error:#}")))
    })
    .unwrap();
    for part in [
        "rule not-authorized:",
        "class gold",
        "user alice",
        "policies-remedy/trainer",
    ] {
        assert!(denied.contains(part), "{part} is not in {denied}");
    }
    create(&gpu_pod("plain", 0)).unwrap();
    create(&gpu_pod("classless", 2)).unwrap();

    let (_, command) = denied
        .rsplit_once("To grant this right to the service account: ")
        .unwrap();
    let output = admin.shell(command.trim()).unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    wait_until("the right to be known", SOON, || create(&pod).map(Some)).unwrap();
    pod["spec"]["serviceAccountName"] = json!("default");
    create(&pod).unwrap_err();
}

#[test]
fn the_commands_in_the_refusals_admit_a_daemon() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "daemons"}, "spec": {"access": {"mode": "Restricted"}}
    });
    create_class(cluster, &class);
    let admin = cluster
        .namespace("policies-daemon", &json!({}), &json!({}))
        .unwrap();
    let refused = |pod: &Value| {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let said = admin.run_with(&create, &pod.to_string());
        said.err().map(|error| format!("{error:#}"))
    };
    let mut pod = gpu_pod("logs", 0);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/var/lib/docker"}}]);
    let mut looking = gpu_pod("metrics", 0);
    looking["spec"]["containers"][0]["env"] =
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    for (pod, rule, before, after) in [
        (pod, "host-path", "the nodes of the class: ", " or exempt"),
        (
            looking,
            "visible-devices",
            "all rules of nvlink-domains: ",
            "\n",
        ),
    ] {
        let rule = format!("rule {rule}:");
        wait_until("the policy to hold", SOON, || {
            Ok(refused(&pod).filter(|said| said.contains(&rule)).map(drop))
        })
        .unwrap();
        // Each class that refuses the daemon has its own command, and is reported only
        // after the previous one.
        wait_until("the daemon to be admitted", SOON, || {
            let Some(said) = refused(&pod) else {
                return Ok(Some(()));
            };
            let (_, rest) = said.split_once(before).expect(&said);
            let command = rest.split(after).next().unwrap();
            admin.shell(command).unwrap();
            index(cluster);
            Ok(None)
        })
        .unwrap();
    }
}

#[test]
fn a_daemon_that_is_kept_off_the_nodes_of_a_class_is_admitted() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let admin = cluster
        .namespace("policies-off", &json!({}), &json!({}))
        .unwrap();
    admin.run(&["delete", "domainclasses", "--all"]).unwrap();
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
        "metadata": {"name": "off"}, "spec": {
            "access": {"mode": "Restricted"}, "nodeSelector": {"matchLabels": {"pool": "off"}},
        },
    });
    create_class(cluster, &class);
    let refused = |gpus: u32, pool: &str| {
        let mut pod = gpu_pod("daemon", gpus);
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        pod["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        let off = json!({"key": "pool", "operator": "NotIn", "values": [pool]});
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": [{"matchExpressions": [off]}]});
        let create = ["create", "--dry-run=server", "-f", "-"];
        let said = admin.run_with(&create, &pod.to_string());
        said.err().map(|error| format!("{error:#}"))
    };
    wait_until("the policy to hold", SOON, || Ok(refused(0, "other"))).unwrap();
    assert_eq!(refused(0, "off"), None);
    let held = refused(1, "off").unwrap();
    assert!(held.contains("rule privileged:"), "{held}");
}

#[test]
fn a_binding_brings_none_of_our_labels_and_names_no_devices() {
    let (cluster, _turn) = control_plane();
    apply(cluster);
    let admin = cluster
        .namespace("policies-binding", &json!({}), &json!({}))
        .unwrap();
    for user in ["ben", "robin"] {
        let verbs = ["create", "pods/binding"];
        allow(&admin, "clusterrole", user, "binding", &verbs);
    }
    let release = ["release", "domainclasses.nvlink-domains.io"];
    allow(&admin, "clusterrole", "robin", "release", &release);
    let mut pod = gpu_pod("train", 1);
    pod["spec"]["schedulerName"] = json!("nobody");
    admin.create(&pod).unwrap();

    let bind = |user: &str, metadata: &Value| {
        let mut metadata = metadata.clone();
        metadata["name"] = json!("train");
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        });
        let path = "/api/v1/namespaces/policies-binding/pods/train/binding?dryRun=All";
        let create = ["create", "--raw", path, "-f", "-"];
        let kubectl = cluster.kubectl_as(user).unwrap();
        kubectl.run_with(&create, &binding.to_string())
    };
    let ours = json!({"annotations": {"nvlink-domains.io/class": "gold"}});
    let labels = json!({"labels": {"nvlink-domains.io/project": "theirs"}});
    let denied = wait_until("the policy to hold", SOON, || {
        Ok(bind("ben", &ours).err().map(|error| format!("{error:#}")))
    })
    .unwrap();
    for part in ["rule locked:", "ben", "release"] {
        assert!(denied.contains(part), "{part} is not in {denied}");
    }
    bind("ben", &labels).unwrap_err();
    bind("ben", &json!({"annotations": {"example.com/x": "y"}})).unwrap();
    wait_until("robin's right to be known", SOON, || {
        bind("robin", &ours).map(Some)
    })
    .unwrap();
    // The right to release pods is none to devices.
    let devices = json!({"annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}});
    for user in ["ben", "robin"] {
        let denied = format!("{:#}", bind(user, &devices).unwrap_err());
        assert!(denied.contains("rule visible-devices:"), "{denied}");
    }
}

/// Grants `user` verbs on resources by a role and its binding, both of the scope of `kind`.
fn allow(admin: &Kubectl, kind: &str, user: &str, name: &str, [verbs, resources]: &[&str; 2]) {
    let name = format!("policies-{user}-{name}");
    let (verbs, resources) = (format!("--verb={verbs}"), format!("--resource={resources}"));
    admin
        .run(&["create", kind, &name, &verbs, &resources])
        .unwrap();
    let (role, user) = (format!("--{kind}={name}"), format!("--user={user}"));
    let binding = format!("{kind}binding");
    admin
        .run(&["create", &binding, &name, &role, &user])
        .unwrap();
}
