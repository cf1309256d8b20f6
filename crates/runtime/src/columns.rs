//! Tables for terminals.

/// Returns the rows with aligned columns, separated by two spaces.
#[must_use]
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| clean(cell).chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cell = |(text, width): (&String, &usize)| format!("{:width$}", clean(text));
        let line: Vec<_> = row.iter().zip(&widths).map(cell).collect();
        out += line.join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Replaces control characters: text from a file must not send control sequences to the terminal.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
