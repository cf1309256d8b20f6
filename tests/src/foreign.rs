//! Our programs on processors of other architectures: cross-compiled, and run by QEMU.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{assets, process::feed, programs, workdir};

/// Our programs and the fake driver library, compiled for another architecture.
#[derive(Clone, Debug)]
pub struct Foreign {
    built: PathBuf,
    scripts: PathBuf,
}

impl Foreign {
    /// Compiles the programs for an architecture, such as `riscv64`, with `deploy/programs`, unless
    /// they are up to date.
    ///
    /// # Errors
    /// When they do not compile, or the cross compiler or QEMU is missing.
    pub fn build(architecture: &str) -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/programs");
        let mut build = Command::new(script);
        build.args([architecture, "dev", "-p", "nvlink-fake-nvml"]);
        programs::forget_cargo(&mut build);
        let output = feed(&mut build, "").with_context(|| format!("cannot run {script}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script}: {said}");
        let this = Self {
            built: String::from_utf8(output.stdout)?.trim_end().into(),
            scripts: workdir::fresh("foreign")?,
        };
        let machine = match architecture {
            "arm64" => "aarch64",
            other => other,
        };
        let qemu = assets::path(&format!("qemu-{machine}-static"))?;
        for program in [programs::EXPORTER, programs::WEBHOOK] {
            let (qemu, built) = (qemu.display(), this.built.join(program));
            let built = built.display();
            // `-L`: where the architecture's glibc is.
            let text =
                format!("#!/bin/sh\nexec {qemu} -L /usr/{machine}-linux-gnu {built} \"$@\"\n");
            let script = this.path(program);
            fs::write(&script, text)?;
            fs::set_permissions(script, Permissions::from_mode(0o755))?;
        }
        Ok(this)
    }

    /// Returns the path of the fake driver library.
    #[must_use]
    pub fn fake_nvml(&self) -> PathBuf {
        self.built.join(programs::FAKE_NVML)
    }

    /// Returns the path of a script that runs one of our programs.
    #[must_use]
    pub fn path(&self, program: &str) -> PathBuf {
        self.scripts.join(program)
    }
}
