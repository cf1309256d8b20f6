"""The dashboard of the NVLink fabric: what is broken, where, and whom it slows down."""

import frame
import panels
from panels import BYTES_PER_SECOND, FEW_ARE_BAD, NONE_IS_GOOD, RATIO
from promql import CLUSTER, NODE, NODES, ON_GPU, ON_INSTANCE, ON_NODE, in_order, of_nodes, or_zero, top

UID = "nvlink-fabric"
# The series of the one node whose links are shown.
LINKS = f'{CLUSTER}, instance=~"$instance"'
NODE_TRAFFIC = f"node:nvlink_transmit_bytes:rate5m{{{CLUSTER}, {NODE}}}"
ERRORS = f"gpu:nvlink_errors:rate5m{{{CLUSTER}, {NODE}}}"
UNHEALTHY = f"max by (cluster, instance, gpu, UUID, reason) (nvlink_gpu_unhealthy{{{CLUSTER}}})"
FIRING = f'ALERTS{{alertname=~"Nvlink.*", alertstate="firing", {CLUSTER}, {NODE}}}'


def variables() -> list:
    busy = f"avg_over_time({NODE_TRAFFIC}[$__range])"
    of_one = f'nvlink_exporter_node_info{{{CLUSTER}, node=~"$link_node"}}'
    return [
        frame.cluster("nvlink_exporter_node_info"),
        frame.node(),
        frame.hidden_list(
            "busy_node",
            f"query_result(topk(8, {busy}))",
            "The eight nodes with most traffic: the panel by GPU shows these.",
            regex='/node="([^"]+)"/',
        ),
        frame.hidden_list(
            "bad_node",
            f"query_result(topk(8, sum by (node) ({ERRORS})))",
            "The eight nodes with most errors now: the graph of errors shows these.",
            regex='/node="([^"]+)"/',
        ),
        frame.one_value(
            "link_node",
            "Node of the link panels",
            f"label_values(nvlink_exporter_node_info{{{CLUSTER}, {NODE}}}, node)",
            "The node whose single links are shown, because a cluster has too many: the first of the chosen ones, or your choice.",
        ),
        frame.hidden_list(
            "instance",
            f"label_values({of_one}, instance)",
            "The addresses at which that node's exporter was scraped.",
        ),
    ]


def state() -> list:
    missing = f"nvlink_missing_links{{{CLUSTER}}}"
    unhealthy = f"max by (cluster, instance, gpu, UUID) (nvlink_gpu_unhealthy{{{CLUSTER}}})"
    return [
        panels.number(
            "Nodes",
            "Nodes whose exporter answers. If nodes are missing, NvlinkExporterFailing names them: look at the exporter's pods there.",
            f"count({NODES})",
        ),
        panels.number(
            "GPUs",
            "GPUs that answer. If it drops, look at the lost GPUs and at the number of nodes.",
            f"sum(node:nvlink_gpus:count{{{CLUSTER}, {NODE}}})",
        ),
        panels.number(
            "Lost GPUs",
            "GPUs that an exporter has seen since its start and that do not answer now. Drain the node and reset the GPU or reboot; XID 79 on it means that it fell off the bus.",
            or_zero(f"count(nvlink_gpu_lost{{{CLUSTER}, {NODE}}})", NODES),
            steps=NONE_IS_GOOD,
        ),
        panels.number(
            "Missing links",
            "NVLinks that should be up and are not. Each slows down the jobs on its GPU. The table below names the GPUs.",
            f"sum({of_nodes(missing)})",
            steps=NONE_IS_GOOD,
            no_value="unknown",
        ),
        panels.number(
            "GPUs left out of placements",
            "GPUs that placements leave out or rank last because of missing links, a fabric problem, what the driver asks for, or an XID. The table below names the reasons.",
            or_zero(f"count({of_nodes(unhealthy)})", NODES),
            steps=FEW_ARE_BAD,
        ),
        panels.number(
            "Alerts firing",
            "Alerts of nvlink-domains on the chosen nodes. They are also red marks in the graphs. If there is no number, Prometheus has not loaded the rules.",
            or_zero(f"count({FIRING})", f"cluster:nvlink_gpus:count{{{CLUSTER}}}"),
            steps=NONE_IS_GOOD,
            no_value="no rules",
        ),
    ]


def wrong() -> list:
    to_node = {"node": [frame.to_node()]}
    missing = f"nvlink_missing_links{{{CLUSTER}}}"
    info = f"max by (cluster, instance, gpu, UUID, node, model, pci_bus_id) (nvlink_gpu_info{{{CLUSTER}, {NODE}}})"
    missing = f"{missing} * {ON_GPU} group_left (node, model, pci_bus_id) {info} > 0"
    return [
        panels.grid(
            "GPUs with missing links",
            "The 50 GPUs that miss most links. Missing links on one GPU point to its board or bridge; on all GPUs of a node, to the NVSwitches or the fabric manager. Follow the runbook of NvlinkLinkDown.",
            [(f"topk(50, max by (cluster, node, gpu, model, pci_bus_id) ({missing}))", "missing links")],
            to_node,
            sort="missing links",
            width=12,
            no_value="No link is missing.",
        ),
        panels.grid(
            "GPUs that placements avoid, by reason",
            "Up to 100 GPUs that placements leave out or rank last. Drain the node and repair the GPU; the mark goes with its reason or soon after it, for an XID with a reset of the GPU.",
            [(f"topk(100, max by (cluster, node, gpu, UUID, reason) ({of_nodes(UNHEALTHY)}))", "marked")],
            to_node,
            width=12,
            no_value="No GPU is marked.",
        ),
    ]


