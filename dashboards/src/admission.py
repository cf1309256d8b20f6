"""The dashboard of the webhook: is it called, what does it decide, and how fast."""

import frame
import panels
from panels import COUNT, GREEN, NONE_IS_GOOD, ORANGE, RED, SECONDS, YELLOW
from promql import CLUSTER

UID = "nvlink-admission"
OUTCOMES = f"webhook:nvlink_admission_requests:rate5m{{{CLUSTER}}}"
BUCKETS = f"sum by (le) (rate(nvlink_webhook_admission_duration_seconds_bucket{{{CLUSTER}}}[$__rate_interval]))"
DENIALS = f'nvlink_webhook_denials_total{{{CLUSTER}, class=~"$class"}}'
# The API servers' own view; absent on managed control planes whose API servers are not scraped.
SERVER = f'{CLUSTER}, name=~".*[.]nvlink-domains[.]io"'
PER_SECOND = "reqps"
NOT_SCRAPED = "API servers are not scraped"


def variables() -> list:
    classes = f'label_values({{__name__=~"nvlink_webhook_denials_total|nvlink_webhook_queue_releases_total", {CLUSTER}}}, class)'
    return [
        frame.cluster("nvlink_webhook_ready"),
        frame.values("class", "Class", classes, "Classes that refused pods or queue; a refusal for a class that does not exist has none."),
    ]


def health() -> list:
    expiry = f"min(nvlink_webhook_certificate_expiry_timestamp_seconds{{{CLUSTER}}}) - time()"
    day = 86400
    return [
        panels.number(
            "Replicas that serve",
            "Replicas that are ready. With 0, pods that name a class are refused: see NvlinkWebhookDown. With 1, the next failure does that.",
            f"sum(nvlink_webhook_ready{{{CLUSTER}}})",
            steps=[(None, RED), (1, YELLOW), (2, GREEN)],
            no_value="none",
        ),
        panels.number(
            "Leaders",
            "Replicas that lead, one in each cluster. Without a leader, decisions go on and the conditions of classes get old; more than one for long is a wrong clock or a broken Lease.",
            f"sum(nvlink_webhook_leader{{{CLUSTER}}})",
            steps=[(None, ORANGE), (1, GREEN)],
            no_value="none",
        ),
        panels.number(
            "Registered",
            "Lowest of all replicas: 0 where the registration with the API server is not as the replica's flags require, so that the API server may not call it. See NvlinkWebhookDegraded; the log has the reason.",
            f"min(nvlink_webhook_registered{{{CLUSTER}}})",
            steps=[(None, RED), (1, GREEN)],
            no_value="by somebody else",
        ),
        panels.number(
            "Certificate expires in",
            "Time until the first certificate in use expires. It is renewed long before; under a week means that this failed: see NvlinkWebhookCertificateExpiring.",
            expiry,
            unit=SECONDS,
            steps=[(None, RED), (3 * day, ORANGE), (7 * day, GREEN)],
            decimals=0,
        ),
        panels.number(
            "Age of the view",
            "How long ago a watch of the API was last in sync, for the oldest of all replicas and kinds. If it grows, decisions use an old view of nodes and classes: see NvlinkWebhookDegraded.",
            f"max(nvlink_webhook_cache_age_seconds{{{CLUSTER}}})",
            unit=SECONDS,
            steps=[(None, GREEN), (60, ORANGE), (300, RED)],
        ),
        panels.number(
            "Alerts firing",
            "Alerts about the webhook, its queue and its policies. If there is no number, Prometheus has not loaded the rules.",
            f'count(ALERTS{{alertname=~"NvlinkWebhook.*|NvlinkQueue.*|NvlinkClass.*", alertstate="firing", {CLUSTER}}}) '
            f"or 0 * count({OUTCOMES})",
            steps=NONE_IS_GOOD,
            no_value="no rules",
        ),
    ]


def outcomes() -> list:
    calls = f"apiserver_admission_webhook_rejection_count{{{SERVER}, error_type!=\"no_error\"}}"
    opened = f"apiserver_admission_webhook_fail_open_count{{{SERVER}}}"
    return [
        panels.lines(
            "Reviews by outcome",
            "Pods that the API servers asked about. denied: refused by a rule. invalid: the review could not be read. overloaded: no decision, and the API server applied the failure policy. mutated, unchanged and untouched are normal.",
            [(f"sum by (outcome) ({OUTCOMES})", "{{outcome}}")],
            PER_SECOND,
            stacked=True,
        ),
        panels.lines(
            "Refusals by rule",
            "Pods refused, by the rule that refuses them. A step after a change of a class or a role is a project that lost its access: the table says which class, docs/messages.md what the rule means.",
            [(f"sum by (rule) (rate({DENIALS}[$__rate_interval]))", "{{rule}}")],
            PER_SECOND,
            stacked=True,
            no_value="No pod was refused.",
        ),
        panels.grid(
            "Refusals by class and rule",
            "Pods refused since the replicas' start, the 100 largest numbers; for a class that does not exist, `class` is empty. The message that the user got names the command that would grant access.",
            [(f"topk(100, sum by (cluster, class, rule) ({DENIALS}))", "refused")],
            {},
            sort="refused",
            width=12,
            no_value="No pod was refused.",
        ),
        panels.lines(
            "Calls that failed, as the API servers see them",
            "Refused because a call failed: pods that name a class; see NvlinkWebhookUnreachable. Admitted without the webhook: other GPU pods; see NvlinkWebhookDegraded. Both mean that the API servers do not get an answer: look at the network policy, the certificate and the registration.",
            [
                (f"sum(rate({calls}[$__rate_interval]))", "refused because of a failed call"),
                (f"sum(rate({opened}[$__rate_interval]))", "admitted without the webhook"),
            ],
            PER_SECOND,
            no_value=NOT_SCRAPED,
        ),
    ]


