//! kube-scheduler's extender: drops the nodes on which the GPUs of a pod fit in no domain
//! that its scope demands, and scores the others, for clusters whose pods do not wait in
//! the queue. Off by default.
//!
//! It decides by the cost of the search and by the harm of
//! [`nvlink_topology::multi_node`], on the graphs and pods of the [`Mirror`]. It reserves
//! nothing: what it does not know, it lets pass.
//!
//! [`wire`] reads a call, `job` what the pod needs, [`verdict`] judges each node, `score`
//! ranks them, and [`server`] serves it, on an address of its own.

mod job;
mod score;
pub mod server;
pub mod verdict;
pub mod wire;

use std::{collections::BTreeMap, sync::Arc};

use nvlink_admission::view::SharedView;
use nvlink_cluster::mirror::Mirror;
use serde_json::Value;

use self::{
    job::Asked,
    verdict::{Seen, Verdict},
    wire::{Args, Candidates, FilterResult, HostPriority},
};

/// What the answers depend on.
#[derive(Clone, Debug)]
pub struct Extender {
    /// The nodes and pods.
    pub mirror: Mirror,
    /// The classes.
    pub view: SharedView,
}

impl Extender {
    /// Returns the nodes on which the pod may run, and why it may not on the others.
    /// Without `may_search`, only what is known is used.
    ///
    /// # Errors
    /// What is wrong with the call.
    pub fn filter(
        &self,
        args: Args,
        may_search: impl FnMut() -> bool,
    ) -> Result<FilterResult, String> {
        let Some((_, verdicts)) = self.judge(&args.pod, &args.candidates, may_search)? else {
            return Ok(FilterResult::all(args.candidates));
        };
        let names = args.candidates.names()?;
        let failed: BTreeMap<String, String> = names
            .iter()
            .zip(&verdicts)
            .filter_map(|(name, verdict)| match verdict {
                Verdict::Fails(reason) => Some(((*name).to_owned(), reason.clone())),
                Verdict::Unknown | Verdict::Fits(_) => None,
            })
            .collect();
        Ok(FilterResult::some(args.candidates, failed))
    }

    /// Returns the scores of the nodes, from 0 to 10; 10 is the best.
    ///
    /// # Errors
    /// What is wrong with the call.
    pub fn prioritize(
        &self,
        args: &Args,
        may_search: impl FnMut() -> bool,
    ) -> Result<Vec<HostPriority>, String> {
        let names = args.candidates.names()?;
        let scores = match self.judge(&args.pod, &args.candidates, may_search)? {
            Some((asked, verdicts)) => score::scores(&verdicts, asked.gang),
            None => vec![0; names.len()],
        };
        let named = names.into_iter().zip(scores);
        Ok(named
            .map(|(name, score)| HostPriority::new(name, score))
            .collect())
    }

    /// Judges each candidate; `None` if the pod has no class or no GPUs.
    fn judge(
        &self,
        pod: &Value,
        candidates: &Candidates,
        mut may_search: impl FnMut() -> bool,
    ) -> Result<Option<(Asked, Vec<Verdict>)>, String> {
        let names = candidates.names()?;
        let Some(asked) = Asked::of(pod, &self.view.read())? else {
            return Ok(None);
        };
        // The watches wait only until everything is copied.
        let seen = self.look(&names);
        let judge = |seen: &Option<Seen>| match seen {
            Some(seen) => verdict::judge(&asked.job, seen, &mut may_search),
            None => Verdict::Unknown,
        };
        let verdicts = seen.iter().map(judge).collect();
        Ok(Some((asked, verdicts)))
    }

    /// Returns what is known of each node.
    fn look(&self, names: &[&str]) -> Vec<Option<Seen>> {
        let state = self.mirror.read();
        let look = |name: &&str| {
            Some(Seen {
                published: Arc::clone(state.gpus.published(name)?),
                occupancy: state.occupancy(name)?,
            })
        };
        names.iter().map(look).collect()
    }
}
