"""The dashboard of placements: what still fits, and how good what runs is."""

from grafana_foundation_sdk.builders.dashboard import CustomVariable
from grafana_foundation_sdk.models.dashboard import VariableOption

import frame
import panels
from panels import BLUE, FEW_ARE_BAD, GREEN, HIGH_IS_BAD, HIGH_IS_GOOD, RATIO, RED, YELLOW
from promql import CLUSTER, NODE, NODES, ON_INSTANCE, ON_NODE, bottom, of_nodes, or_zero

UID = "nvlink-placement"
CHOSEN = f"{CLUSTER}, {NODE}"
FREE = f"node:nvlink_gpus_free:count{{{CHOSEN}}}"
LARGEST = f"max by (cluster, node) (nvlink_largest_free_set_gpus{{{CHOSEN}}})"
QUALITY = f'nvlink_placement_quality_ratio{{{CLUSTER}, reference="$reference"}}'
BY_JOB = "by (cluster, node, namespace, pod)"
FRAGMENTATION = f"node:nvlink_fragmentation:ratio{{{CHOSEN}}}"
AVOIDED = f"sum(node:nvlink_gpus_unhealthy:count{{{CHOSEN}}})"


def variables() -> list:
    text = "Best placement on the empty node (node), or of the GPUs that were free when the pod started (free)."
    chosen = VariableOption(selected=True, text="node", value="node")
    reference = CustomVariable("reference").label("Quality against").description(text)
    return [
        frame.cluster("nvlink_exporter_node_info"),
        frame.node(),
        reference.values("node,free").current(chosen).multi(False).include_all(False),
    ]


def now() -> list:
    known = "Nodes where it is not known which GPUs are free are left out."
    return [
        panels.number(
            "Free GPUs",
            f"GPUs that no pod holds. {known}",
            f"sum({FREE})",
        ),
        panels.number(
            "Largest job that fits",
            f"Most free GPUs in one NVLink domain of one node. A larger job has to wait or is placed across domains. {known}",
            f"max({LARGEST})",
            steps=[(None, RED), (2, YELLOW), (4, GREEN)],
        ),
        panels.number(
            "Fragmentation",
            "Average over the nodes with free GPUs: 0 where the free GPUs of a node are as close together as they can be, near 1 where they are scattered over its domains. If it is high while large jobs wait, let small jobs end or move them.",
            f"avg({FRAGMENTATION})",
            unit=RATIO,
            steps=HIGH_IS_BAD,
            no_value="nothing is free",
        ),
        panels.number(
            "Lowest quality",
            "Quality of the worst placement against the chosen reference; 1 is the best. The table of jobs below names it.",
            f"min({QUALITY} and {ON_INSTANCE} {NODES})",
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="no jobs",
        ),
        panels.number(
            "Jobs across domains",
            "Pods whose GPUs belong to more than one NVLink domain: they communicate over PCIe or the network. If it happens often, use a class with scope nvlink-domain.",
            or_zero(
                f"count(max {BY_JOB} ({of_nodes(f'nvlink_placement_domains{{{CLUSTER}}}')}) > 1)",
                NODES,
            ),
            steps=FEW_ARE_BAD,
        ),
        panels.number(
            "GPUs left out of placements",
            "GPUs that placements leave out or rank last. The dashboard of the fabric names them and the reasons.",
            AVOIDED,
            steps=FEW_ARE_BAD,
        ),
    ]


def fits() -> list:
    # A job fits into one domain, of which a node may have several. Sizes that no domain could hold are left out.
    by_domain = "max by (cluster, node, domain)"
    free, gpus = f"nvlink_domain_free_gpus{{{CHOSEN}}}", f"nvlink_domain_gpus{{{CHOSEN}}}"

    def fit(size: int) -> str:
        large = f"on (cluster, node, domain) {by_domain} ({gpus}) >= {size}"
        return f"sum(floor({by_domain} ({free}) / {size}) and {large})"

    sizes = [(fit(size), f"{size} GPUs") for size in (2, 4, 8)]
    allocated = f"sum(node:nvlink_gpus_allocated:count{{{CHOSEN}}})"
    return [
        panels.bars(
            "Jobs that still fit, by size",
            "How many jobs of a size would fit into the free GPUs now, each inside one NVLink domain of one node. 0 for a size that your users ask for means that such a job waits.",
            sizes,
            steps=[(None, RED), (1, YELLOW), (5, GREEN)],
            no_value="not known",
        ),
        panels.lines(
            "GPUs held, free and avoided",
            "What the GPUs do. If most are free while jobs wait, look at the fragmentation, and at the classes of these jobs.",
            [(allocated, "held by pods"), (f"sum({FREE})", "free"), (AVOIDED, "avoided by placements")],
            panels.COUNT,
            width=8,
        ),
        panels.lines(
            "Fragmentation over time",
            "Average over the nodes with free GPUs, and the value that one node in ten exceeds. If it rises with each small job, give small jobs a class of their own nodes.",
            [
                (f"avg({FRAGMENTATION})", "average"),
                (f"quantile(0.9, {FRAGMENTATION})", "worst tenth"),
            ],
            RATIO,
            width=8,
            most=1,
        ),
    ]


