//! Links: state, speed, traffic, errors.

use std::fmt;

use nvlink_source::{LinkCounters, Reading};
use nvlink_topology::{Gpu, Link};

use super::{
    families,
    family::{Label, Value},
    gpu::{by_index, ids},
    writer::Writer,
};
use nvlink_history::remotes::Remotes;

pub(super) fn write(out: &mut Writer<'_>, data: &Reading, remotes: &Remotes) -> fmt::Result {
    let gpus = &data.topology.spec.gpus;
    out.write(
        &families::LINK_UP,
        gpus.iter().flat_map(|gpu| up(gpu, remotes)),
    )?;
    let speeds = links(gpus)
        .filter_map(|(gpu, link)| Some((name(gpu, link.index), whole(link.bytes_per_second?))));
    out.write(&families::LINK_SPEED, speeds)?;
    sources(out, data)?;
    traffic(out, data)?;
    errors(out, data)
}

/// Writes one series for each GPU, or one for each of its links where they differ.
fn sources(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let gpus = data.topology.spec.gpus.iter();
    let sources = gpus.flat_map(|gpu| {
        let links = data.counters.iter().filter(|one| one.gpu == gpu.index);
        let links = links.filter_map(|one| Some((one.link, one.source?)));
        let mut links: Vec<_> = links.collect();
        let differ = links.windows(2).any(|two| two[0].1 != two[1].1);
        if !differ {
            links.truncate(1);
        }
        let [gpu, uuid] = ids(gpu);
        links.into_iter().map(move |(link, source)| {
            let link = if differ { link.into() } else { Label::Unknown };
            ([gpu, uuid, link, source.as_str().into()], whole(1))
        })
    });
    out.write(&families::COUNTER_SOURCE, sources)
}

fn traffic(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let count = |value: fn(&LinkCounters) -> Option<u64>| {
        counters(data, move |one| value(one).map(Value::Whole))
    };
    out.write(&families::TRANSMIT, count(|one| one.transmit_bytes))?;
    out.write(&families::RECEIVE, count(|one| one.receive_bytes))?;
    let rate = |value: fn(&LinkCounters) -> Option<f64>| {
        counters(data, move |one| value(one).map(Value::Real))
    };
    let sent = rate(|one| one.transmit_bytes_per_second);
    out.write(&families::TRANSMIT_RATE, sent)?;
    let received = rate(|one| one.receive_bytes_per_second);
    out.write(&families::RECEIVE_RATE, received)
}

fn errors(out: &mut Writer<'_>, data: &Reading) -> fmt::Result {
    let errors = counters(data, |one| Some(&one.errors)).flat_map(|(link, errors)| {
        errors
            .iter()
            .map(move |&(kind, count)| (with(link, kind.as_str()), whole(count)))
    });
    out.write(&families::ERRORS, errors)?;
    let ratios = counters(data, |one| Some(&one.bit_error_ratios)).flat_map(|(link, ratios)| {
        ratios
            .iter()
            .map(move |&(kind, ratio)| (with(link, kind.as_str()), Value::Real(ratio)))
    });
    out.write(&families::BIT_ERROR_RATIO, ratios)
}

/// Returns labels and value of each link that has `value`.
fn counters<'a, T>(
    data: &'a Reading,
    value: impl Fn(&'a LinkCounters) -> Option<T> + 'a,
) -> impl Iterator<Item = ([Label<'a>; 3], T)> + 'a {
    let gpus = &data.topology.spec.gpus;
    data.counters.iter().filter_map(move |one| {
        let value = value(one)?;
        Some((name(by_index(gpus, one.gpu)?, one.link), value))
    })
}

fn links(gpus: &[Gpu]) -> impl Iterator<Item = (&Gpu, &Link)> {
    gpus.iter()
        .flat_map(|gpu| gpu.links.iter().flatten().map(move |link| (gpu, link)))
}

fn up<'a>(gpu: &'a Gpu, remotes: &Remotes) -> impl Iterator<Item = ([Label<'a>; 4], Value)> {
    let links = gpu.links.iter().flatten().zip(remotes.kinds(gpu));
    links.map(move |(link, remote)| {
        let labels = with(name(gpu, link.index), remote.as_str());
        (labels, whole(link.up.into()))
    })
}

/// Returns the labels of a link: GPU, UUID and link.
fn name(gpu: &Gpu, link: u32) -> [Label<'_>; 3] {
    let [gpu, uuid] = ids(gpu);
    [gpu, uuid, link.into()]
}

fn with<'a>([gpu, uuid, link]: [Label<'a>; 3], last: &'a str) -> [Label<'a>; 4] {
    [gpu, uuid, link, last.into()]
}

fn whole(value: u64) -> Value {
    Value::Whole(value)
}
