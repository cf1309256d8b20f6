//! `helm uninstall` where no pod of the release ever started, as after an installation whose images were
//! never pulled.

use std::time::{Duration, Instant};

use super::{Installed, control_plane, lifecycle::registered};

#[test]
fn an_uninstall_after_a_failed_install_ends_soon_and_says_what_to_do() {
    let (control_plane, _turn) = control_plane();
    let installed = Installed::with(control_plane, "");
    let (helm, kubectl) = (&installed.helm, control_plane.kubectl());
    let system = kubectl.in_namespace("nvlink-system");
    let began = Instant::now();
    // No kubelet starts the containers.
    let error = helm.on_release("uninstall", &[]).unwrap_err();
    let (took, error) = (began.elapsed(), format!("{error:#}"));
    // The Job that waits for a Deployment to end would take four minutes.
    assert!(took < Duration::from_secs(200), "{took:?}: {error}");
    let name = "nvlink-webhook-did-not-start-see-helm-get-notes";
    assert!(error.contains(name), "{error}");

    assert_eq!(
        registered(kubectl),
        0,
        "the registration is still there, empty"
    );
    system.get(&["deployment", "nvlink-webhook"]).unwrap();
    let jobs = system.run(&["get", "jobs", "-o", "name"]).unwrap();
    assert!(!jobs.contains(name), "{jobs}");
    let notes = ["get", "notes", "nvlink-domains", "-n", "nvlink-system"];
    let notes = helm.run(&notes, "").unwrap();
    let command = "helm uninstall nvlink-domains -n nvlink-system --no-hooks";
    assert!(notes.contains(name) && notes.contains(command), "{notes}");

    let said = helm.on_release("uninstall", &["--no-hooks"]).unwrap();
    for kept in [
        "[CustomResourceDefinition] domainclasses.nvlink-domains.io",
        "[Namespace] nvlink-exporter",
    ] {
        assert!(said.contains(kept), "{said}");
    }
    let gone = system.get(&["deployment", "nvlink-webhook"]);
    gone.expect_err("helm leaves the Deployment");
}
