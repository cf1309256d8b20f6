//! The placement search, each question about a graph once.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{
    BrokenGpus, GpuSet, Graph, NoPlacement, Pattern, Request, Scope,
    multi_node::{Harm, is_as_fast},
    search::{Effort, place_sparing},
};

/// What a job asks of a graph: the best placement on the GPUs that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// Number of GPUs.
    pub gpus: usize,
    /// The pattern of the communication between them.
    pub pattern: Pattern,
    /// How close they must be.
    pub scope: Scope,
    /// The GPUs that may be used.
    pub free: GpuSet,
    /// The GPUs that are marked as broken.
    pub broken: GpuSet,
    /// What the placement does with them.
    pub broken_gpus: BrokenGpus,
}

impl Question {
    /// Returns the same question without what plays no part in the answer, so that equal
    /// questions look equal.
    fn plain(mut self) -> Self {
        self.broken = self.broken.intersection(self.free);
        if self.broken_gpus == BrokenGpus::Avoid {
            self.free = self.free.difference(self.broken);
        }
        if self.broken_gpus != BrokenGpus::Last || self.broken.is_empty() {
            self.broken = GpuSet::EMPTY;
            self.broken_gpus = BrokenGpus::Ignore;
        }
        self
    }

    /// Returns the question that comes first: without a shortage of others, broken GPUs play no
    /// part. `None` if too few others are free.
    fn spared(self) -> Option<Self> {
        let free = self.free.difference(self.broken);
        let enough = free.len() >= self.gpus;
        (enough && !self.broken.is_empty()).then(|| Self { free, ..self }.plain())
    }

    /// Searches.
    ///
    /// # Errors
    /// When there is no such placement.
    pub fn search(&self, graph: &Graph) -> Result<Found, NoPlacement> {
        self.search_with(graph, &Effort::default())
    }

    /// Searches, and counts in `effort` what that costs.
    ///
    /// # Errors
    /// When there is no such placement.
    pub fn search_with(&self, graph: &Graph, effort: &Effort) -> Result<Found, NoPlacement> {
        let request = Request {
            gpus: self.gpus,
            free: self.free,
            required: GpuSet::EMPTY,
            pattern: self.pattern,
            scope: self.scope,
        };
        let placement = place_sparing(graph, &request, self.broken, self.broken_gpus, effort)?;
        let position = |&gpu: &u32| u8::try_from(graph.position(gpu)?).ok();
        let order: Vec<u8> = placement.gpus.iter().filter_map(position).collect();
        let set: GpuSet = order.iter().map(|&at| usize::from(at)).collect();
        Ok(Found {
            order,
            set,
            cost: placement.cost,
            total_cost: placement.total_cost,
            quality: placement.quality.node,
            broken: u8::try_from(self.broken.intersection(set).len()).unwrap_or(u8::MAX),
            breaks: Harm::breaks(graph, self.free, set),
            full_speed: placement.is_at_full_speed(),
        })
    }
}

/// A placement on one graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// GPU positions in rank order.
    pub order: Vec<u8>,
    /// The same GPUs.
    pub set: GpuSet,
    /// Time of the busiest resource, seconds per byte of payload.
    pub cost: f64,
    /// Time of all transfers one after the other, seconds per byte of payload.
    pub total_cost: f64,
    /// The least cost on the empty node divided by this one.
    pub quality: f64,
    /// The number of broken GPUs.
    pub broken: u8,
    /// Whether it takes a part of a domain that was wholly free.
    pub breaks: bool,
    /// Whether it is as fast as any on the empty node
    /// ([`crate::Placement::is_at_full_speed`]).
    pub full_speed: bool,
}

impl Found {
    /// Returns the least cost of such a job on the empty node, seconds per byte of payload.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.cost * self.quality
    }

    /// Returns both placements as one: this one's GPUs come first.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.order.extend(&other.order);
        Self {
            order: self.order,
            set: self.set.union(other.set),
            cost: self.cost.max(other.cost),
            total_cost: self.total_cost + other.total_cost,
            quality: self.quality.min(other.quality),
            broken: self.broken.saturating_add(other.broken),
            breaks: self.breaks || other.breaks,
            full_speed: self.full_speed && other.full_speed,
        }
    }

    /// Reports whether it counts as one of the fastest ([`is_as_fast`]); `least` is the least cost
    /// of such a job on an empty node.
    #[must_use]
    pub fn is_as_fast(&self, least: Option<f64>) -> bool {
        least.is_some_and(|least| is_as_fast(self.full_speed, self.cost, least))
    }
}

