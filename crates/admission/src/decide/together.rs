//! What the hardware of a class lets the pods of one job do together: whether all of them can ever
//! run, and whether they reach each other over NVLink. Pure.

use nvlink_api::class::Class;
use nvlink_topology::{Pattern, Scope};

use super::{Chosen, STAYS_PENDING};
use crate::view::GangRoom;

/// The page on pods of one job that are separate hosts.
const PAGE: &str = "docs/gangs.md";

/// The pods of one job.
#[derive(Clone, Copy, Debug)]
pub struct Together<'a> {
    pub class: &'a Class,
    /// Number of pods; `None` if nothing says it.
    pub pods: Option<u32>,
    /// Number of GPUs of each pod.
    pub gpus: u32,
    /// How all their GPUs communicate.
    pub pattern: Pattern,
    /// How far apart they may be; `None` if nobody keeps them together.
    pub scope: Option<Scope>,
    /// Whether they wait in the queue.
    pub queued: bool,
}

impl<'a> Together<'a> {
    /// Returns the pods of the job of a new pod; `None` if it has no others.
    pub(super) fn of(chosen: &'a Chosen) -> Option<Self> {
        let kept = chosen.intent.gang.is_some() || chosen.is_queued();
        chosen.spans.then(|| Self {
            class: &chosen.class,
            pods: chosen.pods,
            gpus: chosen.gpus,
            pattern: chosen.pattern,
            scope: kept.then_some(chosen.gang_scope),
            queued: chosen.is_queued(),
        })
    }

    /// Returns why the nodes of the class can never hold the pods, as far apart as they may be;
    /// `None` if they can, or if that is not known.
    pub fn never(&self, room: &GangRoom) -> Option<String> {
        let name = &self.class.name;
        let (place, most) = match self.scope {
            Some(Scope::NvlinkDomain) if self.class.shared_host => ("NVLink domain", room.domain),
            Some(Scope::NvlinkDomain) if self.class.without_fabrics() => ("NVLink fabric", 0),
            Some(Scope::NvlinkDomain) => ("NVLink fabric over several nodes", room.fabric),
            // Nodes of several domains do not say how many GPUs they have.
            Some(Scope::Node) => ("node", room.pods.map(|_| u64::from(room.node))?),
            _ => return self.too_many(room),
        };
        let need = u64::from(self.pods.unwrap_or(1)) * u64::from(self.gpus);
        if need <= most {
            return None;
        }
        let largest = match most {
            0 => "there is none".to_owned(),
            most => format!("the largest has {most}"),
        };
        // Their affinity requires one label of the domain, which the pods of one node share, too.
        let starts = !self.queued && need <= room.domain;
        let starts = starts && self.scope == Some(Scope::NvlinkDomain);
        let consequence = match starts {
            true => "its pods will not reach each other over NVLink".to_owned(),
            false => self.consequence(),
        };
        let one = match (need <= u64::from(room.node) && self.pods.is_some(), starts) {
            (false, _) => String::new(),
            (true, true) => format!("; one pod of {need} GPUs does ({PAGE})"),
            (true, false) => format!("; one pod of {need} GPUs can start ({PAGE})"),
        };
        Some(format!(
            "the gang needs {need} GPUs in one {place} of class {name:?}; {largest}: {consequence}{one}"
        ))
    }

    /// Returns that all nodes of the class together cannot hold so many pods.
    fn too_many(&self, room: &GangRoom) -> Option<String> {
        let (pods, most) = (u64::from(self.pods?), room.pods?);
        let s = if most == 1 { "" } else { "s" };
        (pods > most).then(|| {
            format!(
                "the gang needs {pods} pods of {} GPU(s); all nodes of class {:?} together hold {most} pod{s}: {}",
                self.gpus,
                self.class.name,
                self.stays()
            )
        })
    }

    fn consequence(&self) -> String {
        let queue = self.class.queue.as_ref().filter(|_| self.queued);
        match queue.is_some_and(|queue| queue.spreads()) {
            true => "its pods start farther apart when their time in the queue ends".to_owned(),
            false => self.stays(),
        }
    }

    fn stays(&self) -> String {
        let why = match self.queued {
            true => "the queue can never start them",
            false => "no domain can hold them",
        };
        format!("its pods {STAYS_PENDING}, {why}")
    }

    /// Returns that the pods communicate over the network, although one pod with all their GPUs
    /// fits a domain of one node.
    pub fn apart(&self, room: &GangRoom) -> Option<String> {
        let (pods, gpus) = (u64::from(self.pods?), u64::from(self.gpus));
        let fabric = room.shared && !self.class.without_fabrics();
        let reach = self.class.shared_host || fabric;
        let silent = self.pattern == Pattern::None;
        let whole = pods * gpus;
        let told = !reach && !silent && pods > 1 && whole <= u64::from(room.node);
        told.then(|| {
            let each = if gpus == 1 { "GPU" } else { "GPUs" };
            format!(
                "{pods} pods of {gpus} {each} do not reach each other over NVLink, also on one node; one pod of {whole} GPUs does ({PAGE})"
            )
        })
    }
}
