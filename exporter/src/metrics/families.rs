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
    /// A GPU that answered and no longer does; always 1.
    GPU_LOST: Gauge Gpu "nvlink_gpu_lost" One [gpu UUID pci_bus_id node] "lost GPUs";
    /// GPUs of the node's board that do not answer. Absent without NVSwitches, and where the node may be a virtual machine.
    MISSING_GPUS: Gauge Gpu "nvlink_missing_gpus" Gpus [node] "1";
    /// NVLinks that should be up, judging by the board and the other GPUs of the model, and are not. Absent where a GPU may have none.
    MISSING_LINKS: Gauge Gpu "nvlink_missing_links" Links [gpu UUID] "GPUs";
    /// Line rate of the GPU's active NVLinks together, in one direction.
    GPU_SPEED: Gauge Gpu "nvlink_gpu_speed_bytes_per_second" BytesPerSecond [gpu UUID] "GPUs with active links";
    /// Bytes that the GPU sent over all its NVLinks since the exporter started, across resets of counters; from rates where the driver has no counters.
    GPU_TRANSMIT: Counter Gpu "nvlink_gpu_transmit_bytes" Bytes [gpu UUID] "GPUs";
    /// Bytes that the GPU received over all its NVLinks, counted like nvlink_gpu_transmit_bytes_total.
    GPU_RECEIVE: Counter Gpu "nvlink_gpu_receive_bytes" Bytes [gpu UUID] "GPUs";
    /// Errors on all NVLinks of the GPU since the exporter started, by the kinds of nvlink_errors_total.
    GPU_ERRORS: Counter Gpu "nvlink_gpu_errors" Errors [gpu UUID kind] "GPUs × kinds";
    /// A GPU that placements leave out or rank last; always 1. Reason missing-links: it lacks more links than its whole domain; fabric: registration incomplete, or a problem; recovery-ACTION: any but none and recover_imex_domain; row-remap-pending, row-remap-failed; xid-N: not reset since, where the driver reports no recovery action; lost. The first two end after 12 good collections.
    UNHEALTHY: Gauge Gpu "nvlink_gpu_unhealthy" One [gpu UUID reason] "broken GPUs × their reasons";
    /// Whether the NVLink is up; remote is the kind of device at its other end, taken from the GPU's other links if it was never up.
    LINK_UP: Gauge Link "nvlink_link_up" ZeroOrOne [gpu UUID link remote] "links";
    /// Line rate of the NVLink in one direction; absent while it is down.
    LINK_SPEED: Gauge Link "nvlink_link_speed_bytes_per_second" BytesPerSecond [gpu UUID link] "links";
    /// The source of the GPU's traffic counters; always 1. Has the label link only where the GPU's links differ.
    COUNTER_SOURCE: Gauge Throughput "nvlink_traffic_source_info" One [gpu UUID link source] "GPUs; links of a GPU whose links differ";
    /// Bytes sent over the NVLink, as its traffic source counts them.
    TRANSMIT: Counter Throughput "nvlink_transmit_bytes" Bytes [gpu UUID link] "links";
    /// Bytes received over the NVLink, as its traffic source counts them.
    RECEIVE: Counter Throughput "nvlink_receive_bytes" Bytes [gpu UUID link] "links";
    /// Rate of sending over the NVLink between the last two collections; only without byte counters.
    TRANSMIT_RATE: Gauge Throughput "nvlink_transmit_bytes_per_second" BytesPerSecond [gpu UUID link] "links";
    /// Rate of receiving over the NVLink, like nvlink_transmit_bytes_per_second.
    RECEIVE_RATE: Gauge Throughput "nvlink_receive_bytes_per_second" BytesPerSecond [gpu UUID link] "links";
    /// Errors that the GPU counted on the NVLink, by kind.
    ERRORS: Counter Error "nvlink_errors" Errors [gpu UUID link kind] "links × kinds (4 or 5 up to Hopper, 11 since NVLink 5)";
    /// Wrong bits per bit received: kind effective after forward error correction, symbol after all correction of the physical layer.
    BIT_ERROR_RATIO: Gauge Error "nvlink_bit_error_ratio" Ratio [gpu UUID link kind] "links × 2, since NVLink 5";
    /// NVLinks from the GPU to its peer: direct ones or, over switches, the smaller of the two GPUs' numbers.
    PEER_LINKS: Gauge Peer "nvlink_peer_links" Links [gpu UUID peer peer_UUID via] "ordered pairs joined by NVLink";
    /// Usable NVLink bandwidth from the GPU to its peer.
    PEER_BANDWIDTH: Gauge Peer "nvlink_peer_bandwidth_bytes_per_second" BytesPerSecond [gpu UUID peer peer_UUID via] "ordered pairs joined by NVLink";
    /// Direct NVLinks to the peer that the GPU reports and the peer does not.
    ASYMMETRIC_LINKS: Gauge Peer "nvlink_asymmetric_links" Links [gpu UUID peer peer_UUID] "ordered pairs that disagree";
    /// Rate of the fastest active port of an RDMA device nearest to a GPU, in one direction; 0 while none is active. model is that of the GPUs.
    NIC_SPEED: Gauge Gpu "nvlink_nic_speed_bytes_per_second" BytesPerSecond [nic pci_bus_id model] "NICs nearest to GPUs";
    /// GPUs of the node in the NVLink domain.
    DOMAIN_GPUS: Gauge Domain "nvlink_domain_gpus" Gpus [domain node] "domains";
    /// A fault of all the node's GPUs in the NVLink domain, which placements still use; always 1. fault missing-links: a switch or its cables are broken; fabric: degraded bandwidth.
    DOMAIN_FAULT: Gauge Domain "nvlink_domain_fault" One [domain node fault] "domains that are broken";
    /// GPUs of the node in the NVLink domain that no pod holds; absent where the use of some is unknown.
    DOMAIN_FREE_GPUS: Gauge Domain "nvlink_domain_free_gpus" Gpus [domain node] "domains";
    /// Most free GPUs in one NVLink domain of the node (1 outside domains): the largest job that still fits well. Absent where this is uncertain.
    LARGEST_FREE_SET: Gauge Domain "nvlink_largest_free_set_gpus" Gpus [node] "1";
    /// The GPU's registration with its NVLink fabric: 1 for the current state, 0 for the others.
    FABRIC_STATE: Gauge Fabric "nvlink_fabric_state" ZeroOrOne [gpu UUID state] "GPUs × 4 states";
    /// Problems of the GPU in its NVLink fabric: 1 for each that exists, else 0.
    FABRIC_HEALTH: Gauge Fabric "nvlink_fabric_health" ZeroOrOne [gpu UUID condition] "GPUs × 5 conditions";
    /// What the driver says must be done with the GPU (R565 and later): 1 for the current action, 0 for the others.
    RECOVERY_ACTION: Gauge Gpu "nvlink_gpu_recovery_action" ZeroOrOne [gpu UUID action] "GPUs × 9 actions";
    /// Whether rows of the GPU's memory wait for a reset to be remapped (state pending) or cannot be (state failed). Absent before Ampere and with MIG.
    ROW_REMAP: Gauge Gpu "nvlink_gpu_row_remap" ZeroOrOne [gpu UUID state] "GPUs × 2 states";
    /// XIDs that the driver reported for the GPU since the exporter started.
    XID_ERRORS: Counter Xid "nvlink_xid_errors" Errors [gpu UUID xid] "GPUs × XIDs seen";
    /// Unix time at which the exporter last saw this XID of the GPU.
    XID_TIMESTAMP: Gauge Xid "nvlink_xid_timestamp_seconds" UnixTime [gpu UUID xid] "GPUs × XIDs seen";
    /// A GPU that a container holds, which joins links with jobs; always 1.
    ALLOCATION_INFO: Gauge Placement "nvlink_allocation_info" One [gpu UUID namespace pod container domain] "GPUs held by containers";
    /// GPUs that the container holds.
    PLACEMENT_GPUS: Gauge Placement "nvlink_placement_gpus" Gpus [namespace pod container] "containers with GPUs";
    /// NVLink domains of the container's GPUs; a GPU outside all domains counts as one.
    PLACEMENT_DOMAINS: Gauge Placement "nvlink_placement_domains" Domains [namespace pod container] "containers with GPUs";
    /// Capacity of the busiest resource (links, switch port, PCIe or socket link) in the job's pattern; for an all-reduce over direct NVLinks, of all its rings together.
    PLACEMENT_BOTTLENECK: Gauge Placement "nvlink_placement_bottleneck_bytes_per_second" BytesPerSecond [namespace pod container] "containers with 2 GPUs and more";
    /// Best possible communication time divided by that of the container's GPUs, without traffic to other pods. Reference node: the best on the empty node; free: on the GPUs that were free when the pod started.
    PLACEMENT_QUALITY: Gauge Placement "nvlink_placement_quality_ratio" Ratio [namespace pod container reference] "containers with GPUs × 2";
    /// Communication pattern that the placement is judged by, from the webhook's decision or by default; always 1.
    PLACEMENT_PATTERN: Gauge Placement "nvlink_placement_pattern_info" One [namespace pod container pattern source] "containers with GPUs";
    /// What makes jobs comparable: model, number and slowest path of the container's GPUs; always 1. class, project and gang (of pods with the annotation, or that queued) are those of the pod, with --kubernetes or --publish.
    PLACEMENT_INFO: Gauge Placement "nvlink_placement_info" One [namespace pod container model gpus path class project gang] "containers with GPUs";
    /// An IMEX channel that a container holds; always 1.
    IMEX_CHANNEL: Gauge Fabric "nvlink_imex_channel_info" One [node namespace pod container channel] "containers with IMEX channels";
    /// The pod with the IMEX daemon for the node's channels; always 1. Absent where the host runs it.
    IMEX_DAEMON: Gauge Fabric "nvlink_imex_daemon_info" One [node namespace pod] "ComputeDomains on the node";
    /// Whether that pod is ready, with --kubernetes or --publish. Also 1 without a fabric, where it does nothing.
    IMEX_READY: Gauge Fabric "nvlink_imex_daemon_ready" ZeroOrOne [node namespace pod] "ComputeDomains on the node";
    /// Bus bandwidth of the latest run with these labels, for the largest message of the size class (small: below 1 MiB, medium: below 256 MiB, large). Absent if the run failed.
    COLLECTIVE_BUS_BANDWIDTH: Gauge Collective "nvlink_collective_bus_bandwidth_bytes_per_second" BytesPerSecond [collective model gpus nodes path size_class] "classes × 3 sizes";
    /// Median bus bandwidth of up to 31 earlier good runs; absent with fewer than 3.
    COLLECTIVE_BASELINE: Gauge Collective "nvlink_collective_baseline_bytes_per_second" BytesPerSecond [collective model gpus nodes path size_class] "classes × 3 sizes";
    /// Bus bandwidth that the model expects for large messages of the latest run, with NVLS where that is expected.
    COLLECTIVE_MODEL: Gauge Collective "nvlink_collective_model_bytes_per_second" BytesPerSecond [collective model gpus nodes path] "classes";
    /// Time of one operation in the latest run, for the largest message of the size class.
    COLLECTIVE_DURATION: Gauge Collective "nvlink_collective_duration_seconds" Seconds [collective model gpus nodes path size_class] "classes × 3 sizes";
    /// Time that the slowest rank of the latest run needed to set up its communicator.
    COLLECTIVE_SETUP: Gauge Collective "nvlink_collective_setup_seconds" Seconds [collective model gpus nodes path] "classes";
    /// Runs of benchmarks that were read, failed ones included.
    COLLECTIVE_RUNS: Counter Collective "nvlink_collective_runs" Runs [collective model gpus nodes path] "classes";
    /// Failed runs. Reason wrong_results: wrong values; truncated: no end of the output; nccl_error: an error of NCCL or CUDA; timeout.
    COLLECTIVE_FAILURES: Counter Collective "nvlink_collective_failures" Failures [collective model gpus nodes path reason] "classes × 4 reasons";
    /// Unix time of the end of the latest run.
    COLLECTIVE_TIMESTAMP: Gauge Collective "nvlink_collective_timestamp_seconds" UnixTime [collective model gpus nodes path] "classes";
    /// Unix time of the end of the latest run that failed for this reason, of the last 32.
    COLLECTIVE_FAILURE_TIMESTAMP: Gauge Collective "nvlink_collective_failure_timestamp_seconds" UnixTime [collective model gpus nodes path reason] "classes × 4 reasons";
    /// Median of the node's latest all_reduces with large messages (3 to 5 in 30 days), divided by that of its siblings in the calibration. Below 0.9, the Node has the label nvlink-domains.io/slow.
    COLLECTIVE_SIBLINGS: Gauge Collective "nvlink_collective_siblings_ratio" RatioAboutOne [model gpus path] "classes of all_reduce on one node";
    /// Whether the last collection succeeded.
    COLLECTOR_SUCCESS: Gauge Exporter "nvlink_exporter_collector_success" ZeroOrOne [collector] "2; 3 with --collectives";
    /// Duration of the last collection.
    COLLECTION_DURATION: Gauge Exporter "nvlink_exporter_collection_duration_seconds" Seconds [collector] "2";
    /// Time since the start of the last collection that returned data, else of the exporter.
    SNAPSHOT_AGE: Gauge Exporter "nvlink_exporter_snapshot_age_seconds" Seconds [] "1";
    /// Whether the source is released on request (POST /-/release); there are no data then.
    SOURCE_RELEASED: Gauge Exporter "nvlink_exporter_source_released" ZeroOrOne [] "1";
    /// Unix time at which the published objects were last seen up to date, at least every --publish-interval.
    PUBLISHED_AT: Gauge Exporter "nvlink_exporter_published_timestamp_seconds" UnixTime [what] "2 with --publish";
    /// Failed attempts to publish.
    PUBLISH_FAILURES: Counter Exporter "nvlink_exporter_publish_failures" Failures [what reason] "8 with --publish";
    /// Clients cut off. Reason idle: another client needed the connection; full: no connection was free; memory: not enough for the answer; slow: the client did not read it.
    CUT_OFFS: Counter Exporter "nvlink_exporter_clients_cut_off" Clients [reason] "4";
    /// Restarts of a part of the exporter that ended or panicked.
    RESTARTS: Counter Exporter "nvlink_exporter_part_restarts" Restarts [part] "4; 9 with --publish; 1 more with --collectives alone";
    /// Log lines that nothing read or that could not be written.
    LOG_DROPPED: Counter Exporter "nvlink_exporter_log_lines_dropped" Lines [] "1";
    /// What the topology was read from; always 1.
    SOURCE_INFO: Gauge Exporter "nvlink_exporter_source_info" One [source from] "1";
    /// The exporter's version; always 1.
    BUILD_INFO: Gauge Exporter "nvlink_exporter_build_info" One [version] "1";
    /// The node that the exporter describes, also without data; always 1.
    NODE_INFO: Gauge Exporter "nvlink_exporter_node_info" One [node] "1";
}
