//! The text that a scrape gets: OpenMetrics 1.0.0 or Prometheus 0.0.4.
//!
//! Both are written straight from the snapshot, without a string per label: a
//! rack's 72 GPUs are 20,000 series. The two formats differ in little of what
//! is written here: the older one has no `# EOF`, and the name of a counter's
//! family ends in `_total`.

use std::fmt::{self, Write};

use super::{
    Format,
    family::{Family, Groups, Kind, Label, Value},
};

/// A text that grows by families.
#[derive(Debug)]
pub(super) struct Exposition {
    text: String,
    format: Format,
    groups: Groups,
}

impl Exposition {
    /// Nothing yet; of families that are in none of `groups` nothing is written.
    pub(super) fn new(format: Format, groups: Groups, capacity: usize) -> Self {
        Self {
            text: String::with_capacity(capacity),
            format,
            groups,
        }
    }

    /// Writes a family: values of its labels in the order of
    /// [`Family::labels`], and the sample's value. Nothing where there is no series.
    pub(super) fn write<'a, const N: usize>(
        &mut self,
        family: &Family,
        series: impl IntoIterator<Item = ([Label<'a>; N], Value)>,
    ) -> fmt::Result {
        debug_assert_eq!(family.labels.len(), N, "{}", family.name);
        if !self.groups.contains(family.group) {
            return Ok(());
        }
        let mut described = false;
        for (labels, value) in series {
            if !described {
                self.describe(family)?;
                described = true;
            }
            self.text.push_str(family.name);
            self.text.push_str(family.suffix());
            self.labels(family.labels, &labels);
            self.value(value)?;
        }
        Ok(())
    }

    /// The whole text.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn describe(&mut self, family: &Family) -> fmt::Result {
        let suffix = match self.format {
            Format::OpenMetrics => "",
            Format::Prometheus => family.suffix(),
        };
        let kind = match family.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let Family { name, help, .. } = family;
        writeln!(self.text, "# HELP {name}{suffix} {help}")?;
        writeln!(self.text, "# TYPE {name}{suffix} {kind}")
    }

    fn labels(&mut self, names: &[&str], values: &[Label<'_>]) {
        let mut before = '{';
        for (name, value) in names.iter().zip(values) {
            if matches!(value, Label::Unknown | Label::Text("")) {
                continue;
            }
            self.text.push(before);
            before = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            match *value {
                Label::Text(text) => self.escaped(text),
                Label::Number(number) => self.whole(number),
                Label::Unknown => {}
            }
            self.text.push('"');
        }
        if before == ',' {
            self.text.push('}');
        }
    }

    fn whole(&mut self, number: u64) {
        self.text.push_str(itoa::Buffer::new().format(number));
    }

    fn escaped(&mut self, text: &str) {
        let mut rest = text;
        while let Some(at) = rest.find(['\\', '"', '\n']) {
            self.text.push_str(&rest[..at]);
            self.text.push_str(match rest.as_bytes()[at] {
                b'\n' => "\\n",
                b'"' => "\\\"",
                _ => "\\\\",
            });
            rest = &rest[at + 1..];
        }
        self.text.push_str(rest);
    }

    fn value(&mut self, value: Value) -> fmt::Result {
        match value {
            Value::Whole(value) => {
                self.text.push(' ');
                self.whole(value);
                self.text.push('\n');
                Ok(())
            }
            // `{:?}` keeps every digit, and writes small numbers with an exponent.
            Value::Real(value) if value.is_finite() => writeln!(self.text, " {value:?}"),
            Value::Real(value) if value.is_nan() => writeln!(self.text, " NaN"),
            Value::Real(value) => {
                writeln!(self.text, " {}Inf", if value > 0.0 { '+' } else { '-' })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::family::{Group, counter, gauge};

    static BYTES: Family = counter(Group::Link, "a_bytes", &["x", "y"], "1", "What.");
    static SHARE: Family = gauge(Group::Peer, "b", &[], "1", "B it is.");

    fn text(format: Format, groups: Groups) -> String {
        let mut out = Exposition::new(format, groups, 0);
        let series = [
            (
                [Label::Text("a\"b\\c\nd"), Label::Number(7)],
                Value::Whole(1),
            ),
            ([Label::Unknown, Label::Text("# EOF")], Value::Whole(2)),
            ([Label::Text(""), Label::Unknown], Value::Whole(u64::MAX)),
        ];
        out.write(&BYTES, series).unwrap();
        out.write(&SHARE, [([], Value::Real(1e-12))]).unwrap();
        out.write::<0>(&SHARE, []).unwrap();
        out.end()
    }

    #[test]
    fn the_two_formats() {
        let samples = "a_bytes_total{x=\"a\\\"b\\\\c\\nd\",y=\"7\"} 1\n\
                       a_bytes_total{y=\"# EOF\"} 2\na_bytes_total 18446744073709551615\n";
        let share = "# HELP b B it is.\n# TYPE b gauge\nb 1e-12\n";
        assert_eq!(
            text(Format::Prometheus, Groups::ALL),
            format!("# HELP a_bytes_total What.\n# TYPE a_bytes_total counter\n{samples}{share}")
        );
        assert_eq!(
            text(Format::OpenMetrics, Groups::ALL),
            format!("# HELP a_bytes What.\n# TYPE a_bytes counter\n{samples}{share}# EOF\n")
        );
        assert_eq!(
            text(Format::Prometheus, Groups::NONE.with(Group::Peer)),
            share
        );
        assert_eq!(
            text(Format::Prometheus, Groups::ALL.without(Group::Link)),
            share
        );
    }

    #[test]
    fn numbers_that_are_none() {
        let mut out = Exposition::new(Format::Prometheus, Groups::ALL, 0);
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0, 0.25] {
            out.value(Value::Real(value)).unwrap();
        }
        assert_eq!(out.end(), " NaN\n +Inf\n -Inf\n 1.0\n 0.25\n");
    }
}
