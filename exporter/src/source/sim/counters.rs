//! The moving parts: traffic and errors as a pure function of the time since the start.
//!
//! A job runs on all GPUs: in each minute, 45 s of busy links and 15 s of
//! idling. What one end of a direct link sends, the other receives; behind
//! switches each GPU receives what its predecessor sends (on each link, the
//! nearest before it whose link is up), so that the sums agree.

use std::time::Duration;

use nvlink_topology::Gpu;

use super::board::{Profile, Wiring};
use crate::source::{ErrorKind, LinkCounters};

/// Milliseconds of one round of the simulated job, and how many of them are busy.
const ROUND: u64 = 60_000;
const BUSY: u64 = 45_000;
/// Keep-alive traffic of an idle link, bytes per second.
const IDLE: u64 = 1 << 20;
/// GPUs count data in units of this.
const UNIT: u64 = 1024;

/// Counters of all links that are up.
pub(super) fn read(profile: &Profile, gpus: &[Gpu], now: Duration) -> Vec<LinkCounters> {
    let mut all = Vec::new();
    for (n, gpu) in gpus.iter().enumerate() {
        for link in gpu.links.iter().flatten().filter(|link| link.up) {
            let (transmit, receive) = flows(profile, n, link.index);
            all.push(LinkCounters {
                gpu: gpu.index,
                link: link.index,
                transmit_bytes: Some(bytes(profile.link_rate, transmit, now)),
                receive_bytes: Some(bytes(profile.link_rate, receive, now)),
                errors: errors(profile, gpu.index, link.index, now),
                ..LinkCounters::default()
            });
        }
    }
    all
}

/// Who GPU `n` is wired to, link by link: the peer and the link's index there.
pub(super) fn peers(profile: &Profile, n: usize) -> impl Iterator<Item = (usize, u32)> {
    let pairs: &[(u32, u32, u32)] = match profile.wiring {
        Wiring::Direct(pairs) => pairs,
        _ => &[],
    };
    // Links are numbered by ascending peer on both ends.
    let first_link = |of: u32, to: u32| -> u32 {
        let to_lower = |&&(a, b, _): &&(u32, u32, u32)| (a == of && b < to) || (b == of && a < to);
        pairs
            .iter()
            .filter(to_lower)
            .map(|&(_, _, links)| links)
            .sum()
    };
    let n = n as u32;
    let mut ends: Vec<_> = pairs
        .iter()
        .filter(|&&(a, b, _)| a == n || b == n)
        .map(|&(a, b, links)| (if a == n { b } else { a }, links))
        .collect();
    ends.sort_unstable();
    ends.into_iter().flat_map(move |(peer, links)| {
        let first = first_link(peer, n);
        (0..links).map(move |k| (peer as usize, first + k))
    })
}

/// Names of the streams that leave and enter a link.
fn flows(profile: &Profile, n: usize, link: u32) -> (u64, u64) {
    let stream = |gpu: usize, link: u32| (gpu as u64) << 8 | u64::from(link);
    let from = match peers(profile, n).nth(link as usize) {
        Some((peer, there)) => stream(peer, there),
        None => {
            let up = |gpu: &usize| !profile.dead_links.contains(&(*gpu as u32, link));
            let before = (0..n).rev().chain((n..profile.gpus.len()).rev());
            stream(before.into_iter().find(up).unwrap_or(n), link)
        }
    };
    (stream(n, link), from)
}

/// Bytes of a stream until `now`: 50 to 60 % of the line rate while busy.
fn bytes(rate: u64, stream: u64, now: Duration) -> u64 {
    let elapsed = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let busy = elapsed / ROUND * BUSY + (elapsed % ROUND).min(BUSY);
    let share = 500 + stream.wrapping_mul(37) % 101;
    let sent = u128::from(busy) * u128::from(rate / 1000 * share) / 1000
        + u128::from(elapsed) * u128::from(IDLE) / 1000;
    u64::try_from(sent).unwrap_or(u64::MAX) / UNIT * UNIT
}

fn errors(profile: &Profile, gpu: u32, link: u32, now: Duration) -> Vec<(ErrorKind, u64)> {
    let count = |kind: ErrorKind| {
        let rising = profile
            .rising_errors
            .iter()
            .find(|one| (one.gpu, one.link, one.kind) == (gpu, link, kind));
        rising.map_or(0, |one| now.as_secs().saturating_mul(one.per_hour) / 3600)
    };
    profile
        .error_kinds
        .iter()
        .map(|&kind| (kind, count(kind)))
        .collect()
}
