//! All families, in one table, from which metrics are written and documented.

use prometheus_client::metrics::MetricType;

use super::family::{Family, Group, Unit};

/// A row has the family's type, group, name, unit, labels and number of series, below its help.
macro_rules! families {
    ($(
        #[doc = $help:literal]
        $id:ident: $kind:ident $group:ident $name:literal $unit:ident [$($label:ident)*] $series:literal;
    )*) => {
        $(pub(super) static $id: Family = Family {
            name: $name,
            unit: Unit::$unit,
            help: $help.trim_ascii_start(),
            kind: MetricType::$kind,
            labels: &[$(stringify!($label)),*],
            group: Group::$group,
            series: $series,
        };)*

        /// All families, in the order in which they are written.
        pub static FAMILIES: &[&Family] = &[$(&$id),*];
    };
}

families! {
    /// A GPU of the node and its NVLink domain; always 1.
    GPU_INFO: Gauge Gpu "nvlink_gpu_info" One [gpu UUID pci_bus_id model domain numa_node mig node] "GPUs";
    /// A GPU that the exporter has seen since it started and that does not answer now; always 1.
    GPU_LOST: Gauge Gpu "nvlink_gpu_lost" One [gpu UUID pci_bus_id node] "lost GPUs";
    /// GPUs that the node's board has and that do not answer, also since before the exporter started. Only boards with NVSwitches have a known number. Absent in a virtual machine, which may have a part of the board, and where it is not known whether the node is one.
    MISSING_GPUS: Gauge Gpu "nvlink_missing_gpus" Gpus [node] "1";
    /// NVLinks that should be up and are not. The expected number comes from the other GPUs of the model on the node and from the board; in a virtual machine, from the board only if the machine has the whole board. Absent where a GPU may correctly have none, such as a PCIe card without a bridge.
    MISSING_LINKS: Gauge Gpu "nvlink_missing_links" Links [gpu UUID] "GPUs";
    /// Line rate of the GPU's active NVLinks together, in one direction; absent where none is active.
    GPU_SPEED: Gauge Gpu "nvlink_gpu_speed_bytes_per_second" BytesPerSecond [gpu UUID] "GPUs with active links";
    /// Bytes that the GPU sent over all its NVLinks since the exporter started. The reset of one link's counter does not show. Where the driver has only rates, their sum over time.
    GPU_TRANSMIT: Counter Gpu "nvlink_gpu_transmit_bytes" Bytes [gpu UUID] "GPUs";
    /// Bytes that the GPU received over all its NVLinks since the exporter started; counted like nvlink_gpu_transmit_bytes_total.
    GPU_RECEIVE: Counter Gpu "nvlink_gpu_receive_bytes" Bytes [gpu UUID] "GPUs";
    /// Errors that the GPU counted on all its NVLinks since the exporter started, by kind; the kinds are those of nvlink_errors_total.
    GPU_ERRORS: Counter Gpu "nvlink_gpu_errors" Errors [gpu UUID kind] "GPUs × kinds";
    /// A GPU that placements leave out or rank last; always 1. Reason missing-links: see nvlink_missing_links, without the links that all GPUs of its domain lack (nvlink_domain_fault); fabric: its registration with the NVLink fabric is not complete, or the fabric reports a problem; recovery-ACTION: see nvlink_gpu_recovery_action, all but none and recover_imex_domain; row-remap-pending, row-remap-failed: see nvlink_gpu_row_remap; xid-N: it had this XID and was not reset since, only where the driver reports no recovery action; lost: it does not answer. The first two end after 12 collections without the problem.
    UNHEALTHY: Gauge Gpu "nvlink_gpu_unhealthy" One [gpu UUID reason] "broken GPUs × their reasons";
    /// Whether the NVLink is up. The label remote is the kind of device at the other end; it stays as it was when the link fails. For a link that has been down since the exporter started, it is the kind of the GPU's other links if these agree, else unknown.
    LINK_UP: Gauge Link "nvlink_link_up" ZeroOrOne [gpu UUID link remote] "links";
    /// Line rate of the NVLink in one direction; absent while it is down.
    LINK_SPEED: Gauge Link "nvlink_link_speed_bytes_per_second" BytesPerSecond [gpu UUID link] "links";
    /// The source from which the traffic of the GPU's NVLinks is read, chosen once; has the label link only where the links of a GPU differ; always 1. Sources count different things and are not comparable.
    COUNTER_SOURCE: Gauge Throughput "nvlink_traffic_source_info" One [gpu UUID link source] "GPUs; links of a GPU whose links differ";
    /// Bytes that the GPU sent over the NVLink; the source in nvlink_traffic_source_info determines whether headers are included.
    TRANSMIT: Counter Throughput "nvlink_transmit_bytes" Bytes [gpu UUID link] "links";
    /// Bytes that the GPU received over the NVLink; the source in nvlink_traffic_source_info determines whether headers are included.
    RECEIVE: Counter Throughput "nvlink_receive_bytes" Bytes [gpu UUID link] "links";
    /// Bytes per second that the GPU sent over the NVLink between the last two collections; present only where the driver has no byte counters.
    TRANSMIT_RATE: Gauge Throughput "nvlink_transmit_bytes_per_second" BytesPerSecond [gpu UUID link] "links";
    /// Bytes per second that the GPU received over the NVLink between the last two collections; present only where the driver has no byte counters.
    RECEIVE_RATE: Gauge Throughput "nvlink_receive_bytes_per_second" BytesPerSecond [gpu UUID link] "links";
    /// Errors that the GPU counted on the NVLink, by kind.
    ERRORS: Counter Error "nvlink_errors" Errors [gpu UUID link kind] "links × kinds (4 or 5 up to Hopper, 11 since NVLink 5)";
    /// Bits in error divided by bits received on the NVLink: kind effective after forward error correction, kind symbol after all correction of the physical layer, retransmission included.
    BIT_ERROR_RATIO: Gauge Error "nvlink_bit_error_ratio" Ratio [gpu UUID link kind] "links × 2, since NVLink 5";
    /// NVLinks that carry traffic from the GPU to its peer: the direct links or, over switches, the smaller of the two GPUs' numbers of switch links.
    PEER_LINKS: Gauge Peer "nvlink_peer_links" Links [gpu UUID peer peer_UUID via] "ordered pairs joined by NVLink";
    /// Usable NVLink bandwidth from the GPU to its peer.
    PEER_BANDWIDTH: Gauge Peer "nvlink_peer_bandwidth_bytes_per_second" BytesPerSecond [gpu UUID peer peer_UUID via] "ordered pairs joined by NVLink";
    /// Direct NVLinks to the peer that the GPU reports and the peer does not.
    ASYMMETRIC_LINKS: Gauge Peer "nvlink_asymmetric_links" Links [gpu UUID peer peer_UUID] "ordered pairs that disagree";
    /// GPUs of the node in the NVLink domain.
    DOMAIN_GPUS: Gauge Domain "nvlink_domain_gpus" Gpus [domain node] "domains";
    /// What is wrong with all GPUs of the node in the NVLink domain alike; always 1. fault missing-links: each lacks links (nvlink_missing_links), so a switch or its cables are broken; fabric: the fabric reports degraded bandwidth. Placements use the GPUs.
    DOMAIN_FAULT: Gauge Domain "nvlink_domain_fault" One [domain node fault] "domains that are broken";
    /// GPUs of the node in the NVLink domain that no pod holds. Absent where allocations are not known, and where the kubelet reports devices that cannot be identified and may be among those GPUs.
    DOMAIN_FREE_GPUS: Gauge Domain "nvlink_domain_free_gpus" Gpus [domain node] "domains";
    /// Largest number of free GPUs in one NVLink domain of the node (1 where the free GPUs are in no domain): the largest job that still fits well. Absent where it depends on GPUs that may or may not be free.
    LARGEST_FREE_SET: Gauge Domain "nvlink_largest_free_set_gpus" Gpus [node] "1";
    /// State of the GPU's registration with its NVLink fabric: 1 for the current state, 0 for the others.
    FABRIC_STATE: Gauge Fabric "nvlink_fabric_state" ZeroOrOne [gpu UUID state] "GPUs × 4 states";
    /// Problems of the GPU in its NVLink fabric: 1 for each condition that holds, else 0. A condition that the fabric manager does not report is absent.
    FABRIC_HEALTH: Gauge Fabric "nvlink_fabric_health" ZeroOrOne [gpu UUID condition] "GPUs × 5 conditions";
    /// What the driver says must be done with the GPU (NVML's field 230, R565 and later): 1 for the current action, 0 for the others. Absent where the driver does not say it.
    RECOVERY_ACTION: Gauge Gpu "nvlink_gpu_recovery_action" ZeroOrOne [gpu UUID action] "GPUs × 9 actions";
    /// Whether rows of the GPU's memory wait to be remapped, which its next reset does (state pending), and whether rows could not be remapped (state failed), 0 or 1. Absent where the driver does not report it: before Ampere, and with MIG.
    ROW_REMAP: Gauge Gpu "nvlink_gpu_row_remap" ZeroOrOne [gpu UUID state] "GPUs × 2 states";
    /// XID errors that the driver reported for the GPU since the exporter started.
    XID_ERRORS: Counter Xid "nvlink_xid_errors" Errors [gpu UUID xid] "GPUs × XIDs seen";
    /// Unix time at which the exporter last saw that the GPU has this XID.
    XID_TIMESTAMP: Gauge Xid "nvlink_xid_timestamp_seconds" UnixTime [gpu UUID xid] "GPUs × XIDs seen";
    /// A GPU that a container holds; always 1. Joins link counters with jobs.
    ALLOCATION_INFO: Gauge Placement "nvlink_allocation_info" One [gpu UUID namespace pod container domain] "GPUs held by containers";
    /// GPUs that the container holds.
    PLACEMENT_GPUS: Gauge Placement "nvlink_placement_gpus" Gpus [namespace pod container] "containers with GPUs";
    /// NVLink domains that the container's GPUs belong to; a GPU outside all domains counts as one.
    PLACEMENT_DOMAINS: Gauge Placement "nvlink_placement_domains" Domains [namespace pod container] "containers with GPUs";
    /// Capacity of the busiest resource (links, switch port, PCIe or socket link) when the container's GPUs communicate in the job's pattern; for an all-reduce over direct NVLinks, of all its rings together.
    PLACEMENT_BOTTLENECK: Gauge Placement "nvlink_placement_bottleneck_bytes_per_second" BytesPerSecond [namespace pod container] "containers with 2 GPUs and more";
    /// Best possible communication time divided by that of the container's GPUs. Reference node: the best on the empty node. Reference free: the best of the GPUs that were free when the pod started, absent where those are not known. Traffic to other pods does not count.
    PLACEMENT_QUALITY: Gauge Placement "nvlink_placement_quality_ratio" Ratio [namespace pod container reference] "containers with GPUs × 2";
    /// Communication pattern by which the placement is judged, and whether it comes from the webhook's decision or is the default; always 1.
    PLACEMENT_PATTERN: Gauge Placement "nvlink_placement_pattern_info" One [namespace pod container pattern source] "containers with GPUs";
    /// Placement class of the container's GPUs, by which jobs are comparable: their model (absent where they differ), their number, and the class of the slowest path between two of them (absent for one GPU, and where a path is unknown or a GPU does not answer). The labels class and project are the pod's labels nvlink-domains.io/class and nvlink-domains.io/project, absent without --kubernetes or --publish; always 1.
    PLACEMENT_INFO: Gauge Placement "nvlink_placement_info" One [namespace pod container model gpus path class project] "containers with GPUs";
    /// Bus bandwidth of the latest run of a benchmark, for the largest message of the size class (small: below 1 MiB, medium: below 256 MiB, large). A class of runs is a collective with the model and number of its GPUs, the number of nodes, and the class of the slowest path between two GPUs of a node. Absent if the latest run failed.
    COLLECTIVE_BUS_BANDWIDTH: Gauge Collective "nvlink_collective_bus_bandwidth_bytes_per_second" BytesPerSecond [collective model gpus nodes path size_class] "classes × 3 sizes";
    /// Median bus bandwidth of up to 31 earlier good runs of the class; absent with fewer than 3.
    COLLECTIVE_BASELINE: Gauge Collective "nvlink_collective_baseline_bytes_per_second" BytesPerSecond [collective model gpus nodes path size_class] "classes × 3 sizes";
    /// Bus bandwidth that the model expects for large messages of the latest run: with the reduction in switches (NVLS) where that is expected. Absent where it says nothing.
    COLLECTIVE_MODEL: Gauge Collective "nvlink_collective_model_bytes_per_second" BytesPerSecond [collective model gpus nodes path] "classes";
    /// Time of one operation in the latest run, for the largest message of the size class. Absent if the latest run failed.
    COLLECTIVE_DURATION: Gauge Collective "nvlink_collective_duration_seconds" Seconds [collective model gpus nodes path size_class] "classes × 3 sizes";
    /// Time that the slowest rank of the latest run needed to set up its communicator; absent where NCCL's log does not say it.
    COLLECTIVE_SETUP: Gauge Collective "nvlink_collective_setup_seconds" Seconds [collective model gpus nodes path] "classes";
    /// Runs of benchmarks that were read, failed ones included.
    COLLECTIVE_RUNS: Counter Collective "nvlink_collective_runs" Runs [collective model gpus nodes path] "classes";
    /// Failed runs. Reason wrong_results: values are wrong; truncated: the output has no end; nccl_error: NCCL or CUDA reports an error; timeout: something waited too long.
    COLLECTIVE_FAILURES: Counter Collective "nvlink_collective_failures" Failures [collective model gpus nodes path reason] "classes × 4 reasons";
    /// Unix time of the end of the latest run.
    COLLECTIVE_TIMESTAMP: Gauge Collective "nvlink_collective_timestamp_seconds" UnixTime [collective model gpus nodes path] "classes";
    /// Unix time of the end of the latest run that failed for this reason. Absent if none of the last 32 runs of the class did.
    COLLECTIVE_FAILURE_TIMESTAMP: Gauge Collective "nvlink_collective_failure_timestamp_seconds" UnixTime [collective model gpus nodes path reason] "classes × 4 reasons";
    /// Median of the node's latest all_reduces with large messages (3 to 5 runs of the last 30 days), divided by that of its siblings in the calibration; absent without a calibration of as many GPUs. Below 0.9, the Node has the label nvlink-domains.io/slow.
    COLLECTIVE_SIBLINGS: Gauge Collective "nvlink_collective_siblings_ratio" RatioAboutOne [model gpus path] "classes of all_reduce on one node";
    /// Whether the last collection succeeded.
    COLLECTOR_SUCCESS: Gauge Exporter "nvlink_exporter_collector_success" ZeroOrOne [collector] "2; 3 with --collectives";
    /// How long the last collection took.
    COLLECTION_DURATION: Gauge Exporter "nvlink_exporter_collection_duration_seconds" Seconds [collector] "2";
    /// Time since the start of the last collection that returned data, or since the exporter's start if there was none; grows while the source hangs or fails.
    SNAPSHOT_AGE: Gauge Exporter "nvlink_exporter_snapshot_age_seconds" Seconds [] "1";
    /// Whether the source is released on request (POST /-/release); there are no data while it is.
    SOURCE_RELEASED: Gauge Exporter "nvlink_exporter_source_released" ZeroOrOne [] "1";
    /// Unix time at which the cluster was last seen to be up to date; checked on each change and every --publish-interval. Absent until the first success.
    PUBLISHED_AT: Gauge Exporter "nvlink_exporter_published_timestamp_seconds" UnixTime [what] "2 with --publish";
    /// Failed attempts to publish.
    PUBLISH_FAILURES: Counter Exporter "nvlink_exporter_publish_failures" Failures [what reason] "8 with --publish";
    /// Clients that lost their connection or did not get their answer. Reason idle: another client needed the connection; full: no connection was free; memory: there was no memory for the answer; slow: the client did not read the answer.
    CUT_OFFS: Counter Exporter "nvlink_exporter_clients_cut_off" Clients [reason] "4";
    /// Number of times that a part of the exporter ended or panicked and was restarted.
    RESTARTS: Counter Exporter "nvlink_exporter_part_restarts" Restarts [part] "4; 9 with --publish; 1 more with --collectives alone";
    /// Log lines that were dropped because nothing read them or they could not be written.
    LOG_DROPPED: Counter Exporter "nvlink_exporter_log_lines_dropped" Lines [] "1";
    /// What the topology was read from; always 1.
    SOURCE_INFO: Gauge Exporter "nvlink_exporter_source_info" One [source from] "1";
    /// The exporter's version; always 1.
    BUILD_INFO: Gauge Exporter "nvlink_exporter_build_info" One [version] "1";
    /// The node that the exporter describes, also while there are no data; always 1.
    NODE_INFO: Gauge Exporter "nvlink_exporter_node_info" One [node] "1";
}
