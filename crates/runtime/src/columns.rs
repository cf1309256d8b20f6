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

/// Replaces characters that move the cursor or turn the direction of what follows: text from a file
/// or a cluster must not change what a terminal shows around it.
#[must_use]
pub fn clean(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars()
        .map(|c| if odd(c) { '\u{fffd}' } else { c })
        .collect()
}
