//! The cgroups of a node's containers: a directory in each hierarchy. The kernel keeps them when
//! their processes end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result, ensure};

use super::network::PREFIX;
use crate::{process::feed, workdir};

const ROOT: &str = "/sys/fs/cgroup";

/// Removes the cgroup $name as soon as its last process has ended.
const REMOVE: &str = r#"
for try in $(seq 200); do
    found=$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$name")
    [ -n "$found" ] || exit 0
    find $found -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
done
"#;

/// The cgroups of one node. They are removed when this is dropped, or else when the process ends.
#[derive(Debug)]
pub(super) struct Cgroup {
    removal: PathBuf,
}

/// Returns the name in each hierarchy of the cgroup of the node with this interface. No other node
/// ever has it: a node may get the interface of one whose cgroup is still being removed.
pub(super) fn name(interface: &str) -> String {
    format!("{interface}-{}", process::id())
}

impl Cgroup {
    /// Creates the cgroup of the node with this interface in all hierarchies.
    ///
    /// # Errors
    /// When one cannot be created.
    pub(super) fn create(interface: &str, directory: &Path) -> Result<Self> {
        remove_stale();
        let name = name(interface);
        let this = Self {
            removal: directory.join(workdir::AT_END),
        };
        // Before there is anything to remove, since this process may end at any moment.
        fs::write(&this.removal, format!("name={name}{REMOVE}"))?;
        enable_controllers();
        for hierarchy in hierarchies() {
            create(&hierarchy.join(&name))?;
        }
        Ok(this)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // What it leaves, the next node removes.
        let _ = feed(Command::new("sh").arg(&self.removal), "");
    }
}

/// Checks that there are cgroups, and that this process may create some.
///
/// # Errors
/// When it may not, with what to do.
pub(super) fn check() -> Result<()> {
    let hierarchies = hierarchies();
    ensure!(
        !hierarchies.is_empty(),
        "it needs cgroups, and {ROOT} holds none; mount them there"
    );
    // Several nodes of one process may start at a time.
    static CHECKS: AtomicUsize = AtomicUsize::new(0);
    let number = CHECKS.fetch_add(1, Ordering::Relaxed);
    let name = format!("{PREFIX}check-{}-{number}", process::id());
    for hierarchy in hierarchies {
        let path = hierarchy.join(&name);
        create(&path)
            .context("it needs cgroups of its own; in a container, run this with all privileges")?;
        // A node that starts meanwhile may have removed it already.
        let _ = fs::remove_dir(&path);
    }
    Ok(())
}

fn create(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Gives the cgroups below the root all its controllers, as the kubelet demands. In version 1 they
/// have hierarchies of their own, and there is no such file.
fn enable_controllers() {
    let root = Path::new(ROOT);
    let controllers = fs::read_to_string(root.join("cgroup.controllers"));
    for controller in controllers.unwrap_or_default().split_whitespace() {
        let enable = format!("+{controller}");
        // The kubelet says which one it misses.
        let _ = fs::write(root.join("cgroup.subtree_control"), enable);
    }
}

/// Removes the cgroups of nodes that were killed together with whoever removes them.
fn remove_stale() {
    for hierarchy in hierarchies() {
        for path in directories(&hierarchy) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let interface = name
                .rsplit_once('-')
                .map_or(&*name, |(interface, _)| interface);
            // The interface of a node exists as long as the node does.
            if name.starts_with(PREFIX) && !Path::new("/sys/class/net").join(interface).exists() {
                // Another process may remove the same; what is in use stays.
                let mut find = Command::new("find");
                find.arg(&path)
                    .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]);
                let _ = find.output();
            }
        }
    }
}

/// Returns the root of the only hierarchy (version 2), or the roots of all (version 1, mixed).
fn hierarchies() -> Vec<PathBuf> {
    let is_root = |path: &PathBuf| path.join("cgroup.procs").exists();
    let root = PathBuf::from(ROOT);
    if is_root(&root) {
        return vec![root];
    }
    let mut found = directories(&root);
    found.retain(is_root);
    found
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    // Not symbolic links: `cpu` may be one to `cpu,cpuacct`.
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    { entries }
        .filter(is_directory)
        .map(|entry| entry.path())
        .collect()
}
