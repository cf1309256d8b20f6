//! Traffic counters: a start value that increases with a rate in real time.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
    time::Instant,
};

use crate::{board::Board, call::lock};

/// The direction of traffic, seen from the link's GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Transmit,
    Receive,
}

/// Returns the count of one end of a link so far, in KiB. Each end of a direct link
/// receives what the other end sends.
pub(crate) fn kib(board: &Board, gpu: usize, link: u32, direction: Direction) -> u64 {
    let port = &board.cards[gpu].ports[link as usize];
    let (start, rate) = match direction {
        Direction::Transmit => (
            port.options.transmit_kib,
            port.options.transmit_kib_per_second,
        ),
        Direction::Receive => (
            port.options.receive_kib,
            port.options.receive_kib_per_second,
        ),
    };
    match (direction, port.peer, start) {
        (Direction::Receive, Some((gpu, link)), None) => kib(board, gpu, link, Direction::Transmit),
        _ => {
            let key = (gpu, link, direction);
            start.unwrap_or(first(key)) + moved(key, rate.unwrap_or(0))
        }
    }
}

type Key = (usize, u32, Direction);

/// Returns the start value, which differs for each end of each link to reveal mix-ups.
fn first((gpu, link, direction): Key) -> u64 {
    let base = match direction {
        Direction::Transmit => 8_000_000,
        Direction::Receive => 7_000_000,
    };
    base + 1000 * gpu as u64 + 10 * u64::from(link)
}

/// The KiB moved before the last change of the rate, the rate, and the time of the change.
type Moved = (f64, u64, Instant);

/// Returns the KiB moved since the library was loaded, at a rate that may change.
fn moved(key: Key, rate: u64) -> u64 {
    static MOVED: LazyLock<Mutex<HashMap<Key, Moved>>> = LazyLock::new(Mutex::default);
    let now = Instant::now();
    let mut moved = lock(&MOVED);
    let (before, old_rate, since) = moved.entry(key).or_insert((0.0, rate, now));
    if *old_rate != rate {
        *before += *old_rate as f64 * now.duration_since(*since).as_secs_f64();
        (*old_rate, *since) = (rate, now);
    }
    (*before + rate as f64 * now.duration_since(*since).as_secs_f64()) as u64
}
