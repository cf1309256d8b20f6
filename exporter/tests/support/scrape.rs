//! Parses a scrape, and checks what holds for every scrape.

use std::collections::{BTreeMap, BTreeSet};

use nvlink_exporter::metrics::{FAMILIES, Family};

/// Values of each family that has series, in the order of the text.
pub(crate) type Values<'a> = Vec<(&'static Family, Vec<&'a str>)>;

/// Checks a text and returns its values: each family is described once, in the
/// order of the table and with the labels of the table; no series occurs twice;
/// each value is a number.
pub(crate) fn read(text: &str) -> Values<'_> {
    let body = text.strip_suffix("# EOF\n").expect("it ends");
    let (mut values, mut seen) = (Values::new(), BTreeSet::new());
    let mut families = FAMILIES.iter();
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let is_next = |one: &&&Family| help == format!("{} {}", one.name, one.help);
            let family = families.find(is_next).expect(line);
            values.push((family, Vec::new()));
            continue;
        }
        let (family, values) = values.last_mut().expect(line);
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            assert_eq!(kind, format!("{} {}", family.name, family.kind.as_str()));
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect(line);
        assert!(seen.insert(series), "twice: {series}");
        let number: f64 = value.parse().expect(line);
        assert!(number.is_finite() && number >= 0.0, "{line}");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert_eq!(name, family.sample_name(), "{line}");
        let mut known = family.labels.iter();
        for label in labels.trim_end_matches('}').split_inclusive("\",") {
            let (label, _) = label.split_once("=\"").unwrap_or((label, ""));
            assert!(label.is_empty() || known.any(|one| *one == label), "{line}");
        }
        values.push(value);
    }
    let empty = values.iter().find(|(_, values)| values.is_empty());
    assert!(empty.is_none(), "described, and without series: {empty:?}");
    values
}

/// Formats values: `144 × 26562000000`; more than three different values as a range.
pub(crate) fn summary(values: &[&str]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    if counts.len() <= 3 {
        let count = |(value, count): (&&str, &usize)| format!("{count} × {value}");
        return counts.iter().map(count).collect::<Vec<_>>().join(", ");
    }
    let number = |value: &&str| value.parse::<f64>().unwrap_or(f64::NAN);
    let numbers = || values.iter().map(number);
    let (least, most) = (
        numbers().fold(f64::INFINITY, f64::min),
        numbers().fold(f64::NEG_INFINITY, f64::max),
    );
    format!("{} from {least:?} to {most:?}", values.len())
}
