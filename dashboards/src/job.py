"""The dashboard of one job: what it got, what it uses, and what slows it down."""

import frame
import panels
from panels import BYTES_PER_SECOND, HIGH_IS_GOOD, NONE_IS_GOOD, RATIO
from promql import CLUSTER, NODE, ON_GPU, ON_INSTANCE, ON_POD, POD, or_zero

UID = "nvlink-job"
JOB = f"{CLUSTER}, {POD}"
GPUS = f"{CLUSTER}, {NODE}"
# Which pod holds which GPU, for the chosen nodes and pods.
HOLDS = f"gpu:nvlink_allocation_info:max{{{CLUSTER}, {NODE}, {POD}}}"
LINKS = f'{CLUSTER}, instance=~"$instance"'
FIRING = f'ALERTS{{alertname=~"Nvlink.*", alertstate="firing", {CLUSTER}}}'


def of_pods(series: str) -> str:
    """The series by pod of the chosen pods that are on the chosen nodes."""
    return f"({series} and {ON_POD} {HOLDS})"


def of_gpus(series: str) -> str:
    """The series by GPU of the GPUs that the chosen pods hold."""
    return f"({series} and {ON_GPU} {HOLDS})"


def some_pods(series: str) -> str:
    """The series of the 50 chosen pods with most GPUs, the same over the whole time range."""
    gpus = f"max_over_time(pod:nvlink_gpus:count{{{JOB}}}[$__range] @ end())"
    there = f"last_over_time({HOLDS}[$__range] @ end())"
    return f"{series} and {ON_POD} topk(50, {gpus} and {ON_POD} {there})"


def some_gpus(series: str) -> str:
    """The series of 64 GPUs that the chosen pods hold, those with most traffic."""
    busy = f"avg_over_time(gpu:nvlink_transmit_bytes:rate5m{{{GPUS}}}[$__range] @ end())"
    there = f"last_over_time({HOLDS}[$__range] @ end())"
    return f"{of_gpus(series)} and {ON_GPU} topk(64, {busy} and {ON_GPU} {there})"


def some_now(series: str, drop: str = "") -> str:
    """The series of the 50 chosen pods with most GPUs, at the end of the time range, without the label `drop`."""
    most = f"topk(50, {of_pods(f'pod:nvlink_gpus:count{{{JOB}}}')})"
    shown = f"max without ({drop}) ({series})" if drop else series
    return f"{shown} and {ON_POD} {most}"


def variables() -> list:
    nodes = f"count by (instance) (last_over_time({HOLDS}[$__range]))"
    return [
        frame.cluster("gpu:nvlink_allocation_info:max"),
        frame.node(),
        frame.namespace(),
        frame.pod(),
        frame.hidden_list(
            "instance",
            f"query_result(topk(4, {nodes}))",
            "The exporters of the four nodes where the chosen pods hold most GPUs: the panels by link show these.",
            regex='/instance="([^"]+)"/',
        ),
    ]


def overview() -> list:
    quality = "pod:nvlink_placement_quality:min"
    alerts = f'{FIRING} and {ON_POD} {HOLDS} or {FIRING} and on (cluster, node) {HOLDS}'
    table = [
        (some_now(f"pod:nvlink_gpus:count{{{JOB}}}"), "GPUs"),
        (some_now(f"pod:nvlink_transmit_bytes:rate5m{{{JOB}}}"), "sent"),
        (some_now(f"pod:nvlink_utilization:ratio{{{JOB}}}"), "utilization"),
        (some_now(f"pod:nvlink_share:ratio{{{JOB}}}"), "NVLink share"),
        (some_now(f'{quality}{{{JOB}, reference="node"}}', "reference"), "against the empty node"),
        (some_now(f'{quality}{{{JOB}, reference="free"}}', "reference"), "against what was free"),
    ]
    good = [panels.unit(RATIO), *panels.colored(HIGH_IS_GOOD)]
    return [
        panels.number("GPUs", "GPUs that the chosen pods hold.", f"sum{of_pods(f'pod:nvlink_gpus:count{{{JOB}}}')}"),
        panels.number(
            "Sent over NVLink",
            "Bytes per second that all GPUs of the chosen pods send. If it is 0 while the job runs, the job does not use NVLink: look at NCCL's log (NCCL_DEBUG=INFO).",
            f"sum{of_pods(f'pod:nvlink_transmit_bytes:rate5m{{{JOB}}}')}",
            unit=BYTES_PER_SECOND,
            no_value="not measured",
        ),
        panels.number(
            "NVLink's share",
            "NVLink divided by NVLink and network, in bytes sent; the lowest of the chosen pods. Known only for pods that hold all GPUs in use of their nodes, and with node_exporter. For a job inside one domain it should be near 1.",
            f"min{of_pods(f'pod:nvlink_share:ratio{{{JOB}}}')}",
            unit=RATIO,
            no_value="not known",
        ),
        panels.number(
            "Quality, empty node",
            "Lowest quality against the best placement on the empty node; 1 is the best. If it is low and the next number is 1, the node was fragmented when the job started.",
            f'min{of_pods(f"""{quality}{{{JOB}, reference="node"}}""")}',
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="not known",
        ),
        panels.number(
            "Quality, what was free",
            "Lowest quality against the best of the GPUs that were free when the pod started. If it is low, a better set was free: give the job a class, and start it again.",
            f'min{of_pods(f"""{quality}{{{JOB}, reference="free"}}""")}',
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="not known",
        ),
        panels.number(
            "Alerts firing",
            "Alerts of nvlink-domains on the chosen pods and their nodes. They are also red marks in the graphs.",
            or_zero(f"count({alerts})", HOLDS),
            steps=NONE_IS_GOOD,
            no_value="no rules",
        ),
        panels.grid(
            "Jobs",
            "The 50 chosen pods with most GPUs. Follow the link of a pod to see it alone.",
            table,
            {
                "pod": [frame.to_pod()],
                "sent": [panels.unit(BYTES_PER_SECOND)],
                "utilization": [panels.unit(RATIO)],
                "NVLink share": [panels.unit(RATIO)],
                "against the empty node": good,
                "against what was free": good,
            },
            sort="GPUs",
            height=9,
            no_value="No chosen pod holds GPUs.",
        ),
    ]


