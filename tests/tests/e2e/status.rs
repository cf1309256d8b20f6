//! `kubectl nvlink status` and `explain` on a real API server: with all rights, and with those of
//! somebody who may only read pods of a namespace.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use nvlink_tests::{
    ControlPlane, Kubectl, Node, Webhook, node,
    programs::{self, EXPORTER, PLUGIN},
    wait_until,
    webhook::install_crds,
    workdir,
};
use serde_json::{Value, json};

use crate::pods::gpu_pod;

const SOON: Duration = Duration::from_secs(60);

/// A cluster with a full node and a pod that waits for it.
struct Cluster {
    plane: ControlPlane,
    webhook: Option<Webhook>,
    team: Kubectl,
}

impl Cluster {
    fn start() -> Self {
        let plane = ControlPlane::start().unwrap();
        let all = plane.kubectl();
        install_crds(all).unwrap();
        let webhook = Webhook::start(plane.kubeconfig()).unwrap();
        webhook.register(all).unwrap();
        let class = json!({
            "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass",
            "metadata": {"name": "line"},
            "spec": {"placement": {"whenUnavailable": "Queue", "queueTimeout": "2h"}},
        });
        all.create(&class).unwrap();
        let size = "nvlink-domains.io/domain-size";
        node::create(all, &[Node::new("dgx-1", 8).label(size, "8")]).unwrap();
        let source = ["--source", "sim:dgx-h100", "--node-name", "dgx-1"];
        let topology = [&["topology"], &source[..], &["--output", "json"]].concat();
        all.apply(&programs::run(EXPORTER, &topology, "").unwrap())
            .unwrap();
        let team = plane.namespace("team", &json!({}), &json!({})).unwrap();
        let off = json!({"nvlink-domains.io/webhook": "ignore"});
        let others = plane.namespace("others", &off, &json!({})).unwrap();
        let mut holder = gpu_pod("holder", 6);
        holder["spec"]["nodeName"] = json!("dgx-1");
        others.create(&holder).unwrap();
        let allocations = json!([{
            "namespace": "others", "pod": "holder", "container": "main", "gpus": [0, 1, 2, 3, 4, 5],
        }]);
        let status = json!({"status": {"allocations": allocations}}).to_string();
        let patch = ["patch", "nodetopology", "dgx-1", "--subresource=status"];
        all.run(&[&patch[..], &["--type=merge", "-p", &status]].concat())
            .unwrap();
        let this = Self {
            plane,
            webhook: Some(webhook),
            team,
        };
        wait_until("a pod that waits", SOON, || this.create("train", 8)).unwrap();
        this
    }

    /// Ends the webhook, so that nobody else writes into pods.
    fn stop(&mut self) {
        self.webhook = None;
        let all = ["delete", "mutatingwebhookconfigurations", "--all"];
        self.plane.kubectl().run(&all).unwrap();
    }

    /// Creates a pod that waits; `None` if the webhook does not know the class yet.
    fn create(&self, name: &str, gpus: u32) -> anyhow::Result<Option<()>> {
        let mut pod = gpu_pod(name, gpus);
        pod["metadata"]["annotations"] = json!({"nvlink-domains.io/class": "line"});
        let created = self.team.create(&pod)?;
        let gates = &created["spec"]["schedulingGates"];
        Ok((gates[0]["name"] == "nvlink-domains.io/queue").then_some(()))
    }
}

/// kubectl with the plugin on its path.
struct Plugin {
    path: String,
    kubeconfig: PathBuf,
}

