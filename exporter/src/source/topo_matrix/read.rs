//! Lines → matrix: a small state machine over header lines and rows.

use std::collections::BTreeMap;

use super::{
    Matrix, MatrixError, SAVE_IT,
    cell::{self, Cell, Relation},
    check,
    line::{Header, Line, NumberedLine, Title, without_escapes},
    tail::{self, Tail},
    wrapped,
};

/// One matrix while it is read.
pub(super) struct Draft {
    /// Line of the header.
    pub(super) line: usize,
    /// Titles of the columns: GPUs and NICs.
    pub(super) devices: Vec<String>,
    titles: Vec<Title>,
    /// Rows by the column of the same device.
    pub(super) rows: BTreeMap<usize, Row>,
    /// Line of the last row (of the header, where there is none yet).
    pub(super) last_line: usize,
    /// Line of the first text behind the last row (behind the header, where there is none yet).
    closed: Option<usize>,
    peer_status: bool,
    relations: bool,
    error: Option<MatrixError>,
}

pub(super) struct Row {
    pub(super) line: usize,
    pub(super) cells: Vec<Relation>,
    pub(super) tail: Tail,
}

/// The topology matrix in `text`.
///
/// # Errors
/// No such matrix, two of them, or one that is cut or contradicts itself.
pub fn parse(text: &str) -> Result<Matrix, MatrixError> {
    let lines = text.lines().map(without_escapes);
    let lines: Vec<NumberedLine> = (1..).zip(lines).collect();
    read(&lines).or_else(|error| wrapped::read(&lines, error))
}

/// The topology matrix in `lines`, none of which is broken.
pub(super) fn read(lines: &[NumberedLine]) -> Result<Matrix, MatrixError> {
    let mut reader = Reader::default();
    for (number, text) in lines {
        reader.line(&Line::new(*number, text));
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    drafts: Vec<Draft>,
    legend: BTreeMap<String, String>,
    /// The first line that looked like part of a matrix and was none.
    stray: Option<MatrixError>,
}

impl Reader {
    fn line(&mut self, line: &Line<'_>) {
        let Some(draft) = self.drafts.last_mut() else {
            return self.outside(line);
        };
        let column = draft
            .devices
            .iter()
            .position(|device| device == line.first());
        let repeated = column.is_some_and(|column| draft.rows.contains_key(&column));
        match column {
            Some(column) if !repeated && !line.looks_like_header() => draft.row(column, line),
            _ if line.looks_like_row() && draft.closed.is_none() => {
                let what = if repeated {
                    "a second row"
                } else {
                    "a row, but no column"
                };
                draft.fail(line.number, format!("{} has {what}", line.first()));
            }
            _ => self.outside(line),
        }
    }

    /// A line that belongs to no open matrix: a new header, a legend, prose.
    fn outside(&mut self, line: &Line<'_>) {
        if let Some(draft) = self.drafts.last_mut()
            && !line.words.is_empty()
        {
            draft.closed.get_or_insert(line.number);
        }
        if line.looks_like_header() {
            match line.header() {
                Ok(header) => self.drafts.push(Draft::new(line.number, header)),
                Err(word) => {
                    let reason = format!("{word:?} is no column of a topology matrix");
                    self.stray
                        .get_or_insert(MatrixError::new(line.number, reason));
                }
            }
        } else if line.looks_like_row() {
            let reason = format!("the row of {} has no header line above it", line.first());
            self.stray
                .get_or_insert(MatrixError::new(line.number, reason));
        } else if let Some((title, name)) = line.legend() {
            self.legend
                .entry(title.to_owned())
                .or_insert_with(|| name.to_owned());
        }
    }

    /// Picks the topology matrix among those that were found.
    fn finish(self) -> Result<Matrix, MatrixError> {
        let peer_status = self
            .drafts
            .iter()
            .find(|draft| draft.peer_status)
            .map(|one| one.line);
        let mut drafts = self.drafts.into_iter().filter(|draft| !draft.peer_status);
        let Some(draft) = drafts.next() else {
            return Err(match (peer_status, self.stray) {
                (Some(line), _) => MatrixError::new(
                    line,
                    "the matrix of `nvidia-smi topo -p2p`; give that of `nvidia-smi topo -m`",
                ),
                (None, Some(stray)) => stray,
                (None, None) => MatrixError::new(
                    1,
                    "no topology found: expected a NodeTopology in JSON, or the text of \
                     `nvidia-smi topo -m` with its header line (GPU0 GPU1 …)",
                ),
            });
        };
        if let Some(error) = draft.error {
            return Err(error);
        }
        let matrix = check::whole(&draft, &self.legend)?;
        match drafts.find(|draft| draft.relations) {
            None => Ok(matrix),
            Some(second) => Err(MatrixError::new(
                second.line,
                format!(
                    "a second topology matrix (the first is on line {})",
                    draft.line
                ),
            )),
        }
    }
}

impl Draft {
    fn new(line: usize, header: Header) -> Self {
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
                draft.error = Some(MatrixError::new(line, format!("two columns {device}")));
                break;
            }
        }
        draft
    }

    fn fail(&mut self, line: usize, reason: String) {
        self.error.get_or_insert(MatrixError::new(line, reason));
    }

    fn row(&mut self, column: usize, line: &Line<'_>) {
        self.last_line = line.number;
        let stray = self.closed.take();
        if let Some(stray) = stray.filter(|_| !self.rows.is_empty()) {
            let reason = "this is no row, but stands among the rows";
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
                    "{have} of {want} relations; the line is cut; {SAVE_IT}"
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
                        "{word:?} in column {device} is no relation (X, NV1 to NV{most}, {known})"
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

/// What follows the first `words` words of `text`.
fn rest_after(text: &str, words: usize) -> &str {
    (0..words).fold(text, |rest, _| {
        let rest = rest.trim_start();
        rest.find(char::is_whitespace)
            .map_or("", |end| &rest[end..])
    })
}
