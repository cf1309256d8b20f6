//! Why jobs wait.

use crate::{Millis, Reason, gang_kind::GangSpec, job_kind::Ever, queue::Entry, round::plan::Plan};

/// Why all jobs of a kind wait that have no reservation of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// One could start now if nobody were ahead.
    Behind,
    /// The most GPUs that are free on one node, or within the scope of a gang.
    Taken(u32),
    /// One could start now if a node had more of other resources.
    Lacking,
    Silent,
    Never,
    /// Each member of the gang could run, but not all of them together.
    NeverTogether,
    /// The same, because no node is known to be in any rack or zone.
    Unlabelled,
}

impl Class {
    /// Returns the reason for a job that comes after `ahead` others that wait.
    pub(crate) fn reason(self, entry: &Entry, ahead: u32) -> Reason {
        let asked = entry.gpus;
        match self {
            Self::Behind => Reason::Behind { ahead },
            Self::Lacking => Reason::Resources { asked },
            Self::Silent => Reason::Silent,
            Self::Never => Reason::Never,
            Self::NeverTogether => Reason::NeverTogether {
                pods: entry.job.members.len(),
            },
            Self::Unlabelled => Reason::Unlabelled,
            Self::Taken(free) if free >= asked => Reason::Fragmented { asked, free },
            Self::Taken(free) => Reason::Insufficient { asked, free },
        }
    }
}

impl Plan<'_> {
    /// Returns why a job of this kind waits.
    pub(crate) fn classify(&mut self, entry: &Entry) -> Class {
        let key = (entry.kind, entry.job.members.len(), entry.job.gang_scope);
        if let Some(&known) = self.reasons.get(&key) {
            return known;
        }
        let class = self.find_class(entry);
        self.reasons.insert(key, class);
        class
    }

    fn find_class(&mut self, entry: &Entry) -> Class {
        let (cluster, search) = (self.cluster, &mut *self.search);
        let Some(index) = self.kinds.index(entry.kind, false, cluster, search) else {
            return Class::Never;
        };
        let first = index.order().first_key_value();
        let free = index.most_free();
        let empty = first.is_none();
        let now = first.is_some_and(|(key, _)| key.start == Millis::MIN);
        let lacks = index.lacks();
        if now && self.may_share_a_node(entry) {
            return Class::Behind;
        }
        if let Some(spec) = self.gang_spec(entry) {
            return self.classify_gang(entry, &spec, free);
        }
        if !empty {
            return match lacks {
                true => Class::Lacking,
                false => Class::Taken(free),
            };
        }
        let ever = self.kinds.get(entry.kind).map(|kind| kind.spec.clone());
        match ever.map(|spec| spec.ever(self.cluster, self.search)) {
            Some(Ever::Ready | Ever::Out) if lacks => Class::Lacking,
            Some(Ever::Ready | Ever::Out) => Class::Taken(free),
            Some(Ever::Silent) => Class::Silent,
            Some(Ever::No) | None => Class::Never,
        }
    }

    fn classify_gang(&mut self, entry: &Entry, spec: &GangSpec, on_one: u32) -> Class {
        let pods = u64::try_from(entry.job.members.len()).unwrap_or(u64::MAX);
        let index = self.gangs.index(spec, self.cluster, self.search);
        let now = index.groups.values().map(|group| group.now).max();
        let now = now.unwrap_or(0);
        if now >= pods {
            return Class::Behind;
        }
        let in_groups = now.saturating_mul(spec.member.gpus.into());
        let free = u32::try_from(in_groups).unwrap_or(u32::MAX).max(on_one);
        if index.groups.values().any(|group| group.last >= pods) {
            return Class::Taken(free);
        }
        let on_one_node = self.kinds.get(entry.kind).map(|kind| kind.spec.clone());
        let on_one_node = on_one_node.filter(|_| self.may_share_a_node(entry));
        let on_one_node = on_one_node.map(|one| one.ever(self.cluster, self.search));
        let over_several = spec.ever(self.cluster, self.search, pods);
        match on_one_node.map_or(over_several, |one| one.min(over_several)) {
            Ever::Ready | Ever::Out => Class::Taken(free),
            Ever::Silent => Class::Silent,
            Ever::No => match spec.anywhere().ever(self.cluster, self.search, 1) {
                Ever::No => Class::Never,
                _ if spec.is_unlabelled(self.cluster)
                    && spec.anywhere().ever(self.cluster, self.search, pods) != Ever::No =>
                {
                    Class::Unlabelled
                }
                _ => Class::NeverTogether,
            },
        }
    }
}
