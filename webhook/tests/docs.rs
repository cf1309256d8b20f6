//! Compares the flags, metrics and rules in the documentation with the code.
//! `make generate` writes the generated pages.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

#[path = "../../exporter/tests/support/flags.rs"]
mod flags;

use std::{fs, path::PathBuf};

use clap::{Command, CommandFactory};
use nvlink_admission::decide::Rule;
use nvlink_api::{class::Class, crd::DomainClass};
use nvlink_webhook::{args::Cli, metrics::Metrics};
use serde_json::Value;
use strum::VariantNames;

const GENERATED: &str = "<!-- Generated from the code: make generate -->";

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns README and the pages under `docs/`.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names.filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = pages.map(|name| format!("docs/{name}")).collect();
    pages.push("README.md".to_owned());
    pages
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Compares a generated page with the code, or writes it.
fn check_flags(page: &str, program: &str, command: Command, elsewhere: &[(&str, &str)]) {
    let preface = format!(
        "# Flags of {program}\n\n{GENERATED}\n\n\
         A flag takes precedence over its environment variable.\n"
    );
    let text = flags::page(&preface, command, elsewhere);
    let path = root().join(page);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, text).unwrap();
    }
    assert!(
        fs::read_to_string(path).unwrap_or_default() == text,
        "{page} is outdated: run `make generate`"
    );
}

#[test]
fn the_pages_of_flags_are_up_to_date() {
    let (page, command) = ("docs/webhook-flags.md", Cli::command());
    let plugin = [("check", "kubectl-nvlink-flags.md")];
    check_flags(page, "nvlink-webhook", command, &plugin);
    let page = "docs/kubectl-nvlink-flags.md";
    let command = kubectl_nvlink::args::Cli::command();
    check_flags(page, "kubectl nvlink", command, &[]);
}

/// Returns the command lines of `program` in `text`, as words without the program and shell syntax.
fn command_lines(text: &str, program: &str, command: &Command) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.match_indices(program).map(|(start, _)| {
        let rest = joined[start + program.len()..].lines().next();
        let rest = rest.unwrap_or_default();
        let end = rest
            .find(['|', '>', '`', '…', '#', ')'])
            .unwrap_or(rest.len());
        rest[..end].split_whitespace().map(str::to_owned).collect()
    });
    let real = |words: &Vec<String>| {
        let first = words.first();
        first.is_some_and(|word| command.find_subcommand(word).is_some())
    };
    lines.filter(real).collect()
}

/// Every flag in a command line of the documentation belongs to the subcommand.
#[test]
fn command_lines_of_the_documentation_have_existing_flags() {
    for (program, least) in [
        ("nvlink-webhook ", 4),
        ("kubectl-nvlink ", 4),
        ("kubectl nvlink ", 8),
    ] {
        let mut command = match program {
            "nvlink-webhook " => Cli::command(),
            _ => kubectl_nvlink::args::Cli::command(),
        };
        command.build();
        let mut seen = 0;
        for page in pages() {
            for words in command_lines(&read(&page), program, &command) {
                let known = command.find_subcommand(&words[0]).unwrap();
                for flag in words.iter().filter(|word| word.starts_with("--")) {
                    assert!(has(known, flag), "{page}: {words:?}: there is no {flag}");
                }
                seen += 1;
            }
        }
        assert!(seen >= least, "{seen} command lines of {program}");
    }
}

/// Reports whether a subcommand has the flag.
fn has(command: &Command, flag: &str) -> bool {
    let name = flag.trim_start_matches("--");
    let name = name.split('=').next().unwrap();
    command.get_arguments().any(|argument| {
        let aliases = argument.get_visible_aliases().unwrap_or_default();
        argument.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// Returns the words in backticks on a page.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_page_lists_the_metrics() {
    let page = read("docs/reference.md");
    let rendered = Metrics::default().render().unwrap();
    let families = rendered.lines().filter_map(|line| {
        let name = line.strip_prefix("# TYPE ")?;
        name.split(' ').next()
    });
    let quoted = quoted(&page);
    for family in families {
        let named = quoted.iter().any(|word| word.starts_with(family));
        assert!(named, "docs/reference.md does not name {family}");
    }
}

#[test]
fn the_page_lists_the_rules() {
    let page = read("docs/messages.md");
    let quoted = quoted(&page);
    for word in Rule::VARIANTS {
        assert!(
            quoted.contains(word),
            "docs/messages.md does not name the rule {word}"
        );
    }
}

const CLASS: &str = "apiVersion: nvlink-domains.io/v1alpha1\nkind: DomainClass\n";

/// Returns the classes on a page: in blocks of their own, or in commands up to the line `END`.
fn classes(text: &str) -> Vec<Value> {
    let rest = text.split(CLASS).skip(1);
    let blocks = rest.filter_map(|rest| rest.split("```").next());
    let classes = blocks.filter_map(|block| block.split("\nEND\n").next());
    classes
        .map(|class| serde_saphyr::from_str(&format!("{CLASS}{class}")).unwrap())
        .collect()
}

/// The classes in the documentation are accepted and have no unknown fields.
#[test]
fn classes_of_the_documentation_are_accepted() {
    let mut seen = 0;
    for page in pages() {
        for written in classes(&read(&page)) {
            let class: DomainClass = serde_json::from_value(written.clone()).unwrap();
            Class::new("documented", &class.spec).unwrap();
            // Unknown fields are lost in the round trip.
            let read = serde_json::to_value(&class.spec).unwrap();
            let fields = |spec: &Value| spec.as_object().unwrap().keys().cloned().collect();
            let (written, read): (Vec<String>, Vec<String>) =
                (fields(&written["spec"]), fields(&read));
            assert!(
                written.iter().all(|field| read.contains(field)),
                "{page}: {written:?}"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 7);
}

/// The code map names modules that exist.
#[test]
fn the_code_map_names_existing_modules() {
    let map = read("ARCHITECTURE.md");
    let mut seen = 0;
    let libraries = [
        "topology",
        "planner",
        "simulation",
        "runtime",
        "source",
        "history",
        "api",
        "admission",
        "cluster",
        "queue",
        "collectives",
        "kubelet",
        "device-plugin",
        "kubectl-nvlink",
    ]
    .map(|name| format!("crates/{name}"));
    let programs = ["exporter", "webhook"].map(str::to_owned);
    for name in libraries.iter().chain(&programs) {
        let row = map
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}/` |")))
            .expect("a row of the code map");
        let source = root().join(name).join("src");
        for word in quoted(row).into_iter().skip(1) {
            let word = word.trim_end_matches('/');
            let there = ["", "decide/", "feed/", "round/", "status/"]
                .iter()
                .any(|folder| {
                    let module = source.join(folder).join(word);
                    module.is_dir() || module.with_extension("rs").is_file()
                });
            // Not a module but a flag or a verb.
            let other =
                word.starts_with("--") || word.contains(' ') || ["use", "unsafe"].contains(&word);
            assert!(
                there || other,
                "ARCHITECTURE.md: {name} has no module {word}"
            );
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} modules");
}
