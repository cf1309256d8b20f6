//! The images of the node: a busybox, with which jobs do something, and the image of the process
//! that holds the namespaces of a pod.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{assets, process::feed};

/// The image of the jobs: `busybox:1` in a manifest.
pub(super) const BUSYBOX: &str = "docker.io/library/busybox:1";
/// The image of containerd's own container in each pod.
pub(super) const PAUSE: &str = "localhost/pause:1";

/// Writes an archive with both images into `directory`, and returns its path.
pub(super) fn write(directory: &Path) -> Result<PathBuf> {
    let directory = directory.join("images");
    let root = directory.join("root");
    for path in ["bin", "tmp", "etc", "root"] {
        fs::create_dir_all(root.join(path))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n")?;
    let busybox = assets::path("busybox")?;
    fs::copy(&busybox, root.join("bin/busybox"))?;
    let names = run(Command::new(&busybox).arg("--list"))?;
    for name in names.lines().filter(|&name| name != "busybox") {
        symlink("busybox", root.join("bin").join(name))?;
    }
    let layer = directory.join("layer.tar");
    archive(&layer, &root, &["."])?;
    let sum = run(Command::new("sha256sum").arg(&layer))?;
    let sum = sum.split(' ').next().unwrap_or_default();

    let shell = json!(["/bin/sh"]);
    // It ends by SIGKILL only, and never needs to do anything.
    let pause = json!(["/bin/busybox", "tail", "-f", "/dev/null"]);
    let mut manifest = Vec::new();
    for (name, file, command) in [
        (BUSYBOX, "busybox.json", shell),
        (PAUSE, "pause.json", pause),
    ] {
        fs::write(directory.join(file), image(sum, &command).to_string())?;
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}));
    }
    fs::write(
        directory.join("manifest.json"),
        Value::from(manifest).to_string(),
    )?;
    let archived = directory.join("images.tar");
    let files = ["manifest.json", "busybox.json", "pause.json", "layer.tar"];
    archive(&archived, &directory, &files)?;
    Ok(archived)
}

/// Returns the configuration of an image with one layer.
fn image(layer: &str, command: &Value) -> Value {
    // The names of architectures in Go.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    })
}

fn archive(to: &Path, directory: &Path, files: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(directory).arg("-cf").arg(to).args(files);
    run(&mut tar).map(drop)
}

fn run(command: &mut Command) -> Result<String> {
    let output = feed(command, "").with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
