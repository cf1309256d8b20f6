//! Finds the file that the dynamic loader would load, without calling the loader: `elf` must check the
//! file before the loader maps it. Where a distribution puts the driver into a directory of its own,
//! only the loader's index has its path.

use std::{
    env::{self, consts::ARCH},
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The loader's own index, which `ldconfig` writes.
const CACHE: &str = "/etc/ld.so.cache";

/// Returns the file that the loader uses for `name`.
pub(super) fn file(name: &str) -> Option<PathBuf> {
    let own = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // C libraries other than glibc have no cache.
    let cache = fs::read(CACHE).unwrap_or_default();
    find(name, &own, &cache)
}

/// Searches in the order of dlopen(3): the environment, the cache, the default directories.
fn find(name: &str, own: &OsStr, cache: &[u8]) -> Option<PathBuf> {
    let existing = |file: PathBuf| file.exists().then_some(file);
    if name.contains('/') {
        return existing(name.into());
    }
    let usual = ["/lib", "/usr/lib"].map(|one| format!("{one}/{ARCH}-linux-gnu"));
    let usual = usual
        .into_iter()
        .chain(["/lib64".into(), "/usr/lib64".into()]);
    let mut usual = usual.map(PathBuf::from);
    env::split_paths(own)
        .find_map(|one| existing(one.join(name)))
        .or_else(|| existing(cached(cache, name.as_bytes())?))
        .or_else(|| usual.find_map(|one| existing(one.join(name))))
}

/// Returns the path of `name` in `cache`, which is glibc's `struct cache_file_new`:
/// an entry for each library, the preferred one of a name first.
fn cached(cache: &[u8], name: &[u8]) -> Option<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // `FLAG_X8664_LIB64` and `FLAG_AARCH64_LIB64`: libraries of other machines
    // may have the same name.
    let machine = match ARCH {
        "x86_64" => 0x0300,
        "aarch64" => 0x0a00,
        _ => return None,
    };
    // Some caches have an older table first; offsets are relative to the newer one.
    let start = (0..cache.len())
        .step_by(4)
        .find(|&at| cache[at..].starts_with(MAGIC))?;
    let cache = &cache[start..];
    let count = number(cache, MAGIC.len())?;
    let text = |at: usize| cache.get(at..)?.split(|&byte| byte == 0).next();
    let entries = (0..count).map_while(|n| cache.get(HEADER + n * ENTRY..));
    entries
        .map_while(|entry| Some((number(entry, 0)?, number(entry, 4)?, number(entry, 8)?)))
        .filter(|(flags, ..)| flags & 0xff00 == machine)
        .find(|&(_, key, _)| text(key) == Some(name))
        .and_then(|(.., value)| text(value))
        .map(|path| Path::new(OsStr::from_bytes(path)).to_owned())
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_ne_bytes(bytes.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a cache with entries of these flags, names and paths.
    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let count = u32::try_from(entries.len()).unwrap();
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        bytes.extend(count.to_ne_bytes());
        bytes.resize(48, 0);
        let (mut table, mut strings) = (Vec::new(), Vec::new());
        let mut add = |text: &str| {
            let at = u32::try_from(48 + entries.len() * 24 + strings.len()).unwrap();
            strings.extend(text.bytes().chain([0]));
            at.to_ne_bytes()
        };
        for (flags, name, path) in entries {
            table.extend(flags.to_ne_bytes());
            table.extend(add(name));
            table.extend(add(path));
            table.extend([0; 12]);
        }
        bytes.extend(table);
        bytes.extend(strings);
        bytes
    }

    fn ours() -> u32 {
        if ARCH == "aarch64" { 0x0a03 } else { 0x0303 }
    }

    #[test]
    fn a_library_that_is_only_in_the_cache_is_found() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("libx.so.1");
        fs::write(&path, "").unwrap();
        let named = path.to_str().unwrap();
        let cache = cache(&[
            (ours(), "liba.so.1", "/nowhere/liba.so.1"),
            (0x0003, "libx.so.1", "/of/another/machine/libx.so.1"),
            (ours(), "libx.so.1", named),
        ]);
        let none = OsStr::new("");
        assert_eq!(find("libx.so.1", none, &cache), Some(path.clone()));
        assert_eq!(find("liba.so.1", none, &cache), None);
        // The environment comes first, and a path is not searched.
        let own = tempfile::TempDir::new().unwrap();
        let first = own.path().join("libx.so.1");
        fs::write(&first, "").unwrap();
        assert_eq!(
            find("libx.so.1", own.path().as_os_str(), &cache),
            Some(first)
        );
        assert_eq!(find("./libx.so.1", none, &cache), None);
        // After the older table of some systems.
        let both = [&b"ld.so-1.7.0\0"[..], &[0; 4], &cache].concat();
        assert_eq!(find("libx.so.1", none, &both), Some(path));
    }

    #[test]
    fn a_truncated_cache_is_harmless() {
        let whole = cache(&[(ours(), "libx.so.1", "/nowhere/libx.so.1")]);
        for end in 0..whole.len() {
            let _ = cached(&whole[..end], b"libx.so.1");
        }
        let mut wild = whole;
        for at in (20..72).step_by(4) {
            wild[at..at + 4].fill(0xff);
            assert_eq!(find("libx.so.1", OsStr::new(""), &wild), None);
        }
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
