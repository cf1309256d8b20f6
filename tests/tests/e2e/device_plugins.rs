//! `nvlink-exporter device-plugin` on its sockets: what device plugins and kubelets in other languages
//! send, and what NVIDIA's plugin does that a simple one does not.

mod broken;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use nvlink_tests::{
    Allocator, Choice, ControlPlane, DevicePlugin, FakeNvml, LabNode, Shares, http, nvml,
    programs::{self, EXPORTER},
    wait_until, workdir,
};
use serde_json::json;

const PROFILE: &str = "dgx1-v100";
const SOON: Duration = Duration::from_secs(30);

fn node(name: &str) -> LabNode {
    LabNode::new(name, PROFILE).preferring()
}

/// Returns the UUIDs of all GPUs, by index.
fn uuids(allocator: &Allocator) -> Vec<String> {
    let gpus = allocator.recording()["spec"]["gpus"].as_array().unwrap();
    gpus.iter()
        .map(|gpu| gpu["uuid"].as_str().unwrap().to_owned())
        .collect()
}

fn metrics(allocator: &Allocator) -> String {
    allocator.between().unwrap().metrics().unwrap()
}

/// Waits until the kubelet has these devices.
fn wait_for(allocator: &Allocator, expected: &[String]) {
    let mut expected = expected.to_vec();
    expected.sort();
    wait_until("the devices", SOON, || {
        let devices = allocator.devices()?;
        anyhow::ensure!(devices == expected, "{devices:?}");
        Ok(Some(()))
    })
    .unwrap();
}

#[test]
fn a_plugin_that_dials_as_nvidia_s_does_registers_and_its_refusals_pass_through() {
    let allocator = Allocator::start(&node("dialing").choosing(Choice::Scattered)).unwrap();
    let uuids = uuids(&allocator);
    wait_for(&allocator, &uuids);
    let preferred = allocator.prefer(&uuids, 4).unwrap();
    let variables = allocator.allocate(&preferred).unwrap();
    let named: BTreeSet<&str> = variables["NVIDIA_VISIBLE_DEVICES"].split(',').collect();
    assert_eq!(named, preferred.iter().map(String::as_str).collect());
    assert_eq!(variables["NVLINK_DOMAINS_GPUS"], preferred.join(","));
    let refused = allocator.allocate(&["GPU-unknown".to_owned()]).unwrap_err();
    let reason =
        "invalid allocation request for \"nvidia.com/gpu\": invalid request: unknown device";
    assert!(refused.to_string().contains(reason), "{refused}");
}

/// Calls `path` on a socket with Python's gRPC client, which is built on gRPC's C++ core, with an
/// authority, or without one for its own choice. Returns what it prints.
fn python(socket: &Path, path: &str, authority: Option<&str>) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane/client.py");
    let output = Command::new("/usr/bin/python3")
        .arg(script)
        .arg(socket)
        .arg(path)
        .args(authority)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn clients_of_other_libraries_are_answered_whatever_their_authority_is() {
    let allocator = Allocator::start(&node("python")).unwrap();
    let (kubelet, vendor) = allocator.directories();
    let own = fs::read_dir(kubelet)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let own = { own }.find(|path| path.to_string_lossy().contains("nvlink-dp-"));
    let (own, registration) = (own.unwrap(), vendor.join("kubelet.sock"));
    for authority in [
        None,
        Some("localhost"),
        Some("/var/lib/kubelet/device-plugins/kubelet.sock"),
        Some("%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock"),
        Some("unix:kubelet.sock"),
        Some("[::"),
        Some("a b@c:d"),
    ] {
        let options = python(
            &own,
            "/v1beta1.DevicePlugin/GetDevicePluginOptions",
            authority,
        );
        // The vendor's options, and after them this program's.
        assert_eq!(options, "answer 10011001", "{authority:?}");
        // An empty registration names no socket, and is refused by the one who read it.
        let refused = python(&registration, "/v1beta1.Registration/Register", authority);
        assert_eq!(
            refused, "INVALID_ARGUMENT the endpoint \"\" is not the name of a socket",
            "{authority:?}"
        );
    }
    let refused = "nvlink_device_plugin_failed_registrations_total{reason=\"refused\"} 7";
    assert!(metrics(&allocator).contains(refused));
    wait_for(&allocator, &uuids(&allocator));
}

/// Starts the process between two directories, without a device plugin.
fn alone(subject: &str) -> (DevicePlugin, PathBuf, PathBuf) {
    alone_with(subject, None, &[])
}

/// The same with access to a cluster and further arguments.
fn alone_with(
    subject: &str,
    kubeconfig: Option<&Path>,
    arguments: &[&str],
) -> (DevicePlugin, PathBuf, PathBuf) {
    let directory = workdir::fresh(subject).unwrap();
    let (kubelet, vendor) = (directory.join("kubelet"), directory.join("vendor"));
    fs::create_dir(&kubelet).unwrap();
    let arguments = [&["--source", "sim:hgx-a100-4"], arguments].concat();
    let access = kubeconfig.unwrap_or(&kubelet);
    let between = DevicePlugin::start((&kubelet, &vendor), access, &[], &arguments).unwrap();
    (between, kubelet, vendor)
}

