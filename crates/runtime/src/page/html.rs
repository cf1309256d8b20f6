//! HTML from foreign text, and the marks of jobs.

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
    fn foreign_text_is_escaped() {
        let model = "</title><script>\"&'\u{1b}";
        let text = "&lt;/title&gt;&lt;script&gt;&quot;&amp;&#39;\u{fffd}";
        assert_eq!(escape(model), text);
    }
}
