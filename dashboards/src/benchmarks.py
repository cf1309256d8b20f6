"""The dashboard of collective benchmarks: what was measured, promised and usual."""

import frame
import panels
from panels import BYTES_PER_SECOND, HIGH_IS_GOOD, NONE_IS_GOOD, RATIO, SECONDS
from promql import CLUSTER

UID = "nvlink-benchmarks"
CLASS = "cluster, collective, model, gpus, nodes, path"
CHOSEN = f'{CLUSTER}, collective=~"$collective", model=~"$model", path=~"$path"'
SIZED = f'{CHOSEN}, size_class=~"$size_class"'
ON = f"on ({CLASS}, size_class)"
LEGEND = "{{collective}} {{gpus}} × {{model}} {{path}} on {{nodes}}, {{size_class}}"
MEASURED = f"min by ({CLASS}, size_class) (nvlink_collective_bus_bandwidth_bytes_per_second{{{SIZED}}})"
BASELINE = f"max by ({CLASS}, size_class) (nvlink_collective_baseline_bytes_per_second{{{SIZED}}})"
# What the model says is for large messages.
LARGE = f'min by ({CLASS}) (nvlink_collective_bus_bandwidth_bytes_per_second{{{CHOSEN}, size_class="large"}})'
MODEL = f"max by ({CLASS}) (nvlink_collective_model_bytes_per_second{{{CHOSEN}}})"
AGAINST_BASELINE = f"{MEASURED} / {BASELINE}"
AGAINST_MODEL = f"{LARGE} / {MODEL}"


def of_label(label: str, title: str, chosen: str, description: str):
    query = f"label_values(nvlink_collective_runs_total{{{chosen}}}, {label})"
    return frame.values(label, title, query, description)


def variables() -> list:
    sizes = f"label_values(nvlink_collective_bus_bandwidth_bytes_per_second{{{CHOSEN}}}, size_class)"
    collective = f'{CLUSTER}, collective=~"$collective"'
    return [
        frame.cluster("nvlink_collective_runs_total"),
        of_label("collective", "Collective", CLUSTER, "Collective operations that were measured."),
        of_label("model", "GPU model", collective, "Models of the GPUs."),
        of_label("path", "Slowest path", f'{collective}, model=~"$model"', "Class of the slowest path between two GPUs."),
        frame.values("size_class", "Message size", sizes, "small is under 1 MiB, medium under 256 MiB."),
    ]


def busy(series: str) -> str:
    """The series of the 50 placement classes that were measured last."""
    last = f"max by ({CLASS}) (last_over_time(nvlink_collective_timestamp_seconds{{{CHOSEN}}}[$__range] @ end()))"
    return f"({series}) and on ({CLASS}) topk(50, {last})"


def summary() -> list:
    failures = f"sum(nvlink_collective_failures_total{{{CHOSEN}}})"
    runs = f"sum(nvlink_collective_runs_total{{{CHOSEN}}})"
    return [
        panels.number("Runs", "Runs that the exporters have read, including those that failed.", runs, no_value="none"),
        panels.number(
            "Failed runs",
            "Runs with wrong results, an NCCL error, a time limit or a truncated output. The table of failures says which: see NvlinkCollectiveFailed.",
            f"{failures} or 0 * {runs}",
            steps=NONE_IS_GOOD,
            no_value="none",
        ),
        panels.number(
            "Lowest against the baseline",
            "Bus bandwidth of the latest run divided by the median of earlier ones; the lowest of all classes. Under 0.8 see NvlinkCollectiveFailed: look for missing links and errors on the node.",
            f"min({AGAINST_BASELINE})",
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="no baseline",
        ),
        panels.number(
            "Lowest against the model",
            "Bus bandwidth of the latest run with large messages divided by what the model says; the lowest of all classes. If it is low from the first run on, the path is worse than the topology says: look at NCCL's log.",
            f"min({AGAINST_MODEL})",
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            no_value="no model",
        ),
        panels.number(
            "Longest set-up",
            "Time until NCCL's communicators were ready, the longest of all classes. More than some seconds is mostly a network interface that NCCL should not use.",
            f"max(nvlink_collective_setup_seconds{{{CHOSEN}}})",
            unit=SECONDS,
            steps=[(None, panels.GREEN), (10, panels.YELLOW), (60, panels.RED)],
            no_value="not measured",
        ),
        panels.number(
            "Latest run",
            "Time since the end of the latest run. If it is longer than the interval of the benchmark Job, the Job does not run.",
            f"time() - max(nvlink_collective_timestamp_seconds{{{CHOSEN}}})",
            unit=SECONDS,
            decimals=0,
            no_value="none",
        ),
    ]


