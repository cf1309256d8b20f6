//! A matrix while it is parsed, row by row.

use std::collections::BTreeMap;

use crate::text::LineError;

use super::{
    SAVE_IT,
    cell::{self, Cell, Relation},
    line::{Header, Line, Title},
    tail::{self, Tail},
};

/// A matrix while it is parsed.
pub(super) struct Draft {
    /// Line of the header.
    pub(super) line: usize,
    /// Titles of the columns: GPUs and NICs.
    pub(super) devices: Vec<String>,
    titles: Vec<Title>,
    /// Rows, by the column of the same device.
    pub(super) rows: BTreeMap<usize, Row>,
    /// Line of the last row (of the header, if there is no row yet).
    pub(super) last_line: usize,
    /// Line of the first text after the last row (after the header, if there is no row yet).
    pub(super) closed: Option<usize>,
    pub(super) peer_status: bool,
    pub(super) relations: bool,
    pub(super) error: Option<LineError>,
}

pub(super) struct Row {
    pub(super) line: usize,
    pub(super) cells: Vec<Relation>,
    pub(super) tail: Tail,
}

impl Draft {
    pub(super) fn new(line: usize, header: Header) -> Self {
        let Header { devices, titles } = header;
        let mut draft = Self {
            line,
            devices,
            titles,
            rows: BTreeMap::new(),
            last_line: line,
            closed: None,
            peer_status: false,
            relations: false,
            error: None,
        };
        for (n, device) in draft.devices.iter().enumerate() {
            if draft.devices[..n].contains(device) {
                draft.error = Some(LineError::new(line, format!("two columns {device}")));
                break;
            }
        }
        draft
    }

    pub(super) fn fail(&mut self, line: usize, reason: String) {
        self.error.get_or_insert(LineError::new(line, reason));
    }

    pub(super) fn row(&mut self, column: usize, line: &Line<'_>) {
        self.last_line = line.number;
        let stray = self.closed.take();
        if let Some(stray) = stray.filter(|_| !self.rows.is_empty()) {
            let reason = "this line is not a row, but it is between rows";
            self.fail(stray, reason.to_owned());
        }
        match self.read_row(column, line) {
            Ok(row) => drop(self.rows.insert(column, row)),
            Err(reason) => self.fail(line.number, format!("{}: {reason}", line.first())),
        }
    }

    fn read_row(&mut self, column: usize, line: &Line<'_>) -> Result<Row, String> {
        let mut cells = Vec::with_capacity(self.devices.len());
        for (n, device) in self.devices.iter().enumerate() {
            let Some(word) = line.words.get(n + 1) else {
                let (have, want) = (n, self.devices.len());
                return Err(format!(
                    "{have} of {want} relations; the line is truncated; {SAVE_IT}"
                ));
            };
            match cell::parse(word) {
                Some(Cell::PeerStatus) => {
                    self.peer_status = true;
                    return Err(format!("{word} is a status of `topo -p2p`, not a relation"));
                }
                Some(Cell::Relation(relation)) => {
                    self.relations |= relation != Relation::Own;
                    if (relation == Relation::Own) != (n == column) {
                        return Err(format!("{word} in column {device}: cells are missing"));
                    }
                    cells.push(relation);
                }
                None => {
                    let (most, known) = (cell::MAX_LINKS, "PIX, PXB, PHB, NODE or SYS");
                    return Err(format!(
                        "{word:?} in column {device} is not a relation (X, NV1 to NV{most}, \
                         {known})"
                    ));
                }
            }
        }
        let rest = rest_after(line.text, self.devices.len() + 1);
        let gpu = cell::gpu(line.first()).is_some();
        let tail = tail::parse(rest, if gpu { &self.titles } else { &[] })?;
        Ok(Row {
            line: line.number,
            cells,
            tail,
        })
    }
}

/// Returns the text after the first `words` words of `text`.
fn rest_after(text: &str, words: usize) -> &str {
    (0..words).fold(text, |rest, _| {
        let rest = rest.trim_start();
        rest.find(char::is_whitespace)
            .map_or("", |end| &rest[end..])
    })
}
