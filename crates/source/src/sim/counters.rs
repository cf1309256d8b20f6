//! Traffic and errors as a function of the time since the start.
//!
//! A job runs on all GPUs, or jobs on those that they use where that is known: in each minute, their links
//! are busy for 45 s and idle for 15 s. Each end of a direct link receives what the other end sends. Behind
//! switches each GPU receives what its predecessor sends (on each link, the nearest earlier GPU of its job
//! whose link is up), so that the sums agree.
//!
//! A fault can set a constant rate for a GPU instead.
//!
//! Counts accumulate from reading to reading, so that a link that was down for a
//! while continues from its last value.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use nvlink_topology::{
    Gpu,
    profile::{Profile, peers},
};

use super::{damage::Wrong, errors, fault::Fault};
use crate::{BitErrorKind, CounterSource, ErrorKind, LinkCounters};

/// Milliseconds of one round of the simulated job, and of its busy part.
const ROUND: u64 = 60_000;
const BUSY: u64 = 45_000;
/// Keep-alive traffic of an idle link, bytes per second.
const IDLE: u64 = 1 << 20;
/// The unit in which GPUs count data, in bytes.
const UNIT: u64 = 1024;

/// Milliseconds of an hour. Errors accumulate in fractions of this.
const HOUR: u128 = 3_600_000;

/// The counts until the last reading.
#[derive(Debug, Default)]
pub(super) struct Counters {
    until: Duration,
    links: BTreeMap<(u32, u32), Count>,
    /// Number of resets that the counts show, by GPU.
    resets: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct Count {
    sent: u64,
    received: u64,
    /// In fractions of an error: errors per hour × milliseconds.
    errors: BTreeMap<ErrorKind, u128>,
}

/// What a link sent and received in a while, in bytes.
#[derive(Clone, Copy, Default)]
struct Moved {
    sent: u64,
    received: u64,
}

impl Counters {
    /// Shows the resets of GPUs until now: the links of a GPU that was reset since the last
    /// call count from zero.
    pub(super) fn reset(&mut self, resets: &BTreeMap<u32, u64>) {
        let before = std::mem::replace(&mut self.resets, resets.clone());
        let new = |gpu: u32| resets.get(&gpu) != before.get(&gpu);
        self.links.retain(|(gpu, _), _| !new(*gpu));
    }

    /// Returns the counters of all links that are up, `now`. The current faults, and the jobs that use GPUs
    /// (`None`: one job uses all), are applied to the whole time since the last reading.
    pub(super) fn read(
        &mut self,
        profile: &Profile,
        gpus: &[Gpu],
        wrong: Wrong<'_>,
        used: Option<&BTreeMap<u32, usize>>,
        now: Duration,
    ) -> Vec<LinkCounters> {
        let span = self.until..now.max(self.until);
        self.until = span.end;
        let mut all = Vec::new();
        for gpu in gpus {
            let rates_only = wrong.faults.contains(&Fault::RatesOnly { gpu: gpu.index });
            for link in gpu.links.iter().flatten().filter(|link| link.up) {
                let at = (gpu.index, link.index);
                let moved = moved(profile, wrong, used, at, &span);
                let rates = rates(profile, wrong.faults, at);
                let count = self.links.entry(at).or_default();
                count.add(moved, &rates, &span);
                all.push(match rates_only {
                    true => count.rates(profile, at, moved, &span),
                    false => count.bytes(profile, at),
                });
                if let (true, Some(last)) = (profile.is_nvlink5(), all.last_mut()) {
                    last.bit_error_ratios = bit_error_ratios(profile, &rates);
                }
            }
        }
        all
    }
}

impl Count {
    fn add(&mut self, moved: Moved, rates: &BTreeMap<ErrorKind, u64>, span: &Range<Duration>) {
        self.sent = self.sent.saturating_add(moved.sent);
        self.received = self.received.saturating_add(moved.received);
        let elapsed = span.end.as_millis() - span.start.as_millis();
        for (&kind, &per_hour) in rates {
            let parts = self.errors.entry(kind).or_default();
            *parts = parts.saturating_add(elapsed.saturating_mul(per_hour.into()));
        }
    }

    fn bytes(&self, profile: &Profile, at: (u32, u32)) -> LinkCounters {
        LinkCounters {
            source: Some(match profile.is_nvlink5() {
                true => CounterSource::Nvlink5Bytes,
                false => CounterSource::ThroughputData,
            }),
            transmit_bytes: Some(self.sent),
            receive_bytes: Some(self.received),
            ..self.errors(profile, at)
        }
    }

    /// Returns the counters of a driver that has only rates: the rates since the last reading.
    fn rates(
        &self,
        profile: &Profile,
        at: (u32, u32),
        moved: Moved,
        span: &Range<Duration>,
    ) -> LinkCounters {
        let seconds = (span.end - span.start).as_secs_f64();
        let rate = |bytes: u64| (seconds > 0.0).then(|| bytes as f64 / seconds);
        LinkCounters {
            source: Some(CounterSource::Gpm),
            transmit_bytes_per_second: rate(moved.sent),
            receive_bytes_per_second: rate(moved.received),
            ..self.errors(profile, at)
        }
    }