#[test]
fn one_directory_for_the_kubelet_and_the_vendor_is_refused() {
    let directory = workdir::fresh("one-directory").unwrap();
    let (kubelet, vendor) = (directory.join("kubelet"), directory.join("vendor"));
    fs::create_dir(&kubelet).unwrap();
    std::os::unix::fs::symlink(&kubelet, &vendor).unwrap();
    let _kubelet = UnixListener::bind(kubelet.join("kubelet.sock")).unwrap();
    let [kubelet_flag, vendor_flag] = [&kubelet, &vendor].map(|path| path.display().to_string());
    let arguments = [
        "device-plugin",
        "--source",
        "sim:hgx-a100-4",
        "--kubelet-plugins",
        &kubelet_flag,
        "--vendor-plugins",
        &vendor_flag,
    ];
    let refused = programs::run(EXPORTER, &arguments, "")
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("are one directory: give --vendor-plugins"),
        "{refused}"
    );
    assert!(kubelet.join("kubelet.sock").exists());
}

#[test]
fn a_node_that_does_not_exist_is_not_created_and_a_lasting_failure_is_logged_once() {
    let plane = ControlPlane::start().unwrap();
    let nobody = plane
        .kubeconfig_for("system:serviceaccount:none:nobody")
        .unwrap();
    let publish = ["--publish", "--node-name", "typo"];
    for (kubeconfig, reason) in [
        (plane.kubeconfig(), "not found"),
        (&*nobody, "cannot patch resource"),
    ] {
        let (between, ..) = alone_with("typo", Some(kubeconfig), &publish);
        let told = || {
            between
                .process
                .log()
                .matches("cannot label the Node")
                .count()
        };
        wait_until("the failure to be logged", SOON, || {
            Ok((told() > 0).then_some(()))
        })
        .unwrap();
        assert!(
            between.process.log().contains(reason),
            "{}",
            between.process.log()
        );
        // It tried again by now.
        thread::sleep(Duration::from_secs(5));
        assert_eq!(told(), 1, "{}", between.process.log());
    }
    let nodes = plane.kubectl().get(&["nodes"]).unwrap();
    assert_eq!(nodes["items"], json!([]));
}

/// Connects, begins with HTTP/2, and makes no call.
fn idle(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &settings].concat();
    // It may have hung up already.
    let _ = stream.write_all(&preface);
    stream
}

#[test]
fn idle_connections_and_a_lack_of_descriptors_keep_no_plugin_out_for_long() {
    let (between, _, vendor) = alone("crowded");
    let socket = vendor.join("kubelet.sock");
    let register = || python(&socket, "/v1beta1.Registration/Register", None);
    let refused = "INVALID_ARGUMENT the endpoint \"\" is not the name of a socket";
    let crowd: Vec<UnixStream> = (0..20).map(|_| idle(&socket)).collect();
    assert_eq!(register(), refused);
    drop(crowd);

    let limit = |most: &str| {
        let pid = format!("--pid={}", between.process.id());
        let set = Command::new("prlimit")
            .args([&pid, &format!("--nofile={most}")])
            .status();
        assert!(set.unwrap().success());
    };
    limit("8:1024");
    let crowd: Vec<UnixStream> = (0..40).map(|_| idle(&socket)).collect();
    wait_until("the lack to be logged", SOON, || {
        Ok(between
            .process
            .log()
            .contains("cannot accept a connection")
            .then_some(()))
    })
    .unwrap();
    limit("1024:1024");
    drop(crowd);
    assert_eq!(register(), refused);
}

#[test]
fn peers_that_never_register_are_counted_and_make_it_unready() {
    let (between, _, vendor) = alone("strangers");
    let socket = vendor.join("kubelet.sock");
    let ready = || http::text(&format!("http://{}/readyz", between.address));
    assert_eq!(ready().unwrap(), "ok\n");
    let begin = Instant::now();
    // One that says nothing, and one that hangs up, for longer than a minute.
    let refused = wait_until("it to be unready", Duration::from_secs(90), || {
        drop(UnixStream::connect(&socket)?);
        let mut silent = UnixStream::connect(&socket)?;
        silent.set_read_timeout(Some(SOON))?;
        // Until it hangs up.
        let _ = silent.read_to_end(&mut Vec::new());
        Ok(ready().err())
    })
    .unwrap();
    assert!(begin.elapsed() > Duration::from_secs(55));
    let refused = format!("{refused:#}");
    let reason = "device plugins connect and fail to register: the peer was silent for 5 s";
    assert!(refused.contains(reason), "{refused}");
    let log = between.process.log();
    let lines = log
        .matches("device plugins connected and did not register")
        .count();
    assert!((1..=3).contains(&lines), "{log}");
    let series = "nvlink_device_plugin_failed_registrations_total{reason=\"unregistered\"}";
    assert!(between.metric(series).unwrap() >= 10.0);
}

