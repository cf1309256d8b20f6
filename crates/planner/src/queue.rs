//! The jobs that wait, and their order.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap},
};

use crate::{Job, Millis, Name, Settings};

/// A job that waits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: Name,
    pub(crate) job: Job,
    /// The number of the kind of the whole job on one node.
    pub(crate) kind: u32,
    /// All its GPUs.
    pub(crate) gpus: u32,
    /// The number of its class.
    pub(crate) class: u32,
}

/// The jobs of one project: age, id, number.
type Jobs = BTreeSet<(Millis, Name, u32)>;

/// The jobs that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: Vec<Option<Entry>>,
    numbers: HashMap<Name, u32>,
    spare: Vec<u32>,
    /// By descending priority, then by project.
    order: BTreeMap<Reverse<i32>, BTreeMap<Name, Jobs>>,
    /// By descending priority, over all projects.
    ages: BTreeMap<Reverse<i32>, Jobs>,
    deadlines: BTreeSet<(Millis, Name)>,
}

impl Queue {
    /// Returns a job.
    pub(crate) fn get(&self, id: &Name) -> Option<&Entry> {
        self.entry(*self.numbers.get(id)?)
    }

    /// Returns the number of a job.
    pub(crate) fn number(&self, id: &Name) -> Option<u32> {
        self.numbers.get(id).copied()
    }

    /// Returns a job by its number.
    pub(crate) fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)?.as_ref()
    }

    /// Returns all jobs, in no order.
    pub(crate) fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().flatten()
    }

    /// Adds a job that is not there.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.entries.push(None);
            // There are far fewer than 2^32 jobs.
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let (id, job) = (&entry.id, &entry.job);
        let place = (job.created, id.clone(), number);
        let projects = self.order.entry(Reverse(job.priority)).or_default();
        let jobs = projects.entry(job.project.clone()).or_default();
        jobs.insert(place.clone());
        let ages = self.ages.entry(Reverse(job.priority)).or_default();
        ages.insert(place);
        if let Some(deadline) = job.deadline {
            self.deadlines.insert((deadline.at, id.clone()));
        }
        self.numbers.insert(id.clone(), number);
        self.entries[number as usize] = Some(entry);
    }

    /// Removes a job.
    pub(crate) fn remove(&mut self, id: &Name) -> Option<Entry> {
        let number = self.numbers.remove(id)?;
        let entry = self.entries[number as usize].take()?;
        self.spare.push(number);
        let job = &entry.job;
        let place = (job.created, id.clone(), number);
        if let Some(projects) = self.order.get_mut(&Reverse(job.priority))
            && let Some(jobs) = projects.get_mut(&job.project)
        {
            jobs.remove(&place);
            if jobs.is_empty() {
                projects.remove(&job.project);
            }
        }
        if let Some(ages) = self.ages.get_mut(&Reverse(job.priority)) {
            ages.remove(&place);
        }
        self.order.retain(|_, projects| !projects.is_empty());
        self.ages.retain(|_, ages| !ages.is_empty());
        if let Some(deadline) = job.deadline {
            self.deadlines.remove(&(deadline.at, id.clone()));
        }
        Some(entry)
    }

    /// Returns the first deadline after `now`.
    pub(crate) fn next_deadline(&self, now: Millis) -> Option<Millis> {
        let mut later = self.deadlines.range((now + 1, Name::from(""))..);
        later.next().map(|&(at, _)| at)
    }

    /// Returns the numbers of the jobs in the order of the queue. With fair share, `held`
    /// has the GPUs that projects hold; each job that comes up counts for its project.
    pub(crate) fn order(&self, settings: &Settings, held: &BTreeMap<Name, u64>) -> Vec<u32> {
        if !settings.fair_share {
            let jobs = self.ages.values().flatten();
            return jobs.map(|&(.., number)| number).collect();
        }
        let mut order = Vec::with_capacity(self.numbers.len());
        let mut held = held.clone();
        for projects in self.order.values() {
            self.share(projects, settings, &mut held, &mut order);
        }
        order
    }

    fn share(
        &self,
        projects: &BTreeMap<Name, Jobs>,
        settings: &Settings,
        held: &mut BTreeMap<Name, u64>,
        order: &mut Vec<u32>,
    ) {
        let share = |project: &Name, held: &BTreeMap<Name, u64>| {
            let weight = settings.shares.get(project).copied().unwrap_or(1).max(1);
            let held = held.get(project).copied().unwrap_or(0);
            // Whole numbers: 2^20 parts of a GPU are fine enough for any weights in use.
            held.saturating_mul(1 << 20) / u64::from(weight)
        };
        let mut heads = BinaryHeap::new();
        for (project, jobs) in projects {
            let mut jobs = jobs.iter();
            if let Some(head) = jobs.next() {
                let iterator = Rest(jobs);
                heads.push(Reverse((share(project, held), head, project, iterator)));
            }
        }
        while let Some(Reverse((_, head, project, mut rest))) = heads.pop() {
            order.push(head.2);
            let gpus = self.entry(head.2).map_or(0, |entry| entry.gpus);
            *held.entry(project.clone()).or_default() += u64::from(gpus);
            if let Some(next) = rest.0.next() {
                heads.push(Reverse((share(project, held), next, project, rest)));
            }
        }
    }
}

/// The jobs of a project that have not come up. It plays no part in the order.
struct Rest<'a>(std::collections::btree_set::Iter<'a, (Millis, Name, u32)>);

impl PartialEq for Rest<'_> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Rest<'_> {}

impl PartialOrd for Rest<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rest<'_> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}