def queue() -> list:
    def by(metric: str, label: str) -> str:
        return f'sum by ({label}) ({metric}{{{CLUSTER}, class=~"$class"}})'

    def quantile(q: float, metric: str) -> str:
        buckets = f'{metric}_bucket{{{CLUSTER}, class=~"$class"}}'
        return f"histogram_quantile({q}, sum by (le) (rate({buckets}[$__rate_interval])))"

    oldest = f'max by (class) (nvlink_webhook_queue_oldest_wait_seconds{{{CLUSTER}, class=~"$class"}})'
    releases = f'nvlink_webhook_queue_releases_total{{{CLUSTER}, class=~"$class"}}'
    rejected = f'nvlink_webhook_queue_timeouts_total{{{CLUSTER}, class=~"$class", outcome="rejected"}}'
    writes = f'nvlink_webhook_queue_writes_total{{{CLUSTER}, outcome!="written"}}'
    placed = f'nvlink_placement_outcomes_total{{{CLUSTER}, class=~"$class"}}'
    return [
        panels.lines(
            "Waiting pods by reason",
            "Pods in the queue, by why they wait. insufficient and fragmented: GPUs are missing. behind: the free ones are for others. impossible: they never start; tell their authors. spreads: they start without a common domain when their time in the queue is over. silent: nodes do not report. refused: the API server refuses to start them. See NvlinkQueueStuck.",
            [(by("nvlink_webhook_queue_waiting_pods", "reason"), "{{reason}}")],
            COUNT,
            stacked=True,
            width=8,
            no_value="Nobody waits.",
        ),
        panels.lines(
            "GPUs that are waited for",
            "GPUs that the waiting pods of each class request. If it keeps growing, the class has too few nodes.",
            [(by("nvlink_webhook_queue_waiting_gpus", "class"), "{{class}}")],
            COUNT,
            stacked=True,
            width=8,
            no_value="No class queues.",
        ),
        panels.lines(
            "Oldest wait",
            "How long the oldest waiting pod of each class has waited. A line that rises beyond the waits of its class is a job that cannot start: kubectl nvlink status tells why.",
            [(oldest, "{{class}}")],
            SECONDS,
            width=8,
            no_value="No class queues.",
        ),
        panels.lines(
            "Waits and expected starts",
            "Of the pods that started: the time in the queue, and how far the first expected start that they showed was off. Errors as large as the waits mean that jobs end at other times than they say: set nvlink-domains.io/expected-duration.",
            [
                (quantile(0.5, "nvlink_webhook_queue_wait_duration_seconds"), "wait, half"),
                (quantile(0.9, "nvlink_webhook_queue_wait_duration_seconds"), "wait, 9 of 10"),
                (quantile(0.9, "nvlink_webhook_queue_eta_error_seconds"), "error of the expected start, 9 of 10"),
            ],
            SECONDS,
            width=8,
            no_value="No pod left the queue.",
        ),
        panels.lines(
            "Releases by kind",
            "Pods that left the queue. turn: in order. backfill: passed jobs that could not start there. worse: waiting for a better placement would have cost more. spread and rejected: they waited as long as queueTimeout; a class with many of them has too few GPUs.",
            [
                (f"sum by (kind) (rate({releases}[$__rate_interval]))", "{{kind}}"),
                (f"sum(rate({rejected}[$__rate_interval]))", "rejected"),
            ],
            PER_SECOND,
            stacked=True,
            width=8,
            no_value="No pod left the queue.",
        ),
        panels.lines(
            "Writes that did not succeed",
            "conflict and gone are normal: somebody else changed or deleted the pod. refused and unanswered keep pods waiting: see NvlinkQueueStuck.",
            [(f"sum by (outcome) (rate({writes}[$__rate_interval]))", "{{outcome}}")],
            PER_SECOND,
            width=8,
        ),
        panels.lines(
            "Placements against the plan",
            "Pods that started, by what became of the GPUs that the queue chose. equivalent: others of the node that are as fast. other-gpus: slower ones; the node's device plugin chooses unless devices.mapping of the class is Preferred or Claim. other-node: somebody else bound the pod. The Events PlacedOnOtherGpus and PlacedOnOtherNode of the pods have the reason.",
            [(f"sum by (mapping, outcome) (rate({placed}[$__rate_interval]))", "{{mapping}}: {{outcome}}")],
            PER_SECOND,
            stacked=True,
            width=24,
            no_value="No pod left the queue.",
        ),
    ]


