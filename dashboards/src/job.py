"""The dashboard of one job: what it got, what it uses, and what slows it down."""

import frame
import panels
from panels import BYTES_PER_SECOND, HIGH_IS_GOOD, NONE_IS_GOOD, RATIO
from promql import CLUSTER, NODE, ON_GPU, ON_INSTANCE, ON_NODE, ON_POD, POD, in_order, or_zero

UID = "nvlink-job"
# The pods that are shown, of those chosen.
JOB = f'{CLUSTER}, namespace=~"$namespace", pod=~"$shown"'
# Which pod holds which GPU: of the pods that are chosen, of those shown, and on the nodes of the panels by GPU.
CHOSEN = f"gpu:nvlink_allocation_info:max{{{CLUSTER}, {NODE}, {POD}}}"
SHOWN = f"gpu:nvlink_allocation_info:max{{{JOB}, {NODE}}}"
GPUS = f'{CLUSTER}, instance=~"$instance"'
HELD = f'gpu:nvlink_allocation_info:max{{{JOB}, instance=~"$instance"}}'
LINKS = f'{CLUSTER}, instance=~"$link_instance"'
FIRING = f'ALERTS{{alertname=~"Nvlink.*", alertstate="firing", {CLUSTER}}}'


def of_gpus(series: str) -> str:
    """The series by GPU of the GPUs that the pods hold."""
    return f"({series} and {ON_GPU} {HELD})"


def quality(reference: str) -> str:
    return f'pod:nvlink_placement_quality:min{{{JOB}, reference="{reference}"}}'


def variables() -> list:
    def hidden(name: str, number: int, label: str, description: str):
        most = f"topk({number}, count by ({label}) (last_over_time({CHOSEN}[$__range])))"
        return frame.hidden_list(name, f"query_result({most})", description, regex=f'/{label}="([^"]+)"/')

    exporters = "The exporters of the nodes where the chosen pods hold most GPUs"
    return [
        frame.cluster("gpu:nvlink_allocation_info:max"),
        frame.node(),
        frame.namespace(),
        frame.pod(),
        hidden("shown", 128, "pod", "The 128 chosen pods with most GPUs: the panels show these."),
        hidden("instance", 64, "instance", f"{exporters}, at most 64: the panels by GPU show these."),
        hidden("link_instance", 4, "instance", f"{exporters}, at most 4: the panel by link shows these."),
    ]


def overview() -> list:
    alerts = f"{FIRING} and {ON_POD} {SHOWN} or {FIRING} and {ON_NODE} {SHOWN}"
    return [
        panels.number("GPUs", "GPUs that the pods hold.", f"sum(pod:nvlink_gpus:count{{{JOB}}})", no_value="none"),
        panels.number(
            "Sent over NVLink",
            "Bytes per second that all GPUs of the pods send. If it is 0 while the job runs, the job does not use NVLink: look at NCCL's log (NCCL_DEBUG=INFO).",
            f"sum(pod:nvlink_transmit_bytes:rate5m{{{JOB}}})",
            unit=BYTES_PER_SECOND,
            no_value="not measured",
        ),
        panels.number(
            "NVLink's share",
            "NVLink divided by NVLink and network, in bytes sent; the lowest of the pods. Known only for pods that hold all GPUs in use of their nodes, and with node_exporter. For a job inside one domain it should be near 1.",
            f"min(pod:nvlink_share:ratio{{{JOB}}})",
            unit=RATIO,
            no_value="not known",
        ),
        panels.number(
            "Quality, empty node",
            "Lowest quality against the best placement on the empty node; 1 is the best. If it is low and the next number is 1, the node was fragmented when the job started.",
            f"min({quality('node')})",
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="not known",
        ),
        panels.number(
            "Quality, what was free",
            "Lowest quality against the best of the GPUs that were free when the pod started. If it is low, a better set was free: give the job a class, and start it again.",
            f"min({quality('free')})",
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="not known",
        ),
        panels.number(
            "Alerts firing",
            "Alerts of nvlink-domains on the pods and their nodes. They are also red marks in the graphs.",
            or_zero(f"count({alerts})", SHOWN),
            steps=NONE_IS_GOOD,
            no_value="none",
        ),
    ]


