//! The kind of device at the other end of each link, kept while the link is down:
//! a link that is down does not report it, and a label must not change when a link fails.

use std::collections::BTreeMap;

use nvlink_source::Reading;
use nvlink_topology::{Gpu, Link, Remote, RemoteKind};

use crate::Key;

/// The last known remote kind of each link, by GPU and by index of the link.
#[derive(Clone, Debug, Default)]
pub struct Remotes(BTreeMap<Key, BTreeMap<u32, RemoteKind>>);

impl Remotes {
    /// Remembers the kinds that a reading reports. Nothing is forgotten when a GPU
    /// is lost: it may return.
    pub fn observe(&mut self, reading: &Reading) {
        for gpu in &reading.topology.spec.gpus {
            let known = gpu.links.iter().flatten();
            let known = known.filter_map(|link| Some((link.index, reported(link)?)));
            let mut known = known.peekable();
            if known.peek().is_some() {
                self.0.entry(key(gpu)).or_default().extend(known);
            }
        }
    }

    /// Adds to each link that is down the last known kind of device to which it led. A card whose
    /// bridge fails is so told apart from one that has never had a bridge
    /// ([`nvlink_topology::missing_links`]).
    pub fn complete(&self, reading: &mut Reading) {
        for gpu in &mut reading.topology.spec.gpus {
            let Some(before) = self.0.get(&key(gpu)) else {
                continue;
            };
            let links = gpu.links.iter_mut().flatten();
            for link in links.filter(|link| !link.up && reported(link).is_none()) {
                let remote = before.get(&link.index).map(|&kind| Remote {
                    kind,
                    pci_bus_id: None,
                });
                link.remote = remote.or(link.remote.take());
            }
        }
    }

    /// Returns the kind of each link of `gpu`, in their order: the one that it
    /// reports, else its last known one. For a link that has been down since the
    /// start, it is the kind of the GPU's other links, if they agree.
    pub fn kinds(&self, gpu: &Gpu) -> Vec<RemoteKind> {
        let links = gpu.links.as_deref().unwrap_or_default();
        let before = self.0.get(&key(gpu));
        let known = |link: &Link| {
            let before = before.and_then(|kinds| kinds.get(&link.index).copied());
            reported(link).or(before)
        };
        let known: Vec<_> = links.iter().map(known).collect();
        let mut kinds = known.iter().copied().flatten();
        let first = kinds.next();
        let common = first.filter(|first| kinds.all(|kind| kind == *first));
        let kind = |(link, known): (&Link, Option<RemoteKind>)| {
            let common = common.filter(|_| !link.up);
            known.or(common).unwrap_or(RemoteKind::Unknown)
        };
        links.iter().zip(known).map(kind).collect()
    }
}

fn key(gpu: &Gpu) -> Key {
    Key::new(gpu.index, gpu.uuid.as_deref())
}

/// Returns the kind that the source reports.
fn reported(link: &Link) -> Option<RemoteKind> {
    let kind = link.remote.as_ref()?.kind;
    (kind != RemoteKind::Unknown).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, kind: Option<RemoteKind>) -> Link {
        Link {
            index,
            up: kind.is_some(),
            bytes_per_second: None,
            remote: kind.map(|kind| Remote {
                kind,
                pci_bus_id: None,
            }),
        }
    }

    fn gpu(uuid: &str, kinds: &[Option<RemoteKind>]) -> Gpu {
        let links = (0..).zip(kinds).map(|(index, kind)| link(index, *kind));
        Gpu {
            uuid: Some(uuid.to_owned()),
            links: Some(links.collect()),
            ..Gpu::default()
        }
    }

    const SWITCH: Option<RemoteKind> = Some(RemoteKind::Switch);
    const PEER: Option<RemoteKind> = Some(RemoteKind::Gpu);
    const UNKNOWN: Option<RemoteKind> = Some(RemoteKind::Unknown);

    #[test]
    fn a_link_that_was_never_up_is_of_the_kind_of_the_others_if_they_agree() {
        let kinds = |kinds: &[_]| Remotes::default().kinds(&gpu("GPU-a", kinds));
        assert_eq!(kinds(&[SWITCH, None, SWITCH]), [RemoteKind::Switch; 3]);
        let mixed = kinds(&[SWITCH, None, PEER]);
        assert_eq!(mixed[1], RemoteKind::Unknown);
        assert_eq!(kinds(&[None, None]), [RemoteKind::Unknown; 2]);
        // A link that is up says itself that its kind is unknown.
        let unknown = kinds(&[UNKNOWN, PEER, None]);
        assert_eq!(unknown[0], RemoteKind::Unknown);
        assert_eq!(unknown[2], RemoteKind::Gpu);
    }
}
