//! What a release consists of: tarballs and images, from the programs of the tests.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use nvlink_tests::{
    programs::{self, EXPORTER, WEBHOOK},
    workdir,
};
use serde_json::Value;

use crate::shared::shared;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The most bytes of an image.
const LARGEST: u64 = 25 << 20;

/// Tarballs and images of this machine's architecture.
pub(crate) struct Release {
    directory: PathBuf,
}

/// Returns the release; the first call builds it.
pub(crate) fn release() -> &'static Release {
    static SHARED: OnceLock<Result<Release, String>> = OnceLock::new();
    shared(&SHARED, || {
        let directory = workdir::fresh("release")?;
        let release = Release { directory };
        release.run("deploy/dist", &release.directory.join("images"));
        release.run("deploy/images/build", &release.directory.join("images"));
        Ok(release)
    })
}

impl Release {
    fn run(&self, script: &str, images: &Path) {
        let exporter = programs::path(EXPORTER).unwrap();
        let mut script = Command::new(Path::new(ROOT).join(script));
        script.env("DIST", self.dist()).env("IMAGES", images);
        script.env("PROGRAMS", exporter.parent().unwrap());
        script.env("ARCHITECTURES", architecture());
        run(&mut script);
    }

    fn dist(&self) -> PathBuf {
        self.directory.join("dist")
    }

    /// Returns the OCI archive of each program.
    pub(crate) fn images(&self) -> [(&'static str, PathBuf); 2] {
        let image = |program: &'static str| {
            let file = format!("images/{program}.tar");
            (program, self.directory.join(file))
        };
        [image(EXPORTER), image(WEBHOOK)]
    }

    /// Unpacks the tarball of a program, and returns its directory.
    fn unpack(&self, program: &str) -> PathBuf {
        let into = workdir::fresh("unpacked").unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let name = format!("{program}-{version}-linux-{}", architecture());
        let archive = self.dist().join(format!("{name}.tar.gz"));
        run(Command::new("tar")
            .arg("-C")
            .arg(&into)
            .arg("-xzf")
            .arg(archive));
        into.join(name)
    }
}

/// Returns the architecture of this machine, as in names of images.
fn architecture() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the paths of an unpacked tarball or an image, without directories.
fn files(directory: &Path) -> BTreeSet<String> {
    let mut find = Command::new("find");
    let find = find.arg(directory).args(["-type", "f", "-printf", "%P\n"]);
    run(find).lines().map(str::to_owned).collect()
}

#[test]
fn a_tarball_has_what_a_machine_needs() {
    let release = release();
    run(Command::new("sha256sum")
        .args(["--check", "SHA256SUMS"])
        .current_dir(release.dist()));
    let directory = release.unpack(EXPORTER);
    let files = files(&directory);
    for wanted in [
        "nvlink-exporter",
        "man/nvlink-exporter-serve.1",
        "completions/nvlink-exporter.bash",
        "systemd/nvlink-exporter.service",
        "systemd/nvlink-exporter.env",
        "LICENSE",
        "THIRD-PARTY-LICENSES.txt",
        "RUST-LIBRARY-COPYRIGHT.html",
        "sbom.cdx.json",
    ] {
        assert!(files.contains(wanted), "{wanted}: {files:?}");
    }
    let mut exporter = Command::new(directory.join("nvlink-exporter"));
    assert!(run(exporter.arg("--version")).contains(env!("CARGO_PKG_VERSION")));
    assert!(!release.unpack(WEBHOOK).join("systemd").exists());
}

/// krew finds what the plugin's manifest names.
#[test]
fn the_plugin_is_what_its_manifest_says() {
    let release = release();
    let directory = release.unpack("kubectl-nvlink");
    let mut plugin = Command::new(directory.join("kubectl-nvlink"));
    let help = run(plugin.arg("--help"));
    assert!(help.contains("kubectl nvlink <COMMAND>"), "{help}");
    // A command, and not the word in the description of another one.
    let has = |command: &str| help.contains(&format!("\n  {command} "));
    assert!(has("explain") && !has("serve"), "{help}");
    let manifest = fs::read_to_string(release.dist().join("krew.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&manifest).unwrap();
    assert_eq!(manifest["metadata"]["name"], "nvlink");
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["spec"]["version"], version);
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 1, "one architecture was built");
    let platform = &platforms[0];
    assert_eq!(platform["selector"]["matchLabels"]["arch"], architecture());
    let uri = platform["uri"].as_str().unwrap();
    let archive = release.dist().join(uri.rsplit_once('/').unwrap().1);
    let sum = run(Command::new("sha256sum").arg(&archive));
    assert_eq!(sum.split(' ').next(), platform["sha256"].as_str());
    let named = platform["files"].as_array().unwrap();
    for file in named.iter().map(|file| file["from"].as_str().unwrap()) {
        assert!(directory.parent().unwrap().join(file).is_file(), "{file}");
    }
    // krew unpacks only directories and regular files.
    let listed = run(Command::new("tar").arg("-tvzf").arg(&archive));
    assert!(
        listed.lines().all(|line| line.starts_with(['d', '-'])),
        "{listed}"
    );
}

