//! OpenMetrics text → Prometheus text 0.0.4.
//!
//! The two differ in little of what is written here: the older one has no
//! `# EOF` and no `# UNIT`, and the name of a counter's family ends in `_total`.

/// Converts what the encoder wrote (gauges and counters only).
pub(super) fn to_prometheus(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + 1024);
    let mut help: Option<&str> = None;
    for line in open_metrics.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            // Written with its type, which says how the family is called.
            help = Some(text);
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|text| text.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = help.take().and_then(|text| text.split_once(' ')) {
                out.push_str(&format!("# HELP {name}{suffix} {text}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_called_total_and_the_end_is_not_marked() {
        let open = "# HELP a_bytes What.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{l=\"# EOF\"} 1\n# HELP b B it is.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_bytes_total What.\n# TYPE a_bytes_total counter\n\
                        a_bytes_total{l=\"# EOF\"} 1\n# HELP b B it is.\n# TYPE b gauge\nb 2\n";
        assert_eq!(to_prometheus(open), expected);
    }
}
