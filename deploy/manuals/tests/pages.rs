//! The files that the program writes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, process::Command};

#[test]
fn each_command_has_a_page_and_each_shell_its_completions() {
    let directory = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_nvlink-manuals");
    let status = Command::new(program)
        .arg(directory.path())
        .status()
        .unwrap();
    assert!(status.success());
    let read = |path: &str| fs::read_to_string(directory.path().join(path)).unwrap();

    assert!(read("nvlink-exporter/man/nvlink-exporter.1").contains("serve"));
    assert!(read("nvlink-exporter/man/nvlink-exporter-serve.1").contains("collection\\-interval"));
    assert!(read("nvlink-webhook/man/nvlink-webhook-check.1").contains("helm test"));
    assert!(read("kubectl-nvlink/man/kubectl-nvlink-preview.1").contains("allow\\-use"));
    assert!(read("kubectl-nvlink/man/kubectl-nvlink-explain.1").contains("waits"));
    let completions = read("kubectl-nvlink/completions/kubectl-nvlink.bash");
    assert!(completions.contains("--all-namespaces"));
    for completions in [
        "nvlink-exporter.bash",
        "_nvlink-exporter",
        "nvlink-exporter.fish",
    ] {
        let text = read(&format!("nvlink-exporter/completions/{completions}"));
        assert!(text.contains("unpublish"), "{completions}");
    }
    let page = read("nvlink-exporter/man/nvlink-exporter-serve.1");
    assert_eq!(page.matches(".SH NAME").count(), 1, "{page}");
}
