//! Input files of `preview`.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use nvlink_api::yaml;

/// The largest accepted file, in bytes: a larger one is a mistake.
const MAX_FILE: u64 = 64 << 20;

/// Returns `path` itself or, for a directory, its files in order.
///
/// # Errors
/// When a directory cannot be read, or holds no file to read.
pub(super) fn expand(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let context = || format!("cannot read the directory {}", path.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(path).with_context(context)? {
        paths.push(entry.with_context(context)?.path());
    }
    paths.retain(|path| {
        let extension = path.extension();
        extension.is_some_and(|it| ["json", "yaml", "yml"].iter().any(|known| it == *known))
    });
    paths.sort();
    ensure!(
        !paths.is_empty(),
        "{} holds no .json, .yaml or .yml file",
        path.display()
    );
    Ok(paths)
}

/// Returns the documents of a file; `-` is stdin.
///
/// # Errors
/// When it cannot be read, or holds anything but objects.
pub(super) fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let name = display(path);
    let bytes = read(path).with_context(|| format!("cannot read {name}"))?;
    ensure!(
        bytes.len() as u64 <= MAX_FILE,
        "{name} is larger than {} MiB",
        MAX_FILE >> 20
    );
    let text = String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{name} is not UTF-8 text"))?;
    let documents = yaml::read(text.strip_prefix('\u{feff}').unwrap_or(&text))
        .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    ensure!(!documents.is_empty(), "{name} holds no document");
    match documents.iter().find(|document| !document.is_object()) {
        Some(_) => bail!("{name} holds a document that is not an object"),
        None => Ok(documents),
    }
}

pub(super) fn display(path: &Path) -> String {
    if path == Path::new("-") {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MAX_FILE + 1;
    if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