def fragments() -> list:
    worst = f"topk(50, max by (cluster, node) ({FRAGMENTATION}) > 0)"
    return [
        panels.grid(
            "Fragmented nodes",
            "The 50 nodes whose free GPUs are most scattered. One small job that ends there frees a whole domain.",
            [
                (worst, "fragmentation"),
                (f"{FREE} and {ON_NODE} {worst}", "free GPUs"),
                (f"{LARGEST} and {ON_NODE} {worst}", "largest free set"),
            ],
            {"node": [frame.to_node()], "fragmentation": [panels.unit(RATIO), *panels.colored(HIGH_IS_BAD)]},
            sort="fragmentation",
            width=12,
            no_value="No node is fragmented.",
        ),
        panels.lines(
            "Occupancy of domains",
            "Share of the GPUs of a domain that pods hold: the average, and the share of domains that are full and that are empty. Many half-full domains and few empty ones is fragmentation.",
            [
                (f"avg(domain:nvlink_occupancy:ratio{{{CHOSEN}}})", "average"),
                (f"avg(domain:nvlink_occupancy:ratio{{{CHOSEN}}} >= bool 1)", "full"),
                (f"avg(domain:nvlink_occupancy:ratio{{{CHOSEN}}} <= bool 0)", "empty"),
            ],
            RATIO,
            most=1,
        ),
    ]


def quality() -> list:
    by_instance = f"min by (cluster, instance) ({QUALITY} and {ON_INSTANCE} {NODES})"
    held = f"max by (cluster, instance, gpu, UUID, namespace, pod, container) (nvlink_allocation_info{{{CLUSTER}}} and {ON_INSTANCE} bottomk(50, {by_instance}))"
    container = "(cluster, instance, namespace, pod, container)"
    judged = f"{held} * on {container} group_left () min by {container} ({QUALITY})"
    cells = f"min by (cluster, node, gpu) ({of_nodes(judged)})"
    of_node = f'node:nvlink_placement_quality:min{{{CHOSEN}, reference="$reference"}}'
    worst = f"bottomk(50, min_over_time({of_node}[$__range] @ end()))"
    return [
        panels.matrix(
            "Quality by node and GPU",
            "The 50 nodes with the worst placements. Each cell is a GPU with the quality of the placement of the pod that holds it; empty cells are free GPUs. Red: the job would be at least twice as fast on the best GPUs. Follow the link to the node; the job's owner may restart it, and the webhook then places it.",
            cells,
            "node",
            "gpu",
            links=[frame.link("Fabric of this node", "nvlink-fabric", node="${__data.fields[0]}")],
            no_value="No pod holds GPUs.",
        ),
        panels.history(
            "Worst quality of each node over time",
            "The quality of the node's worst placement; the 50 worst nodes. A node that is red for long holds a job that is worth moving.",
            f"max by (cluster, node) ({of_node}) and {ON_NODE} {worst}",
            "{{node}}",
            height=14,
            no_value="No pod holds GPUs.",
        ),
    ]


def jobs() -> list:
    def of_job(reduce: str, metric: str) -> str:
        return f"{reduce} {BY_JOB} ({of_nodes(metric)})"

    node_quality = of_job("min", f'nvlink_placement_quality_ratio{{{CLUSTER}, reference="node"}}')
    free_quality = of_job("min", f'nvlink_placement_quality_ratio{{{CLUSTER}, reference="free"}}')
    worst = f"and on (cluster, namespace, pod) bottomk(50, {of_job('min', QUALITY)})"
    good = [panels.unit(RATIO), *panels.colored(HIGH_IS_GOOD)]
    return [
        panels.grid(
            "Worst placed jobs",
            "The 50 pods of lowest quality against the chosen reference. A low `node` with a `free` of 1: the node was fragmented when the job started. A low `free`: a better set was free, so the job did not come through the webhook, or its GPUs were chosen by hand. See NvlinkPlacementPoor.",
            [
                (f"{node_quality} {worst}", "against the empty node"),
                (f"{free_quality} {worst}", "against what was free"),
                (f"{of_job('sum', f'nvlink_placement_gpus{{{CLUSTER}}}')} {worst}", "GPUs"),
                (f"{of_job('max', f'nvlink_placement_domains{{{CLUSTER}}}')} {worst}", "domains"),
                (f"{of_job('min', f'nvlink_placement_bottleneck_bytes_per_second{{{CLUSTER}}}')} {worst}", "bottleneck"),
            ],
            {
                "node": [frame.to_node()],
                "pod": [frame.to_pod()],
                "against the empty node": good,
                "against what was free": good,
                "bottleneck": [panels.unit(panels.BYTES_PER_SECOND)],
            },
            height=12,
            no_value="No pod holds GPUs.",
        ),
    ]


