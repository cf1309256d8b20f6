//! Kinds of gangs that may span nodes: an index of how many members the nodes of each
//! fabric, rack and zone, each node, and the cluster can hold, and when.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use nvlink_topology::{Fabric, GpuSet, Scope};

use crate::{
    Availability, Millis, Name,
    cluster::Cluster,
    job_kind::Ever,
    node_entry::Node,
    profile::{Need, Profile, Stay},
    search::{Ask, Found, Search},
};

/// What the gangs of a kind ask. Members that differ count as the largest of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GangSpec {
    /// The sets in which the nodes must be, sorted.
    pub(crate) sets: Vec<Name>,
    /// What one member asks.
    pub(crate) member: Ask,
    pub(crate) resources: Vec<u64>,
    /// How far apart the members may be.
    pub(crate) scope: Scope,
    /// A fabric brings the members no closer.
    pub(crate) without_fabrics: bool,
}

/// Members that fit on a node, and their placement.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) members: u32,
    pub(crate) found: Arc<Found>,
    /// The number of GPUs that may be used.
    pub(crate) free: usize,
}

impl GangSpec {
    /// Returns the most members, up to `most`, that fit on a node during `stay`.
    pub(crate) fn fit(
        &self,
        search: &mut Search,
        node: &Node,
        profile: &Profile,
        stay: Stay,
        most: u32,
    ) -> Option<Fit> {
        let gpus = self.member.gpus;
        let Stay { start, length } = stay;
        // The placement of several members would have to be a partition for each of them.
        let most = node.partitions.as_ref().map_or(most, |_| most.min(1));
        let one = Need {
            gpus,
            resources: &self.resources,
        };
        let free = profile.window(one, start, length)?;
        let room = u32::try_from(free.len()).unwrap_or(u32::MAX) / gpus;
        (1..=most.min(room)).rev().find_map(|members| {
            let resources: Vec<u64> = self
                .resources
                .iter()
                .map(|one| one.saturating_mul(members.into()))
                .collect();
            let need = Need {
                gpus: gpus * members,
                resources: &resources,
            };
            let free = profile.window(need, start, length)?;
            let members = std::iter::repeat_n(gpus, members as usize);
            self.seat(search, node, free, members)
        })
    }

    /// Returns the placements of members with so many GPUs, one after the other, on the free GPUs
    /// of a node, as one; `None` if one of them has no room.
    pub(crate) fn seat(
        &self,
        search: &mut Search,
        node: &Node,
        free: GpuSet,
        members: impl Iterator<Item = u32>,
    ) -> Option<Fit> {
        let mut rest = free;
        let mut seated: Option<(u32, Found)> = None;
        for gpus in members {
            let ask = Ask {
                gpus,
                ..self.member
            };
            let found = search.find(&node.case(rest), ask)?;
            rest = rest.difference(found.set);
            seated = Some(match seated {
                None => (1, Found::clone(&found)),
                Some((members, whole)) => (members + 1, whole.and(&found)),
            });
        }
        let (members, found) = seated?;
        Some(Fit {
            members,
            found: found.into(),
            free: free.len(),
        })
    }

    /// Returns the levels at which such a gang may span nodes, closest first.
    pub(crate) fn levels(&self) -> &'static [Scope] {
        use Scope::{Cluster, Node, NvlinkDomain, Rack, Zone};
        let levels: &[Scope] = match self.scope {
            Scope::Gpu => &[],
            NvlinkDomain => &[NvlinkDomain],
            Node => &[Node],
            Rack => &[NvlinkDomain, Rack],
            Zone => &[NvlinkDomain, Rack, Zone],
            Cluster => &[NvlinkDomain, Rack, Zone, Cluster],
        };
        match levels {
            [NvlinkDomain, wider @ ..] if self.without_fabrics => wider,
            levels => levels,
        }
    }

    /// Returns the same for a gang that may be anywhere.
    pub(crate) fn anywhere(&self) -> Self {
        Self {
            scope: Scope::Cluster,
            ..self.clone()
        }
    }
}

impl GangSpec {
    /// Reports whether the members must share a rack or a zone, and none of the nodes is known to be in one.
    pub(crate) fn is_unlabelled(&self, cluster: &Cluster) -> bool {
        let by_label = matches!(self.scope, Scope::Rack | Scope::Zone);
        let mut nodes = cluster.nodes().filter(|(_, node)| node.is_in(&self.sets));
        by_label && !nodes.any(|(_, node)| group_of(node, self.scope).is_some())
    }

    /// Reports whether a gang of so many members could ever run on empty nodes.
    pub(crate) fn ever(&self, cluster: &Cluster, search: &mut Search, pods: u64) -> Ever {
        let mut sums: BTreeMap<GroupId, [u64; 3]> = BTreeMap::new();
        for (_, node) in cluster.nodes() {
            if !node.is_in(&self.sets) {
                continue;
            }
            let empty = Profile::new(
                node.profile.all(),
                node.state.capacity,
                &node.state.resources,
            );
            let stay = Stay {
                start: 0,
                length: 0,
            };
            let fit = self.fit(search, node, &empty, stay, u32::MAX);
            let members = match fit {
                Some(fit) => fit.members,
                None if search.is_open_for(node.shared.number) => {
                    node.state.capacity / self.member.gpus.max(1)
                }
                None => 0,
            };
            let members = u64::from(members);
            let from = match node.state.availability {
                Availability::Ready => 0,
                Availability::Silent => 1,
                Availability::Out => 2,
            };
            for id in self
                .levels()
                .iter()
                .filter_map(|&level| group_of(node, level))
            {
                let sums = sums.entry(id).or_default();
                sums[from..].iter_mut().for_each(|sum| *sum += members);
            }
        }
        let evers = [Ever::Ready, Ever::Silent, Ever::Out];
        let found = evers.into_iter().enumerate();
        let mut found = found.filter(|(at, _)| sums.values().any(|sums| sums[*at] >= pods));
        found.next().map_or(Ever::No, |(_, ever)| ever)
    }
}

