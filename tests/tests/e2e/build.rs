//! The script that builds the control plane, with a fake compiler.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nvlink_tests::{assets, workdir};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane/build");

/// A fake compiler. It writes the name of the package to the output file.
const COMPILER: &str = r#"#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
echo "$1" > "$out"
chmod +x "$out"
"#;

/// A machine on which only a compiler is installed.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new(compiler: &str) -> Self {
        let root = workdir::fresh("build").unwrap();
        fs::create_dir(root.join("bin")).unwrap();
        executable(&root.join("bin/go"), compiler);
        Self { root }
    }

    fn build(&self, assets: &Path) -> Output {
        self.script(assets).output().unwrap()
    }

    fn script(&self, assets: &Path) -> Command {
        let system = env::var("PATH").unwrap();
        let path = format!("{}:{system}", self.root.join("bin").display());
        let mut script = Command::new(SCRIPT);
        script
            .env("PATH", path)
            .env("XDG_CACHE_HOME", &self.root)
            .env("KUBEBUILDER_ASSETS", assets);
        script
    }

    fn cache(&self) -> PathBuf {
        self.root.join("nvlink-domains")
    }

    fn binary(&self, name: &str) -> PathBuf {
        let version = match name.starts_with("kube") {
            true => format!("control-plane-{}", assets::kubernetes_version()),
            false => format!("containerd-{}", assets::containerd_version()),
        };
        self.cache().join(version).join(name)
    }
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn all_binaries_are_built_once() {
    let machine = Machine::new(COMPILER);
    let first = machine.build(Path::new("/nonexistent"));
    let said = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(first.status.success(), "{said}");
    for name in assets::KUBERNETES.iter().chain(&assets::NODE) {
        let module = match name.starts_with("kube") {
            true => "k8s.io/kubernetes",
            false => "github.com/containerd/containerd/v2",
        };
        assert_eq!(
            fs::read_to_string(machine.binary(name)).unwrap(),
            format!("{module}/cmd/{name}\n")
        );
        assert!(said.contains(&format!("{name}: done")), "{said}");
    }
    let second = machine.build(Path::new("/nonexistent"));
    assert!(second.status.success() && second.stderr.is_empty());
}

#[test]
fn existing_binaries_are_not_built() {
    let machine = Machine::new(COMPILER);
    let assets = machine.root.join("assets");
    fs::create_dir(&assets).unwrap();
    for name in ["kube-apiserver", "kubectl"] {
        executable(&assets.join(name), "");
    }
    assert!(machine.build(&assets).status.success());
    assert!(!machine.binary("kubectl").exists() && machine.binary("kube-scheduler").exists());
}

#[test]
fn only_the_named_binaries_are_built() {
    let machine = Machine::new(COMPILER);
    let mut script = machine.script(Path::new("/nonexistent"));
    assert!(script.arg("kubelet").output().unwrap().status.success());
    assert!(machine.binary("kubelet").exists() && !machine.binary("kubectl").exists());
}

#[test]
fn a_failed_build_leaves_no_binary_and_prints_the_reason() {
    let half = "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && out=$2; shift; done\n\
        echo half > \"$out\"; echo 'disk is full' >&2; exit 1\n";
    let machine = Machine::new(half);
    let output = machine.build(Path::new("/nonexistent"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("disk is full"));
    let left = fs::read_dir(machine.cache()).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names
        .filter(|name| !name.ends_with(".log") && !name.ends_with(".lock"))
        .collect();
    assert_eq!(names, Vec::<String>::new());
}

#[test]
fn the_error_for_a_missing_compiler_names_the_remedy() {
    let machine = Machine::new(COMPILER);
    let bare = machine.root.join("bare");
    fs::create_dir(&bare).unwrap();
    let system = env::var_os("PATH").unwrap();
    for tool in ["bash", "sed", "head", "dirname", "env"] {
        let found = env::split_paths(&system).map(|path| path.join(tool));
        let found = { found }.find(|path| path.is_file()).unwrap();
        std::os::unix::fs::symlink(found, bare.join(tool)).unwrap();
    }
    let mut script = Command::new(SCRIPT);
    let output = script
        .env("PATH", &bare)
        .env("XDG_CACHE_HOME", &machine.root)
        .env_remove("KUBEBUILDER_ASSETS");
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("Install Go") && said.contains("KUBEBUILDER_ASSETS"),
        "{said}"
    );
}
