//! Reads PromQL as far as the tests need: which metrics an expression uses.

use std::collections::BTreeSet;

/// Words that are neither metrics nor functions.
const WORDS: [&str; 19] = [
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "inf",
    "nan",
    "sum",
    "min",
    "max",
    "avg",
    "count",
    "group",
    "topk",
    "bottomk",
    "quantile",
    "stddev",
    "stdvar",
    "count_values",
];
/// Words before a list of labels.
const LISTS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// Returns the names of the metrics in an expression that Prometheus accepts, also those that a
/// matcher of `__name__` lists.
#[must_use]
pub fn metrics(expr: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut rest = expr;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '"' | '\'' | '`' => after_string(rest),
            '{' => {
                let after = after_group(rest, '}');
                found.extend(listed(&rest[..rest.len() - after.len()]));
                after
            }
            '[' => after_group(rest, ']'),
            '0'..='9' => rest.trim_start_matches(|c: char| c == '.' || c.is_ascii_alphanumeric()),
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let end = rest.find(|c: char| c != '_' && c != ':' && !c.is_ascii_alphanumeric());
                let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
                let next = after.trim_start();
                if LISTS.contains(&name) {
                    next.strip_prefix('(')
                        .map_or(after, |_| after_group(next, ')'))
                } else {
                    if !next.starts_with('(') && !WORDS.contains(&name) {
                        found.insert(name);
                    }
                    after
                }
            }
            _ => &rest[first.len_utf8()..],
        };
    }
    found
}

/// Returns the names that a group of matchers lists.
fn listed(group: &str) -> impl Iterator<Item = &str> {
    let names = group.split("__name__").nth(1).unwrap_or_default();
    let names = names.trim_start_matches(['=', '~']);
    let names = names
        .get(1..)
        .and_then(|names| names.split(['"', '\'', '`']).next());
    names
        .unwrap_or_default()
        .split('|')
        .filter(|name| !name.is_empty())
}

/// Returns what follows the string at the start of `text`.
fn after_string(text: &str) -> &str {
    let quote = text.chars().next();
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !escaped && Some(c) == quote {
            return &text[at + c.len_utf8()..];
        }
        escaped = c == '\\' && !escaped && quote != Some('`');
    }
    ""
}

/// Returns what follows the group at the start of `text`, which ends with `close`.
fn after_group(text: &str, close: char) -> &str {
    let mut rest = &text[1..];
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '"' | '\'' | '`' => after_string(rest),
            _ => &rest[first.len_utf8()..],
        };
        if first == close {
            return rest;
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_told_from_all_else() {
        for (expr, wanted) in [
            ("up", &["up"][..]),
            (
                r#"sum by (le) (rate(a_bucket{x=~"b}c", y="\"d"}[5m])) / 1e9"#,
                &["a_bucket"],
            ),
            (
                "a * on (b, c) group_left (d) max by (b) (e) ^ 0",
                &["a", "e"],
            ),
            (
                "topk(5, level:a:rate5m and b[1h:5m] offset 5m @ end())",
                &["b", "level:a:rate5m"],
            ),
            ("sum(a) by (b) or vector(0) > bool 0.5", &["a"]),
            ("count without(b) (a unless c)", &["a", "c"]),
            ("time() - {__name__='a'} `b`", &["a"]),
            (r#"sum({__name__=~"a|b", c="d"})"#, &["a", "b"]),
        ] {
            assert_eq!(
                metrics(expr).into_iter().collect::<Vec<_>>(),
                wanted,
                "{expr}"
            );
        }
    }
}
