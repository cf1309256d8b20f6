//! `topology` and `record`.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::Path,
};

use anyhow::Context;

use super::{print, read_and_warn};
use crate::{
    args::{RecordArgs, TopologyArgs},
    output,
};

pub(super) fn topology(args: &TopologyArgs) -> anyhow::Result<()> {
    let reading = read_and_warn(&args.source)?;
    let color = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    print(&output::topology(&reading, args.output, color)?)
}

pub(super) fn record(args: &RecordArgs) -> anyhow::Result<()> {
    let reading = read_and_warn(&args.source)?;
    let text = output::json(&reading.topology)?;
    match &args.to {
        None => print(&text),
        Some(path) => write(path, &text).with_context(|| path.display().to_string()),
    }
}

/// Writes a whole file or none: a reader never sees half of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(missing) = directory.filter(|parent| !parent.is_dir()) {
        let reason = format!("the directory {} does not exist", missing.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    let temporary = path.with_file_name(temporary);
    let written = fs::File::create(&temporary)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())
                .and_then(|()| file.sync_all())
        })
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}
