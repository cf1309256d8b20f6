//! The reference of the families, as Markdown, which `nvlink-exporter metrics`
//! prints and the documentation contains.

use super::{FAMILIES, Family, Group};

/// Returns all families, in one table per group.
#[must_use]
pub fn reference() -> String {
    let groups = Group::switched().chain([Group::Exporter]);
    let sections: Vec<_> = groups.map(section).collect();
    format!(
        "`--no-collector.NAME` disables the group NAME, except {}.\n\n{}",
        Group::Exporter,
        sections.join("\n")
    )
}

fn section(group: Group) -> String {
    let families = FAMILIES.iter().filter(|family| family.group == group);
    let rows: String = families.map(|family| row(family)).collect();
    let note = note(group);
    format!("## {group}\n\n| name | unit | labels | meaning |\n|---|---|---|---|\n{rows}{note}")
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
`nvlink_traffic_source_info` names the source. Sources count different things and are not comparable.

| source | GPUs | NVML's fields | what it counts |
|---|---|---|---|
| `throughput_data` | Volta to Hopper, some later ones | 138, 139 | data without protocol overhead, in KiB |
| `nvlink5_bytes` | NVLink 5 and later | 202, 204 | all bytes on the link, perhaps with headers |
| `gpm` | Hopper and later, where neither counter moves | GPM metrics from 62 on | a rate, in MiB per second, perhaps with headers |

DCGM's `DCGM_FI_PROF_NVLINK_TX_BYTES` is a different rate.
";

const ERRORS: &str = "
Numbers are fields of NVML; C0 to C4, counters of `nvmlDeviceGetNvLinkErrorCounter`. A kind may count different events on different generations.

| kind | up to NVLink 3 | Hopper (NVLink 4) | NVLink 5 and later | what it counts |
|---|---|---|---|---|
| `replay` | C0 | 161 | | packets sent again |
| `recovery` | C1 | 162 | 213 | retrainings of the link; since NVLink 5, only successful ones |
| `crc_flit` | C2 | 163, the only CRC counter | | flits with a wrong checksum |
| `crc_data` | C3 | | | data packets with a wrong checksum |
| `ecc_data` | C4 | C4 | | errors that the link's memory corrected |
| `malformed_packet` | | | 206 | malformed packets received |
| `buffer_overrun` | | | 207 | packets dropped for lack of a receive buffer |
| `receive` | | | 208 | packets received with errors |
| `receive_remote` | | | 209 | packets that the remote end marked as bad |
| `receive_general` | | | 210 | packets with a header mismatch |
| `local_link_integrity` | | | 211 | times that local errors exceeded a threshold |
| `transmit_discard` | | | 212 | packets with errors dropped before sending |
| `recovery_failed` | | | 214 | failed retrainings: the link is down |
| `effective` | | | 219; ratio 220 | errors left by forward error correction (FEC) |
| `symbol` | | | 221; ratio 222 | symbol errors left by FEC and the retransmission of the physical layer |
";

fn row(family: &Family) -> String {
    let labels: Vec<_> = family
        .labels
        .iter()
        .map(|label| format!("`{label}`"))
        .collect();
    // The column of the unit says it, too.
    let help = family.help.replace("; always 1", "");
    format!(
        "| `{}` | {} | {} | {help} |\n",
        family.sample_name(),
        family.unit,
        labels.join(" ")
    )
}
