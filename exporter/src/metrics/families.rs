//! Every family, in one table: from it metrics are written and documented.

use super::family::{Family, Group, counter, gauge};

macro_rules! families {
    ($($id:ident = $family:expr;)*) => {
        $(pub(super) static $id: Family = $family;)*

        /// All families, in the order in which they are written.
        pub static FAMILIES: &[&Family] = &[$(&$id),*];
    };
}

families! {
    GPU_INFO = gauge(
        Group::Gpu,
        "nvlink_gpu_info",
        &["gpu", "UUID", "pci_bus_id", "model", "domain", "numa_node", "mig", "node"],
        "GPUs",
        "A GPU of the node and the NVLink domain that it is in; always 1.",
    );
    GPU_LOST = gauge(
        Group::Gpu,
        "nvlink_gpu_lost",
        &["gpu", "UUID", "pci_bus_id", "node"],
        "lost GPUs",
        "A GPU that was there since the exporter started and does not answer now; always 1.",
    );
    MISSING_LINKS = gauge(
        Group::Gpu,
        "nvlink_missing_links",
        &["gpu", "UUID"],
        "GPUs",
        "NVLinks that should be up and are not, judged by the other GPUs of the model on the node and by what its board has; in a virtual machine by its board only where all of it is there. Absent where a GPU should have none.",
    );
    LINK_UP = gauge(
        Group::Link,
        "nvlink_link_up",
        &["gpu", "UUID", "link", "remote"],
        "links",
        "Whether the NVLink is up. The label remote says what is at the other end.",
    );
    LINK_SPEED = gauge(
        Group::Link,
        "nvlink_link_speed_bytes_per_second",
        &["gpu", "UUID", "link"],
        "links",
        "Line rate of the NVLink in one direction; absent while it is down.",
    );
    COUNTER_SOURCE = gauge(
        Group::Throughput,
        "nvlink_traffic_source_info",
        &["gpu", "UUID", "link", "source"],
        "GPUs; links of a GPU whose links differ",
        "Where the traffic of the GPU's NVLinks is read, chosen once; of one link where they differ; always 1. Sources count different things and do not compare.",
    );
    TRANSMIT = counter(
        Group::Throughput,
        "nvlink_transmit_bytes",
        &["gpu", "UUID", "link"],
        "links",
        "Bytes that the GPU sent over the NVLink, with or without headers as nvlink_traffic_source_info says.",
    );
    RECEIVE = counter(
        Group::Throughput,
        "nvlink_receive_bytes",
        &["gpu", "UUID", "link"],
        "links",
        "Bytes that the GPU received over the NVLink, with or without headers as nvlink_traffic_source_info says.",
    );
    TRANSMIT_RATE = gauge(
        Group::Throughput,
        "nvlink_transmit_bytes_per_second",
        &["gpu", "UUID", "link"],
        "links",
        "Bytes a second that the GPU sent over the NVLink between the last two collections; only where the driver counts no bytes.",
    );
    RECEIVE_RATE = gauge(
        Group::Throughput,
        "nvlink_receive_bytes_per_second",
        &["gpu", "UUID", "link"],
        "links",
        "Bytes a second that the GPU received over the NVLink between the last two collections; only where the driver counts no bytes.",
    );
    ERRORS = counter(
        Group::Error,
        "nvlink_errors",
        &["gpu", "UUID", "link", "kind"],
        "links × kinds (4 or 5 up to Hopper, 11 from NVLink 5 on)",
        "Errors that the GPU counted on the NVLink, by kind.",
    );
    BIT_ERROR_RATIO = gauge(
        Group::Error,
        "nvlink_bit_error_ratio",
        &["gpu", "UUID", "link", "kind"],
        "links × 2, from NVLink 5 on",
        "Bits in error over bits received on the NVLink: effective after error correction, symbol before it.",
    );
    PEER_LINKS = gauge(
        Group::Peer,
        "nvlink_peer_links",
        &["gpu", "UUID", "peer", "peer_UUID", "via"],
        "ordered pairs joined by NVLink",
        "NVLinks that carry traffic from the GPU to its peer: direct ones, or the fewer of both GPUs' links to the switches.",
    );
    PEER_BANDWIDTH = gauge(
        Group::Peer,
        "nvlink_peer_bandwidth_bytes_per_second",
        &["gpu", "UUID", "peer", "peer_UUID", "via"],
        "ordered pairs joined by NVLink",
        "Usable NVLink bandwidth from the GPU to its peer.",
    );
    ASYMMETRIC_LINKS = gauge(
        Group::Peer,
        "nvlink_asymmetric_links",
        &["gpu", "UUID", "peer", "peer_UUID"],
        "ordered pairs that disagree",
        "Direct NVLinks to the peer that the GPU reports and the peer does not report back.",
    );
    DOMAIN_GPUS = gauge(
        Group::Domain,
        "nvlink_domain_gpus",
        &["domain", "node"],
        "domains",
        "GPUs of the node in the NVLink domain.",
    );
    DOMAIN_FREE_GPUS = gauge(
        Group::Domain,
        "nvlink_domain_free_gpus",
        &["domain", "node"],
        "domains",
        "GPUs of the node in the NVLink domain that no pod holds; absent where allocations are not known, and where the kubelet names devices that may be among those GPUs and cannot be told.",
    );
    LARGEST_FREE_SET = gauge(
        Group::Domain,
        "nvlink_largest_free_set_gpus",
        &["node"],
        "1",
        "The most free GPUs in one NVLink domain of the node (1 where free GPUs are in none): the largest job that still fits well. Absent where it depends on GPUs of which that is not known.",
    );
    FABRIC_STATE = gauge(
        Group::Fabric,
        "nvlink_fabric_state",
        &["gpu", "UUID", "state"],
        "GPUs × 4 states",
        "How far the registration of the GPU with its NVLink fabric is: 1 for the state that it is in.",
    );
    FABRIC_HEALTH = gauge(
        Group::Fabric,
        "nvlink_fabric_health",
        &["gpu", "UUID", "condition"],
        "GPUs × 5 conditions",
        "What is wrong with the place of the GPU in its NVLink fabric: 1 for each condition that holds. What the fabric manager does not say is absent.",
    );
    XID_ERRORS = counter(
        Group::Xid,
        "nvlink_xid_errors",
        &["gpu", "UUID", "xid"],
        "GPUs × XIDs seen",
        "XID errors that the driver reported for the GPU since the exporter started.",
    );
    ALLOCATION_INFO = gauge(
        Group::Placement,
        "nvlink_allocation_info",
        &["gpu", "UUID", "namespace", "pod", "container", "domain"],
        "GPUs held by containers",
        "A GPU that a container holds; always 1. Joins the counters of links with jobs.",
    );
    PLACEMENT_GPUS = gauge(
        Group::Placement,
        "nvlink_placement_gpus",
        &["namespace", "pod", "container"],
        "containers with GPUs",
        "GPUs that the container holds.",
    );
    PLACEMENT_DOMAINS = gauge(
        Group::Placement,
        "nvlink_placement_domains",
        &["namespace", "pod", "container"],
        "containers with GPUs",
        "NVLink domains that the GPUs of the container lie in; a GPU outside any counts as one.",
    );
    PLACEMENT_BOTTLENECK = gauge(
        Group::Placement,
        "nvlink_placement_bottleneck_bytes_per_second",
        &["namespace", "pod", "container"],
        "containers with 2 GPUs and more",
        "Capacity of the busiest resource (links, switch port, PCIe or socket link) when the GPUs of the container talk as the pattern of the job does; of an all-reduce over direct NVLinks, all its rings together.",
    );
    PLACEMENT_QUALITY = gauge(
        Group::Placement,
        "nvlink_placement_quality_ratio",
        &["namespace", "pod", "container", "reference"],
        "containers with GPUs × 2",
        "Best possible communication time over that of the GPUs that the container got: reference node is the best on the empty node, free the best in what was free when the pod came (absent where that is not known).",
    );
    PLACEMENT_PATTERN = gauge(
        Group::Placement,
        "nvlink_placement_pattern_info",
        &["namespace", "pod", "container", "pattern", "source"],
        "containers with GPUs",
        "The communication pattern by which the placement is judged, and whether the webhook decided it or it is the default; always 1.",
    );
    COLLECTOR_SUCCESS = gauge(
        Group::Exporter,
        "nvlink_exporter_collector_success",
        &["collector"],
        "2",
        "Whether the last collection succeeded.",
    );
    COLLECTION_DURATION = gauge(
        Group::Exporter,
        "nvlink_exporter_collection_duration_seconds",
        &["collector"],
        "2",
        "How long the last collection took.",
    );
    SNAPSHOT_AGE = gauge(
        Group::Exporter,
        "nvlink_exporter_snapshot_age_seconds",
        &[],
        "1",
        "Time since the last collection that gave data began, or since the start where none has; grows while the source hangs or fails.",
    );
    SOURCE_RELEASED = gauge(
        Group::Exporter,
        "nvlink_exporter_source_released",
        &[],
        "1",
        "Whether the source was let go of on request (POST /-/release): there are no data then.",
    );
    PUBLISHED_AT = gauge(
        Group::Exporter,
        "nvlink_exporter_published_timestamp_seconds",
        &["what"],
        "2 with --publish",
        "When the cluster was last seen to say what it should, Unix time; looked at on each change and every --publish-interval. Absent until it first does.",
    );
    PUBLISH_FAILURES = counter(
        Group::Exporter,
        "nvlink_exporter_publish_failures",
        &["what", "reason"],
        "8 with --publish",
        "Attempts at publishing that failed.",
    );
    CUT_OFFS = counter(
        Group::Exporter,
        "nvlink_exporter_clients_cut_off",
        &["reason"],
        "4",
        "Clients that lost their connection or did not get their answer: idle, another needed the place; full, there was no place; memory, there was no room for the answer; slow, the answer was not taken.",
    );
    RESTARTS = counter(
        Group::Exporter,
        "nvlink_exporter_part_restarts",
        &["part"],
        "4; 8 with --publish",
        "How often a part of the exporter ended or panicked and was started again.",
    );
    LOG_DROPPED = counter(
        Group::Exporter,
        "nvlink_exporter_log_lines_dropped",
        &[],
        "1",
        "Lines of the log that nobody took.",
    );
    SOURCE_INFO = gauge(
        Group::Exporter,
        "nvlink_exporter_source_info",
        &["source", "from"],
        "1",
        "What the topology was read from; always 1.",
    );
    BUILD_INFO = gauge(
        Group::Exporter,
        "nvlink_exporter_build_info",
        &["version"],
        "1",
        "The exporter's version; always 1.",
    );
}
