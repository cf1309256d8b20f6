//! Looks for what the parser takes quadratic time for, before it is given a text.

use super::XmlError;

/// NCCL writes about ten for each element.
const MAX_ATTRIBUTES: usize = 100;
/// NCCL has no namespaces; each element has those of all around it, too.
const MAX_NAMESPACES: usize = 100;

/// Refuses a text with too many attributes in an element, or too many
/// namespaces. Whether it is XML at all is for the parser to say: up to where it
/// stops, both see the same.
pub(super) fn check(text: &str) -> Result<(), XmlError> {
    let refuse = |rest: &str, reason: String| {
        let read = &text[..text.len() - rest.len()];
        Err(XmlError::new(1 + read.matches('\n').count(), reason))
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
        // A text that is cut here has neither a quote nor an end to go on from.
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

/// What follows the first `end`; nothing where there is none.
fn behind<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}
