//! Measures what `nvlink-exporter device-plugin` adds to the kubelet's calls: the vendor's plugin alone
//! and through the process, by turns, over real Unix sockets, with random free GPUs. The vendor's
//! plugin answers at once here, so the difference is all that stands between costs; a preference is
//! searched for in place of asking the vendor's plugin. Prints tables and the goal, and asserts nothing.
//! `CALLS=20` makes it shorter.

use std::time::Duration;

use anyhow::{Context, Result};
use nvlink_tests::{Allocator, Choice, LabNode};

/// A mesh and bridged pairs of 8 GPUs, and 16 GPUs behind switches.
const PROFILES: [&str; 3] = ["dgx1-v100", "a100-pcie-pairs", "dgx2-v100"];
/// What is to be added to `Allocate` at most.
const GOAL: Duration = Duration::from_millis(1);

/// How long a call took with the vendor's plugin alone, and through the process.
type Pair = [Duration; 2];

/// The same calls to both.
#[derive(Default)]
struct Taken {
    prefer: Vec<Pair>,
    allocate: Vec<Pair>,
}

fn main() -> Result<()> {
    let calls = match std::env::var("CALLS") {
        Ok(text) => text.parse().context("invalid CALLS")?,
        Err(_) => 3_000,
    };
    for profile in PROFILES {
        let node = LabNode::new("bench", profile).choosing(Choice::Scattered);
        let alone = Allocator::start(&node)?;
        let through = Allocator::start(&node.preferring())?;
        let all = alone.devices()?;
        println!("\n{profile}, {} GPUs, {calls} containers", all.len());
        let taken = measure([&alone, &through], &all, calls)?;
        println!(
            "  call                     alone p50      p99   through p50      p99     added p50      p99   ratio"
        );
        print("GetPreferredAllocation", &taken.prefer);
        let added = print("Allocate", &taken.allocate);
        let word = if added < GOAL { "met" } else { "missed" };
        println!("  goal: less than {GOAL:?} added to Allocate, but for a hundredth: {word}");
    }
    Ok(())
}

/// Asks both for containers of random sizes, of random free GPUs.
fn measure(sides: [&Allocator; 2], all: &[String], calls: usize) -> Result<Taken> {
    let mut random = fastrand::Rng::with_seed(16);
    let mut taken = Taken::default();
    // The first tenth warms up.
    for call in 0..calls + calls / 10 {
        let count = random.usize(1..=all.len());
        let free = random.choose_multiple(all.iter().cloned(), count);
        let size = random.usize(1..=free.len());
        let (mut prefer, mut allocate) = (Pair::default(), Pair::default());
        // Neither is always the first.
        for at in [call % 2, (call + 1) % 2] {
            let (preferred, took) = sides[at].timed_prefer(&free, size)?;
            prefer[at] = took;
            (_, allocate[at]) = sides[at].timed_allocate(&preferred)?;
        }
        if call >= calls / 10 {
            taken.prefer.push(prefer);
            taken.allocate.push(allocate);
        }
    }
    Ok(taken)
}

/// Prints a row, and returns what the slowest hundredth of the additions takes at least.
fn print(call: &str, pairs: &[Pair]) -> Duration {
    let percentiles = |of: &dyn Fn(&Pair) -> Duration| {
        let mut all: Vec<Duration> = pairs.iter().map(of).collect();
        all.sort_unstable();
        [50, 99].map(|percent| all[(all.len() - 1) * percent / 100])
    };
    let alone = percentiles(&|pair| pair[0]);
    let through = percentiles(&|pair| pair[1]);
    let added = percentiles(&|pair| pair[1].saturating_sub(pair[0]));
    let micros = |time: Duration| format!("{:.0} µs", time.as_secs_f64() * 1e6);
    println!(
        "  {call:24} {:>9} {:>8} {:>13} {:>8} {:>13} {:>8} {:>7.2}",
        micros(alone[0]),
        micros(alone[1]),
        micros(through[0]),
        micros(through[1]),
        micros(added[0]),
        micros(added[1]),
        through[0].as_secs_f64() / alone[0].as_secs_f64(),
    );
    added[1]
}
