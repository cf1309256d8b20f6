//! HTML from foreign text, and from numbers.

use crate::output;

/// Escapes text so that it is safe in XML and HTML, inside elements and attributes.
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

/// Formats a number of things: `3 links`, `1 link`.
pub(super) fn count(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

/// Formats a list of GPUs: `GPU 3`, `GPUs 0-7`.
pub(super) fn gpus(indices: &[u32]) -> String {
    match indices {
        [one] => format!("GPU {one}"),
        _ => format!("GPUs {}", output::ranges(indices)),
    }
}

/// Formats a rate in bytes per second; small rates have no decimals.
pub(super) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 99.5e6 => output::rate(rate as u64),
        rate => format!("{:.0} MB/s", rate / 1e6),
    }
}

/// Formats a fraction as a whole percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn foreign_text_is_escaped() {
        let model = "</title><script>\"&'\u{1b}";
        let text = "&lt;/title&gt;&lt;script&gt;&quot;&amp;&#39;\u{fffd}";
        assert_eq!(escape(model), text);
    }
}
