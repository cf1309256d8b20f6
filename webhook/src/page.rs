//! The page of the cluster: which nodes and domains there are, who holds what and how well
//! it is placed, what still fits, which jobs wait, and the latest decisions. Read-only, and off by default.
//!
//! It shows the [`Mirror`] of nodes and pods. Pages are rendered on request, on a thread that may block, at most once a second
//! for all readers together: without readers it costs only the watches.
//!
//! Memory with 1,000 nodes of 8 GPUs: the mirror takes about 4 MiB, and the rendered rows
//! 4 MiB more.
//!
//! From the state to the reader: [`board`] groups and sums up, `rendering` keeps the texts
//! of `row` and `document`, and `render`, `summary`, `decisions` and `detail` make pages of
//! them, for [`server`].

pub mod board;
mod decisions;
mod detail;
mod document;
mod find;
mod order;
mod queue;
mod render;
mod rendering;
mod row;
pub mod server;
mod siblings;
mod summary;

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nvlink_admission::{
    decide::Settings,
    view::{Labels, SharedView},
};
use nvlink_cluster::mirror::Mirror;
use nvlink_topology::labels;
use serde_json::json;

use self::{
    board::{Board, Place},
    find::Query,
    render::Frame,
    rendering::{Cursor, Rendering},
};
use crate::recent::{Decision, Recent};

/// How long a rendering is used again.
const FRESH: Duration = Duration::from_secs(1);

/// What the page shows, and its last rendering.
#[derive(Debug)]
pub struct Page {
    /// The nodes and pods.
    pub mirror: Mirror,
    recent: Recent,
    /// The labels of nodes, and which of them name rack and zone.
    view: SharedView,
    settings: Settings,
    /// The name of this replica.
    replica: String,
    /// Distinguishes this process from other replicas, and from itself before a restart.
    instance: u64,
    last: Mutex<Option<Arc<Rendering>>>,
}

impl Page {
    #[must_use]
    pub fn new(
        mirror: Mirror,
        recent: Recent,
        view: SharedView,
        settings: Settings,
        replica: &str,
    ) -> Self {
        Self {
            mirror,
            recent,
            view,
            settings,
            replica: replica.to_owned(),
            // The keys of a hash map come from the system's random number source.
            instance: RandomState::new().build_hasher().finish(),
            last: Mutex::default(),
        }
    }

    /// Renders the page; nodes and decisions that `query` does not find are hidden.
    #[must_use]
    pub fn html(&self, query: &str) -> String {
        let query = Query::new(query);
        let rendering = self.rendering();
        let decisions = self.recent.since(0);
        let list = decisions::entries(decisions.iter().map(Arc::as_ref), &query);
        let sections = render::queue(&rendering.queue(&query)) + &decisions::section(&list);
        let cursor = self.cursor(&rendering, &decisions);
        self.frame("NVLink cluster", &rendering, &cursor.to_string())
            .html(&render::main(&rendering, &query, &sections))
    }

    /// Renders the page of a node; `None` if there is no such node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<String> {
        let rendering = self.rendering();
        let row = rendering.board.row(name)?;
        let main = detail::html(row);
        Some(self.frame(name, &rendering, "").html(&main))
    }

    /// Returns as JSON what changed since a page was rendered, and the waiting jobs that `query`
    /// finds. Without a known cursor, the page must be loaded again.
    #[must_use]
    pub fn changes(&self, cursor: &str, query: &str) -> String {
        let rendering = self.rendering();
        let cursor = Cursor::parse(cursor).filter(|cursor| cursor.instance == self.instance);
        let changes = cursor.and_then(|cursor| {
            let mut changes = rendering.changes(cursor)?;
            changes["queue"] = json!(rendering.queue(&Query::new(query)));
            let newer = self.recent.since(cursor.decision);
            let all = Query::default();
            changes["decisions"] = json!(decisions::entries(newer.iter().map(Arc::as_ref), &all));
            let latest = newer.first().map_or(cursor.decision, |one| one.number);
            changes["cursor"] = json!(rendering.cursor(self.instance, latest).to_string());
            Some(changes)
        });
        changes
            .unwrap_or_else(|| json!({"reload": true}))
            .to_string()
    }

    /// Returns the whole cluster as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        let rendering = self.rendering();
        let board = &rendering.board;
        let groups = board.groups.iter().map(document::of_group);
        let decisions = self.recent.since(0);
        let decisions = decisions.iter().map(|one| decisions::json(one));
        let mut head = json!({
            "replica": self.replica,
            "totals": board.totals,
            "knowsPods": board.knows_pods,
            "groups": groups.collect::<Vec<_>>(),
            "queue": board.queue.json(),
            "decisions": decisions.collect::<Vec<_>>(),
        });
        if let Some(age) = board.age {
            head["ageSeconds"] = json!(age.as_secs());
        }
        // The nodes are text already.
        let mut text = head.to_string();
        text.pop();
        text += ",\"nodes\":[";
        rendering.json(&mut text);
        text + "]}\n"
    }

    fn frame<'a>(&'a self, title: &'a str, rendering: &'a Rendering, cursor: &'a str) -> Frame<'a> {
        Frame {
            title,
            replica: &self.replica,
            board: &rendering.board,
            cursor,
        }
    }

    fn cursor(&self, rendering: &Rendering, decisions: &[Arc<Decision>]) -> Cursor {
        let latest = decisions.first().map_or(0, |one| one.number);
        rendering.cursor(self.instance, latest)
    }

    /// Returns the last rendering, or a new one if it is old. Simultaneous readers wait for
    /// one rendering.
    fn rendering(&self) -> Arc<Rendering> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let fresh = |one: &&Arc<Rendering>| now.saturating_duration_since(one.at) < FRESH;
        if let Some(fresh) = last.as_ref().filter(fresh) {
            return Arc::clone(fresh);
        }
        let board = Board::new(&self.mirror.state(), |node| self.place(node), now);
        let new = Arc::new(Rendering::new(board, last.as_deref(), now));
        *last = Some(Arc::clone(&new));
        new
    }

    fn place(&self, node: &str) -> Place {
        let view = self.view.read();
        let labels: Option<&Labels> = view.labels(node);
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).cloned();
        Place {
            rack: label(&self.settings.rack_label),
            zone: label(&self.settings.zone_label),
            fabric_gpus: label(labels::FABRIC_GPUS),
        }
    }
}
