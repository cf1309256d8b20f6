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
