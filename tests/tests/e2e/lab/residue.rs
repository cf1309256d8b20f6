//! What a node leaves on the machine: nothing.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::ensure;
use nvlink_tests::{LabNode, wait_until};

use super::{Bench, PROFILE};

const SOON: Duration = Duration::from_secs(30);

/// Where a node keeps its files on a machine of its own.
const PLACES: [&str; 11] = [
    "/etc/cni",
    "/etc/kubernetes",
    "/opt/containerd",
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];
/// What a kubelet sets.
const PARAMETERS: [&str; 3] = [
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
];

/// What tells a node from all else on the machine.
struct Traces {
    /// The name of its interface, with which that of its cgroup begins.
    interface: String,
    /// What its addresses begin with.
    addresses: String,
    /// The directory of its files.
    directory: String,
}

impl Traces {
    fn of(bench: &Bench) -> Self {
        let socket = bench.lab.pod_resources();
        let directory = socket.ancestors().nth(3).unwrap();
        let address = bench.lab.address().to_string();
        Self {
            interface: bench.lab.interface(),
            addresses: address.strip_suffix('2').unwrap().to_owned(),
            directory: directory.display().to_string(),
        }
    }

    /// Returns everything on the machine that belongs to the node.
    fn find(&self) -> Vec<String> {
        let cgroup = format!("{}-*", self.interface);
        let cgroups = output("find", &["/sys/fs/cgroup", "-name", &cgroup]);
        let networks = [&["link"], &["address"], &["route"]]
            .map(|what| output("ip", what))
            .join("");
        let rules = output("iptables-save", &[]) + &output("iptables-legacy-save", &[]);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let lines = [cgroups, networks, rules, mounts].join("\n") + &processes();
        let own = |line: &&str| {
            let end = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
            let names = line.split(&self.interface).skip(1).any(end);
            names || line.contains(&self.addresses) || line.contains(&self.directory)
        };
        lines.lines().filter(own).map(str::to_owned).collect()
    }
}

/// Runs a program that need not exist.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Returns a line for each process, with its command line and its cgroups.
fn processes() -> String {
    let mut lines = String::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let (command, cgroups) = (read("cmdline"), read("cgroup"));
        if !command.is_empty() {
            let line = format!("process {:?} {command} {cgroups}", entry.file_name());
            lines += &(line.replace(['\0', '\n'], " ") + "\n");
        }
    }
    lines
}

#[test]
fn a_dropped_node_leaves_nothing_behind() {
    let values = || PARAMETERS.map(|name| fs::read(format!("/proc/sys/{name}")).unwrap());
    let places = || PLACES.map(|path| fs::exists(path).unwrap());
    let before = (values(), places());
    let bench = Bench::start(&LabNode::new("lab-dropped", PROFILE));
    bench.run_pod("dropped", 2);
    let traces = Traces::of(&bench);
    let found = traces.find();
    let has = |parts: &[&str]| {
        let line = |line: &String| parts.iter().all(|part| line.contains(part));
        assert!(found.iter().any(line), "{parts:?}: {found:#?}");
    };
    has(&["/sys/fs/cgroup/", &traces.interface]);
    has(&[&traces.interface, "mtu"]);
    has(&[".128/25 via", &traces.interface]);
    for program in ["containerd ", "kubelet ", "kube-proxy ", "containerd-shim"] {
        has(&["process", program, &traces.directory]);
    }
    has(&["process", "until [ -e /tmp/end ]", &traces.interface]);
    drop(bench);
    assert_eq!(traces.find(), Vec::<String>::new());
    assert_eq!((values(), places()), before, "{PARAMETERS:?}, {PLACES:?}");
}

#[test]
fn a_killed_process_leaves_nothing_of_its_node_behind() {
    let mut parent = Command::new(env::current_exe().unwrap())
        .args(["--exact", "lab::residue::parent_to_be_killed"])
        .args(["--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let said = { lines }
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("left behind: ")?.1.to_owned()))
        .expect("the parent prints what it started");
    let [interface, addresses, directory] = said.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{said}");
    };
    let traces = Traces {
        interface: interface.to_owned(),
        addresses: addresses.to_owned(),
        directory: directory.to_owned(),
    };
    assert!(traces.find().len() > 5, "{:#?}", traces.find());

    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the node to be gone", SOON, || {
        let found = traces.find();
        ensure!(found.is_empty(), "{found:#?}");
        let exists = fs::exists(directory)?;
        ensure!(!exists, "{directory} exists");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
#[ignore = "the parent of a_killed_process_leaves_nothing_of_its_node_behind, a process of its own"]
fn parent_to_be_killed() {
    let bench = Bench::start(&LabNode::new("lab-killed", PROFILE));
    bench.run_pod("killed", 2);
    let traces = Traces::of(&bench);
    println!(
        "left behind: {} {} {}",
        traces.interface, traces.addresses, traces.directory
    );
    // Waits until the other end is closed, which is after the kill.
    let _ = std::io::stdin().read_line(&mut String::new());
}
