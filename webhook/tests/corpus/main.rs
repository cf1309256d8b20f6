//! One hundred thousand reviews made out of real ones, through the entry that
//! production uses: whatever comes in, a right answer goes out ([`check`]).
//!
//! The same reviews each time: review `n` follows from `n` alone.
//! `CORPUS=12345` runs that one and prints it; `CORPUS=0..5000000` runs more.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod check;
mod classes;
mod mutate;
mod patch;
mod seeds;
mod versions;

use std::{
    collections::BTreeMap,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use check::{Kind, check};
use serde_json::Value;

/// Where the reviews to begin with are.
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
const REVIEWS: Range<u64> = 0..100_000;
/// Reviews that a thread takes at a time.
const BATCH: u64 = 500;

/// The bytes of review `n`.
fn body(seeds: &[Value], n: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(n);
    let mut review = rng.choice(seeds).expect("seeds").clone();
    mutate::review(&mut review, &mut rng);
    let mut body = serde_json::to_vec(&review).unwrap();
    mutate::bytes(&mut body, &mut rng);
    body
}

/// The reviews to run: [`REVIEWS`], or what `CORPUS` says.
fn chosen() -> Range<u64> {
    let text = std::env::var("CORPUS").unwrap_or_default();
    if text.is_empty() {
        return REVIEWS;
    }
    let number = |text: &str| text.parse::<u64>().expect("CORPUS is N or N..M");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => {
            let n = number(&text);
            let body = body(&seeds::reviews(), n);
            println!("{}", String::from_utf8_lossy(&body));
            n..n + 1
        }
    }
}

/// What one thread has seen.
#[derive(Default)]
struct Seen {
    kinds: BTreeMap<Kind, u64>,
    wrong: Vec<String>,
}

fn work(seeds: &[Value], next: &AtomicU64, end: u64) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let webhooks = classes::webhooks();
    let mut seen = Seen::default();
    loop {
        let first = next.fetch_add(BATCH, Ordering::Relaxed);
        for n in first..(first + BATCH).min(end) {
            let body = body(seeds, n);
            let webhook = &webhooks[usize::try_from(n).unwrap() % webhooks.len()];
            let checked = AssertUnwindSafe(|| runtime.block_on(check(webhook, &body)));
            let checked = catch_unwind(checked).unwrap_or_else(|_| Err("it panics".to_owned()));
            match checked {
                Ok(kind) => *seen.kinds.entry(kind).or_default() += 1,
                Err(why) => seen.wrong.push(format!("CORPUS={n}: {why}")),
            }
        }
        if first >= end {
            return seen;
        }
    }
}

#[test]
fn every_review_gets_a_right_answer() {
    let (seeds, range) = (seeds::reviews(), chosen());
    assert!(!range.is_empty(), "CORPUS is N or N..M with N < M");
    let next = AtomicU64::new(range.start);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<Seen> = thread::scope(|scope| {
        let work = || work(&seeds, &next, range.end);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let wrong: Vec<_> = all.iter().flat_map(|seen| &seen.wrong).collect();
    let shown: Vec<_> = wrong.iter().take(10).map(|line| line.as_str()).collect();
    assert!(
        wrong.is_empty(),
        "{} wrong answers:\n{}",
        wrong.len(),
        shown.join("\n")
    );
    let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
    for (kind, count) in all.into_iter().flat_map(|seen| seen.kinds) {
        *kinds.entry(kind).or_default() += count;
    }
    println!("{kinds:?}");
    if range == REVIEWS {
        // A corpus that the webhook turns away, or has nothing to do with, shows nothing.
        for (kind, least) in [
            (Kind::Changed, 25_000),
            (Kind::Untouched, 10_000),
            (Kind::Denied, 10_000),
            (Kind::Invalid, 2_000),
        ] {
            assert!(kinds.get(&kind) >= Some(&least), "{kind:?} of {kinds:?}");
        }
    }
}
