//! Links: state, speed, traffic, errors.

use std::fmt;

use nvlink_topology::{Gpu, Link, RemoteKind};
use prometheus_client::encoding::DescriptorEncoder;

use super::{
    families,
    family::{Series, Value},
    gpu::ids,
};
use crate::source::{LinkCounters, Reading};

pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, data: &Reading) -> fmt::Result {
    let gpus = &data.topology.spec.gpus;
    families::LINK_UP.write(encoder, links(gpus).map(up))?;
    families::LINK_SPEED.write(encoder, links(gpus).filter_map(speed))?;
    let sources = counters(data, |one| {
        one.source.map(|source| source.as_str().to_owned())
    });
    families::COUNTER_SOURCE.write(
        encoder,
        sources.map(|(mut labels, source)| {
            labels.push(source);
            (labels, Value::Whole(1))
        }),
    )?;
    traffic(encoder, data)?;
    errors(encoder, data)
}

fn traffic(encoder: &mut DescriptorEncoder<'_>, data: &Reading) -> fmt::Result {
    let whole = |value: fn(&LinkCounters) -> Option<u64>| {
        counters(data, value).map(|(labels, value)| (labels, Value::Whole(value)))
    };
    families::TRANSMIT.write(encoder, whole(|one| one.transmit_bytes))?;
    families::RECEIVE.write(encoder, whole(|one| one.receive_bytes))?;
    let real = |value: fn(&LinkCounters) -> Option<f64>| {
        counters(data, value).map(|(labels, value)| (labels, Value::Real(value)))
    };
    families::TRANSMIT_RATE.write(encoder, real(|one| one.transmit_bytes_per_second))?;
    families::RECEIVE_RATE.write(encoder, real(|one| one.receive_bytes_per_second))
}

fn errors(encoder: &mut DescriptorEncoder<'_>, data: &Reading) -> fmt::Result {
    let errors = counters(data, |one| Some(&one.errors)).flat_map(|(labels, errors)| {
        errors
            .iter()
            .map(move |&(kind, count)| (with(labels.clone(), kind.as_str()), Value::Whole(count)))
    });
    families::ERRORS.write(encoder, errors)?;
    let ratios = counters(data, |one| Some(&one.bit_error_ratios)).flat_map(|(labels, ratios)| {
        ratios
            .iter()
            .map(move |&(kind, ratio)| (with(labels.clone(), kind.as_str()), Value::Real(ratio)))
    });
    families::BIT_ERROR_RATIO.write(encoder, ratios)
}

fn with(mut labels: Vec<String>, last: &str) -> Vec<String> {
    labels.push(last.to_owned());
    labels
}

/// The labels of each link that has `value`.
fn counters<'a, T>(
    data: &'a Reading,
    value: impl Fn(&'a LinkCounters) -> Option<T> + 'a,
) -> impl Iterator<Item = (Vec<String>, T)> + 'a {
    let gpus = &data.topology.spec.gpus;
    data.counters.iter().filter_map(move |one| {
        let value = value(one)?;
        let gpu = gpus.iter().find(|gpu| gpu.index == one.gpu)?;
        Some((with(ids(gpu), &one.link.to_string()), value))
    })
}

fn links(gpus: &[Gpu]) -> impl Iterator<Item = (&Gpu, &Link)> {
    gpus.iter()
        .flat_map(|gpu| gpu.links.iter().flatten().map(move |link| (gpu, link)))
}

fn up((gpu, link): (&Gpu, &Link)) -> Series {
    let remote = link
        .remote
        .as_ref()
        .map_or(RemoteKind::Unknown, |remote| remote.kind);
    let mut labels = ids(gpu);
    labels.extend([link.index.to_string(), remote.as_str().to_owned()]);
    (labels, Value::Whole(link.up.into()))
}

fn speed((gpu, link): (&Gpu, &Link)) -> Option<Series> {
    let mut labels = ids(gpu);
    labels.push(link.index.to_string());
    Some((labels, Value::Whole(link.bytes_per_second?)))
}
