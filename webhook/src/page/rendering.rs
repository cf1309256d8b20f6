//! The rendered rows, kept from one rendering to the next, so that only what changed is
//! rendered and sent again.

use std::{
    collections::HashMap,
    fmt::Write,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use serde_json::{Map, Value, json};

use super::{
    board::{Board, Row},
    document,
    find::Query,
    row, summary,
};

/// A board and its rows as text.
#[derive(Debug)]
pub(super) struct Rendering {
    pub(super) board: Board,
    /// The waiting jobs, without a search.
    queue: String,
    rows: HashMap<String, Arc<Text>>,
    /// Increases when a row changes.
    revision: u64,
    /// Changes when the order of the rows or their groups change.
    layout: u64,
    pub(super) at: Instant,
}

/// A row as text. Memory: about 1.5 KiB for 8 GPUs.
#[derive(Debug)]
struct Text {
    row: Row,
    html: String,
    json: String,
    /// The revision in which it changed last.
    changed: u64,
}

/// What a page already shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) instance: u64,
    layout: u64,
    revision: u64,
    /// The number of the latest decision.
    pub(super) decision: u64,
}

impl Cursor {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| u64::from_str_radix(part, 16));
        let mut next = || parts.next()?.ok();
        let (instance, layout) = (next()?, next()?);
        let (revision, decision) = (next()?, next()?);
        Some(Self {
            instance,
            layout,
            revision,
            decision,
        })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            instance,
            layout,
            revision,
            decision,
        } = self;
        write!(f, "{instance:x}.{layout:x}.{revision:x}.{decision:x}")
    }
}

impl Rendering {
    /// Renders a board. Rows that are as in `before` are taken from there.
    pub(super) fn new(board: Board, before: Option<&Self>, now: Instant) -> Self {
        let revision = before.map_or(0, |before| before.revision) + 1;
        let text = |row: &Row| {
            let known = before.and_then(|before| before.rows.get(&row.name));
            let same = known.filter(|known| known.row == *row);
            same.cloned().unwrap_or_else(|| {
                Arc::new(Text {
                    html: row::html(row),
                    json: document::of_row(row).to_string(),
                    changed: revision,
                    row: row.clone(),
                })
            })
        };
        let rows = board.rows().map(|row| (row.name.clone(), text(row)));
        Self {
            rows: rows.collect(),
            layout: layout(&board),
            queue: board.queue.html(&Query::default()),
            board,
            revision,
            at: now,
        }
    }

    /// Returns a cursor for a page that shows all of it, and decisions up to a number.
    pub(super) fn cursor(&self, instance: u64, decision: u64) -> Cursor {
        Cursor {
            instance,
            layout: self.layout,
            revision: self.revision,
            decision,
        }
    }

    /// Returns the waiting jobs that the query finds.
    pub(super) fn queue(&self, query: &Query) -> String {
        match query.is_empty() {
            true => self.queue.clone(),
            false => self.board.queue.html(query),
        }
    }

    /// Returns the bytes of all rows.
    pub(super) fn size(&self) -> usize {
        self.rows.values().map(|text| text.html.len() + 8).sum()
    }

    /// Writes a row, hidden if the query does not find it.
    pub(super) fn row(&self, row: &Row, query: &Query, html: &mut String) {
        let Some(text) = self.rows.get(&row.name) else {
            return;
        };
        match row::is_found(row, query) {
            true => *html += &text.html,
            // The first element of the text is the row.
            false => *html += &text.html.replacen("<div ", "<div hidden ", 1),
        }
    }

    /// Returns what changed after `cursor`: rows by their id, and the texts that depend on
    /// all nodes. `None` if the page must be loaded again.
    pub(super) fn changes(&self, cursor: Cursor) -> Option<Value> {
        if cursor.layout != self.layout || cursor.revision > self.revision {
            return None;
        }
        let changed = self.rows.values();
        let changed = changed.filter(|text| text.changed > cursor.revision);
        let rows: Map<String, Value> = changed
            .map(|text| (format!("node-{}", text.row.name), json!(text.html)))
            .collect();
        let sums = self.board.groups.iter().enumerate();
        let sums: Map<String, Value> = sums
            .map(|(n, group)| (format!("group-{n}-sum"), json!(summary::of_group(group))))
            .collect();
        Some(json!({
            "rows": rows,
            "sums": sums,
            "summary": summary::html(&self.board),
            "mark": summary::mark(&self.board),
            "age": self.board.age.map(|age| age.as_secs()),
        }))
    }

    /// Writes the nodes as the elements of a JSON array.
    pub(super) fn json(&self, text: &mut String) {
        let mut comma = "";
        for row in self.board.rows() {
            if let Some(known) = self.rows.get(&row.name) {
                // Writing to a string never fails.
                let _ = write!(text, "{comma}\n{}", known.json);
                comma = ",";
            }
        }
    }
}

fn layout(board: &Board) -> u64 {
    let mut hasher = DefaultHasher::new();
    for group in &board.groups {
        group.kind.title().hash(&mut hasher);
        for row in &group.rows {
            row.name.hash(&mut hasher);
            row.tray().map(|tray| tray.index).hash(&mut hasher);
        }
        group.away.hash(&mut hasher);
    }
    hasher.finish()
}