def latency() -> list:
    def quantile(q: float, buckets: str = BUCKETS) -> str:
        return f"histogram_quantile({q}, {buckets})"

    server = f"apiserver_admission_webhook_admission_duration_seconds_bucket{{{SERVER}}}"
    server = f"sum by (le) (rate({server}[$__rate_interval]))"
    rounds = f"nvlink_webhook_queue_round_duration_seconds_bucket{{{CLUSTER}}}"
    rounds = f"sum by (le) (rate({rounds}[$__rate_interval]))"
    return [
        panels.histogram(
            "Time to answer",
            "How many reviews were answered in which time, from the arrival of the request. Two bands are normal: pods without and with an access review.",
            BUCKETS,
        ),
        panels.lines(
            "Time to answer, quantiles",
            "Half, nine of ten and 99 of 100 reviews were answered in this time or less. The API server waits 5 seconds. If it is slow, the access reviews of the API server are, or the webhook has too little CPU. The last line is how long the queue needs to say what starts next.",
            [
                (quantile(0.5), "half"),
                (quantile(0.9), "9 of 10"),
                (quantile(0.99), "99 of 100"),
                (quantile(0.99, server), "99 of 100, seen by the API servers"),
                (quantile(0.99, rounds), "a round of the queue, 99 of 100"),
            ],
            SECONDS,
        ),
    ]


def overload() -> list:
    def rate(metric: str, by: str) -> str:
        return f"sum by ({by}) (rate({metric}{{{CLUSTER}}}[$__rate_interval]))"

    requests = f'{CLUSTER}, outcome=~"overloaded|invalid"'
    return [
        panels.lines(
            "Reviews without a decision",
            "overloaded: no time or no room; the log names what was missing: see NvlinkWebhookDegraded. invalid: not a review that this version can read; somebody else may call the port. The log has the reason.",
            [(f"sum by (outcome) (rate(nvlink_webhook_admission_requests_total{{{requests}}}[$__rate_interval]))", "{{outcome}}")],
            PER_SECOND,
            width=8,
        ),
        panels.lines(
            "Clients cut off",
            "Connections that the webhook closed: idle, another client needed the place; memory, there was no room for the answer; slow, the client did not read it. API servers are none of these: restrict who may connect.",
            [(rate("nvlink_webhook_clients_cut_off_total", "reason"), "{{reason}}")],
            PER_SECOND,
            width=8,
        ),
        panels.lines(
            "Restarts and lost log lines",
            "Parts of the webhook that ended unexpectedly and were restarted, and lines of the log that nobody read in time; in total since the replicas' start. A part that restarts again and again is a defect: its log has the reason.",
            [
                (f"sum by (part) (nvlink_webhook_part_restarts_total{{{CLUSTER}}})", "restarts of {{part}}"),
                (f"sum(nvlink_webhook_log_lines_dropped_total{{{CLUSTER}}})", "lost log lines"),
            ],
            COUNT,
            width=8,
        ),
    ]


def certificate() -> list:
    def largest(metric: str) -> str:
        return f'topk(100, max by (cluster, class) ({metric}{{{CLUSTER}, class=~"$class"}}))'

    return [
        panels.lines(
            "Certificate and registration",
            "Totals since the replicas' start: reloads of the certificate by result, and failed writes of the registration. A failure that grows is in the log with its reason: see NvlinkWebhookCertificateExpiring and NvlinkWebhookDegraded.",
            [
                (f"sum by (result) (nvlink_webhook_certificate_reloads_total{{{CLUSTER}}})", "reloads: {{result}}"),
                (f"sum(nvlink_webhook_registration_failures_total{{{CLUSTER}}})", "failed registrations"),
            ],
            COUNT,
        ),
        panels.grid(
            "Isolation of restricted classes",
            "Nodes of a restricted class without its taint, and pods there that were not admitted for it. Any but 0 is a way around the class: see NvlinkClassNotIsolated; the class's condition Isolated names them.",
            [
                (largest("nvlink_webhook_untainted_nodes"), "nodes without the taint"),
                (largest("nvlink_webhook_stray_pods"), "stray pods"),
            ],
            {
                "nodes without the taint": panels.colored(NONE_IS_GOOD),
                "stray pods": panels.colored(NONE_IS_GOOD),
            },
            width=12,
            no_value="There is no restricted class.",
        ),
    ]


def dashboard():
    return frame.dashboard(
        UID,
        "NVLink admission",
        "The webhook: whether the API servers reach it, what it decides about pods, who waits in its queue, and how fast.",
        variables(),
        [
            ("Health", health()),
            ("Outcomes", outcomes()),
            ("Queue", queue()),
            ("Latency", latency()),
            ("Overload", overload()),
            ("Certificate, registration, isolation", certificate()),
        ],
    )
