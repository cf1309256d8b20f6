//! Finds the file that the dynamic loader would load, and checks it before the loader maps it.
//!
//! The loader maps a file without checking its length. If a copy was interrupted, access to the
//! missing part ends the process with SIGBUS and without an error.

use std::{
    env::{self, consts::ARCH},
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Returns the file that the loader uses for `name`, unless only the loader's own index has it.
pub(super) fn file(name: &str) -> Option<PathBuf> {
    find(name, &env::var_os("LD_LIBRARY_PATH").unwrap_or_default())
}

/// Searches in the order of dlopen(3): the environment, the default directories.
fn find(name: &str, own: &OsStr) -> Option<PathBuf> {
    let existing = |file: PathBuf| file.exists().then_some(file);
    if name.contains('/') {
        return existing(name.into());
    }
    let usual = ["/lib", "/usr/lib"].map(|one| format!("{one}/{ARCH}-linux-gnu"));
    let usual = usual
        .into_iter()
        .chain(["/lib64".into(), "/usr/lib64".into()]);
    let mut all = env::split_paths(own).chain(usual.map(PathBuf::from));
    all.find_map(|one| existing(one.join(name)))
}

/// Checks that a library has the table of sections that its header names: linkers write it last.
/// The loader reports all other errors.
///
/// # Errors
/// When the file cannot be read, or ends too early.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let data = fs::metadata(path)?;
    // Opening anything else, such as a pipe, may block forever.
    if !data.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut header = [0; 64];
    // The loader refuses libraries of other machines and files that are not libraries.
    let read = File::open(path)?.read_exact(&mut header);
    if read.is_err() || header[..6] != *b"\x7fELF\x02\x01" {
        return Ok(());
    }
    let number = |at: usize, size: usize| {
        let digits = header[at..at + size].iter().rev();
        digits.fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let (length, table) = (data.len(), number(40, 8));
    let end = table.saturating_add(number(58, 2) * number(60, 2));
    match end > length {
        true => Err(io::Error::other(format!(
            "the file is truncated: it has {length} bytes, but its headers require {end}"
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_comes_first_and_a_path_is_not_searched() {
        let own = tempfile::TempDir::new().unwrap();
        let first = own.path().join("libx.so.1");
        fs::write(&first, "").unwrap();
        assert_eq!(find("libx.so.1", own.path().as_os_str()), Some(first));
        assert_eq!(find("./libx.so.1", own.path().as_os_str()), None);
        assert_eq!(find("libx.so.1", OsStr::new("")), None);
    }

    #[test]
    fn the_c_library_is_found_where_the_loader_found_it() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().find_map(|line| {
            let path = Path::new(line.split_whitespace().nth(5)?);
            path.ends_with("libc.so.6").then(|| path.to_owned())
        });
        let mapped = mapped.map(|path| path.canonicalize().unwrap());
        let found = file("libc.so.6").map(|path| path.canonicalize().unwrap());
        assert_eq!(found, mapped);
    }
}
