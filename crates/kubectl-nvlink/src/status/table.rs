//! Tables and sentences that fit a terminal.

use super::words::clean;

/// What stands for characters that have no room.
const CUT: char = '…';
/// The least width to which a column shrinks.
const LEAST: usize = 8;

/// How a column is shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    /// Text of any length, which is cut in its middle: names differ at both ends.
    Name(&'static str),
    /// Text of any length, which is cut at its end.
    Text(&'static str),
    /// Never cut, and aligned to the right.
    Number(&'static str),
    /// Never cut.
    Word(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Name(title) | Self::Text(title) | Self::Number(title) | Self::Word(title) => {
                title
            }
        }
    }

    fn shrinks(self) -> bool {
        matches!(self, Self::Name(_) | Self::Text(_))
    }

    fn cell(self, text: &str, width: usize) -> String {
        let length = text.chars().count();
        if matches!(self, Self::Number(_)) {
            return format!("{text:>width$}");
        }
        if length <= width {
            return format!("{text:width$}");
        }
        let kept = width.saturating_sub(1);
        let tail = if matches!(self, Self::Name(_)) {
            kept / 2
        } else {
            0
        };
        let head: String = text.chars().take(kept - tail).collect();
        let tail: String = text.chars().skip(length - tail).collect();
        format!("{head}{CUT}{tail}")
    }
}

/// Returns the rows in aligned columns, shrunk to `width`; `None`: at full width.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let titles: Vec<String> = columns.iter().map(|one| one.title().to_owned()).collect();
    let cleaned = rows
        .iter()
        .map(|row| row.iter().map(|cell| clean(cell)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(titles).chain(cleaned).collect();
    let longest = |at: usize| {
        let cells = lines.iter().filter_map(|line| line.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns.len()).map(longest).collect();
    if let Some(width) = width {
        shrink(columns, &mut widths, width);
    }
    let mut text = String::new();
    for line in &lines {
        let cells = columns.iter().zip(line).zip(&widths);
        let cells: Vec<String> = cells
            .map(|((one, cell), width)| one.cell(cell, *width))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Takes from the widest columns until all fit, or none can shrink further.
fn shrink(columns: &[Column], widths: &mut [usize], width: usize) {
    let gaps = 2 * columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let least = |at: usize| LEAST.max(columns[at].title().len());
        let wide = (0..columns.len()).filter(|&at| columns[at].shrinks() && widths[at] > least(at));
        // The last of equals: the first column identifies the row.
        let Some(at) = wide.max_by_key(|&at| widths[at]) else {
            return;
        };
        widths[at] -= 1;
    }
}

/// Returns `text` in lines of at most `width`, the second and later ones indented by `indent`
/// spaces. The first line begins after `first`, which has at most that many characters.
pub(super) fn wrap(first: &str, text: &str, indent: usize, width: Option<usize>) -> String {
    let width = width.unwrap_or(usize::MAX);
    let mut out = format!("{first:indent$}");
    let mut at = indent;
    let mut fresh = true;
    for word in clean(text).split_whitespace() {
        let length = word.chars().count();
        if !fresh && at.saturating_add(1 + length) > width {
            out.push('\n');
            out += &" ".repeat(indent);
            at = indent;
            fresh = true;
        }
        if !fresh {
            out.push(' ');
            at += 1;
        }
        out += word;
        at += length;
        fresh = false;
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[&[&str]]) -> Vec<Vec<String>> {
        let row = |row: &&[&str]| row.iter().map(|&cell| cell.to_owned()).collect();
        cells.iter().map(row).collect()
    }

    #[test]
    fn columns_shrink_until_they_fit() {
        let columns = [
            Column::Name("POD"),
            Column::Number("GPUS"),
            Column::Text("REASON"),
        ];
        let cells = rows(&[
            &["team/a", "8", "Insufficient"],
            &["team/runner-abcdefghijkl-0", "16", "a reason of many words"],
        ]);
        let whole = table(&columns, &cells, None);
        assert!(whole.contains("a reason of many words"), "{whole}");
        let narrow = table(&columns, &cells, Some(34));
        assert_eq!(
            narrow,
            "POD            GPUS  REASON\n\
             team/a            8  Insufficient\n\
             team/r…ijkl-0    16  a reason of …\n"
        );
        // Numbers are never cut.
        let least = table(&columns, &cells, Some(1));
        assert!(
            least.lines().all(|line| line.chars().count() <= 24),
            "{least}"
        );
        assert!(least.contains("16"), "{least}");
    }

    #[test]
    fn sentences_wrap_at_words() {
        let text = wrap("Why", "it needs eight GPUs", 5, Some(16));
        assert_eq!(text, "Why  it needs\n     eight GPUs\n");
        assert_eq!(
            wrap("", "unbreakablelongword", 2, Some(5)),
            "  unbreakablelongword\n"
        );
        assert_eq!(
            wrap("Why", "a\tb\x07", 5, None),
            "Why  a\u{fffd}b\u{fffd}\n"
        );
    }
}
