"""The parts of PromQL that several panels use.

Every query filters by the dashboard's variables with `=~`. "All" is `.*`, which also matches an absent
label: without a label `cluster`, the variable has no other value, and nothing changes.
"""

CLUSTER = 'cluster=~"$cluster"'
NODE = 'node=~"$node"'
POD = 'namespace=~"$namespace", pod=~"$pod"'

ON_INSTANCE = "on (cluster, instance)"
ON_GPU = "on (cluster, instance, gpu, UUID)"
ON_NODE = "on (cluster, node)"
ON_POD = "on (cluster, namespace, pod)"

# max, should two scrapes of an exporter overlap: the right side of a join must have each instance once.
NODES = f"max by (cluster, instance, node) (nvlink_exporter_node_info{{{CLUSTER}, {NODE}}})"


def of_nodes(expr: str) -> str:
    """The series of an exporter, with the label `node`, for the chosen nodes only."""
    return f"{expr} * {ON_INSTANCE} group_left (node) {NODES}"


def or_zero(expr: str, known: str) -> str:
    """`expr`, a count, or 0 where it has no series although there are series of `known`."""
    return f"{expr} or 0 * count({known})"


def top(n: int, series: str, on: str) -> str:
    """The n series that are largest on average, the same over the whole time range.

    topk alone chooses anew at each step, and so returns many more than n. `@ end()` is evaluated once.
    """
    return f"{series} and {on} topk({n}, avg_over_time({series}[$__range] @ end()))"


def bottom(n: int, series: str, on: str) -> str:
    """The n series that are smallest on average, the same over the whole time range."""
    return f"{series} and {on} bottomk({n}, avg_over_time({series}[$__range] @ end()))"


def in_order(expr: str, *labels: str) -> str:
    """The same series, in the order of these labels.

    Prometheus returns series in the order of their labels by name, and a heatmap shows them as they come.
    The label `at` is before the others.
    """
    listed = ", ".join(f'"{label}"' for label in labels)
    # Link 2 before link 10.
    padded = f'label_replace({expr}, "link", "0$1", "link", "(.)")' if "link" in labels else expr
    return f'label_join({padded}, "at", " ", {listed})'