def bandwidth() -> list:
    sent, gpus = f"pod:nvlink_transmit_bytes:rate5m{{{JOB}}}", f"pod:nvlink_gpus:count{{{JOB}}}"
    received, network = f"pod:nvlink_receive_bytes:rate5m{{{JOB}}}", f"pod:network_transmit_bytes:rate5m{{{JOB}}}"
    info = f"max by (cluster, namespace, pod, model, gpus, path) (nvlink_placement_info{{{JOB}}})"

    def baseline(quantile: str) -> str:
        recorded = f"placement:nvlink_transmit_bytes_per_gpu:{quantile}{{{CLUSTER}}}"
        return f"avg({of_pods(f'{info} * on (cluster, model, gpus, path) group_left () {recorded}')})"

    return [
        panels.lines(
            "NVLink against network",
            "Bytes per second of all chosen pods. The network is that of the nodes, and known only for pods that hold all GPUs in use there. If the network has most of it, the GPUs are in several domains: look at the quality.",
            [
                (f"sum{of_pods(sent)}", "NVLink, sent"),
                (f"sum{of_pods(received)}", "NVLink, received"),
                (f"sum{of_pods(network)}", "network, sent"),
            ],
            BYTES_PER_SECOND,
            no_value="not measured",
        ),
        panels.lines(
            "Bandwidth by GPU against the baseline",
            "Bytes per second that one GPU of the chosen pods sends, and what jobs with as many GPUs of this model and path sent while they were busy: median and lowest tenth of a day and a week. Below the lowest tenth for long is NvlinkJobSlow, unless the job idles, starts or ends.",
            [
                (f"sum{of_pods(sent)} / sum{of_pods(gpus)}", "this job"),
                (baseline("median1d"), "median of a day"),
                (baseline("p10_1d"), "lowest tenth of a day"),
                (baseline("median1w"), "median of a week"),
                (baseline("p10_1w"), "lowest tenth of a week"),
            ],
            BYTES_PER_SECOND,
            no_value="no baseline yet",
        ),
        panels.lines(
            "NVLink's share by pod",
            "NVLink divided by NVLink and network, in bytes sent; the 50 pods with most GPUs. A pod below the others of its job has a worse placement.",
            [(some_pods(f"pod:nvlink_share:ratio{{{JOB}}}"), "{{namespace}}/{{pod}}")],
            RATIO,
            most=1,
            no_value="not known",
        ),
        panels.lines(
            "Quality by pod",
            "Quality against the empty node; the 50 pods with most GPUs. It changes only when the links of the node do: a step down is a link that failed.",
            [(some_pods(f'pod:nvlink_placement_quality:min{{{JOB}, reference="node"}}'), "{{namespace}}/{{pod}}")],
            RATIO,
            most=1,
            no_value="not known",
        ),
    ]


