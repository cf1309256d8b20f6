//! The reference of the families, as Markdown, which `nvlink-exporter metrics`
//! prints and the documentation contains.

use super::{FAMILIES, Family, Group};

/// Returns all families, in one table per group.
#[must_use]
pub fn reference() -> String {
    let groups = Group::switched().chain([Group::Exporter]);
    groups.map(section).collect::<Vec<_>>().join("\n")
}

fn section(group: Group) -> String {
    let switch = match group {
        Group::Exporter => "Always enabled.".to_owned(),
        _ => format!("Disabled by `--no-collector.{group}`."),
    };
    let families = FAMILIES.iter().filter(|family| family.group == group);
    let rows: String = families.map(|family| row(family)).collect();
    let note = note(group);
    format!(
        "## {group}\n\n{switch}\n\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n{rows}{note}"
    )
}

/// Returns a note on what the counters of a group count, with NVML's field ids.
fn note(group: Group) -> &'static str {
    match group {
        Group::Throughput => TRAFFIC,
        Group::Error => ERRORS,
        _ => "",
    }
}

/// From the comments in `nvml.h` and in `dcgm_fields.h`.
const TRAFFIC: &str = "
What a byte is depends on the source, which `nvlink_traffic_source_info` names.
Sources are not comparable, so neither are GPUs of generations with different sources.

| source | GPUs | fields of NVML | what it counts |
|---|---|---|---|
| `throughput_data` | Volta to Hopper, some later ones | 138, 139 | data without protocol overhead, in KiB |
| `nvlink5_bytes` | NVLink 5 and later | 202, 204 | all bytes on the link; NVIDIA does not document that headers are excluded |
| `gpm` | Hopper and later, where neither counter moves | GPM metrics from 62 on | a rate, in MiB per second; NVIDIA does not document whether headers are included |

Fields 140 and 141, data with overhead, are not read. DCGM's `DCGM_FI_PROF_NVLINK_TX_BYTES` is a different rate; its documentation describes it once with headers and once without.
";

const ERRORS: &str = "
The kinds of errors and their source in NVML: a field, or a counter of `nvmlDeviceGetNvLinkErrorCounter`. A kind may count different events on different generations.

| kind | up to NVLink 3 | NVLink 4 (Hopper) | NVLink 5 and later | what it counts |
|---|---|---|---|---|
| `replay` | counter 0 | field 161 | | packets that were sent again |
| `recovery` | counter 1 | field 162 | field 213 | retrainings of the link; since NVLink 5, only successful ones |
| `crc_flit` | counter 2 | field 163, the only CRC counter there | | flits with a wrong checksum |
| `crc_data` | counter 3 | | | data packets with a wrong checksum |
| `ecc_data` | counter 4 | counter 4 | | errors that the link's memory corrected |
| `malformed_packet` | | | field 206 | malformed packets received |
| `buffer_overrun` | | | field 207 | packets dropped on receipt because no buffer was free |
| `receive` | | | field 208 | packets received with errors |
| `receive_remote` | | | field 209 | packets received that the remote end had marked as bad |
| `receive_general` | | | field 210 | packets received with a header mismatch |
| `local_link_integrity` | | | field 211 | times that the number of local errors exceeded a threshold |
| `transmit_discard` | | | field 212 | packets with errors that were dropped before they were sent |
| `recovery_failed` | | | field 214 | retrainings that failed: the link is down |
| `effective` | | | field 219; ratio 220 | errors in packets that forward error correction (FEC) left |
| `symbol` | | | field 221; ratio 222 | errors in received symbols that FEC and the retransmission of the physical layer (PLR) left |
";

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
        family.unit,
        labels.join(" "),
        family.help
    )
}
