//! Checks that a matrix is complete and consistent.

use std::collections::BTreeMap;

use crate::text::LineError;

use super::{
    GpuRow, Matrix, NicColumn, SAVE_IT,
    cell::{self, Relation},
    draft::{Draft, Row},
};

/// Returns the matrix of `draft`, if it has all rows and they are symmetric.
pub(super) fn whole(draft: &Draft, legend: &BTreeMap<String, String>) -> Result<Matrix, LineError> {
    let (gpus, nics) = columns(draft);
    rows_present(draft, &gpus, &nics)?;
    symmetric(draft)?;
    relations_of_nics(draft, &nics)?;
    rows_alike(draft, &gpus)?;
    let names = names(draft, &nics, legend);
    let pick = |row: &Row, columns: &[usize]| columns.iter().map(|&n| row.cells[n]).collect();
    let gpu = |&(column, index): &(usize, u32)| {
        let row = draft.rows.get(&column)?;
        Some(GpuRow {
            index,
            to_gpus: pick(
                row,
                &gpus.iter().map(|&(column, _)| column).collect::<Vec<_>>(),
            ),
            to_nics: pick(row, &nics),
            cpu_affinity: row.tail.cpu.clone(),
            numa_affinity: row.tail.numa.clone(),
        })
    };
    let nic = |(&column, name): (&usize, String)| NicColumn {
        title: draft.devices[column].clone(),
        name,
        to_nics: draft
            .rows
            .get(&column)
            .map(|row| pick(row, &nics))
            .unwrap_or_default(),
    };
    Ok(Matrix {
        gpus: gpus.iter().filter_map(gpu).collect(),
        nics: nics.iter().zip(names).map(nic).collect(),
    })
}

/// Returns the columns of the GPUs, with their numbers, and those of the NICs.
fn columns(draft: &Draft) -> (Vec<(usize, u32)>, Vec<usize>) {
    let gpu = |n: usize| cell::gpu(&draft.devices[n]);
    let all = 0..draft.devices.len();
    let gpus = all.clone().filter_map(|n| Some((n, gpu(n)?))).collect();
    (gpus, all.filter(|&n| gpu(n).is_none()).collect())
}

/// Checks that each GPU has a row, and that all NICs have rows or none has.
/// Captures without NIC rows lose nothing that is used; captures that end among
/// the NIC rows are truncated.
fn rows_present(draft: &Draft, gpus: &[(usize, u32)], nics: &[usize]) -> Result<(), LineError> {
    let missing = |columns: &mut dyn Iterator<Item = usize>| {
        columns
            .filter(|column| !draft.rows.contains_key(column))
            .count()
    };
    let of_gpus = missing(&mut gpus.iter().map(|&(column, _)| column));
    let of_nics = missing(&mut nics.iter().copied());
    let cut = |what: &str, missing: usize, all: usize| {
        let have = all - missing;
        let reason = format!(
            "the matrix is truncated: it ends after {have} of {all} {what} rows; {SAVE_IT}"
        );
        Err(LineError::new(draft.last_line, reason))
    };
    match (of_gpus, of_nics) {
        (0, 0) => Ok(()),
        (0, none) if none == nics.len() => Ok(()),
        (0, some) => cut("NIC", some, nics.len()),
        (some, _) => cut("GPU", some, gpus.len()),
    }
}

fn symmetric(draft: &Draft) -> Result<(), LineError> {
    for (&a, row_a) in &draft.rows {
        for (&b, row_b) in draft.rows.range(a + 1..) {
            let (there, back) = (row_a.cells[b], row_b.cells[a]);
            if there == back {
                continue;
            }
            let (later, earlier) = match row_a.line > row_b.line {
                true => ((row_a, a, b, there), row_b),
                false => ((row_b, b, a, back), row_a),
            };
            let (row, from, to, here) = later;
            let (from, to) = (&draft.devices[from], &draft.devices[to]);
            let other = if here == there { back } else { there };
            let reason = format!(
                "{from} to {to} is {here} here, but {other} on line {}",
                earlier.line
            );
            return Err(LineError::new(row.line, reason));
        }
    }
    Ok(())
}

fn relations_of_nics(draft: &Draft, nics: &[usize]) -> Result<(), LineError> {
    for row in draft.rows.values() {
        let nvlink = |&&column: &&usize| matches!(row.cells[column], Relation::Nvlink(_));
        if let Some(&column) = nics.iter().find(nvlink) {
            let (cell, nic) = (row.cells[column], &draft.devices[column]);
            return Err(LineError::new(
                row.line,
                format!("{cell} to {nic}, which is not a GPU"),
            ));
        }
    }
    Ok(())
}

/// Checks that all rows have equally many cells after the relations. A row with
/// fewer cells has lost some, and it is unknown which.
fn rows_alike(draft: &Draft, gpus: &[(usize, u32)]) -> Result<(), LineError> {
    let rows = || {
        let row = |&(column, _): &(usize, u32)| Some((column, draft.rows.get(&column)?));
        gpus.iter().filter_map(row)
    };
    let Some((_, fullest)) = rows().max_by_key(|(_, row)| row.tail.size()) else {
        return Ok(());
    };
    match rows().find(|(_, row)| !row.tail.is_like(&fullest.tail)) {
        None => Ok(()),
        Some((column, row)) => {
            let device = &draft.devices[column];
            let reason = format!(
                "{device}: fewer cells after the relations than other rows; the line is truncated"
            );
            Err(LineError::new(row.line, reason))
        }
    }
}

/// Returns the names of the NICs. A legend with the same name twice is truncated or
/// wrong; the titles are used as names then.
fn names(draft: &Draft, nics: &[usize], legend: &BTreeMap<String, String>) -> Vec<String> {
    let title = |column: &usize| draft.devices[*column].clone();
    let name = |column: &usize| {
        let title = title(column);
        legend.get(&title).cloned().unwrap_or(title)
    };
    let names: Vec<_> = nics.iter().map(name).collect();
    let twice = (1..names.len()).any(|n| names[..n].contains(&names[n]));
    if twice {
        nics.iter().map(title).collect()
    } else {
        names
    }
}
