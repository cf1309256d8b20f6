//! What exporters published is removed from all nodes with one command.

use nvlink_tests::{Exporter, Node, node, programs, wait_until};

use super::{Installed, SOON, control_plane};

#[test]
fn one_command_removes_what_was_published_about_all_nodes() {
    let (control_plane, _turn) = control_plane();
    // For the CRDs.
    let _installed = Installed::with(control_plane, "");
    let kubectl = control_plane.kubectl();
    node::create(
        kubectl,
        &["gone-1", "gone-2"].map(|name| Node::new(name, 8)),
    )
    .unwrap();
    let kubeconfig = control_plane.kubeconfig();
    for name in ["gone-1", "gone-2"] {
        let arguments = ["--source", "sim:dgx-h100", "--alias-labels"];
        let exporter = Exporter::publishing(kubeconfig, name, &arguments).unwrap();
        wait_until("the object and the alias labels", SOON, || {
            kubectl.get(&["nodetopology", name])?;
            let node = kubectl.get(&["node", name])?;
            let alias = &node["metadata"]["labels"]["gpu.topology/nvlink-domain-size"];
            Ok(alias.is_string().then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", exporter.process.log()));
    }
    let program = programs::path(programs::EXPORTER).unwrap();
    let mut unpublish = nvlink_tests::command(program);
    unpublish.args(["unpublish", "--all"]);
    let output = unpublish.env("KUBECONFIG", kubeconfig).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("about 2 nodes"), "{printed}");

    let objects = kubectl.get(&["nodetopologies"]).unwrap();
    assert_eq!(objects["items"], serde_json::json!([]));
    for name in ["gone-1", "gone-2"] {
        let node = kubectl.get(&["node", name]).unwrap();
        let metadata = node["metadata"].to_string();
        assert!(!metadata.contains("nvlink-domains.io/"), "{metadata}");
        assert!(!metadata.contains("gpu.topology/"), "{metadata}");
        kubectl.run(&["delete", "node", name]).unwrap();
    }
}