/// The levels at which nodes form groups, closest first.
pub(crate) const LEVELS: [Scope; 5] = [
    Scope::NvlinkDomain,
    Scope::Node,
    Scope::Rack,
    Scope::Zone,
    Scope::Cluster,
];

/// A fabric, a node, a rack, a zone or the cluster.
pub(crate) type GroupId = (Scope, Name);

/// Returns the group of a node at a level.
pub(crate) fn group_of(node: &Node, level: Scope) -> Option<GroupId> {
    let state = &node.state;
    let name = match level {
        Scope::NvlinkDomain => state.fabric.as_ref().map(Fabric::id).map(Name::from),
        Scope::Rack => state.rack.clone(),
        Scope::Zone => state.zone.clone(),
        Scope::Node => Some(node.name.clone()),
        Scope::Cluster => Some(Name::from("")),
        Scope::Gpu => None,
    };
    name.map(|name| (level, name))
}

/// The nodes of a group, as if nobody else waited.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// When a node can hold more members, and how many more. [`Millis::MIN`] is now.
    pub(crate) events: BTreeSet<(Millis, u32, u32)>,
    /// The number of members that fit now.
    pub(crate) now: u64,
    /// The number of members that fit at last.
    pub(crate) last: u64,
}

/// An index over the groups of nodes.
#[derive(Debug, Default)]
pub(crate) struct GangIndex {
    pub(crate) groups: BTreeMap<GroupId, Group>,
    nodes: HashMap<u32, Member>,
}

/// A node's groups, and when it can hold how many more members.
type Member = (Vec<GroupId>, Vec<(Millis, u32)>);

impl GangIndex {
    /// Returns the number of members that fit on a node now.
    pub(crate) fn now(&self, number: u32) -> u64 {
        let events = self.nodes.get(&number).map(|(_, events)| events);
        let first = events.and_then(|events| events.first());
        first
            .filter(|(at, _)| *at == Millis::MIN)
            .map_or(0, |&(_, members)| members.into())
    }

    /// Reports whether gangs of this kind may use a node.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.nodes.contains_key(&number)
    }

    fn remove(&mut self, number: u32) {
        let Some((groups, events)) = self.nodes.remove(&number) else {
            return;
        };
        for id in groups {
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            for &(at, members) in &events {
                group.events.remove(&(at, number, members));
                group.last -= u64::from(members);
                if at == Millis::MIN {
                    group.now -= u64::from(members);
                }
            }
            if group.events.is_empty() {
                self.groups.remove(&id);
            }
        }
    }

    fn insert(&mut self, spec: &GangSpec, number: u32, node: &Node, search: &mut Search) {
        if !node.is_ready() || !node.is_in(&spec.sets) {
            return;
        }
        let groups = spec.levels().iter();
        let groups: Vec<GroupId> = groups.filter_map(|&level| group_of(node, level)).collect();
        if groups.is_empty() {
            return;
        }
        let mut events = Vec::new();
        let mut held = 0;
        let times = node.profile.changes(Millis::MIN, 0);
        for at in std::iter::once(Millis::MIN).chain(times) {
            let stay = Stay {
                start: at,
                length: 0,
            };
            let fit = spec.fit(search, node, &node.profile, stay, u32::MAX);
            let members = fit.map_or(0, |fit| fit.members);
            if members > held {
                events.push((at, members - held));
                held = members;
            }
        }
        for id in &groups {
            let group = self.groups.entry(id.clone()).or_default();
            for &(at, members) in &events {
                group.events.insert((at, number, members));
                group.last += u64::from(members);
                if at == Millis::MIN {
                    group.now += u64::from(members);
                }
            }
            if group.events.is_empty() {
                self.groups.remove(id);
            }
        }
        self.nodes.insert(number, (groups, events));
    }
}

/// The indexes of all kinds of gangs that the last round asked for.
#[derive(Debug, Default)]
pub(crate) struct GangKinds {
    kinds: HashMap<GangSpec, (GangIndex, bool)>,
}

impl GangKinds {
    /// Begins a round: drops the indexes that the last round did not use, and brings the
    /// others up to date.
    pub(crate) fn update(&mut self, cluster: &Cluster, search: &mut Search, changed: &[u32]) {
        self.kinds
            .retain(|_, (_, used)| std::mem::replace(used, false));
        for (spec, (index, _)) in &mut self.kinds {
            for &number in changed {
                index.remove(number);
                if let Some(node) = cluster.node(number) {
                    index.insert(spec, number, node, search);
                }
            }
        }
    }

    /// Returns the index of a kind if it is built.
    pub(crate) fn built(&self, spec: &GangSpec) -> Option<&GangIndex> {
        self.kinds.get(spec).map(|(index, _)| index)
    }

    /// Returns the index of a kind.
    pub(crate) fn index(
        &mut self,
        spec: &GangSpec,
        cluster: &Cluster,
        search: &mut Search,
    ) -> &GangIndex {
        if !self.kinds.contains_key(spec) {
            let mut index = GangIndex::default();
            for (number, node) in cluster.nodes() {
                index.insert(spec, number, node, search);
            }
            self.kinds.insert(spec.clone(), (index, true));
        }
        let (index, used) = self.kinds.entry(spec.clone()).or_default();
        *used = true;
        index
    }
}
