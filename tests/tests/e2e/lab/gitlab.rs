//! Jobs of several GitLab runners that really run, with services, as their logs have it.

use std::{collections::BTreeSet, time::Duration};

use nvlink_tests::{GitlabJob, JobEnd, LabNode, wait_until};
use serde_json::{Value, json};

use super::{Bench, PROFILE, cluster};

const CLASS: &str = "gitlab";
/// A job of a container that starts, with a pull of nothing.
const LONG: Duration = Duration::from_secs(120);
/// Tells what the build got, and goes on until a file is there.
const SCRIPT: &str = "echo visible=$NVIDIA_VISIBLE_DEVICES order=$CUDA_VISIBLE_DEVICES; find /dev -name 'nvidia[0-9]*' | sort; echo trained; until [ -e /tmp/end ]; do sleep 0.2; done";

/// Returns a job of 4 GPUs of this runner, with a service.
fn job(runner: &str, id: u32) -> Value {
    let gpus = json!({"containers": [{"name": "build", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]});
    json!({
        "id": id, "name": "train", "project_id": 42, "project_name": "vision", "root_namespace_id": 9,
        "script": SCRIPT, "services": ["busybox:1"],
        "runner": {
            "name": runner, "namespace": "ci", "image": "busybox:1", "helper_image": "busybox:1",
            "poll_interval": 1, "poll_timeout": 100, "pod_termination_grace_period_seconds": 0,
            "pod_annotations": {"nvlink-domains.io/class": CLASS}, "pod_spec": [gpus],
        },
    })
}

/// Returns the name of the pod of a job, by its log.
fn pod(run: &GitlabJob) -> String {
    let log = run.log();
    let after = log.split_once("Waiting for pod ci/");
    let name = after.and_then(|(_, rest)| rest.split_whitespace().next());
    name.unwrap_or_else(|| panic!("{log}")).to_owned()
}

/// Returns the GPUs that the build of a job sees.
fn visible(run: &GitlabJob) -> BTreeSet<String> {
    let log = run.log();
    let line = log.lines().find_map(|line| line.strip_prefix("visible="));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    let (gpus, _) = line.split_once(' ').unwrap();
    gpus.split(',').map(str::to_owned).collect()
}

/// Ends a job as its script would.
fn end(bench: &Bench, run: &GitlabJob) {
    let touch = ["exec", &pod(run), "-c", "build", "--", "touch", "/tmp/end"];
    bench.kubectl.run(&touch).unwrap();
    assert_eq!(run.end(LONG).unwrap(), JobEnd::Succeeded, "{}", run.log());
}

#[test]
fn jobs_of_two_runners_share_a_node_and_a_third_waits_in_its_log() {
    let bench = Bench::start(&LabNode::new("lab-gitlab", PROFILE));
    let class = json!({
        "apiVersion": "nvlink-domains.io/v1alpha1", "kind": "DomainClass", "metadata": {"name": CLASS},
        "spec": {
            "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "lab-gitlab"}},
            "placement": {"whenUnavailable": "Queue"},
        },
    });
    let plane = &cluster().control_plane;
    plane.kubectl().create(&class).unwrap();
    wait_until("the class to be accepted", LONG, || {
        let class = plane.kubectl().get(&["domainclass", CLASS])?;
        Ok(class["status"]["conditions"].as_array().map(drop))
    })
    .unwrap();
    let start = |runner, id| GitlabJob::start(plane.kubeconfig(), &job(runner, id)).unwrap();

    let (first, second) = (start("a", 1), start("b", 2));
    first.wait_for("trained", LONG).unwrap();
    second.wait_for("trained", LONG).unwrap();
    let (of_first, of_second) = (visible(&first), visible(&second));
    assert_eq!((of_first.len(), of_second.len()), (4, 4));
    assert!(
        of_first.is_disjoint(&of_second),
        "{of_first:?} {of_second:?}"
    );
    // Neither the service nor the helper gets a GPU.
    for container in ["helper", "svc-0"] {
        let show = ["exec", &pod(&first), "-c", container, "--", "sh", "-c"];
        let script = "echo $NVIDIA_VISIBLE_DEVICES; find /dev -name 'nvidia[0-9]*'";
        let said = bench.kubectl.run(&[&show[..], &[script]].concat()).unwrap();
        assert_eq!(said.trim(), "void", "{container}");
    }

    let third = start("a", 3);
    third.wait_for("position 1 of class gitlab", LONG).unwrap();
    third.wait_for("none is free", LONG).unwrap();
    end(&bench, &first);
    third.wait_for("trained", LONG).unwrap();
    assert_eq!(visible(&third), of_first, "the GPUs that came free");
    end(&bench, &third);
    // A user cancels a job that runs, and its GPUs are free.
    assert_eq!(second.cancel(LONG).unwrap(), JobEnd::Cancelled);
    bench.wait_for("all GPUs to be free", |text| {
        super::held(text, &pod(&second)).is_empty()
    });
}
