//! Measures what admission costs the API server: pods per second with 8 clients, and the
//! CPU time of the API server for each pod. It runs on a real API server, in one run and
//! by turns, with four setups ("sides"): bare; the smallest mutating handler that Go's
//! controller-runtime allows (`gohandler/`); this webhook; this webhook with the
//! policies. It measures pods with and without GPUs, status updates of both, and 1, 50
//! and 200 classes. It prints tables, and fails if a goal is missed.
//!
//! `PODS=100` and `ROUNDS=1` make it shorter. Other load on the machine changes the
//! rates, but hardly changes the CPU time per pod.

mod load;
mod sides;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use load::{Load, WORK, Work};
use nvlink_tests::{ControlPlane, webhook::install_crds};
use sides::{SIDES, Side, Sides};

const CLASSES: [usize; 3] = [1, 50, 200];
/// The goal of pods with GPUs, as a share of the Go handler's rate, and those of everything else, as a
/// share of the bare rate: with webhook and policies.
const GPU_GOAL: f64 = 0.75;
const OTHER_GOAL: f64 = 0.95;

fn main() -> Result<()> {
    let pods = number("PODS", 200)?;
    let rounds = number("ROUNDS", 4)?;
    let plane = ControlPlane::start()?;
    install_crds(plane.kubectl())?;
    let sides = Sides::start(&plane)?;
    let load = Load::new(&plane, pods)?;
    let (mut classes, mut missed) = (0, Vec::new());
    for wanted in CLASSES {
        sides.create_classes(classes..wanted)?;
        classes = wanted;
        println!(
            "\n{classes} classes, {pods} requests by {} clients in each of {rounds} rounds",
            load::CLIENTS
        );
        for work in WORK {
            let spent = measure(&sides, &load, work, rounds)?;
            if !print(work, &spent) {
                missed.push(format!("{} with {classes} classes", work.name()));
            }
        }
    }
    ensure!(missed.is_empty(), "missed goals: {}", missed.join("; "));
    Ok(())
}

fn number(name: &str, default: u32) -> Result<u32> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("invalid {name}")),
        Err(_) => Ok(default),
    }
}

/// The time that some requests took.
#[derive(Clone, Copy, Default)]
struct Spent {
    requests: u32,
    time: Duration,
    api: Duration,
    handler: Duration,
}

impl Spent {
    fn rate(self) -> f64 {
        f64::from(self.requests) / self.time.as_secs_f64()
    }

    /// Returns the milliseconds per request.
    fn each(self, cpu: Duration) -> f64 {
        1e3 * cpu.as_secs_f64() / f64::from(self.requests)
    }
}

/// Measures all sides by turns; the first turn of each is a warm-up and does not count.
fn measure(sides: &Sides<'_>, load: &Load, work: Work, rounds: u32) -> Result<[Spent; 4]> {
    let mut all = [Spent::default(); 4];
    for round in 0..=rounds {
        for (side, spent) in SIDES.into_iter().zip(&mut all) {
            load.prepare(side, work)?;
            let before = (sides.api_cpu()?, sides.handler_cpu(side)?);
            let (requests, time) = load.run(side, work)?;
            if round > 0 {
                spent.requests += requests;
                spent.time += time;
                spent.api += sides.api_cpu()? - before.0;
                spent.handler += sides.handler_cpu(side)? - before.1;
            }
            load.tidy(side, work)?;
        }
    }
    Ok(all)
}

/// Prints the rates; returns whether the goal is met.
fn print(work: Work, all: &[Spent; 4]) -> bool {
    println!("  {}", work.name());
    let [bare, go, ..] = all;
    let mut met = true;
    for (side, spent) in SIDES.into_iter().zip(all) {
        print!(
            "    {:22} {:5.0} per second   CPU of each: API server {:.2} ms ({:+.2}), handler {:.2} ms",
            side.name(),
            spent.rate(),
            spent.each(spent.api),
            spent.each(spent.api) - bare.each(bare.api),
            spent.each(spent.handler),
        );
        let (of, name, goal) = match work {
            Work::GpuPods => (go, "the Go handler's", GPU_GOAL),
            _ => (bare, "the bare", OTHER_GOAL),
        };
        if side != Side::Bare {
            print!("   {:.2} of {name} rate", spent.rate() / of.rate());
        }
        if side == Side::Policies {
            print!(" (goal {goal})");
            met = spent.rate() >= goal * of.rate();
        }
        println!();
    }
    met
}
