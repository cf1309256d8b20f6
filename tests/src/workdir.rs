//! One directory for all files of this process: logs, databases, keys. It is deleted when the
//! process ends, in whatever way.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, anyhow};

/// A script of this name in a directory of [`fresh`] runs before the directory is deleted. It
/// removes what the kernel keeps when a process ends.
pub(crate) const AT_END: &str = "at-end";

/// Waits until the kernel closes its standard input, because the process at the other end has
/// ended, and then runs the scripts [`AT_END`] and deletes the directory. The second try deletes
/// what children wrote while they were ending.
const REAPER: &str = r#"
    read -r _
    for script in "$1"/*/at-end; do [ ! -f "$script" ] || sh "$script"; done
    rm -rf -- "$1" 2>/dev/null || { sleep 1; rm -rf -- "$1"; }
"#;

struct Root {
    path: PathBuf,
    /// Holds the write end of the reaper's standard input open.
    _reaper: Child,
}

/// Creates a new directory named after `subject`, in the directory of this process.
///
/// # Errors
/// When it cannot be created.
pub fn fresh(subject: &str) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = root()?.join(format!("{number:03}-{subject}"));
    fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

fn root() -> Result<&'static Path> {
    static ROOT: OnceLock<Result<Root, String>> = OnceLock::new();
    match ROOT.get_or_init(|| create_root().map_err(|error| format!("{error:#}"))) {
        Ok(root) => Ok(&root.path),
        Err(error) => Err(anyhow!("cannot create the working directory: {error}")),
    }
}

fn create_root() -> Result<Root> {
    let path = tempfile::Builder::new()
        .prefix("nvlink-tests-")
        .tempdir()?
        .keep();
    let reaper = Command::new("sh")
        .args(["-c", REAPER, "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0) // Ctrl-C in the terminal does not reach it
        .spawn()
        .context("cannot start sh")?;
    Ok(Root {
        path,
        _reaper: reaper,
    })
}