impl Plugin {
    fn new(kubeconfig: PathBuf) -> Self {
        let directory = workdir::fresh("plugin").unwrap();
        let program = programs::path(PLUGIN).unwrap();
        symlink(program, directory.join("kubectl-nvlink")).unwrap();
        let kubectl = nvlink_tests::assets::path("kubectl").unwrap();
        let first = [directory, kubectl.parent().unwrap().to_owned()];
        let system = env::var_os("PATH").unwrap();
        let path = env::join_paths(first.into_iter().chain(env::split_paths(&system)));
        Self {
            path: path.unwrap().into_string().unwrap(),
            kubeconfig,
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.env("PATH", &self.path).env_remove("COLUMNS");
        command.env("KUBECONFIG", &self.kubeconfig);
        command.arg("nvlink").args(arguments);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn people_see_what_their_rights_let_them_read() {
    let mut cluster = Cluster::start();
    with_all_rights(&cluster);
    on_change(&cluster);
    cluster.stop();
    with_those_of_a_namespace(&cluster);
}

fn with_all_rights(cluster: &Cluster) {
    let plugin = Plugin::new(cluster.plane.kubeconfig().to_owned());
    let text = plugin.run(&["status", "--all-namespaces"]);
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let status = plugin.json(&["status", "-A"]);
    let (class, domain, job) = (
        &status["classes"][0],
        &status["domains"][0],
        &status["queue"][0],
    );
    assert_eq!(
        (&class["name"], &class["free"]),
        (&json!("line"), &json!(2)),
        "{status:#}"
    );
    assert_eq!(domain["heldBy"][0]["pod"], "others/holder", "{status:#}");
    assert_eq!(
        (&job["pod"], &job["position"]),
        (&json!("train"), &json!(1)),
        "{status:#}"
    );
    assert_eq!(job["reason"], "Insufficient", "{status:#}");
    assert_eq!(status.get("notes"), None, "{status:#}");
    // In the namespace of the context, nothing waits.
    assert!(
        plugin
            .run(&["status"])
            .contains("No pod of namespace default waits")
    );

    let explained = plugin.run(&["explain", "team/train"]);
    for part in [
        "position 1",
        "others/holder (6)",
        "2 GPUs instead of 8: would start at once",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let same = plugin.run(&["explain", "pod/train", "-n", "team", "-o", "yaml"]);
    assert!(same.contains("reason: Insufficient"), "{same}");
    let holder = plugin.run(&["explain", "others/holder"]);
    assert!(holder.contains("It holds GPUs 0-5, in domain"), "{holder}");
    errors(&plugin);
}

fn errors(plugin: &Plugin) {
    let absent = plugin.output(&["explain", "absent"]);
    assert_eq!(absent.status.code(), Some(1));
    let said = String::from_utf8_lossy(&absent.stderr);
    assert!(
        said.starts_with("error: pod absent does not exist"),
        "{said}"
    );
    let context = plugin.output(&["status", "--context", "nowhere"]);
    let said = String::from_utf8_lossy(&context.stderr);
    assert!(
        said.contains("no access to the cluster") && said.contains("nowhere"),
        "{said}"
    );
}

/// Lets `alice` read the pods of the namespace, and returns her kubeconfig.
fn reader(cluster: &Cluster) -> String {
    let list = [
        "create",
        "role",
        "reader",
        "--verb=get,list,watch",
        "--resource=pods",
    ];
    cluster.team.run(&list).unwrap();
    let bind = [
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        "--user=alice",
    ];
    cluster.team.run(&bind).unwrap();
    let file = cluster.plane.kubeconfig_for("alice").unwrap();
    file.to_string_lossy().into_owned()
}

fn with_those_of_a_namespace(cluster: &Cluster) {
    let file = reader(cluster);
    // As `kubectl --kubeconfig FILE`, which overrides the variable.
    let plugin = Plugin::new("/nonexistent".into());
    let own = ["--kubeconfig", &file, "-n", "team"];
    let told = [
        "annotate",
        "pod",
        "train",
        "nvlink-domains.io/queue-position=7",
        "--overwrite",
    ];
    cluster.team.run(&told).unwrap();
    let status = plugin.json(&[&["status"][..], &own].concat());
    let notes = status["notes"].to_string();
    assert!(
        notes.contains("domains are not shown: you may not list nodetopologies"),
        "{notes}"
    );
    assert_eq!(
        (status.get("domains"), status.get("classes")),
        (None, None),
        "{status:#}"
    );
    let rows = status["queue"].as_array().unwrap();
    let train = rows.iter().find(|row| row["pod"] == "train");
    let position = train.map(|row| &row["position"]);
    assert_eq!(
        position,
        Some(&json!(7)),
        "what the leader wrote: {status:#}"
    );
    let explained = plugin.run(&[&["explain", "train"][..], &own].concat());
    assert!(explained.contains("position 7"), "{explained}");
    let elsewhere = ["explain", "others/holder", "--kubeconfig", &file];
    let refused = plugin.output(&elsewhere);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("you may not read pod holder"), "{said}");
    // An administrator sees what she sees.
    let plugin = Plugin::new(cluster.plane.kubeconfig().to_owned());
    let as_alice = ["explain", "others/holder", "--as", "alice"];
    let refused = plugin.output(&as_alice);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("you may not read pod holder"), "{said}");
    let as_master = [&as_alice[..], &["--as-group", "system:masters"]].concat();
    plugin.run(&as_master);
}

/// On a pipe, `--watch` prints a block when something changes.
fn on_change(cluster: &Cluster) {
    let plugin = Plugin::new(cluster.plane.kubeconfig().to_owned());
    let directory = workdir::fresh("watch").unwrap();
    let file = directory.join("out");
    let mut command = plugin.command(&["status", "-n", "team", "--watch"]);
    let out = fs::File::create(&file).unwrap();
    let mut watching = command.stdout(Stdio::from(out)).spawn().unwrap();
    let shows = |name: &str| {
        wait_until(&format!("{name} in the output"), SOON, || {
            let text = fs::read_to_string(&file)?;
            Ok(text.contains(name).then_some(text))
        })
        .unwrap()
    };
    let first = shows("train");
    assert!(!first.contains("second"), "{first}");
    cluster.create("second", 8).unwrap();
    let text = shows("second");
    assert!(
        text.matches("POS  GPUS").count() >= 2 && !text.contains('\x1b'),
        "{text}"
    );
    watching.kill().unwrap();
    watching.wait().unwrap();
}