def ratios() -> list:
    worst = "bottomk(30, {})"
    return [
        panels.bars(
            "Against the baseline",
            "Latest run divided by the median of earlier ones: the 30 lowest classes. A class that falls alone has a bad node; all classes at once, a new driver, library or setting.",
            [(worst.format(AGAINST_BASELINE), LEGEND)],
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            width=12,
            height=10,
            no_value="no baseline",
        ),
        panels.bars(
            "Against the model",
            "Latest run with large messages divided by what the model says: the 30 lowest classes. The placement counts on the model; where it promises too much, calibrate.",
            [(worst.format(AGAINST_MODEL), LEGEND.removesuffix(", {{size_class}}"))],
            unit=RATIO,
            steps=HIGH_IS_GOOD,
            width=12,
            height=10,
            no_value="no model",
        ),
    ]


def bandwidth() -> list:
    table = [
        (MEASURED, "measured"),
        (BASELINE, "baseline"),
        (AGAINST_BASELINE, "against the baseline"),
    ]
    rate, good = [panels.unit(BYTES_PER_SECOND)], [panels.unit(RATIO), *panels.colored(HIGH_IS_GOOD)]
    return [
        panels.grid(
            "Placement classes",
            "Bus bandwidth of the latest run, and the median of earlier ones; the 50 classes that were measured last, in each message size. Where several nodes have one class, the slowest is shown.",
            [(busy(expr), name) for expr, name in table],
            {"measured": rate, "baseline": rate, "against the baseline": good},
            sort="measured",
            height=10,
            no_value="No run was read.",
        ),
        panels.lines(
            "Bus bandwidth",
            "Bus bandwidth of the latest run at each time; the 50 classes that were measured last. A step down that stays is a link or a setting: compare its time with the alerts of the fabric.",
            [(busy(MEASURED), LEGEND)],
            BYTES_PER_SECOND,
            height=10,
            no_value="No run was read.",
        ),
        panels.lines(
            "Large messages: measured, model and baseline",
            "Bus bandwidth of large messages, averaged over the chosen classes: choose one collective, model and path to compare. Measured should be near the baseline, and both near the model.",
            [
                (f"avg by (collective) ({LARGE})", "{{collective}}, measured"),
                (f"avg by (collective) ({MODEL})", "{{collective}}, model"),
                (
                    f'avg by (collective) (nvlink_collective_baseline_bytes_per_second{{{CHOSEN}, size_class="large"}})',
                    "{{collective}}, baseline",
                ),
            ],
            BYTES_PER_SECOND,
            height=10,
            no_value="No run was read.",
        ),
    ]


def failures() -> list:
    failed = f"sum by ({CLASS}, reason) (nvlink_collective_failures_total{{{CHOSEN}}})"
    setup = f"max by ({CLASS}) (nvlink_collective_setup_seconds{{{CHOSEN}}})"
    took = f"max by ({CLASS}, size_class) (nvlink_collective_duration_seconds{{{SIZED}}})"
    return [
        panels.grid(
            "Failures by class and reason",
            "Failed runs since the exporters' start, the 100 largest numbers. wrong_results: take the node out of service, its data are wrong. nccl_error and timeout: NCCL's log has the reason. truncated: the job was killed.",
            [(f"topk(100, {failed} > 0)", "failed")],
            {},
            sort="failed",
            no_value="No run failed.",
        ),
        panels.lines(
            "Set-up time",
            "Time until NCCL's communicators were ready; the 50 classes that were measured last. It grows with the number of nodes; a jump is a name that does not resolve or an interface that does not answer.",
            [(busy(setup), LEGEND.removesuffix(", {{size_class}}"))],
            SECONDS,
            no_value="not measured",
        ),
        panels.lines(
            "Duration of one operation",
            "Time of one operation of the largest size in each class of sizes; the 50 classes that were measured last. For small messages it is the latency: it rises when a job leaves its NVLink domain.",
            [(busy(took), LEGEND)],
            SECONDS,
            no_value="No run was read.",
        ),
    ]


def dashboard():
    return frame.dashboard(
        UID,
        "NVLink benchmarks",
        "Collective benchmarks by placement class: bus bandwidth against the model and earlier runs, failures, set-up time.",
        variables(),
        [("Summary", summary() + ratios()), ("Bus bandwidth", bandwidth()), ("Failures and set-up", failures())],
    )
