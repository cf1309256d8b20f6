//! All families, in one table, from which metrics are written and documented.

use super::family::{Family, Group, Unit, counter, gauge};

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
        Unit::One,
        &["gpu", "UUID", "pci_bus_id", "model", "domain", "numa_node", "mig", "node"],
        "GPUs",
        "A GPU of the node and its NVLink domain; always 1.",
    );
    GPU_LOST = gauge(
        Group::Gpu,
        "nvlink_gpu_lost",
        Unit::One,
        &["gpu", "UUID", "pci_bus_id", "node"],
        "lost GPUs",
        "A GPU that the exporter has seen since it started and that does not answer now; always 1.",
    );
    MISSING_GPUS = gauge(
        Group::Gpu,
        "nvlink_missing_gpus",
        Unit::Gpus,
        &["node"],
        "1",
        "GPUs that the node's board has and that do not answer, also since before the exporter started. Only boards with NVSwitches have a known number. Absent in a virtual machine, which may have a part of the board, and where it is not known whether the node is one.",
    );
    MISSING_LINKS = gauge(
        Group::Gpu,
        "nvlink_missing_links",
        Unit::Links,
        &["gpu", "UUID"],
        "GPUs",
        "NVLinks that should be up and are not. The expected number comes from the other GPUs of the model on the node and from the board; in a virtual machine, from the board only if the machine has the whole board. Absent where a GPU may correctly have none, such as a PCIe card without a bridge.",
    );
    GPU_SPEED = gauge(
        Group::Gpu,
        "nvlink_gpu_speed_bytes_per_second",
        Unit::BytesPerSecond,
        &["gpu", "UUID"],
        "GPUs with active links",
        "Line rate of the GPU's active NVLinks together, in one direction; absent where none is active.",
    );
    GPU_TRANSMIT = counter(
        Group::Gpu,
        "nvlink_gpu_transmit_bytes",
        Unit::Bytes,
        &["gpu", "UUID"],
        "GPUs",
        "Bytes that the GPU sent over all its NVLinks since the exporter started. The reset of one link's counter does not show. Where the driver has only rates, their sum over time.",
    );
    GPU_RECEIVE = counter(
        Group::Gpu,
        "nvlink_gpu_receive_bytes",
        Unit::Bytes,
        &["gpu", "UUID"],
        "GPUs",
        "Bytes that the GPU received over all its NVLinks since the exporter started; counted like nvlink_gpu_transmit_bytes_total.",
    );
    GPU_ERRORS = counter(
        Group::Gpu,
        "nvlink_gpu_errors",
        Unit::Errors,
        &["gpu", "UUID", "kind"],
        "GPUs × kinds",
        "Errors that the GPU counted on all its NVLinks since the exporter started, by kind; the kinds are those of nvlink_errors_total.",
    );
    UNHEALTHY = gauge(
        Group::Gpu,
        "nvlink_gpu_unhealthy",
        Unit::One,
        &["gpu", "UUID", "reason"],
        "broken GPUs × their reasons",
        "A GPU that placements leave out or rank last; always 1. Reason missing-links: see nvlink_missing_links; fabric: its registration with the NVLink fabric is not complete, or the fabric reports a problem; recovery-ACTION: see nvlink_gpu_recovery_action, all but none and recover_imex_domain; row-remap-pending, row-remap-failed: see nvlink_gpu_row_remap; xid-N: it had this XID and was not reset since, only where the driver reports no recovery action; lost: it does not answer. The first two end after 12 collections without the problem.",
    );
    LINK_UP = gauge(
        Group::Link,
        "nvlink_link_up",
        Unit::ZeroOrOne,
        &["gpu", "UUID", "link", "remote"],
        "links",
        "Whether the NVLink is up. The label remote is the kind of device at the other end; it stays as it was when the link fails. For a link that has been down since the exporter started, it is the kind of the GPU's other links if these agree, else unknown.",
    );
    LINK_SPEED = gauge(
        Group::Link,
        "nvlink_link_speed_bytes_per_second",
        Unit::BytesPerSecond,
        &["gpu", "UUID", "link"],
        "links",
        "Line rate of the NVLink in one direction; absent while it is down.",
    );
    COUNTER_SOURCE = gauge(
        Group::Throughput,
        "nvlink_traffic_source_info",
        Unit::One,
        &["gpu", "UUID", "link", "source"],
        "GPUs; links of a GPU whose links differ",
        "The source from which the traffic of the GPU's NVLinks is read, chosen once; has the label link only where the links of a GPU differ; always 1. Sources count different things and are not comparable.",
    );
    TRANSMIT = counter(
        Group::Throughput,
        "nvlink_transmit_bytes",
        Unit::Bytes,
        &["gpu", "UUID", "link"],
        "links",
        "Bytes that the GPU sent over the NVLink; the source in nvlink_traffic_source_info determines whether headers are included.",
    );
    RECEIVE = counter(
        Group::Throughput,
        "nvlink_receive_bytes",
        Unit::Bytes,
        &["gpu", "UUID", "link"],
        "links",
        "Bytes that the GPU received over the NVLink; the source in nvlink_traffic_source_info determines whether headers are included.",
    );
    TRANSMIT_RATE = gauge(
        Group::Throughput,
        "nvlink_transmit_bytes_per_second",
        Unit::BytesPerSecond,
        &["gpu", "UUID", "link"],
        "links",
        "Bytes per second that the GPU sent over the NVLink between the last two collections; present only where the driver has no byte counters.",
    );
    RECEIVE_RATE = gauge(
        Group::Throughput,
        "nvlink_receive_bytes_per_second",
        Unit::BytesPerSecond,
        &["gpu", "UUID", "link"],
        "links",
        "Bytes per second that the GPU received over the NVLink between the last two collections; present only where the driver has no byte counters.",
    );
    ERRORS = counter(
        Group::Error,
        "nvlink_errors",
        Unit::Errors,
        &["gpu", "UUID", "link", "kind"],
        "links × kinds (4 or 5 up to Hopper, 11 since NVLink 5)",
        "Errors that the GPU counted on the NVLink, by kind.",
    );
    BIT_ERROR_RATIO = gauge(
        Group::Error,
        "nvlink_bit_error_ratio",
        Unit::Ratio,
        &["gpu", "UUID", "link", "kind"],
        "links × 2, since NVLink 5",
        "Bits in error divided by bits received on the NVLink: kind effective after forward error correction, kind symbol after all correction of the physical layer, retransmission included.",
    );
    PEER_LINKS = gauge(
        Group::Peer,
        "nvlink_peer_links",
        Unit::Links,
        &["gpu", "UUID", "peer", "peer_UUID", "via"],
        "ordered pairs joined by NVLink",
        "NVLinks that carry traffic from the GPU to its peer: the direct links or, over switches, the smaller of the two GPUs' numbers of switch links.",
    );
    PEER_BANDWIDTH = gauge(
        Group::Peer,
        "nvlink_peer_bandwidth_bytes_per_second",
        Unit::BytesPerSecond,
        &["gpu", "UUID", "peer", "peer_UUID", "via"],
        "ordered pairs joined by NVLink",
        "Usable NVLink bandwidth from the GPU to its peer.",
    );
    ASYMMETRIC_LINKS = gauge(
        Group::Peer,
        "nvlink_asymmetric_links",
        Unit::Links,
        &["gpu", "UUID", "peer", "peer_UUID"],
        "ordered pairs that disagree",
        "Direct NVLinks to the peer that the GPU reports and the peer does not.",
    );
    DOMAIN_GPUS = gauge(
        Group::Domain,
        "nvlink_domain_gpus",
        Unit::Gpus,
        &["domain", "node"],
        "domains",
        "GPUs of the node in the NVLink domain.",
    );
    DOMAIN_FREE_GPUS = gauge(
        Group::Domain,
        "nvlink_domain_free_gpus",
        Unit::Gpus,
        &["domain", "node"],
        "domains",
        "GPUs of the node in the NVLink domain that no pod holds. Absent where allocations are not known, and where the kubelet reports devices that cannot be identified and may be among those GPUs.",
    );
    LARGEST_FREE_SET = gauge(
        Group::Domain,
        "nvlink_largest_free_set_gpus",
        Unit::Gpus,
        &["node"],
        "1",
        "Largest number of free GPUs in one NVLink domain of the node (1 where the free GPUs are in no domain): the largest job that still fits well. Absent where it depends on GPUs that may or may not be free.",
    );
    FABRIC_STATE = gauge(
        Group::Fabric,
        "nvlink_fabric_state",
        Unit::ZeroOrOne,
        &["gpu", "UUID", "state"],
        "GPUs × 4 states",
        "State of the GPU's registration with its NVLink fabric: 1 for the current state, 0 for the others.",
    );
    FABRIC_HEALTH = gauge(
        Group::Fabric,
        "nvlink_fabric_health",
        Unit::ZeroOrOne,
        &["gpu", "UUID", "condition"],
        "GPUs × 5 conditions",
        "Problems of the GPU in its NVLink fabric: 1 for each condition that holds, else 0. A condition that the fabric manager does not report is absent.",
    );
    RECOVERY_ACTION = gauge(
        Group::Gpu,
        "nvlink_gpu_recovery_action",
        Unit::ZeroOrOne,
        &["gpu", "UUID", "action"],
        "GPUs × 9 actions",
        "What the driver says must be done with the GPU (NVML's field 230, R565 and later): 1 for the current action, 0 for the others. Absent where the driver does not say it.",
    );
    ROW_REMAP = gauge(
        Group::Gpu,
        "nvlink_gpu_row_remap",
        Unit::ZeroOrOne,
        &["gpu", "UUID", "state"],
        "GPUs × 2 states",
        "Whether rows of the GPU's memory wait to be remapped, which its next reset does (state pending), and whether rows could not be remapped (state failed), 0 or 1. Absent where the driver does not report it: before Ampere, and with MIG.",
    );
    XID_ERRORS = counter(
        Group::Xid,
        "nvlink_xid_errors",
        Unit::Errors,
        &["gpu", "UUID", "xid"],
        "GPUs × XIDs seen",
        "XID errors that the driver reported for the GPU since the exporter started.",
    );
    ALLOCATION_INFO = gauge(
        Group::Placement,
        "nvlink_allocation_info",
        Unit::One,
        &["gpu", "UUID", "namespace", "pod", "container", "domain"],
        "GPUs held by containers",
        "A GPU that a container holds; always 1. Joins link counters with jobs.",
    );
    PLACEMENT_GPUS = gauge(
        Group::Placement,
        "nvlink_placement_gpus",
        Unit::Gpus,
        &["namespace", "pod", "container"],
        "containers with GPUs",
        "GPUs that the container holds.",
    );
    PLACEMENT_DOMAINS = gauge(
        Group::Placement,
        "nvlink_placement_domains",
        Unit::Domains,
        &["namespace", "pod", "container"],
        "containers with GPUs",
        "NVLink domains that the container's GPUs belong to; a GPU outside all domains counts as one.",
    );
    PLACEMENT_BOTTLENECK = gauge(
        Group::Placement,
        "nvlink_placement_bottleneck_bytes_per_second",
        Unit::BytesPerSecond,
        &["namespace", "pod", "container"],
        "containers with 2 GPUs and more",
        "Capacity of the busiest resource (links, switch port, PCIe or socket link) when the container's GPUs communicate in the job's pattern; for an all-reduce over direct NVLinks, of all its rings together.",
    );
    PLACEMENT_QUALITY = gauge(
        Group::Placement,
        "nvlink_placement_quality_ratio",
        Unit::Ratio,
        &["namespace", "pod", "container", "reference"],
        "containers with GPUs × 2",
        "Best possible communication time divided by that of the container's GPUs. Reference node: the best on the empty node. Reference free: the best of the GPUs that were free when the pod started, absent where those are not known. Traffic to other pods does not count.",
    );
    PLACEMENT_PATTERN = gauge(
        Group::Placement,
        "nvlink_placement_pattern_info",
        Unit::One,
        &["namespace", "pod", "container", "pattern", "source"],
        "containers with GPUs",
        "Communication pattern by which the placement is judged, and whether it comes from the webhook's decision or is the default; always 1.",
    );
    PLACEMENT_INFO = gauge(
        Group::Placement,
        "nvlink_placement_info",
        Unit::One,
        &["namespace", "pod", "container", "model", "gpus", "path", "class", "project"],
        "containers with GPUs",
        "Placement class of the container's GPUs, by which jobs are comparable: their model (absent where they differ), their number, and the class of the slowest path between two of them (absent for one GPU, and where a path is unknown or a GPU does not answer). The labels class and project are the pod's labels nvlink-domains.io/class and nvlink-domains.io/project, absent without --kubernetes or --publish; always 1.",
    );
    COLLECTIVE_BUS_BANDWIDTH = gauge(
        Group::Collective,
        "nvlink_collective_bus_bandwidth_bytes_per_second",
        Unit::BytesPerSecond,
        &["collective", "model", "gpus", "nodes", "path", "size_class"],
        "classes × 3 sizes",
        "Bus bandwidth of the latest run of a benchmark, for the largest message of the size class (small: below 1 MiB, medium: below 256 MiB, large). A class of runs is a collective with the model and number of its GPUs, the number of nodes, and the class of the slowest path between two GPUs of a node. Absent if the latest run failed.",
    );
    COLLECTIVE_BASELINE = gauge(
        Group::Collective,
        "nvlink_collective_baseline_bytes_per_second",
        Unit::BytesPerSecond,
        &["collective", "model", "gpus", "nodes", "path", "size_class"],
        "classes × 3 sizes",
        "Median bus bandwidth of up to 31 earlier good runs of the class; absent with fewer than 3.",
    );
    COLLECTIVE_MODEL = gauge(
        Group::Collective,
        "nvlink_collective_model_bytes_per_second",
        Unit::BytesPerSecond,
        &["collective", "model", "gpus", "nodes", "path"],
        "classes",
        "Bus bandwidth that the model expects for large messages of the latest run: with the reduction in switches (NVLS) where that is expected. Absent where it says nothing.",
    );
    COLLECTIVE_DURATION = gauge(
        Group::Collective,
        "nvlink_collective_duration_seconds",
        Unit::Seconds,
        &["collective", "model", "gpus", "nodes", "path", "size_class"],
        "classes × 3 sizes",
        "Time of one operation in the latest run, for the largest message of the size class. Absent if the latest run failed.",
    );
    COLLECTIVE_SETUP = gauge(
        Group::Collective,
        "nvlink_collective_setup_seconds",
        Unit::Seconds,
        &["collective", "model", "gpus", "nodes", "path"],
        "classes",
        "Time that the slowest rank of the latest run needed to set up its communicator; absent where NCCL's log does not say it.",
    );
    COLLECTIVE_RUNS = counter(
        Group::Collective,
        "nvlink_collective_runs",
        Unit::Runs,
        &["collective", "model", "gpus", "nodes", "path"],
        "classes",
        "Runs of benchmarks that were read, failed ones included.",
    );
    COLLECTIVE_FAILURES = counter(
        Group::Collective,
        "nvlink_collective_failures",
        Unit::Failures,
        &["collective", "model", "gpus", "nodes", "path", "reason"],
        "classes × 4 reasons",
        "Failed runs. Reason wrong_results: values are wrong; truncated: the output has no end; nccl_error: NCCL or CUDA reports an error; timeout: something waited too long.",
    );
    COLLECTIVE_TIMESTAMP = gauge(
        Group::Collective,
        "nvlink_collective_timestamp_seconds",
        Unit::UnixTime,
        &["collective", "model", "gpus", "nodes", "path"],
        "classes",
        "Unix time of the end of the latest run.",
    );
    COLLECTIVE_FAILURE_TIMESTAMP = gauge(
        Group::Collective,
        "nvlink_collective_failure_timestamp_seconds",
        Unit::UnixTime,
        &["collective", "model", "gpus", "nodes", "path", "reason"],
        "classes × 4 reasons",
        "Unix time of the end of the latest run that failed for this reason. Absent if none of the last 32 runs of the class did.",
    );
    COLLECTIVE_SIBLINGS = gauge(
        Group::Collective,
        "nvlink_collective_siblings_ratio",
        Unit::RatioAboutOne,
        &["model", "gpus", "path"],
        "classes of all_reduce on one node",
        "Median of the node's latest all_reduces with large messages (3 to 5 runs of the last 30 days), divided by that of its siblings in the calibration; absent without a calibration of as many GPUs. Below 0.9, the Node has the label nvlink-domains.io/slow.",
    );
    COLLECTOR_SUCCESS = gauge(
        Group::Exporter,
        "nvlink_exporter_collector_success",
        Unit::ZeroOrOne,
        &["collector"],
        "2; 3 with --collectives",
        "Whether the last collection succeeded.",
    );
    COLLECTION_DURATION = gauge(
        Group::Exporter,
        "nvlink_exporter_collection_duration_seconds",
        Unit::Seconds,
        &["collector"],
        "2",
        "How long the last collection took.",
    );
    SNAPSHOT_AGE = gauge(
        Group::Exporter,
        "nvlink_exporter_snapshot_age_seconds",
        Unit::Seconds,
        &[],
        "1",
        "Time since the start of the last collection that returned data, or since the exporter's start if there was none; grows while the source hangs or fails.",
    );
    SOURCE_RELEASED = gauge(
        Group::Exporter,
        "nvlink_exporter_source_released",
        Unit::ZeroOrOne,
        &[],
        "1",
        "Whether the source is released on request (POST /-/release); there are no data while it is.",
    );
    PUBLISHED_AT = gauge(
        Group::Exporter,
        "nvlink_exporter_published_timestamp_seconds",
        Unit::UnixTime,
        &["what"],
        "2 with --publish",
        "Unix time at which the cluster was last seen to be up to date; checked on each change and every --publish-interval. Absent until the first success.",
    );
    PUBLISH_FAILURES = counter(
        Group::Exporter,
        "nvlink_exporter_publish_failures",
        Unit::Failures,
        &["what", "reason"],
        "8 with --publish",
        "Failed attempts to publish.",
    );
    CUT_OFFS = counter(
        Group::Exporter,
        "nvlink_exporter_clients_cut_off",
        Unit::Clients,
        &["reason"],
        "4",
        "Clients that lost their connection or did not get their answer. Reason idle: another client needed the connection; full: no connection was free; memory: there was no memory for the answer; slow: the client did not read the answer.",
    );
    RESTARTS = counter(
        Group::Exporter,
        "nvlink_exporter_part_restarts",
        Unit::Restarts,
        &["part"],
        "4; 9 with --publish; 1 more with --collectives alone",
        "Number of times that a part of the exporter ended or panicked and was restarted.",
    );
    LOG_DROPPED = counter(
        Group::Exporter,
        "nvlink_exporter_log_lines_dropped",
        Unit::Lines,
        &[],
        "1",
        "Log lines that were dropped because nothing read them or they could not be written.",
    );
    SOURCE_INFO = gauge(
        Group::Exporter,
        "nvlink_exporter_source_info",
        Unit::One,
        &["source", "from"],
        "1",
        "What the topology was read from; always 1.",
    );
    BUILD_INFO = gauge(
        Group::Exporter,
        "nvlink_exporter_build_info",
        Unit::One,
        &["version"],
        "1",
        "The exporter's version; always 1.",
    );
    NODE_INFO = gauge(
        Group::Exporter,
        "nvlink_exporter_node_info",
        Unit::One,
        &["node"],
        "1",
        "The node that the exporter describes, also while there are no data; always 1.",
    );
}
