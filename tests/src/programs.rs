//! Our own programs: the real binaries, as built beside this one, and the library that the tests give them.

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
/// The library that stands for the driver's, see [`crate::nvml`].
pub const FAKE_NVML: &str = "libfake_nvml.so";

const ALL: [(&str, &str); 3] = [
    (EXPORTER, EXPORTER),
    (WEBHOOK, WEBHOOK),
    (FAKE_NVML, "nvlink-fake-nvml"),
];

/// The path of one of our programs, or of [`FAKE_NVML`], built from the sources as they are now.
///
/// # Errors
/// When it does not compile.
pub fn path(program: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let directory = directory()?;
    let built = BUILT.get_or_init(|| build(&directory).map_err(|error| format!("{error:#}")));
    built.as_ref().map_err(|error| anyhow!("{error}"))?;
    Ok(directory.join(program))
}

/// Runs one of our programs to its end, with `input` on standard input.
///
/// # Errors
/// When it cannot be run.
pub fn output(program: &str, arguments: &[&str], input: &str) -> Result<Output> {
    feed(Command::new(path(program)?).args(arguments), input)
        .with_context(|| format!("cannot run {program}"))
}

/// Runs one of our programs and gives what it prints.
///
/// # Errors
/// When it fails, with what it says on standard error.
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

/// `target/PROFILE`, where this program is, or the directory above it.
fn directory() -> Result<PathBuf> {
    let this = env::current_exe()?;
    let mut directory = this.parent().context("this program lies nowhere")?;
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap_or(directory);
    }
    Ok(directory.to_owned())
}

/// Has cargo bring the programs up to date, unless they are: `cargo test`
/// itself does so before it starts us, when it tests the whole workspace.
fn build(directory: &Path) -> Result<()> {
    if ALL.iter().all(|(name, _)| is_fresh(&directory.join(name))) {
        return Ok(());
    }
    eprintln!("compiling our programs, which are older than their sources");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked"]);
    command.args(ALL.iter().flat_map(|(_, package)| ["--package", package]));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
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

/// Whether `program` is newer than every source that cargo noted beside it.
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
    let newer = |source: &str| {
        fs::metadata(source)
            .and_then(|data| data.modified())
            .is_ok_and(|time| time > built)
    };
    !sources.split_whitespace().any(newer)
}