def averages() -> list:
    return [
        panels.lines(
            "Quality by class",
            "Average quality of the placements of each DomainClass, against the empty node; the 20 worst. A class that falls below the others needs more nodes, or a smaller scope.",
            [(bottom(20, f"class:nvlink_placement_quality:avg{{{CLUSTER}}}", "on (cluster, class)"), "{{cluster}} {{class}}")],
            RATIO,
            width=8,
            most=1,
            no_value="No pod has a class.",
        ),
        panels.lines(
            "Quality by project",
            "Average quality of the placements of each project, against the empty node; the 20 worst. A project that stays low may request GPUs without a class.",
            [(bottom(20, f"project:nvlink_placement_quality:avg{{{CLUSTER}}}", "on (cluster, project)"), "{{cluster}} {{project}}")],
            RATIO,
            width=8,
            most=1,
            no_value="No pod has a project.",
        ),
        panels.bars(
            "Jobs by their slowest path",
            "Containers with two or more GPUs by the class of the slowest path between two of them. All but NVLINK is slow; on machines without NVLink, PIX and PXB are the best that there is.",
            [(f"count by (path) (nvlink_placement_info{{{CLUSTER}, path!=\"\"}} and {ON_INSTANCE} {NODES})", "{{path}}")],
            steps=[(None, BLUE)],
            no_value="No container holds two GPUs.",
        ),
    ]


def devices() -> list:
    plugins = f"max by (cluster, instance, node) (nvlink_device_plugin_node_info{{{CHOSEN}}})"
    registered = f"max by (cluster, instance) (nvlink_device_plugin_registered{{{CLUSTER}}}) == 1"

    def total(by: str, function: str, metric: str, labels: str = "", window: str = "$__rate_interval") -> str:
        series = f"nvlink_device_plugin_{metric}{{{CLUSTER}{labels}}}"
        return f"sum {by} ({function}({series}[{window}]) and {ON_INSTANCE} {plugins})"

    def share(metric: str, labels: str) -> str:
        of_range = [total("", "increase", metric, chosen, "$__range") for chosen in (labels, "")]
        return " / ".join(of_range)

    def slowest(q: float) -> str:
        return f"histogram_quantile({q}, {total('by (call, le)', 'rate', 'added_seconds_bucket')})"

    return [
        panels.number(
            "Nodes with preferred GPUs",
            "Nodes where nvlink-exporter device-plugin stands between the kubelet and the vendor's device plugin. Elsewhere, the vendor's plugin chooses the GPUs of a container.",
            f"count({plugins})",
            width=6,
            no_value="none",
        ),
        panels.number(
            "Nodes without GPUs from it",
            "Of these nodes, those whose kubelet has nothing from it: no pod with GPUs can start there. See NvlinkDevicePluginAway.",
            or_zero(f"count({plugins} unless {ON_INSTANCE} {registered})", plugins),
            steps=panels.NONE_IS_GOOD,
            width=6,
            no_value="none",
        ),
        panels.number(
            "Answered by the search",
            "Share of the preferences that the kubelets asked for in the time range that were answered by the search on the node's graph. The vendor's plugin answers for parts and shares of GPUs, and while the graph is unknown. If a node's graph stays unknown, its driver does not answer: see NvlinkExporterFailing.",
            share("preferences_total", ', by="search"'),
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            width=6,
            no_value="no questions",
        ),
        panels.number(
            "Taken by the kubelet",
            "Share of the containers in the time range that got the GPUs that were preferred. The kubelet may choose others. No known kubelet does: compare the logs of the kubelet and of nvlink-exporter device-plugin.",
            share("allocations_total", ', outcome="taken"'),
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            width=6,
            no_value="no containers",
        ),
        panels.lines(
            "Preferences by who answered",
            "Containers with GPUs that started, by who chose: search, the best of what was free; vendor, the vendor's plugin; nobody, any.",
            [(total("by (by)", "rate", "preferences_total"), "{{by}}")],
            "reqps",
            width=8,
            no_value="No container started.",
        ),
        panels.lines(
            "Time added to a call",
            "What nvlink-exporter device-plugin adds to a call of the kubelet, without the time of the vendor's plugin. The goal is less than a millisecond.",
            [(slowest(0.5), "{{call}}, median"), (slowest(0.99), "{{call}}, slowest hundredth")],
            panels.SECONDS,
            width=8,
            no_value="No container started.",
        ),
        panels.lines(
            "Registrations",
            "Registrations with kubelets: each is a restart of a kubelet, of a vendor's plugin, or of nvlink-exporter device-plugin, and a moment without GPUs on its node. See NvlinkDevicePluginAway.",
            [(total("by (resource)", "increase", "registrations_total"), "{{resource}}")],
            panels.COUNT,
            width=8,
            no_value="none",
        ),
    ]


def dashboard():
    return frame.dashboard(
        UID,
        "NVLink placement",
        "What still fits into the NVLink domains, and how good the GPUs are that jobs hold.",
        variables(),
        [("What still fits", now() + fits() + fragments()), ("Quality", quality()), ("Jobs", jobs() + averages()), ("Device plugin", devices())],
    )
