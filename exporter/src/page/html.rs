//! HTML from words that somebody else chose.

use crate::output;

/// Text that is safe inside XML and HTML, elements and attributes.
pub(super) fn escape(text: &str) -> String {
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

/// `3 links`, `1 link`.
pub(super) fn count(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

/// `GPU 3`, `GPUs 0-7`.
pub(super) fn gpus(indices: &[u32]) -> String {
    match indices {
        [one] => format!("GPU {one}"),
        _ => format!("GPUs {}", output::ranges(indices)),
    }
}

/// A rate in bytes per second, for people; small ones lose their tenths.
pub(super) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 99.5e6 => output::rate(rate as u64),
        rate => format!("{:.0} MB/s", rate / 1e6),
    }
}

/// A share of one, as a whole percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn what_others_chose_is_text() {
        let model = "</title><script>\"&'\u{1b}";
        let text = "&lt;/title&gt;&lt;script&gt;&quot;&amp;&#39;\u{fffd}";
        assert_eq!(escape(model), text);
    }
}