def suffering() -> list:
    to_node = {"node": [frame.to_node()]}
    xids = of_nodes(f"sum by (cluster, instance, gpu, UUID, xid) (nvlink_xid_errors_total{{{CLUSTER}}})")
    held = f"max by (cluster, instance, gpu, UUID, node, namespace, pod) (gpu:nvlink_allocation_info:max{{{CLUSTER}, {NODE}}})"
    held = f"{held} and {ON_GPU} {UNHEALTHY}"
    return [
        panels.grid(
            "Jobs on these GPUs",
            "The 50 jobs that hold most GPUs of the table above. Tell their owners; a job that is restarted gets other GPUs.",
            [(f"topk(50, count by (cluster, node, namespace, pod) ({held}))", "GPUs")],
            {**to_node, "pod": [frame.to_pod()]},
            sort="GPUs",
            width=12,
            no_value="No job holds such a GPU.",
        ),
        panels.grid(
            "XIDs",
            "The 50 most frequent XID errors since the exporters' start. 74 is an NVLink error, 79 a GPU that fell off the bus, 144 to 150 are NVLink 5, 154 says what the driver asks for: follow the runbook of NvlinkGpuFault.",
            [(f"topk(50, max by (cluster, node, gpu, xid) ({xids}))", "errors")],
            to_node,
            sort="errors",
            width=12,
            no_value="The drivers have reported no XID.",
        ),
    ]


def fabric_state() -> list:
    to_node = {"node": [frame.to_node()]}
    return [
        panels.bars(
            "Fabric, by state of registration",
            "GPUs by the state of their registration with the NVLink fabric. All should be completed; if all GPUs of a node are not, restart its fabric manager, on an NVL72 look at the NMX controller. Empty for GPUs without NVSwitches.",
            [(f"sum by (state) ({of_nodes(f'(nvlink_fabric_state{{{CLUSTER}}} == 1)')})", "{{state}}")],
            width=8,
            no_value="No GPU has a fabric.",
        ),
        panels.bars(
            "Fabric, by condition",
            "GPUs for which a problem of the NVLink fabric holds. Any is bad: follow the runbook of NvlinkFabricDegraded.",
            [(f"sum by (condition) ({of_nodes(f'(nvlink_fabric_health{{{CLUSTER}}} == 1)')})", "{{condition}}")],
            steps=NONE_IS_GOOD,
            width=8,
            no_value="No problem is reported.",
        ),
        panels.grid(
            "GPUs with errors now",
            "The 50 GPUs and kinds with most errors on their NVLinks in the last five minutes, as errors per hour. Which kinds matter depends on the generation (docs/metrics.md): follow the runbook of NvlinkErrorsRising. Choose a node below to see the link.",
            [(f"topk(50, max by (cluster, node, gpu, kind) ({ERRORS} * 3600 > 0))", "errors per hour")],
            to_node,
            sort="errors per hour",
            width=8,
            no_value="No errors in the last five minutes.",
        ),
    ]


def traffic() -> list:
    errors = f'gpu:nvlink_errors:rate5m{{{CLUSTER}, node=~"$bad_node"}}'
    busy = f'gpu:nvlink_utilization:ratio{{{CLUSTER}, node=~"$busy_node"}}'
    return [
        panels.rows(
            "Utilization by GPU",
            "NVLink traffic of each GPU, in its busier direction, divided by the line rate of its active links, on the eight nodes with most traffic of those chosen. In one job all rows should look alike: a darker row is a GPU that waits for others or for a slow link.",
            in_order(f"max by (node, gpu) ({busy})", "node", "gpu"),
            "{{node}} GPU {{gpu}}",
            height=14,
            no_value="No traffic is measured.",
        ),
        panels.lines(
            "Traffic by node",
            "Bytes per second that the GPUs of a node send over NVLink; the 20 nodes with most. A node below the others of the same job is slow: see NvlinkJobSlow.",
            [(top(20, NODE_TRAFFIC, ON_NODE), "{{cluster}} {{node}}")],
            BYTES_PER_SECOND,
        ),
        panels.lines(
            "Errors by node and kind",
            "Errors per hour on the NVLinks of the eight nodes with most errors now, of those chosen. A step that stays is a link that goes bad: find it in the table of GPUs with errors.",
            [(f"sum by (cluster, node, kind) ({errors}) * 3600 > 0", "{{cluster}} {{node}} {{kind}}")],
            "suffix: per hour",
            no_value="No errors on these nodes.",
        ),
    ]


