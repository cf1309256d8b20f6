//! Whether a matrix is whole and agrees with itself.

use std::collections::BTreeMap;

use super::{
    GpuRow, Matrix, MatrixError, NicColumn, SAVE_IT,
    cell::{self, Relation},
    draft::{Draft, Row},
};

/// The matrix of `draft`, if it has all its rows and they are symmetric.
pub(super) fn whole(
    draft: &Draft,
    legend: &BTreeMap<String, String>,
) -> Result<Matrix, MatrixError> {
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

/// Columns of the GPUs, with their numbers, and of the NICs.
fn columns(draft: &Draft) -> (Vec<(usize, u32)>, Vec<usize>) {
    let gpu = |n: usize| cell::gpu(&draft.devices[n]);
    let all = 0..draft.devices.len();
    let gpus = all.clone().filter_map(|n| Some((n, gpu(n)?))).collect();
    (gpus, all.filter(|&n| gpu(n).is_none()).collect())
}

/// Each GPU has a row, and each NIC or none: captures without NIC rows lose
/// nothing that is used, captures that stop among them are cut.
fn rows_present(draft: &Draft, gpus: &[(usize, u32)], nics: &[usize]) -> Result<(), MatrixError> {
    let missing = |columns: &mut dyn Iterator<Item = usize>| {
        columns
            .filter(|column| !draft.rows.contains_key(column))
            .count()
    };
    let of_gpus = missing(&mut gpus.iter().map(|&(column, _)| column));
    let of_nics = missing(&mut nics.iter().copied());
    let cut = |what: &str, missing: usize, all: usize| {
        let have = all - missing;
        let reason =
            format!("the matrix ends here with {have} of {all} {what} rows; it is cut; {SAVE_IT}");
        Err(MatrixError::new(draft.last_line, reason))
    };
    match (of_gpus, of_nics) {
        (0, 0) => Ok(()),
        (0, none) if none == nics.len() => Ok(()),
        (0, some) => cut("NIC", some, nics.len()),
        (some, _) => cut("GPU", some, gpus.len()),
    }
}

fn symmetric(draft: &Draft) -> Result<(), MatrixError> {
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
            return Err(MatrixError::new(row.line, reason));
        }
    }
    Ok(())
}

fn relations_of_nics(draft: &Draft, nics: &[usize]) -> Result<(), MatrixError> {
    for row in draft.rows.values() {
        let nvlink = |&&column: &&usize| matches!(row.cells[column], Relation::Nvlink(_));
        if let Some(&column) = nics.iter().find(nvlink) {
            let (cell, nic) = (row.cells[column], &draft.devices[column]);
            return Err(MatrixError::new(
                row.line,
                format!("{cell} to {nic}, which is no GPU"),
            ));
        }
    }
    Ok(())
}

/// A row with fewer cells behind its relations than another has lost some, and
/// nobody knows which.
fn rows_alike(draft: &Draft, gpus: &[(usize, u32)]) -> Result<(), MatrixError> {
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
                "{device}: fewer cells behind the relations than in other rows; the line is cut"
            );
            Err(MatrixError::new(row.line, reason))
        }
    }
}

/// Names of the NICs. A legend that names two alike is cut or wrong: then titles are the names.
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
