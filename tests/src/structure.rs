//! Holds the structure of the code to what ARCHITECTURE.md says of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Names, and the names that each of them uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the folders of the crates that are shipped, by their names in ARCHITECTURE.md.
fn crates() -> BTreeMap<String, PathBuf> {
    let libraries = fs::read_dir(root().join("crates")).unwrap();
    let libraries = libraries.map(|entry| entry.unwrap().path());
    let programs = ["exporter", "webhook"].map(|name| root().join(name));
    let folders = libraries.chain(programs);
    let name = |folder: &Path| folder.file_name().unwrap().to_str().unwrap().to_owned();
    folders.map(|folder| (name(&folder), folder)).collect()
}

/// Returns the crates of this workspace on which each crate depends.
fn dependencies() -> Uses {
    let of = |(name, folder): (String, PathBuf)| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let (_, after) = manifest.split_once("[dependencies]").unwrap();
        let (section, _) = after.split_once("\n[").unwrap_or((after, ""));
        let lines = section.lines();
        let ours = lines.filter_map(|line| {
            let name = line.split(['.', ' ']).next()?;
            let plugin = (name == "kubectl-nvlink").then_some(name);
            name.strip_prefix("nvlink-").or(plugin)
        });
        (name, ours.map(str::to_owned).collect())
    };
    crates().into_iter().map(of).collect()
}

/// Returns the Rust sources below `folder`, without those that are only tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        match path.is_dir() {
            true if name != "tests" => found.extend(sources(&path)),
            false if name.ends_with(".rs") && name != "tests.rs" => found.push(path),
            _ => {}
        }
    }
    found
}

/// Returns a source without comments and without the tests at its end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let line = |line: &str| line.split("//").next().unwrap().to_owned() + "\n";
    text.lines().map(line).collect()
}

/// Returns what follows each `start` in `text`: one name, or the names in braces.
fn names_after(text: &str, start: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(start) {
        let rest = &text[at + start.len()..];
        let inside = match rest.strip_prefix('{') {
            Some(inside) => inside,
            None => rest,
        };
        let (mut depth, mut name, mut begins) = (0, String::new(), true);
        for letter in inside.chars() {
            match letter {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' if depth == 0 && inside.len() < rest.len() => {
                    found.push(std::mem::take(&mut name));
                    begins = true;
                    continue;
                }
                letter if depth == 0 && begins && (letter.is_alphanumeric() || letter == '_') => {
                    name.push(letter);
                }
                letter if letter.is_whitespace() && name.is_empty() => {}
                _ if depth == 0 && inside.len() == rest.len() => break,
                '}' | ';' => break,
                _ => begins = false,
            }
        }
        found.push(name);
    }
    found
}

/// Returns which top-level modules of a crate use which: by their paths, and by the names that the
/// root of the crate exports from them.
fn modules(folder: &Path) -> Uses {
    let source = folder.join("src");
    let root = code(&source.join("lib.rs"));
    let declared = names_after(&root, "mod ");
    let mut exports: BTreeMap<String, &String> = BTreeMap::new();
    for module in &declared {
        for prefix in ["use ", "use self::"] {
            for name in names_after(&root, &format!("{prefix}{module}::")) {
                exports.insert(name, module);
            }
        }
    }
    let mut uses = Uses::new();
    for path in sources(&source) {
        let below = path.strip_prefix(&source).unwrap();
        let module = below.components().next().unwrap().as_os_str();
        let module = module.to_str().unwrap().trim_end_matches(".rs").to_owned();
        if ["lib", "main", "bin"].contains(&module.as_str()) {
            continue;
        }
        let text = code(&path);
        let mut names = names_after(&text, "crate::");
        if below.components().count() == 1 {
            names.extend(names_after(&text, "use super::"));
        }
        let used = uses.entry(module.clone()).or_default();
        for name in names {
            let name = exports.get(&name).map_or(name, |module| (*module).clone());
            if name != module && declared.contains(&name) {
                used.insert(name);
            }
        }
    }
    uses
}

