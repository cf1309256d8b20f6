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
        let cell = |(text, width): (&String, &usize)| padded(&clean(text), *width);
        let line: Vec<_> = row.iter().zip(&widths).map(cell).collect();
        out += line.join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Returns the text with spaces after it, up to this width in characters. `format!` panics where the width
/// is more than 65,535.
#[must_use]
pub fn padded(text: &str, width: usize) -> String {
    let spaces = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(spaces))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_however_wide_they_are() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(
            columns(&[row(["é", "b"]), row(["long", "c"])]),
            "é     b\nlong  c\n"
        );
        let wide = "m".repeat(70_000);
        let table = columns(&[row([&wide, "a"]), row(["b", "c"])]);
        assert_eq!(table.lines().map(str::len).max(), Some(70_003));
    }
}
