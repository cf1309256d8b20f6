//! How many GPUs the projects hold, against the quotas of the classes.

use std::collections::HashMap;

use nvlink_topology::GpuSet;

use crate::{
    Millis, Name,
    assumed_end::End,
    cluster::Cluster,
    profile::{Interval, Need, Owner, Profile, Starts},
    queue::Entry,
    round::plan::{length, occupancy},
};

/// What projects hold over time, by class and project, as far as it was asked for.
#[derive(Default)]
pub(crate) struct Quotas(HashMap<(Name, Name), Profile>);

impl Quotas {
    /// Returns the earliest time from `after` on at which the job's project may hold its
    /// GPUs too; `None` if that time never comes.
    pub(crate) fn earliest(
        &mut self,
        cluster: &Cluster,
        entry: &Entry,
        most: u32,
        after: Millis,
        now: Millis,
    ) -> Option<Millis> {
        let profile = self.0.entry(key(entry));
        let profile = profile.or_insert_with(|| used(cluster, entry, most, now));
        let resources = [u64::from(entry.gpus)];
        let need = Need {
            gpus: 0,
            resources: &resources,
        };
        let starts = Starts::from(after, length(&entry.job));
        let found = profile.earliest(need, starts, Some);
        found.map(|(start, _)| start)
    }

    /// Counts `gpus` GPUs that a job was given from `start` on.
    pub(crate) fn add(
        &mut self,
        cluster: &Cluster,
        entry: &Entry,
        most: u32,
        gpus: u32,
        start: Millis,
        now: Millis,
    ) {
        let profile = self.0.entry(key(entry));
        let profile = profile.or_insert_with(|| used(cluster, entry, most, now));
        let mut interval = occupancy(&entry.job, 0, start, start);
        interval.owner = Owner::Job(entry.id.clone());
        interval.used = vec![u64::from(gpus)];
        profile.add(interval);
    }

    /// Forgets what a job was given.
    pub(crate) fn remove(&mut self, entry: &Entry) {
        if let Some(profile) = self.0.get_mut(&key(entry)) {
            *profile = profile.without(&Owner::Job(entry.id.clone()));
        }
    }
}

fn key(entry: &Entry) -> (Name, Name) {
    (entry.job.class.clone(), entry.job.project.clone())
}

/// Returns what the project of a job holds in its class.
fn used(cluster: &Cluster, entry: &Entry, most: u32, now: Millis) -> Profile {
    let mut profile = Profile::new(GpuSet::EMPTY, u32::MAX, &[u64::from(most)]);
    for pod in cluster.pods_in(&key(entry)) {
        let end = End::of(pod.end, pod.since, pod.gpus, now);
        profile.add(Interval {
            owner: Owner::Outside,
            set: GpuSet::EMPTY,
            count: 0,
            from: Millis::MIN,
            until: end.until,
            mean: end.mean,
            used: vec![u64::from(pod.gpus)],
        });
    }
    profile
}