/// Returns what is left of `uses` after all that uses nothing that is left: it is in circles, or uses
/// what is.
fn circles(mut uses: Uses) -> Uses {
    loop {
        let ends = uses.iter().find(|(_, used)| used.is_empty());
        let Some(name) = ends.map(|(name, _)| name.clone()) else {
            return uses;
        };
        uses.remove(&name);
        uses.values_mut().for_each(|used| _ = used.remove(&name));
    }
}

#[test]
fn no_top_level_modules_of_a_crate_use_each_other_in_a_circle() {
    let mut seen = 0;
    for (name, folder) in crates() {
        if !folder.join("src/lib.rs").is_file() {
            continue;
        }
        let uses = modules(&folder);
        seen += uses.values().map(BTreeSet::len).sum::<usize>();
        let known: BTreeSet<String> = uses.keys().cloned().collect();
        let kept = uses.into_iter().map(|(name, used)| {
            let used = used.intersection(&known).cloned().collect();
            (name, used)
        });
        let left = circles(kept.collect());
        assert!(left.is_empty(), "{name}: circles among {left:#?}");
    }
    assert!(seen > 100, "{seen} uses");
}

/// A release must compile whenever the tests do, which build no release. `cfg!(debug_assertions)` is
/// compiled in both.
#[test]
fn no_code_is_only_in_releases_or_only_in_debug_builds() {
    for path in crates().into_values().flat_map(|folder| sources(&folder)) {
        let code = code(&path);
        let mut attributes = code
            .lines()
            .filter(|line| line.trim_start().starts_with("#["));
        let found = attributes.find(|line| line.contains("debug_assertions"));
        assert_eq!(found, None, "{}", path.display());
    }
}

#[test]
fn the_picture_of_the_crates_is_that_of_cargo() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, after) = text.split_once("\n## The crates\n").unwrap();
    let (section, _) = after.split_once("\n## ").unwrap();
    let drawn = section.lines().filter_map(|line| line.split_once(" → "));
    let known = dependencies();
    let drawn = drawn.map(|(name, used)| {
        let used = used.split(',').map(|one| one.trim().to_owned());
        (
            name.trim().to_owned(),
            used.filter(|one| one != "-").collect(),
        )
    });
    assert_eq!(drawn.collect::<Uses>(), known, "ARCHITECTURE.md and Cargo");
}

#[test]
fn paths_that_the_pages_for_developers_name_exist() {
    const FOLDERS: [&str; 11] = [
        "alerts",
        "crates",
        "dashboards",
        "deploy",
        "docs",
        "exporter",
        "tests",
        "webhook",
        // Where the libraries were.
        "planner",
        "runtime",
        "topology",
    ];
    // The row of `tests/` names folders inside it.
    for (page, folders) in [
        ("CONTRIBUTING.md", &FOLDERS[..]),
        ("ARCHITECTURE.md", &FOLDERS[1..2]),
    ] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        let paths = quoted.filter(|word| {
            let first = word.split_once('/').map(|(first, _)| first);
            first.is_some_and(|first| folders.contains(&first)) && !word.contains([' ', '*', '<'])
        });
        let mut seen = 0;
        for path in paths {
            assert!(root().join(path).exists(), "{page} names {path}");
            seen += 1;
        }
        assert!(seen > 15, "{page}: {seen} paths");
    }
}

#[test]
fn names_in_braces_are_found_at_their_first_level() {
    let text = "use crate::{a::{b, c}, d, e::F};\nlet x = crate::g::h();\nuse crate::{\n    I,\n    j,\n};";
    let names = names_after(text, "crate::");
    assert_eq!(names.join(" "), "a d e g I j ");
    let uses = |pairs: &[(&str, &[&str])]| -> Uses {
        let of = |(name, used): &(&str, &[&str])| {
            let used = used.iter().map(|one| (*one).to_owned());
            ((*name).to_owned(), used.collect())
        };
        pairs.iter().map(of).collect()
    };
    assert!(circles(uses(&[("a", &["b"]), ("b", &[])])).is_empty());
    let left = circles(uses(&[("a", &["b"]), ("b", &["a"]), ("c", &[])]));
    assert_eq!(left.keys().cloned().collect::<String>(), "ab");
}
