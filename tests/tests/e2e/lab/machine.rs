//! Machines that cannot run a node: each is told why, in one sentence.

use std::{env, process::Command};

use nvlink_tests::Lab;

/// Returns what the check says in a process of its own, which `prepare` wraps.
fn check_in(prepare: &[&str], search: Option<&str>) -> String {
    let mut command = Command::new("/usr/bin/env");
    if let Some(search) = search {
        command.arg(format!("PATH={search}"));
    }
    command.args(prepare).arg(env::current_exe().unwrap());
    command.args([
        "--exact",
        "lab::machine::check_here",
        "--ignored",
        "--nocapture",
    ]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let sentence = said
        .split_once("this machine: ")
        .and_then(|(_, rest)| rest.lines().next());
    sentence.unwrap_or_else(|| panic!("{output:?}")).to_owned()
}

/// Runs a command after a change of the mounts, which only that command sees.
fn with_mounts(change: &str) -> [String; 6] {
    let script = format!("{change} && exec \"$@\"");
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned)
}

fn check_with_mounts(change: &str) -> String {
    let prepare = with_mounts(change);
    check_in(&prepare.each_ref().map(String::as_str), None)
}

#[test]
fn a_user_who_is_not_root_is_told_to_become_root() {
    // In a namespace without root, the process has no user.
    assert_eq!(
        check_in(&["unshare", "--user"], None),
        "it needs root, and this is user 65534; run this as root"
    );
}

#[test]
fn a_machine_with_another_kubelet_is_left_alone() {
    assert_eq!(
        check_with_mounts("mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/pods"),
        "/var/lib/kubelet is in use by another kubelet; use a machine without one"
    );
}

#[test]
fn a_machine_without_cgroups_is_told_to_mount_them() {
    assert_eq!(
        check_with_mounts("mount -t tmpfs tmpfs /sys/fs/cgroup"),
        "it needs cgroups, and /sys/fs/cgroup holds none; mount them there"
    );
}

#[test]
fn a_machine_whose_cgroups_are_read_only_is_told_so() {
    let said = check_with_mounts(
        "mount -t tmpfs tmpfs /sys/fs/cgroup && touch /sys/fs/cgroup/cgroup.procs && \
         mount -o remount,ro /sys/fs/cgroup",
    );
    let advice = "it needs cgroups of its own; in a container, run this with all privileges: \
        cannot create /sys/fs/cgroup/nvlink-lab-check-";
    assert!(said.starts_with(advice), "{said}");
}

#[test]
fn a_missing_program_is_named_with_the_remedy() {
    assert_eq!(
        check_in(&[], Some("/nonexistent")),
        "cannot find busybox: run `make packages control-plane`"
    );
}

#[test]
#[ignore = "what the others run, each on a machine of its own"]
fn check_here() {
    if let Err(error) = Lab::check() {
        println!("{error:#}");
    }
}