def jobs() -> list:
    table = [
        (f"pod:nvlink_gpus:count{{{JOB}}}", "GPUs"),
        (f"pod:nvlink_transmit_bytes:rate5m{{{JOB}}}", "sent"),
        (f"pod:nvlink_utilization:ratio{{{JOB}}}", "utilization"),
        (f"pod:nvlink_share:ratio{{{JOB}}}", "NVLink share"),
        (f"max without (reference) ({quality('node')})", "against the empty node"),
        (f"max without (reference) ({quality('free')})", "against what was free"),
    ]
    good = [panels.unit(RATIO), *panels.colored(HIGH_IS_GOOD)]
    return [
        panels.grid(
            "Jobs",
            "The chosen pods, at most 128: those with most GPUs. Follow the link of a pod to see it alone.",
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


def baseline(quantile: str) -> str:
    """What the jobs of the same placement classes sent, recorded as this quantile."""
    recorded = f"placement:nvlink_transmit_bytes_per_gpu:{quantile}{{{CLUSTER}}}"
    classes = f"max by (cluster, namespace, pod, model, gpus, path) (nvlink_placement_info{{{JOB}}})"
    return f"avg({classes} * on (cluster, model, gpus, path) group_left () {recorded})"


def bandwidth() -> list:
    sent, gpus = f"pod:nvlink_transmit_bytes:rate5m{{{JOB}}}", f"pod:nvlink_gpus:count{{{JOB}}}"
    received, network = f"pod:nvlink_receive_bytes:rate5m{{{JOB}}}", f"pod:network_transmit_bytes:rate5m{{{JOB}}}"
    return [
        panels.lines(
            "NVLink against network",
            "Bytes per second of all pods. The network is that of the nodes, and known only for pods that hold all GPUs in use there. If the network has most of it, the GPUs are in several domains: look at the quality.",
            [
                (f"sum({sent})", "NVLink, sent"),
                (f"sum({received})", "NVLink, received"),
                (f"sum({network})", "network, sent"),
            ],
            BYTES_PER_SECOND,
            no_value="not measured",
        ),
        panels.lines(
            "Bandwidth by GPU against the baseline",
            "Bytes per second that one GPU of the pods sends, and what jobs with as many GPUs of this model and path sent while they were busy: median and lowest tenth of a day and a week. Below the lowest tenth for long is NvlinkJobSlow, unless the job idles, starts or ends.",
            [
                (f"sum({sent}) / sum({gpus})", "this job"),
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
            "NVLink divided by NVLink and network, in bytes sent. A pod below the others of its job has a worse placement.",
            [(f"pod:nvlink_share:ratio{{{JOB}}}", "{{namespace}}/{{pod}}")],
            RATIO,
            most=1,
            no_value="not known",
        ),
        panels.lines(
            "Work without NVLink",
            "How busy the least busy GPU of each pod is, and its NVLink utilization. GPUs that work while their NVLinks are idle fell back to PCIe or the network: see NvlinkJobSlow. Needs dcgm-exporter.",
            [
                (f"pod:nvlink_gpu_activity:min{{{JOB}}}", "{{namespace}}/{{pod}} GPUs"),
                (f"pod:nvlink_utilization:ratio{{{JOB}}} and on (cluster, namespace, pod) pod:nvlink_gpu_activity:min", "{{namespace}}/{{pod}} NVLink"),
            ],
            RATIO,
            most=1,
            no_value="not known",
        ),
        panels.lines(
            "Quality by pod",
            "Quality against the empty node. It changes only when the links of the node do: a step down is a link that failed.",
            [(quality("node"), "{{namespace}}/{{pod}}")],
            RATIO,
            most=1,
            no_value="not known",
        ),
    ]


def gpus() -> list:
    utilization = f"gpu:nvlink_utilization:ratio{{{GPUS}}}"
    held = f"last_over_time({HELD}[$__range] @ end())"
    most = f"topk(64, avg_over_time({utilization}[$__range] @ end()) and {ON_GPU} {held})"
    info = f"max by (cluster, instance, gpu, UUID, model, domain, numa_node, pci_bus_id) (nvlink_gpu_info{{{GPUS}}})"
    table = f"{HELD} * {ON_GPU} group_left (model, domain, numa_node, pci_bus_id) {info}"
    labels = "cluster, node, namespace, pod, gpu, UUID, model, domain, numa_node, pci_bus_id"
    sent = f"(rate(nvlink_transmit_bytes_total{{{LINKS}}}[$__rate_interval]) or nvlink_transmit_bytes_per_second{{{LINKS}}})"
    speed = f"nvlink_link_speed_bytes_per_second{{{LINKS}}}"
    link = of_gpus(f"{sent} / on (cluster, instance, gpu, UUID, link) {speed}")
    node = f"max by (cluster, instance, node) (nvlink_exporter_node_info{{{LINKS}}})"
    return [
        panels.rows(
            "Utilization by GPU",
            "NVLink traffic of each GPU, in its busier direction, divided by the line rate of its active links; the 64 GPUs with most. All rows of a job should look alike: a darker row waits for others, or has a slow link.",
            in_order(f"max by (node, gpu) ({of_gpus(utilization)} and {ON_GPU} {most})", "node", "gpu"),
            "{{node}} GPU {{gpu}}",
            no_value="No traffic is measured.",
        ),
        panels.rows(
            "Utilization by link",
            "Bytes that each NVLink of the job's GPUs sends, divided by its line rate, on the four nodes where the pods hold most GPUs. A dark row among bright ones is a link that does not carry its share; a link that is down has no row.",
            in_order(f"max by (node, gpu, link) ({link} * {ON_INSTANCE} group_left (node) {node})", "node", "gpu", "link"),
            "{{node}} GPU {{gpu}} link {{link}}",
            height=14,
            no_value="The links have no counters.",
        ),
        panels.grid(
            "GPUs of the job",
            "Up to 100 GPUs that the pods hold. GPUs of one pod should be in one domain; `domain` is empty for a GPU without NVLink.",
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
        series = of_gpus(f"max by (cluster, instance, gpu, UUID{labels}) ({metric}{{{GPUS}}})")
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
            "GPUs of the job that miss NVLinks. The job is as slow as its slowest GPU: start it again on others.",
            [(f"topk(50, {of_held('nvlink_missing_links', '')} > 0)", "missing links")],
            to_node,
            sort="missing links",
            width=6,
            no_value="No link is missing.",
        ),
        panels.grid(
            "XIDs of its GPUs",
            "XID errors since the exporters' start. 74 is an NVLink error, 79 a GPU that fell off the bus: follow the runbook of NvlinkGpuFault.",
            [(f"topk(50, {of_held('nvlink_xid_errors_total', ', xid')})", "errors")],
            to_node,
            sort="errors",
            width=6,
            no_value="The drivers have reported no XID.",
        ),
    ]


def dashboard():
    of_pod = f'ALERTS{{alertname=~"Nvlink.*", alertstate="firing", pod!="", {JOB}}}'
    of_node = f"{FIRING} and {ON_NODE} {SHOWN}"
    return frame.dashboard(
        UID,
        "NVLink job",
        "One job, or several: its GPUs and links, NVLink against network, its quality and its baseline. Choose a namespace and a pod.",
        variables(),
        [
            ("Job", overview() + jobs()),
            ("Bandwidth and quality", bandwidth()),
            ("GPUs and links", gpus()),
            ("Errors on its GPUs", errors()),
        ],
        (frame.alerts("Alerts of the job", of_pod), frame.alerts("Alerts of its nodes", of_node)),
    )
