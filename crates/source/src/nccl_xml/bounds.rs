//! Refuses input on which the XML parser would take quadratic time, before parsing.

use crate::text::LineError;

/// The maximum number of attributes of an element. NCCL writes about ten.
const MAX_ATTRIBUTES: usize = 100;
/// The maximum number of namespaces. NCCL writes none, and each element inherits
/// those of all enclosing elements.
const MAX_NAMESPACES: usize = 100;

/// Checks that no element has too many attributes, and that there are not too
/// many namespaces. The parser decides whether the text is valid XML: up to the
/// position where the parser stops, both see the same elements.
pub(super) fn check(text: &str) -> Result<(), LineError> {
    let refuse = |rest: &str, reason: String| {
        let read = &text[..text.len() - rest.len()];
        Err(LineError::new(1 + read.matches('\n').count(), reason))
    };
    if let Some((at, _)) = text.match_indices("xmlns").nth(MAX_NAMESPACES) {
        let reason = format!("more than {MAX_NAMESPACES} namespaces; NCCL writes none");
        return refuse(&text[at..], reason);
    }
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at..];
        let closing = [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")];
        if let Some((_, end)) = closing.iter().find(|(start, _)| rest.starts_with(start)) {
            rest = behind(rest, end);
            continue;
        }
        // A text truncated here has neither a quote nor an end, so the loop stops.
        rest = &rest[1..];
        let mut attributes = 0;
        while let Some(at) = rest.find(['"', '\'', '>']) {
            let (quote, next) = rest[at..].split_at(1);
            rest = next;
            if quote == ">" {
                break;
            }
            attributes += 1;
            if attributes > MAX_ATTRIBUTES {
                let reason = format!(
                    "an element with more than {MAX_ATTRIBUTES} attributes; NCCL writes ten"
                );
                return refuse(rest, reason);
            }
            rest = behind(rest, quote);
        }
    }
    Ok(())
}

/// Returns the text after the first `end`; empty if there is none.
fn behind<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}
