//! Joins lines that a terminal or a mail program has wrapped.
//!
//! The text does not show which line breaks are from wrapping, and whether a
//! blank was lost. So the parser tries each way in which programs wrap lines. A way
//! is valid only if it gives a complete matrix. If two ways give different
//! matrices, the text is refused.

use std::collections::BTreeSet;

use crate::text::LineError;

use super::{
    Matrix, SAVE_IT, cell,
    line::{Line, NumberedLine},
    read,
};

/// Parses the matrix of `lines`, some of which continue the previous line. `error`
/// says why they are not a matrix without joining.
pub(super) fn read(lines: &[NumberedLine], error: LineError) -> Result<Matrix, LineError> {
    let groups = groups(lines);
    let Some(&[_, (second, _), ..]) = groups.iter().find(|group| group.len() > 1) else {
        return Err(error);
    };
    let broken = groups.iter().flat_map(|group| &group[..group.len() - 1]);
    let column = broken.map(|(_, part)| width(part)).max().unwrap_or(0);
    // Terminals wrap at a column, even inside a word; blanks before it may be
    // lost. Mail programs wrap at a blank, and drop it.
    let at_column = |part: &str| " ".repeat(column - width(part).min(column));
    let at_blank = |_: &str| " ".to_owned();
    let ways: [&dyn Fn(&str) -> String; 2] = [&at_column, &at_blank];
    let mut found: Vec<_> = ways
        .iter()
        .filter_map(|between| read::read(&joined(&groups, between)).ok())
        .collect();
    found.dedup();
    match (found.pop(), found.is_empty()) {
        (Some(matrix), true) => Ok(matrix),
        _ => Err(LineError::new(
            *second,
            format!(
                "this line continues the previous one, so the text was wrapped, and it is \
                 unclear how to join its lines; {SAVE_IT}"
            ),
        )),
    }
}

/// Groups `lines`: by their form, each group was one line.
fn groups(lines: &[NumberedLine]) -> Vec<&[NumberedLine]> {
    let mut groups = Vec::new();
    let (mut rest, mut titles) = (lines, BTreeSet::new());
    while let Some((number, text)) = rest.first() {
        let line = Line::new(*number, text);
        let is_header = line.looks_like_header();
        let starts_row = |line: &Line<'_>| {
            let first = line.first();
            line.looks_like_row() && (cell::gpu(first).is_some() || titles.contains(first))
        };
        let continues = |(number, text): &&NumberedLine| {
            let line = Line::new(*number, text);
            let starts = starts_row(&line) || (!is_header && line.looks_like_header());
            !starts && could_continue(&line)
        };
        let length = match is_header || (!titles.is_empty() && starts_row(&line)) {
            true => 1 + rest[1..].iter().take_while(continues).count(),
            false => 1,
        };
        let (group, after) = rest.split_at(length);
        if is_header {
            titles = titles_of(group);
        }
        groups.push(group);
        rest = after;
    }
    groups
}

/// Returns the words of a header, wherever it was wrapped.
fn titles_of(parts: &[NumberedLine]) -> BTreeSet<String> {
    let parts: Vec<_> = parts.iter().map(|(_, part)| part.as_str()).collect();
    let both = [parts.concat(), parts.join(" ")];
    let words = both.iter().flat_map(|text| text.split_whitespace());
    words.map(str::to_owned).collect()
}

/// Reports whether `line` has only words of a matrix, or parts of them.
fn could_continue(line: &Line<'_>) -> bool {
    let is_piece = |word: &str| {
        let own = |byte: u8| {
            byte.is_ascii_uppercase() || byte.is_ascii_digit() || b",-/_.".contains(&byte)
        };
        word.bytes().all(own) || cell::is_nic(word) || "Affinity".contains(word)
    };
    !line.words.is_empty() && line.words.iter().all(|word| is_piece(word))
}

/// Joins each group into one line; `between` returns the text after each part but the last.
fn joined(groups: &[&[NumberedLine]], between: impl Fn(&str) -> String) -> Vec<NumberedLine> {
    let join = |group: &&[NumberedLine]| {
        let (last, parts) = group.split_last()?;
        let mut line = String::new();
        for (_, part) in parts {
            line += part;
            line += &between(part);
        }
        Some((group[0].0, line + &last.1))
    };
    groups.iter().filter_map(join).collect()
}

/// Returns the number of columns of `text` on a terminal.
fn width(text: &str) -> usize {
    text.chars().fold(0, |column, c| match c {
        '\t' => (column / 8 + 1) * 8,
        _ => column + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{
        parse,
        tests::{board, pairs},
    };

    /// Wraps `text` as a terminal of `column` columns does: tabs become blanks.
    fn at_column(text: &str, column: usize) -> Vec<String> {
        let lines = text.lines().flat_map(|line| {
            let mut shown = String::new();
            for c in line.chars() {
                match c {
                    '\t' => shown += &" ".repeat(8 - shown.len() % 8),
                    c => shown.push(c),
                }
            }
            let shown: Vec<_> = shown.chars().collect();
            match shown.is_empty() {
                true => vec![String::new()],
                false => shown.chunks(column).map(String::from_iter).collect(),
            }
        });
        lines.collect()
    }

    /// Wraps `text` as a mail program does: between words, below `column` columns.
    fn at_blank(text: &str, column: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for mut line in text.lines() {
            while line.len() > column {
                let start = line.len() - line.trim_start().len();
                let blank = |c: char| c == ' ' || c == '\t';
                let Some(at) = line[start..column].rfind(blank) else {
                    break;
                };
                lines.push(line[..start + at].to_owned());
                line = line[start + at..].trim_start();
            }
            lines.push(line.to_owned());
        }
        lines
    }

    #[test]
    fn a_wrapped_matrix_is_parsed_like_the_original() {
        let boards = [8, 16].map(|n| {
            let tail = "0-47,96-143     0               N/A";
            board(n, 12, tail).replace("NUMA Affinity", "NUMA Affinity   GPU NUMA ID")
        });
        for text in [&pairs(), &boards[0], &boards[1]] {
            let whole = parse(text).unwrap();
            for column in [24, 40, 65, 72, 78, 80, 100, 132] {
                let shown = at_column(text, column);
                let copied: Vec<_> = shown.iter().map(|line| line.trim_end().into()).collect();
                for lines in [shown, copied, at_blank(text, column)] {
                    let wrapped = lines.join("\n");
                    let read = parse(&wrapped).unwrap_or_else(|error| panic!("{error}\n{wrapped}"));
                    assert_eq!(read, whole, "{wrapped}");
                }
            }
        }
    }

    #[test]
    fn a_truncated_wrapped_matrix_is_refused() {
        let text = board(5, 12, "0-47,96-143     0");
        for lines in [at_column(&text, 50), at_blank(&text, 40)] {
            let all = lines.join("\n");
            for end in 0..all.len() - "0-47,96-143     0".len() {
                let cut = parse(&all[..end]);
                assert!(cut.is_err(), "cut at {end}: {cut:?}");
            }
        }
    }

    #[test]
    fn lines_that_cannot_be_joined_are_refused_with_advice() {
        let mut lines = at_blank(&pairs(), 40);
        let second = lines
            .iter()
            .position(|line| line.starts_with("GPU1"))
            .unwrap();
        lines[second] = lines[second].replacen("NV12", "NV4", 1);
        let error = parse(&lines.join("\n")).unwrap_err().to_string();
        assert!(error.starts_with("line 2: this line continues"), "{error}");
        assert!(
            error.ends_with("`nvidia-smi topo -m > topo.txt` and use that file"),
            "{error}"
        );
    }
}