def gpus() -> list:
    utilization = f"gpu:nvlink_utilization:ratio{{{GPUS}}}"
    by_gpu = "by (cluster, instance, gpu, UUID"
    held = f"max {by_gpu}, node, namespace, pod) ({HOLDS})"
    info = f"max {by_gpu}, model, domain, numa_node, pci_bus_id) (nvlink_gpu_info{{{GPUS}}})"
    table = f"{held} * {ON_GPU} group_left (model, domain, numa_node, pci_bus_id) {info}"
    labels = "cluster, node, namespace, pod, gpu, UUID, model, domain, numa_node, pci_bus_id"
    rate = f"(rate(nvlink_transmit_bytes_total{{{LINKS}}}[$__rate_interval]) or nvlink_transmit_bytes_per_second{{{LINKS}}})"
    speed = f"nvlink_link_speed_bytes_per_second{{{LINKS}}}"
    link = f"{rate} / on (cluster, instance, gpu, UUID, link) {speed}"
    node = f"max by (cluster, instance, node) (nvlink_exporter_node_info{{{LINKS}}})"
    link = f"{of_gpus(link)} * {ON_INSTANCE} group_left (node) {node}"
    return [
        panels.rows(
            "Utilization by GPU",
            "NVLink traffic of each GPU, in its busier direction, divided by the line rate of its active links; the 64 GPUs with most. All rows of a job should look alike: a darker row waits for others, or has a slow link.",
            some_gpus(utilization),
            "{{node}} GPU {{gpu}}",
            no_value="No traffic is measured.",
        ),
        panels.rows(
            "Utilization by link",
            "Bytes that each NVLink of the job's GPUs sends, divided by its line rate, on the four nodes where the chosen pods hold most GPUs. A dark row among bright ones is a link that does not carry its share; a link that is down has no row.",
            f"max by (node, gpu, link) ({link})",
            "{{node}} GPU {{gpu}} link {{link}}",
            height=14,
            no_value="The links have no counters.",
        ),
        panels.grid(
            "GPUs",
            "Up to 100 GPUs that the chosen pods hold. GPUs of one pod should be in one domain; `domain` is empty for a GPU without NVLink.",
            [(f"topk(100, max by ({labels}) ({table}))", "held")],
            {"node": [frame.to_node()], "pod": [frame.to_pod()]},
            height=9,
            no_value="No chosen pod holds GPUs.",
        ),
    ]


def errors() -> list:
    kinds = of_gpus(f"gpu:nvlink_errors:rate5m{{{GPUS}}}")
    node = f"max by (cluster, instance, node) (nvlink_exporter_node_info{{{GPUS}}})"

    def of_held(metric: str, labels: str) -> str:
        series = of_gpus(f"max by (cluster, instance, gpu, UUID{labels}) ({metric}{{{CLUSTER}}})")
        return f"max by (cluster, node, gpu{labels}) ({series} * {ON_INSTANCE} group_left (node) {node})"

    to_node = {"node": [frame.to_node()]}
    return [
        panels.lines(
            "Errors on its GPUs, by kind",
            "Errors per hour on the NVLinks of the job's GPUs. Errors that rise with the traffic slow the job down: the dashboard of the fabric shows the link.",
            [(f"sum by (kind) {kinds} * 3600", "{{kind}}")],
            "suffix: per hour",
            no_value="No errors are counted.",
        ),
        panels.grid(
            "Missing links of its GPUs",
            "GPUs of the chosen pods that miss NVLinks. The job is as slow as its slowest GPU: start it again on others.",
            [(f"topk(50, {of_held('nvlink_missing_links', '')} > 0)", "missing links")],
            to_node,
            sort="missing links",
            width=6,
            no_value="No link is missing.",
        ),
        panels.grid(
            "XIDs of its GPUs",
            "XID errors since the exporters' start. 74 is an NVLink error, 79 a GPU that fell off the bus: follow the runbook of NvlinkXid.",
            [(f"topk(50, {of_held('nvlink_xid_errors_total', ', xid')})", "errors")],
            to_node,
            sort="errors",
            width=6,
            no_value="The drivers have reported no XID.",
        ),
    ]


def dashboard():
    of_node = f"{FIRING} and on (cluster, node) {HOLDS}"
    of_pod = f"ALERTS{{alertname=~\"Nvlink.*\", alertstate=\"firing\", {JOB}}}"
    return frame.dashboard(
        UID,
        "NVLink job",
        "One job, or several: its GPUs and links, NVLink against network, its quality and its baseline. Choose a namespace and a pod.",
        variables(),
        [
            ("Job", overview()),
            ("Bandwidth and quality", bandwidth()),
            ("GPUs and links", gpus()),
            ("Errors on its GPUs", errors()),
        ],
        (frame.alerts("Alerts of the job", of_pod), frame.alerts("Alerts of its nodes", of_node)),
    )
