//! Parses lines into a matrix: a small state machine over header lines and rows.

use std::collections::BTreeMap;

use crate::text::LineError;

use super::{Matrix, check, draft::Draft, line::Line};

/// Parses the topology matrix in `lines`.
pub(super) fn read(lines: impl Iterator<Item = (usize, String)>) -> Result<Matrix, LineError> {
    let mut reader = Reader::default();
    for (number, text) in lines {
        reader.line(&Line::new(number, &text));
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    drafts: Vec<Draft>,
    legend: BTreeMap<String, String>,
    /// The error of the first line outside of a matrix that looked like part of one.
    stray: Option<LineError>,
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

    /// Handles a line outside of the current matrix: a new header, a legend, prose.
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
                    let reason = format!(
                        "{word:?} is not a column of a topology matrix; if the line is cut or wrapped, write the matrix into a file (nvidia-smi topo -m > topo.txt)"
                    );
                    self.stray
                        .get_or_insert(LineError::new(line.number, reason));
                }
            }
        } else if line.looks_like_row() {
            let reason = format!("the row of {} has no header line above it", line.first());
            self.stray
                .get_or_insert(LineError::new(line.number, reason));
        } else if let Some((title, name)) = line.legend() {
            self.legend
                .entry(title.to_owned())
                .or_insert_with(|| name.to_owned());
        }
    }

    /// Returns the topology matrix among the matrices found.
    fn finish(self) -> Result<Matrix, LineError> {
        let peer_status = self
            .drafts
            .iter()
            .find(|draft| draft.peer_status)
            .map(|one| one.line);
        let mut drafts = self.drafts.into_iter().filter(|draft| !draft.peer_status);
        let Some(draft) = drafts.next() else {
            return Err(match (peer_status, self.stray) {
                (Some(line), _) => LineError::new(
                    line,
                    "this is the matrix of `nvidia-smi topo -p2p`; use that of \
                     `nvidia-smi topo -m`",
                ),
                (None, Some(stray)) => stray,
                (None, None) => LineError::new(
                    1,
                    "no topology found: expected a NodeTopology in JSON, NCCL's topology in XML \
                     (NCCL_TOPO_DUMP_FILE), or the text of `nvidia-smi topo -m` with its header line (GPU0 GPU1 …)",
                ),
            });
        };
        if let Some(error) = draft.error {
            return Err(error);
        }
        let matrix = check::whole(&draft, &self.legend)?;
        match drafts.find(|draft| draft.relations) {
            None => Ok(matrix),
            Some(second) => Err(LineError::new(
                second.line,
                format!(
                    "a second topology matrix (the first is on line {})",
                    draft.line
                ),
            )),
        }
    }
}
