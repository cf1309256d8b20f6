//! Links: state, speed, traffic, errors.

use std::fmt;

use nvlink_topology::{Gpu, Link, RemoteKind};
use prometheus_client::encoding::DescriptorEncoder;

use super::{
    family::{self, Series, Value},
    gpu::ids,
};
use crate::source::{LinkCounters, Reading};

pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, data: &Reading) -> fmt::Result {
    let gpus = &data.topology.spec.gpus;
    family::LINK_UP.write(encoder, links(gpus).map(up))?;
    family::LINK_SPEED.write(encoder, links(gpus).filter_map(speed))?;
    let counters = |value: fn(&LinkCounters) -> Option<u64>| {
        data.counters
            .iter()
            .filter_map(move |one| Some((labels(gpus, one)?, Value::Whole(value(one)?))))
    };
    family::TRANSMIT.write(encoder, counters(|one| one.transmit_bytes))?;
    family::RECEIVE.write(encoder, counters(|one| one.receive_bytes))?;
    let errors = data.counters.iter().flat_map(|one| {
        one.errors.iter().filter_map(move |&(kind, count)| {
            let mut labels = labels(gpus, one)?;
            labels.push(kind.as_str().to_owned());
            Some((labels, Value::Whole(count)))
        })
    });
    family::ERRORS.write(encoder, errors)
}

fn links(gpus: &[Gpu]) -> impl Iterator<Item = (&Gpu, &Link)> {
    gpus.iter()
        .flat_map(|gpu| gpu.links.iter().flatten().map(move |link| (gpu, link)))
}

fn labels(gpus: &[Gpu], counters: &LinkCounters) -> Option<Vec<String>> {
    let gpu = gpus.iter().find(|gpu| gpu.index == counters.gpu)?;
    let mut labels = ids(gpu);
    labels.push(counters.link.to_string());
    Some(labels)
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