#[test]
fn the_unit_is_valid_and_hardened() {
    let directory = release().unpack(EXPORTER);
    let unit = fs::read_to_string(directory.join("systemd/nvlink-exporter.service")).unwrap();
    let program = directory.join("nvlink-exporter");
    let unit = unit.replace("/usr/local/bin/nvlink-exporter", program.to_str().unwrap());
    let file = directory.join("nvlink-exporter.service");
    fs::write(&file, unit).unwrap();
    let analyze = || Command::new("systemd-analyze");
    run(analyze().args(["verify", "--man=no"]).arg(&file));
    // docs/service.md states the exposure, 1.3 of 10.
    let security = ["security", "--offline=true", "--threshold=13"];
    run(analyze().args(security).arg(&file));
}

#[test]
fn the_example_environment_names_real_variables() {
    let directory = release().unpack(EXPORTER);
    let example = fs::read_to_string(directory.join("systemd/nvlink-exporter.env")).unwrap();
    let help = programs::run(EXPORTER, &["serve", "--help"], "").unwrap();
    let lines = example.lines().filter_map(|line| line.strip_prefix('#'));
    let names = lines.filter_map(|line| line.split_once('=').map(|(name, _)| name));
    let names: Vec<_> = names.filter(|name| !name.contains(' ')).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(help.contains(name) || name == "KUBECONFIG", "{name}");
    }
}

/// Unpacks an OCI archive, and returns its directory and the configuration of its only image.
fn image(archive: &Path) -> (PathBuf, Value) {
    let into = workdir::fresh("image").unwrap();
    run(Command::new("tar")
        .arg("-C")
        .arg(&into)
        .arg("-xf")
        .arg(archive));
    let read = |path: PathBuf| -> Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        into.join("blobs").join(digest.replace(':', "/"))
    };
    let top = read(into.join("index.json"));
    let index = read(blob(&top["manifests"][0]));
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest = read(blob(&index["manifests"][0]));
    let configuration = read(blob(&manifest["config"]));
    let root = into.join("root");
    fs::create_dir(&root).unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        run(Command::new("tar")
            .arg("-C")
            .arg(&root)
            .arg("-xf")
            .arg(blob(layer)));
    }
    (root, configuration)
}

#[test]
fn an_image_has_the_program_and_no_shell() {
    for (program, archive) in release().images() {
        assert!(fs::metadata(&archive).unwrap().len() < LARGEST, "{program}");
        let (root, configuration) = image(&archive);
        let config = &configuration["config"];
        assert_eq!(config["User"], "65532:65532");
        assert_eq!(config["Entrypoint"][0], format!("/usr/bin/{program}"));
        let labels = &config["Labels"];
        assert_eq!(
            labels["org.opencontainers.image.version"],
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(labels["org.opencontainers.image.title"], program);

        let files = files(&root);
        let document = |name: &str| format!("usr/share/doc/{program}/{name}");
        let names = ["LICENSE", "THIRD-PARTY-LICENSES.txt", "sbom.cdx.json"].map(document);
        for wanted in names
            .iter()
            .map(String::as_str)
            .chain(["etc/ssl/certs/ca-certificates.crt"])
        {
            assert!(files.contains(wanted), "{wanted}: {files:?}");
        }
        let programs = files.iter().filter(|file| file.contains("bin/"));
        assert_eq!(
            programs.collect::<Vec<_>>(),
            [&format!("usr/bin/{program}")]
        );
        let sbom = fs::read_to_string(root.join(document("sbom.cdx.json"))).unwrap();
        for inside in ["\"kube\"", "\"rustls\"", "\"libc6\""] {
            assert!(sbom.contains(inside), "{inside}");
        }
    }
}

#[test]
fn the_same_input_gives_the_same_image() {
    let release = release();
    let again = release.directory.join("again");
    release.run("deploy/images/build", &again);
    for (program, archive) in release.images() {
        let other = again.join(format!("{program}.tar"));
        assert!(
            fs::read(archive).unwrap() == fs::read(other).unwrap(),
            "{program}"
        );
    }
}