def links() -> list:
    rate = f"(rate(nvlink_transmit_bytes_total{{{LINKS}}}[$__rate_interval]) or nvlink_transmit_bytes_per_second{{{LINKS}}})"
    speed = f"nvlink_link_speed_bytes_per_second{{{LINKS}}}"
    up = f"nvlink_link_up{{{LINKS}}}"
    state = f"min by (gpu, link) ({up})"
    return [
        panels.rows(
            "Utilization by link of $link_node",
            "Bytes that each NVLink sends, divided by its line rate. The links of a GPU should look alike: a dark row among bright ones is a link that does not carry its share. A link that is down has no row.",
            in_order(f"max by (gpu, link) ({rate} / on (cluster, instance, gpu, UUID, link) {speed})", "gpu", "link"),
            "GPU {{gpu}} link {{link}}",
            height=16,
            no_value="The links of this node have no counters.",
        ),
        panels.history(
            "Links of $link_node that were down",
            "Red while the link is down, green while it is up; links that were always up are left out. A link that comes and goes has a bad connection: reseat or replace the board, bridge or cable.",
            f"{state} and on (gpu, link) min by (gpu, link) (min_over_time({up}[$__range] @ end())) == 0",
            "GPU {{gpu}} link {{link}}",
            unit=panels.COUNT,
            steps=[(None, panels.RED), (1, panels.GREEN)],
            names={"0": "down", "1": "up"},
            width=12,
            no_value="All links were up.",
        ),
    ]


def link_errors() -> list:
    errors = f"increase(nvlink_errors_total{{{LINKS}}}[$__range])"
    held = f"count by (cluster, namespace, pod) (gpu:nvlink_allocation_info:max{{{LINKS}}})"
    return [
        panels.grid(
            "Errors by link of $link_node",
            "The 100 links and kinds with most errors in the time range. Errors on both ends of one connection point to the cable or bridge, on one end to the GPU.",
            [(f"topk(100, max by (gpu, link, kind) ({errors}) > 0)", "errors")],
            {},
            sort="errors",
            width=12,
            height=10,
            no_value="No errors in the time range.",
        ),
        panels.lines(
            "Bit error ratio of $link_node",
            "Worst link of each GPU: effective is after forward error correction, symbol also after retransmission by the physical layer. Since NVLink 5 only. An effective ratio that rises ends in errors: see NvlinkErrorsRising.",
            [(f"max by (gpu, kind) (nvlink_bit_error_ratio{{{LINKS}}})", "GPU {{gpu}} {{kind}}")],
            "sci",
            no_value="These GPUs report no bit error ratio.",
        ),
        panels.grid(
            "Jobs on $link_node",
            "Pods that hold GPUs of the node. They are who to tell before you drain it.",
            [(held, "GPUs")],
            {"pod": [frame.to_pod()]},
            sort="GPUs",
            width=12,
            no_value="No pod holds a GPU of this node.",
        ),
    ]


def exporters() -> list:
    failing = f"max by (cluster, instance, collector) (nvlink_exporter_collector_success{{{CLUSTER}}}) == 0"
    age = of_nodes(f"max by (cluster, instance) (nvlink_exporter_snapshot_age_seconds{{{CLUSTER}}})")
    build = f"max by (cluster, instance, version) (nvlink_exporter_build_info{{{CLUSTER}}})"
    return [
        panels.grid(
            "Collectors that fail",
            "Up to 100 collectors whose last collection failed: topology is the driver, allocations the kubelet. What they measure is absent everywhere above. The exporter's log has the reason: see NvlinkExporterFailing.",
            [(f"topk(100, max by (cluster, node, collector) ({of_nodes(f'({failing})')} + 1))", "fails")],
            {"node": [frame.to_node()]},
            width=8,
            no_value="No collector fails.",
        ),
        panels.bars(
            "Oldest data",
            "Age of the exporters' data; the ten oldest. More than a minute is a driver that hangs, or a source that fails: see NvlinkExporterFailing.",
            [(f"topk(10, max by (cluster, node) ({age}))", "{{cluster}} {{node}}")],
            unit=panels.SECONDS,
            steps=[(None, panels.GREEN), (30, panels.YELLOW), (60, panels.RED)],
        ),
        panels.bars(
            "Exporters by version",
            "Nodes that run each version of the exporter. Two versions for longer than an update takes: look at the rollout of the DaemonSet.",
            [(f"count by (version) ({build} and {ON_INSTANCE} {NODES})", "{{version}}")],
        ),
    ]


def dashboard():
    return frame.dashboard(
        UID,
        "NVLink fabric",
        "State, errors and traffic of NVLinks and GPUs. Begin with the red numbers; the tables below them say where.",
        variables(),
        [
            ("State", state()),
            ("What is wrong", wrong() + suffering() + fabric_state()),
            ("Traffic", traffic()),
            ("Links of one node: $link_node", links() + link_errors()),
            ("Exporters", exporters()),
        ],
        (frame.alerts("NVLink alerts", FIRING),),
    )