/// The answer to a [`Question`].
pub type Answer = Result<Arc<Found>, NoPlacement>;

/// What is known of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// The answer.
    Known(Answer),
    /// The question that is to be searched next.
    Open(Question),
}

/// Answers to questions about graphs, which their owner numbers: equal graphs have equal
/// numbers.
///
/// With too many answers, all are forgotten, and found again when they are needed: which of them
/// would be the right ones to keep is not known, and to find out costs every look.
pub struct Memo {
    answers: HashMap<(u32, Question), Answer>,
    most: usize,
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memo({} answers)", self.answers.len())
    }
}

impl Memo {
    /// Returns a memo of at most so many answers, at least 2.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            answers: HashMap::new(),
            most: most.max(2),
        }
    }

    /// Returns the answer to a question about a graph.
    ///
    /// # Errors
    /// When there is no such placement.
    pub fn ask(&mut self, graph: &Graph, number: u32, question: Question) -> Answer {
        loop {
            match self.look(number, question) {
                Look::Known(answer) => return answer,
                Look::Open(open) => self.learn(number, open, open.search(graph)),
            }
        }
    }

    /// Looks up a question. Whoever must not wait for a search while others look, as those that
    /// share the memo behind a lock, searches what is [`Look::Open`], lets the memo
    /// [`Self::learn`] it, and looks again.
    #[must_use]
    pub fn look(&self, number: u32, question: Question) -> Look {
        let question = question.plain();
        if let Some(spared) = question.spared() {
            match self.answers.get(&(number, spared)) {
                Some(Ok(found)) => return Look::Known(Ok(Arc::clone(found))),
                Some(Err(_)) => {}
                None => return Look::Open(spared),
            }
        }
        match self.answers.get(&(number, question)) {
            Some(answer) => Look::Known(answer.clone()),
            None => Look::Open(question),
        }
    }

    /// Remembers what the search of an open question found.
    pub fn learn(&mut self, number: u32, open: Question, found: Result<Found, NoPlacement>) {
        if self.answers.len() >= self.most {
            self.answers.clear();
        }
        self.answers.insert((number, open), found.map(Arc::new));
    }

    /// Returns the number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Reports whether it has no answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Forgets all answers, as when the numbers of graphs are given anew.
    pub fn clear(&mut self) {
        self.answers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(broken_gpus: BrokenGpus) -> Question {
        Question {
            gpus: 2,
            pattern: Pattern::AllReduce,
            scope: Scope::Node,
            free: GpuSet::first(4),
            broken: [0, 1, 7].into_iter().collect(),
            broken_gpus,
        }
    }

    #[test]
    fn questions_with_one_answer_are_searched_once() {
        let graph = Graph::unconnected(8);
        let mut memo = Memo::new(10);
        for how in [BrokenGpus::Avoid, BrokenGpus::Last] {
            let found = memo.ask(&graph, 0, question(how)).unwrap();
            assert_eq!((&found.order[..], found.broken), (&[2, 3][..], 0), "{how}");
        }
        assert_eq!(memo.len(), 1);
        let three = Question {
            gpus: 3,
            ..question(BrokenGpus::Last)
        };
        let found = memo.ask(&graph, 0, three).unwrap();
        assert_eq!((found.set.len(), found.broken), (3, 1));
        assert!(memo.ask(&graph, 0, question(BrokenGpus::Ignore)).is_ok());
        assert_eq!(memo.len(), 3);
        assert_eq!(memo.look(0, three), Look::Known(Ok(found)));
        assert!(matches!(memo.look(1, three), Look::Open(_)));
    }

    #[test]
    fn with_too_many_answers_all_are_forgotten() {
        let graph = Graph::unconnected(8);
        let mut memo = Memo::new(0);
        for gpus in 1..=8 {
            let ask = Question {
                gpus,
                broken: GpuSet::first(1),
                free: GpuSet::first(8),
                ..question(BrokenGpus::Last)
            };
            assert!(memo.ask(&graph, 0, ask).is_ok());
            assert!(memo.len() <= 2);
        }
    }
}
