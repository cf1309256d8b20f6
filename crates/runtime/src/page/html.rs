//! HTML from foreign text, and from numbers.

/// Escapes text so that it is safe in XML and HTML, inside elements and attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Formats a number of things: `3 links`, `1 link`.
#[must_use]
pub fn count(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

/// Formats a fraction as a whole percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats ascending indices: `0,1`, `0-3,6`.
#[must_use]
pub fn ranges(indices: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &index in indices {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => parts.push((index, index)),
        }
    }
    let part = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Formats a list of GPUs: `GPU 3`, `GPUs 0-7`.
#[must_use]
pub fn gpus(indices: &[u32]) -> String {
    match indices {
        [one] => format!("GPU {one}"),
        _ => format!("GPUs {}", ranges(indices)),
    }
}

/// Returns the mark of a node's `n`th job: `A` to `Z`, then `AA` and so on.
#[must_use]
pub fn mark(n: usize) -> String {
    let letter = char::from(b'A' + (n % 26) as u8);
    match n / 26 {
        0 => letter.to_string(),
        more => mark(more - 1) + &letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_continue_after_z() {
        assert_eq!(
            [0, 25, 26, 701, 702].map(mark),
            ["A", "Z", "AA", "ZZ", "AAA"]
        );
    }

    #[test]
    fn lists_of_gpus() {
        assert_eq!(ranges(&[0, 1, 2, 3, 5, 7, 8]), "0-3,5,7,8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(gpus(&[3]), "GPU 3");
        assert_eq!(gpus(&[0, 1, 4, 6, 7, 8]), "GPUs 0,1,4,6-8");
        assert_eq!(gpus(&[u32::MAX, 0]), "GPUs 4294967295,0");
    }

    #[test]
    fn foreign_text_is_escaped() {
        let model = "</title><script>\"&'\u{1b}";
        let text = "&lt;/title&gt;&lt;script&gt;&quot;&amp;&#39;\u{fffd}";
        assert_eq!(escape(model), text);
    }
}
