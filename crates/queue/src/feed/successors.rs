//! Pods that the queue released and then had to fail: their node was lost, or somebody else took the
//! GPUs. Whoever made such a pod makes another one, which takes its turn in the queue.

use std::collections::{HashMap, VecDeque};

use nvlink_api::pod;
use nvlink_planner::{Millis, Name};
use serde_json::Value;

use super::{Feed, entry::Entry};
use crate::{Life, operator::COMPLETION_INDEX, writes::DISRUPTED};

/// The most turns that are kept. The oldest go first: their successors never came.
const MOST: usize = 10_000;

/// Who makes the successor of a pod: its controller, by UID, and its index there, if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line(String, Option<String>);

impl Line {
    /// Returns that of `pod`; `None` if it has no controller.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        let mut owners = pod::list(pod, &["metadata", "ownerReferences"]);
        let owner = owners.find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
        let index = pod::metadata(pod, "annotations", COMPLETION_INDEX).and_then(Value::as_str);
        Some(Self(
            pod::text(owner, &["uid"]).to_owned(),
            index.map(str::to_owned),
        ))
    }
}

/// Reports whether the queue failed the pod although it was its turn.
pub(super) fn lost_its_turn(pod: &Value) -> bool {
    DISRUPTED.contains(&pod::text(pod, &["status", "reason"]))
}

impl Feed {
    /// Returns the turn that the pod `entry` takes from its predecessor, if any. If the pod has just
    /// `lost` its own turn, it is kept for its successor.
    pub(super) fn turn(
        &mut self,
        id: &Name,
        entry: &Entry,
        line: Option<Line>,
        lost: bool,
    ) -> Option<Millis> {
        match self.pods.get(id).filter(|old| old.uid == entry.uid) {
            Some(old) => {
                if let (Some(line), Some(since)) = (line, old.turn())
                    && lost
                    && old.life.is_live()
                {
                    self.successors.keep(line, since);
                }
                old.turn
            }
            None if matches!(entry.life, Life::Waiting { .. }) => self.successors.take(&line?),
            None => None,
        }
    }
}

/// The turns of pods that failed, by who makes their successors: since when each counts as waiting.
#[derive(Debug, Default)]
pub(super) struct Successors {
    turns: HashMap<Line, VecDeque<Millis>>,
    /// In the order in which they were kept.
    order: VecDeque<Line>,
}

impl Successors {
    /// Keeps the turn of a pod that has waited since `since`.
    pub(super) fn keep(&mut self, line: Line, since: Millis) {
        if self.order.len() >= MOST
            && let Some(oldest) = self.order.front().cloned()
        {
            self.take(&oldest);
        }
        self.order.push_back(line.clone());
        self.turns.entry(line).or_default().push_back(since);
    }

    /// Gives the oldest turn to a new pod.
    pub(super) fn take(&mut self, line: &Line) -> Option<Millis> {
        let turns = self.turns.get_mut(line)?;
        let since = turns.pop_front();
        if turns.is_empty() {
            self.turns.remove(line);
        }
        if let Some(at) = self.order.iter().position(|kept| kept == line) {
            self.order.remove(at);
        }
        since
    }

    /// Moves the times by a jump of the clock.
    pub(super) fn jumped(&mut self, by: Millis) {
        for since in self.turns.values_mut().flatten() {
            *since = since.saturating_add(by);
        }
    }
}
