//! What people and programs read.

use std::{fs, path::PathBuf};

use nvlink_simulation::{plot, run, table};

use crate::{cluster, generate, options, read};

fn check(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == text,
        "{name} differs; if that is right, run `make generate`\n{text}"
    );
}

#[test]
fn the_report_as_table_json_and_svg() {
    let trace = read(&generate::trace(1, 400, 48.0));
    let on = cluster("dgx-h100=2,a100-pcie-pairs=4");
    let report = run(&trace, &on, &options(1), &mut |_| {}).unwrap();
    check("simulation.txt", &table(&report));
    let json = serde_json::to_string_pretty(&report.document()).unwrap();
    check("simulation.json", &(json + "\n"));
    check("simulation.svg", &plot(&report));
}

/// `TRACE=FILE JOBS=5000 GPUS=96 SEED=1` writes the generated trace, to try the program with it.
#[test]
fn the_generated_trace_can_be_written() {
    let number = |name: &str, default: f64| {
        let value = std::env::var(name).ok();
        value.map_or(default, |text| text.parse().unwrap())
    };
    let (seed, jobs) = (number("SEED", 1.0) as u64, number("JOBS", 100.0) as usize);
    let text = generate::trace(seed, jobs, number("GPUS", 96.0));
    if let Some(path) = std::env::var_os("TRACE") {
        fs::write(path, &text).unwrap();
    }
    assert_eq!(text.lines().count(), read(&text).jobs.len() + 1);
}