/// A device plugin with a socket of NVIDIA's plugin that answers, but never registers.
struct Strange {
    between: DevicePlugin,
    socket: PathBuf,
    _plugin: UnixListener,
}

impl Strange {
    fn new(between: DevicePlugin, directory: &Path) -> Self {
        let socket = directory.join("nvidia-gpu.sock");
        let _plugin = UnixListener::bind(&socket).unwrap();
        Self {
            between,
            socket,
            _plugin,
        }
    }
}

/// Returns one whose plugin answers in the kubelet's directory, and one in whose own directory it
/// does. They are started together, so that their tests wait for one minute and not for two.
fn strange() -> &'static [Strange; 2] {
    static BOTH: OnceLock<[Strange; 2]> = OnceLock::new();
    BOTH.get_or_init(|| {
        let (elsewhere, kubelet, _) = alone("elsewhere");
        let (unregistered, _, vendor) = alone("unregistered");
        [
            Strange::new(elsewhere, &kubelet),
            Strange::new(unregistered, &vendor),
        ]
    })
}

/// Asserts that the log says this of the socket.
fn is_named_after_a_minute(
    Strange {
        between, socket, ..
    }: &Strange,
    what: &str,
) {
    let expected = format!("{} answers{what}", socket.display());
    between
        .process
        .wait_until("the line", Duration::from_secs(90), || {
            Ok(between.process.log().contains(&expected).then_some(()))
        })
        .unwrap();
}

#[test]
fn a_plugin_that_stays_with_the_kubelet_is_named_after_a_minute() {
    let [elsewhere, _] = strange();
    is_named_after_a_minute(elsewhere, ": NVIDIA's device plugin registers");
}

/// As NVIDIA's plugin does with `--kubelet-socket=""`.
#[test]
fn a_plugin_that_serves_and_never_registers_is_named_after_a_minute() {
    let [_, unregistered] = strange();
    is_named_after_a_minute(unregistered, ", and its device plugin has not registered");
}

/// Starts a node whose plugin gives each GPU three shares.
fn shared(name: &str, packed: bool, single: bool) -> Allocator {
    let shares = Shares {
        of_each: 3,
        packed,
        single,
    };
    Allocator::start(&node(name).sharing(shares)).unwrap()
}

/// Gives two shares each to three containers, and returns the GPUs of each.
fn three_containers(allocator: &Allocator) -> Vec<BTreeSet<String>> {
    let mut free = allocator.devices().unwrap();
    assert_eq!(free.len(), 24);
    let mut containers = Vec::new();
    for _ in 0..3 {
        let got = allocator.prefer(&free, 2).unwrap();
        assert_eq!(got.len(), 2);
        let variables = allocator.allocate(&got).unwrap();
        assert!(
            !variables.contains_key("CUDA_VISIBLE_DEVICES"),
            "{variables:?}"
        );
        free.retain(|id| !got.contains(id));
        let gpus = variables["NVIDIA_VISIBLE_DEVICES"].split(',');
        containers.push(gpus.map(str::to_owned).collect());
    }
    containers
}

#[test]
fn shares_are_spread_or_packed_as_the_vendor_s_plugin_is_told() {
    let spread = three_containers(&shared("spread", false, false));
    let gpus: BTreeSet<&String> = spread.iter().flatten().collect();
    assert_eq!(gpus.len(), 6, "{spread:?}");
    let packed = three_containers(&shared("packed", true, false));
    let gpus: BTreeSet<&String> = packed.iter().flatten().collect();
    assert_eq!(gpus.len(), 2, "{packed:?}");

    let single = shared("single", false, true);
    let all = single.devices().unwrap();
    let refused = single.allocate(&all[..2]).unwrap_err().to_string();
    let reason = "maximum request size for shared resources is 1; found 2";
    assert!(refused.contains(reason), "{refused}");
    assert!(single.allocate(&all[..1]).is_ok());
}

#[test]
fn a_gpu_in_mig_mode_comes_last() {
    let recording = nvml::recording_of(PROFILE, "mig").unwrap();
    let mut machine = FakeNvml::new(&recording).unwrap();
    machine
        .rewire(|gpus| gpus[0]["migEnabled"] = json!(true))
        .unwrap();
    // NVIDIA's plugin lists it as a whole GPU, with `--mig-strategy=none`.
    let allocator = Allocator::start(&node("mig").reading(&machine)).unwrap();
    let uuids = uuids(&allocator);
    wait_for(&allocator, &uuids);
    for size in [1, 2, 7] {
        let preferred = allocator.prefer(&uuids, size).unwrap();
        assert!(!preferred.contains(&uuids[0]), "{preferred:?}");
    }
    assert_eq!(allocator.prefer(&uuids, 8).unwrap().len(), 8);
}