    fn errors(&self, profile: &Profile, (gpu, link): (u32, u32)) -> LinkCounters {
        let count = |kind| {
            let parts = self.errors.get(&kind).copied().unwrap_or_default();
            u64::try_from(parts / HOUR).unwrap_or(u64::MAX)
        };
        let kinds = errors::kinds(profile).iter();
        LinkCounters {
            gpu,
            link,
            errors: kinds.map(|&kind| (kind, count(kind))).collect(),
            ..LinkCounters::default()
        }
    }
}

/// Returns the bytes that a link sent and received within `span`.
fn moved(
    profile: &Profile,
    Wrong { faults, damage }: Wrong<'_>,
    used: Option<&BTreeMap<u32, usize>>,
    (gpu, link): (u32, u32),
    span: &Range<Duration>,
) -> Moved {
    // Without a fabric there is no routing.
    if damage.fabric.is_some() {
        return Moved::default();
    }
    let job = |gpu: u32| used.map_or(Some(0), |used| used.get(&gpu).copied());
    let sender = match peers(profile, gpu as usize).nth(link as usize) {
        // The far end of a direct link must be up as well.
        Some((peer, there)) if damage.is_up(peer as u32, there) => (peer as u32, there),
        Some(_) => return Moved::default(),
        None => {
            let all = profile.gpus.len() as u32;
            let mut before = (0..gpu).rev().chain((gpu..all).rev());
            let sender = before.find(|&one| damage.is_up(one, link) && job(one) == job(gpu));
            (sender.unwrap_or(gpu), link)
        }
    };
    let rate = profile.link_rate;
    let idle = job(gpu).is_none() || job(gpu) != job(sender.0);
    let moved = |(gpu, link): (u32, u32)| {
        let stream = u64::from(gpu) << 8 | u64::from(link);
        let bytes = |now| match steady(faults, gpu).or(idle.then_some(0)) {
            Some(percent) => at_rate(rate / 100 * u64::from(percent), now),
            None => bytes(rate, stream, now),
        };
        bytes(span.end).saturating_sub(bytes(span.start))
    };
    Moved {
        sent: moved((gpu, link)),
        received: moved(sender),
    }
}

/// Returns the percentage of the line rate that a fault sets for a GPU.
fn steady(faults: &[Fault], gpu: u32) -> Option<u8> {
    faults.iter().find_map(|fault| match *fault {
        Fault::Traffic { gpu: of, percent } if of == gpu => Some(percent),
        _ => None,
    })
}

/// Returns the bytes until `now` at a constant rate, with those of an idle link.
fn at_rate(rate: u64, now: Duration) -> u64 {
    let bytes = now.as_millis() * u128::from(rate + IDLE) / 1000;
    u64::try_from(bytes).unwrap_or(u64::MAX) / UNIT * UNIT
}

/// Returns the bytes of a stream until `now`: 50 to 60 % of the line rate while busy.
fn bytes(rate: u64, stream: u64, now: Duration) -> u64 {
    let elapsed = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let busy = elapsed / ROUND * BUSY + (elapsed % ROUND).min(BUSY);
    let share = 500 + stream.wrapping_mul(37) % 101;
    let sent = u128::from(busy) * u128::from(rate / 1000 * share) / 1000
        + u128::from(elapsed) * u128::from(IDLE) / 1000;
    u64::try_from(sent).unwrap_or(u64::MAX) / UNIT * UNIT
}

/// Returns the errors per hour of a link by kind: those of the board plus those of the faults.
fn rates(profile: &Profile, faults: &[Fault], (gpu, link): (u32, u32)) -> BTreeMap<ErrorKind, u64> {
    let board = errors::rising(profile).iter().copied();
    let set = faults.iter().filter_map(|fault| match *fault {
        Fault::Errors {
            gpu,
            link,
            kind,
            per_hour,
        } => Some((gpu, link, kind, per_hour)),
        _ => None,
    });
    let mut rates = BTreeMap::new();
    for (_, _, kind, per_hour) in board.chain(set).filter(|one| (one.0, one.1) == (gpu, link)) {
        let rate: &mut u64 = rates.entry(kind).or_default();
        *rate = rate.saturating_add(per_hour);
    }
    rates
}

/// Returns the errors per received bit. On a good link, no errors remain after correction.
fn bit_error_ratios(
    profile: &Profile,
    rates: &BTreeMap<ErrorKind, u64>,
) -> Vec<(BitErrorKind, f64)> {
    let bits_per_hour = profile.link_rate as f64 * 8.0 * 3600.0;
    let ratio = |kind| rates.get(&kind).copied().unwrap_or_default() as f64 / bits_per_hour;
    vec![
        (BitErrorKind::Effective, ratio(ErrorKind::Effective)),
        (BitErrorKind::Symbol, ratio(ErrorKind::Symbol)),
    ]
}
