//! The driver of the node's GPUs, and the runtime that gives it to containers, as NVIDIA's does
//! for the RuntimeClass `nvidia`.

use std::{
    env::consts::ARCH,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{assets, programs};

/// The name of the runtime in the configuration of containerd, and of its RuntimeClass.
pub(super) const HANDLER: &str = "nvidia";

const BOARD: &str = "/run/nvidia/board.json";

/// Writes the driver and the runtime into `directory`, and returns the path of the runtime.
pub(super) fn write(directory: &Path, recording: &Value) -> Result<PathBuf> {
    let board = directory.join("board.json");
    fs::write(&board, json!({"board": recording}).to_string())?;
    let mount = |source: &Path, destination: &str| {
        json!({
            "type": "bind", "source": source, "destination": destination,
            "options": ["rbind", "ro", "nosuid", "nodev"],
        })
    };
    // Where Debian's glibc looks for the library: NVIDIA's runtime puts it there in images with a
    // file `/etc/debian_version`.
    let library = format!("/usr/lib/{ARCH}-linux-gnu/libnvidia-ml.so.1");
    let mounts = json!([
        mount(&programs::path(programs::FAKE_NVML)?, &library),
        mount(&board, BOARD),
    ]);
    let runtime = directory.join("nvidia-container-runtime");
    let text = format!(
        r#"#!/bin/sh
# Gives the driver to containers that ask for it by NVIDIA_VISIBLE_DEVICES, and runs runc.
previous=
for argument; do
    [ "$previous" != --bundle ] || bundle=$argument
    previous=$argument
done
if [ -n "${{bundle:-}}" ] && grep -Eq '"NVIDIA_VISIBLE_DEVICES=(all|GPU-)' "$bundle/config.json"; then
    {jq} '.mounts += {mounts} | .process.env += ["FAKE_NVML_CONFIG={BOARD}"]' \
        "$bundle/config.json" >"$bundle/config.new"
    mv "$bundle/config.new" "$bundle/config.json"
fi
exec {runc} "$@"
"#,
        jq = assets::path("jq")?.display(),
        runc = assets::path("runc")?.display(),
    );
    fs::write(&runtime, text)?;
    fs::set_permissions(&runtime, Permissions::from_mode(0o755))?;
    Ok(runtime)
}
