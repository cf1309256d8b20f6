//! Reviews that libFuzzer makes, led by what of the webhook they reach: each
//! must get a right answer, as each of `tests/corpus` must. The checks, the
//! classes, the changes and the reviews to begin with are those of the corpus.

#![no_main]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/corpus/check.rs"]
mod check;
#[path = "../../tests/corpus/classes.rs"]
mod classes;
#[path = "../../tests/corpus/mutate.rs"]
mod mutate;
#[path = "../../tests/corpus/patch.rs"]
mod patch;
#[path = "../../tests/corpus/seeds.rs"]
mod seeds;

use std::sync::LazyLock;

use fastrand::Rng;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Where the reviews to begin with are.
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests");

static SEEDS: LazyLock<Vec<Value>> = LazyLock::new(seeds::reviews);
static WEBHOOKS: LazyLock<Vec<classes::Webhook>> = LazyLock::new(classes::webhooks);
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime"));

fuzz_target!(|body: &[u8]| {
    for webhook in WEBHOOKS.iter() {
        if let Err(why) = RUNTIME.block_on(check::check(webhook, body)) {
            panic!("{why}");
        }
    }
});

// Mostly a change of the JSON: hardly any change of the bytes leaves a review.
fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
    let mut rng = Rng::with_seed(seed.into());
    if rng.u32(0..16) == 0 {
        return fuzzer_mutate(data, size, most);
    }
    let parsed = serde_json::from_slice(&data[..size]).ok();
    let begun = parsed.filter(|_| rng.u32(0..16) > 0);
    let mut review = begun.unwrap_or_else(|| rng.choice(&*SEEDS).expect("seeds").clone());
    mutate::review(&mut review, &mut rng);
    let mut body = review.to_string().into_bytes();
    mutate::bytes(&mut body, &mut rng);
    if body.len() > most {
        return fuzzer_mutate(data, size, most);
    }
    data[..body.len()].copy_from_slice(&body);
    body.len()
});
