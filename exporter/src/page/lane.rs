//! One link, with all that is known of it.

use nvlink_topology::{Link, RemoteKind};

use crate::{load::LinkLoad, source::LinkCounters};

/// A link and what moves on it.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) link: &'a Link,
    pub(super) counters: Option<&'a LinkCounters>,
    pub(super) load: Option<&'a LinkLoad>,
    /// A link that is down is missed: others of its kind are up.
    pub(super) wanted: bool,
}

/// How a link does, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Down, and it should not be.
    Down,
    /// Up, and errors came lately.
    Rising,
    Up,
    /// Down, and nobody misses it.
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

    /// Errors that came lately.
    pub(super) fn errors(&self) -> u64 {
        let rises = self.load.iter().flat_map(|load| &load.rises);
        rises.fold(0, |sum, rise| sum.saturating_add(rise.recent))
    }

    /// The busier direction's share of the line rate.
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

    /// The class of its mark on the page: state, and load in tenths, or that it is not known.
    pub(super) fn class(&self) -> String {
        let level = self.utilization().map_or("nk".to_owned(), |share| {
            format!("l{:.0}", (share * 10.0).ceil())
        });
        match self.state() {
            State::Down => "down".to_owned(),
            State::Unused => "unused".to_owned(),
            State::Rising => format!("rise {level}"),
            State::Up => level,
        }
    }

    /// The state in a word.
    pub(super) fn word(&self) -> &'static str {
        match self.state() {
            State::Down => "✕ down",
            State::Unused => "unused",
            State::Rising => "! errors",
            State::Up => "up",
        }
    }

    /// What the link ends on; a link that is down does not say.
    pub(super) fn remote(&self) -> Option<(RemoteKind, Option<&str>)> {
        let remote = self.link.remote.as_ref()?;
        Some((remote.kind, remote.pci_bus_id.as_deref()))
    }
}
