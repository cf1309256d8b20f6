//! The files of the project, against each other and against the programs: what is generated is up to
//! date, and names that they use exist. No test here needs root, a cluster or a download.
//! `make generate` writes what is generated.

// Clippy recognises test functions as tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod alerts;
mod chart;
mod dashboards;
mod docs;
mod readme;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// Returns the path of a file or directory of the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Returns the path of a file of the chart.
fn chart(name: &str) -> PathBuf {
    Path::new(nvlink_tests::CHART).join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn project(name: &str) -> String {
    read(&path(name))
}

/// Returns all documents of a YAML text, except empty ones.
fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

/// Compares a file of the chart with what it should be; with `UPDATE_GOLDEN`, writes it.
fn golden(name: &str, wanted: &str) {
    let file = chart(name);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, wanted).unwrap();
    }
    assert!(
        read(&file) == wanted,
        "{name} of the chart is out of date: run `make generate`"
    );
}
