//! Measures what admission costs the API server: pods per second with 8 clients, and the
//! CPU time of the API server for each pod. It runs on a real API server, in one run and
//! by turns, with five setups ("sides"): bare; one policy whose condition is `false`, which
//! is the least that any policy costs; the smallest mutating handler that Go's
//! controller-runtime allows (`gohandler/`); this webhook; this webhook with the
//! policies. It measures pods with and without GPUs, status updates of both, and 1, 50
//! and 200 classes, and a pod of the largest admitted size with 200 classes. It prints
//! tables, and fails if a goal is missed.
//!
//! A part of the name of a table, as in `cargo bench ... -- "without GPUs"`, selects tables; `PODS=40` and
//! `ROUNDS=3` make it shorter. All figures are medians of the rounds, because a machine that does other
//! things slows down whole turns. The API server has work of its own, such as garbage collection: a turn
//! of less than a second may have all of it or none.

mod load;
mod sides;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use load::{Load, WORK, Work};
use nvlink_tests::{ControlPlane, webhook::install_crds};
use sides::{SIDES, Side, Sides};

const CLASSES: [usize; 3] = [1, 50, 200];
/// The least rates with webhook and policies: of pods with GPUs, as a share of the Go handler's rate, and of
/// pods without and of status updates, as a share of the bare rate. They are below what two cores reached so
/// far: 0.52 to 0.83 for pods with GPUs, 0.68 to 0.83 for pods without (0.53 beside other work), 0.92 to 0.97
/// for their status, and 0.41 to 0.97 for the status of pods with GPUs, whose rates differ by a factor of two
/// between runs even without any handler. No policy on pods can cost nothing: one whose condition is `false`
/// costs a tenth of the bare rate.
const GPU_GOAL: f64 = 0.5;
const OTHER_GOAL: f64 = 0.6;
const GPU_STATUS_GOAL: f64 = 0.35;
/// The most time that the largest pod takes with webhook and policies, as a share of the Go handler's.
const LARGEST_GOAL: f64 = 1.6;

fn main() -> Result<()> {
    let pods = number("PODS", 400)?;
    let rounds = number("ROUNDS", 5)?;
    let filters: Vec<_> = std::env::args().skip(1).collect();
    let selected = |table: &str| {
        let mut named = filters
            .iter()
            .filter(|one| !one.starts_with('-'))
            .peekable();
        named.peek().is_none() || named.any(|part| table.contains(part.as_str()))
    };
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
        for work in WORK.into_iter().filter(|work| selected(work.name())) {
            let spent = measure(&sides, &load, work, rounds)?;
            if !print(work, &spent) {
                missed.push(format!("{} with {classes} classes", work.name()));
            }
        }
    }
    if selected("largest pod") && !largest(&load, rounds)? {
        missed.push("the largest pod".to_owned());
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

/// What one side took in each round.
type Rounds = Vec<Spent>;
/// What each side took.
type All = [Rounds; SIDES.len()];

/// Measures all sides by turns; the first turn of each is a warm-up and does not count.
fn measure(sides: &Sides<'_>, load: &Load, work: Work, rounds: u32) -> Result<All> {
    let mut all = [const { Rounds::new() }; SIDES.len()];
    for round in 0..=rounds {
        // Each round begins with another side: what the API server does from time to time, such as garbage
        // collection, then meets each side in its turn.
        for turn in 0..SIDES.len() {
            let index = (turn + round as usize) % SIDES.len();
            let (side, of_side) = (SIDES[index], &mut all[index]);
            load.prepare(side, work)?;
            let before = (sides.api_cpu()?, sides.handler_cpu(side)?);
            let (requests, time) = load.run(side, work)?;
            let spent = Spent {
                requests,
                time,
                api: sides.api_cpu()? - before.0,
                handler: sides.handler_cpu(side)? - before.1,
            };
            if round > 0 {
                of_side.push(spent);
            }
            load.tidy(side, work)?;
        }
    }
    Ok(all)
}

/// Returns the median of a figure of all rounds.
fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// Creates the largest pod that is admitted, one after the other. Prints the median time on each side;
/// returns whether the goal is met.
fn largest(load: &Load, rounds: u32) -> Result<bool> {
    println!("  largest pod of a class created, one client");
    let (mut met, mut go) = (true, Duration::ZERO);
    for side in SIDES {
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(load.create_largest(side)?);
        }
        times.sort();
        let time = times[times.len() / 2];
        print!("    {:26} {:5.1} ms", side.name(), 1e3 * time.as_secs_f64());
        if side == Side::Go {
            go = time;
        }
        if side == Side::Policies {
            print!(" (goal: at most {LARGEST_GOAL} times the Go handler's)");
            met = time < go.mul_f64(LARGEST_GOAL);
        }
        println!();
    }
    Ok(met)
}

/// Prints the medians; returns whether the goal is met.
fn print(work: Work, all: &All) -> bool {
    println!("  {}", work.name());
    let [bare, _, go, ..] = all;
    let (of, name, goal) = match work {
        Work::GpuPods => (go, "the Go handler's", GPU_GOAL),
        Work::GpuStatus => (bare, "the bare", GPU_STATUS_GOAL),
        _ => (bare, "the bare", OTHER_GOAL),
    };
    let rate = |rounds: &Rounds| median(rounds.iter().map(|one| one.rate()));
    let mut met = true;
    for (side, spent) in SIDES.into_iter().zip(all) {
        let more = spent.iter().zip(bare);
        let more = more.map(|(one, bare)| one.each(one.api) - bare.each(bare.api));
        print!(
            "    {:26} {:5.0} per second   CPU of each: API server {:.2} ms ({:+.2}), handler {:.2} ms",
            side.name(),
            rate(spent),
            median(spent.iter().map(|one| one.each(one.api))),
            median(more),
            median(spent.iter().map(|one| one.each(one.handler))),
        );
        let ratio = rate(spent) / rate(of);
        if side != Side::Bare {
            print!("   {ratio:.2} of {name} rate");
        }
        if side == Side::Policies {
            print!(" (goal: at least {goal})");
            met = ratio >= goal;
        }
        println!();
    }
    met
}
