//! One link, with everything that is known about it.

use nvlink_source::LinkCounters;
use nvlink_topology::{Link, RemoteKind};

use nvlink_history::load::LinkLoad;

/// A link, its counters and its load.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) link: &'a Link,
    pub(super) counters: Option<&'a LinkCounters>,
    pub(super) load: Option<&'a LinkLoad>,
    /// Whether the link counts as missing if it is down: the GPU has fewer links up than expected.
    pub(super) wanted: bool,
    /// Whether its rates need one more reading.
    pub(super) measuring: bool,
}

/// The state of a link, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Down, and it should be up.
    Down,
    /// Up, with recent errors.
    Rising,
    Up,
    /// Down, and not expected to be up.
    Unused,
}

impl Lane<'_> {
    pub(super) fn state(&self) -> State {
        match (self.link.up, self.wanted) {
            (false, true) => State::Down,
            (false, false) => State::Unused,
            (true, _) if self.errors() > 0 => State::Rising,
            (true, _) => State::Up,
        }
    }

    /// Returns the number of recent errors.
    pub(super) fn errors(&self) -> u64 {
        let rises = self.load.iter().flat_map(|load| &load.rises);
        rises.fold(0, |sum, rise| sum.saturating_add(rise.recent))
    }

    /// Returns the busier direction's share of the line rate.
    pub(super) fn utilization(&self) -> Option<f64> {
        let load = self.load.filter(|_| self.link.up)?;
        let both = [
            load.transmit_bytes_per_second,
            load.receive_bytes_per_second,
        ];
        let busier = both.into_iter().flatten().reduce(f64::max)?;
        let rate = self.link.bytes_per_second.filter(|&rate| rate > 0)?;
        Some((busier / rate as f64).clamp(0.0, 1.0))
    }

    /// Returns the class of its mark on the page: state, and load in tenths, `wait`
    /// (measuring) or `nk` (not known).
    pub(super) fn class(&self) -> String {
        let level = match self.utilization() {
            Some(share) => format!("l{:.0}", (share * 10.0).ceil()),
            None if self.measuring => "wait".to_owned(),
            None => "nk".to_owned(),
        };
        match self.state() {
            State::Down => "down".to_owned(),
            State::Unused => "unused".to_owned(),
            State::Rising => format!("rise {level}"),
            State::Up => level,
        }
    }

    /// Returns the state as a word.
    pub(super) fn word(&self) -> &'static str {
        match self.state() {
            State::Down => "✕ down",
            State::Unused => "unused",
            State::Rising => "! errors",
            State::Up => "up",
        }
    }

    /// Returns the device at the other end; a link that is down does not report it.
    pub(super) fn remote(&self) -> Option<(RemoteKind, Option<&str>)> {
        let remote = self.link.remote.as_ref()?;
        Some((remote.kind, remote.pci_bus_id.as_deref()))
    }
}
