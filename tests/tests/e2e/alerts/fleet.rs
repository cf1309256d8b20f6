//! What a fleet of 100 nodes with eight GPUs and 6 racks raises in its daily life, and which messages reach somebody:
//! `golden/fleet` has all of them.
//!
//! The series are those of the real exporter on simulated machines, in each state that a scenario has; promtool evaluates
//! the real rules on them, and a real Alertmanager with the routes of the example tells what fires, hundreds of times as
//! fast.

mod firing;
mod machine;
mod pages;
mod replica;
mod scenarios;
mod told;
mod values;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use scenarios::Scenario;

/// How many times as fast Alertmanager runs: a minute in 0.4 s, and in 0.01 s over a weekend. A group is told half a minute
/// after the minutes at which alerts change, or an hour: that is time enough on a busy machine.
const FACTOR: u32 = 150;
const FACTOR_OF_DAYS: u32 = 6_000;
/// How many minutes somebody may still be told something: the longest wait for a group that these scenarios raise, and a
/// round of it.
const TAIL: u32 = 70;
const TAIL_OF_DAYS: u32 = 37 * 60;

/// Two promtools at a time: each takes a core for a minute. These tests come one after the other, so that with one promtool
/// the others would wait, and no other test would begin.
static TURNS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn check(scenario: &Scenario) {
    let days = scenario.interval > 1;
    let (factor, tail) = if days {
        (FACTOR_OF_DAYS, TAIL_OF_DAYS)
    } else {
        (FACTOR, TAIL)
    };
    let turn = &TURNS[NEXT.fetch_add(1, Ordering::Relaxed) % TURNS.len()];
    let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let firings = firing::firing(scenario);
    drop(turn);
    let messages = told::told(&firings, factor, tail);
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/e2e/golden/fleet")
        .join(format!("{}.txt", scenario.name));
    let text = told::text(&messages);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(golden.parent().unwrap()).unwrap();
        fs::write(&golden, &text).unwrap();
    }
    let wanted = fs::read_to_string(&golden).unwrap_or_default();
    let path = golden.display();
    assert!(
        wanted == text,
        "{path} differs (UPDATE_GOLDEN=1 changes it):\n{text}{firings:#?}"
    );
}

#[test]
fn a_reboot_tells_nobody() {
    check(&scenarios::reboot());
}

#[test]
fn a_new_driver_tells_nobody() {
    check(&scenarios::driver());
}

#[test]
fn a_new_version_of_the_programs_tells_nobody() {
    check(&scenarios::programs());
}

#[test]
fn a_weekend_tells_of_jobs_that_idle() {
    check(&scenarios::weekend());
}

#[test]
fn a_switch_tray_that_fails_is_told_once() {
    check(&scenarios::tray());
}

#[test]
fn a_link_that_comes_and_goes_is_told_with_its_node() {
    check(&scenarios::flap());
}

#[test]
fn a_gap_of_prometheus_tells_what_is_broken_after_it() {
    check(&scenarios::away());
}
