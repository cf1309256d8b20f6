//! The families in words, as Markdown: what `nvlink-exporter metrics` prints
//! and what stands in the documentation.

use super::{FAMILIES, Family, Group};

/// All families, a table for each group.
#[must_use]
pub fn reference() -> String {
    let groups = Group::SWITCHED.into_iter().chain([Group::Exporter]);
    groups.map(section).collect::<Vec<_>>().join("\n")
}

fn section(group: Group) -> String {
    let name = group.as_str();
    let switch = match group {
        Group::Exporter => "Always there.".to_owned(),
        _ => format!("Left out with `--no-collector.{name}`."),
    };
    let families = FAMILIES.iter().filter(|family| family.group == group);
    let rows: String = families.map(|family| row(family)).collect();
    format!(
        "## {name}\n\n{switch}\n\n| name | type | unit | labels | what it says |\n|---|---|---|---|---|\n{rows}"
    )
}

fn row(family: &Family) -> String {
    let labels: Vec<_> = family
        .labels
        .iter()
        .map(|label| format!("`{label}`"))
        .collect();
    format!(
        "| `{}` | {} | {} | {} | {} |\n",
        family.sample_name(),
        family.kind.as_str(),
        unit(family),
        labels.join(" "),
        family.help
    )
}

/// The unit that the name says.
fn unit(family: &Family) -> &'static str {
    let units = [
        ("_bytes_per_second", "bytes per second"),
        ("_bytes", "bytes"),
        ("_seconds", "seconds"),
        ("_ratio", "ratio, 0 to 1"),
        ("_info", "always 1"),
        ("_lost", "always 1"),
        ("_links", "links"),
        ("_gpus", "GPUs"),
        ("_domains", "domains"),
        ("_errors", "errors"),
        ("_failures", "failures"),
        ("_cut_off", "clients"),
        ("_restarts", "restarts"),
        ("_dropped", "lines"),
    ];
    let unit = units.iter().find(|(end, _)| family.name.ends_with(end));
    unit.map_or("0 or 1", |(_, unit)| unit)
}
