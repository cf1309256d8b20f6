//! This project's programs: the real binaries beside this one, and the fake driver library.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::process::feed;

pub const EXPORTER: &str = "nvlink-exporter";
pub const WEBHOOK: &str = "nvlink-webhook";
/// kubectl's plugin.
pub const PLUGIN: &str = "kubectl-nvlink";
/// The fake of the driver's library, see [`crate::nvml`].
pub const FAKE_NVML: &str = "libfake_nvml.so";

const ALL: [(&str, &str); 4] = [
    (EXPORTER, EXPORTER),
    (WEBHOOK, WEBHOOK),
    (PLUGIN, PLUGIN),
    (FAKE_NVML, "nvlink-fake-nvml"),
];

/// Returns the path of one of our programs, or of [`FAKE_NVML`], built from the current sources.
///
/// # Errors
/// When it does not compile.
pub fn path(program: &str) -> Result<PathBuf> {
    static BUILT: [OnceLock<Result<(), String>>; ALL.len()] =
        [const { OnceLock::new() }; ALL.len()];
    let directory = directory()?;
    let own = ALL
        .iter()
        .zip(&BUILT)
        .find(|((name, _), _)| *name == program);
    let (&own, once) = own.with_context(|| format!("{program} is none of our programs"))?;
    let built = once.get_or_init(|| build(&directory, own).map_err(|error| format!("{error:#}")));
    built.as_ref().map_err(|error| anyhow!("{error}"))?;
    Ok(directory.join(program))
}

/// Runs one of our programs with `input` on standard input and waits until it ends.
///
/// # Errors
/// When it cannot be run.
pub fn output(program: &str, arguments: &[&str], input: &str) -> Result<Output> {
    feed(Command::new(path(program)?).args(arguments), input)
        .with_context(|| format!("cannot run {program}"))
}

/// Runs one of our programs and returns its standard output.
///
/// # Errors
/// When it fails, with its standard error.
pub fn run(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let output = output(program, arguments, input)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {}: {said}",
        arguments.join(" ")
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns `target/PROFILE`: the directory of this program, or its parent.
fn directory() -> Result<PathBuf> {
    let this = env::current_exe()?;
    let mut directory = this.parent().context("this program has no directory")?;
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap_or(directory);
    }
    Ok(directory.to_owned())
}

/// Builds the programs with cargo unless this one, of this package, is up to date. When `cargo test`
/// tests the whole workspace, it has built all of them already.
fn build(directory: &Path, (program, package): (&str, &str)) -> Result<()> {
    if is_fresh(&directory.join(program)) {
        return Ok(());
    }
    eprintln!("compiling {package}, because it is older than its sources");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked"]);
    // The fake library is alone: `cargo test` of the workspace builds the others, but not this one. Those
    // would be compiled again here, because some of their dependencies have other features without the tests.
    let together = ALL
        .iter()
        .filter(|(name, _)| (*name == FAKE_NVML) == (program == FAKE_NVML));
    command.args(together.flat_map(|(_, package)| ["--package", package]));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    forget_cargo(&mut command);
    if directory.ends_with("release") {
        command.arg("--release");
    }
    let output = feed(&mut command, "").context("cannot run cargo")?;
    if !output.status.success() {
        bail!(
            "our programs do not compile:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Keeps from a command that runs cargo what cargo gave to this program: build scripts that look at it would
/// run again, and all that depends on them would be compiled again.
pub(crate) fn forget_cargo(command: &mut Command) {
    let given = env::vars_os().map(|(name, _)| name);
    for name in given.filter(|name| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command.env_remove("CARGO_MANIFEST_DIR");
}

/// Reports whether `program` is newer than every source that cargo lists in its `.d` file.
fn is_fresh(program: &Path) -> bool {
    let Ok(built) = fs::metadata(program).and_then(|data| data.modified()) else {
        return false;
    };
    let Ok(noted) = fs::read_to_string(program.with_extension("d")) else {
        return false;
    };
    let Some((_, sources)) = noted.split_once(": ") else {
        return false;
    };
    // A source that is gone, such as one of another checkout, was changed as well.
    let older = |source: &str| {
        fs::metadata(source)
            .and_then(|data| data.modified())
            .is_ok_and(|time| time <= built)
    };
    sources.split_whitespace().all(older)
}
