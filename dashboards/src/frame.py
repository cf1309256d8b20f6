"""What all dashboards have: variables, links, rows, annotations."""

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.dashboard import Dashboard as Model
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DynamicConfigValue,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from panels import DATASOURCE
from promql import CLUSTER, NODE

TAG = "nvlink-domains"
ALL = VariableOption(selected=True, text="All", value="$__all")


def values(name: str, label: str, query: str, description: str) -> QueryVariable:
    """A variable with any number of values. All is `.*`, which also matches an absent label."""
    return _query(name, label, query, description).multi(True).include_all(True).all_value(".*").current(ALL)


def one_value(name: str, label: str, query: str, description: str) -> QueryVariable:
    """A variable with exactly one value, at first the first one: for panels that are too large for all."""
    return _query(name, label, query, description).multi(False).include_all(False)


def hidden_list(name: str, query: str, description: str, regex: str = "") -> QueryVariable:
    """A variable that always has all values of the query, which must be few: they are listed in queries.

    By it, a panel reads only the series that it shows, instead of those of a whole cluster.
    """
    made = _query(name, name, query, description).multi(True).include_all(True).current(ALL)
    made = made.hide(VariableHide.HIDE_VARIABLE)
    return made.regex(regex) if regex else made


def _query(name: str, label: str, query: str, description: str) -> QueryVariable:
    made = QueryVariable(name).label(label).description(description).datasource(DATASOURCE)
    made = made.query({"query": query, "refId": name, "qryType": 3 if query.startswith("query_result") else 1})
    # Values of the whole time range, so that a job that has ended can be chosen.
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NATURAL_ASC)


def cluster(metric: str) -> QueryVariable:
    text = "Clusters, by the label `cluster` of the series. Without such a label, only All."
    return values("cluster", "Cluster", f"label_values({metric}, cluster)", text)


def node() -> QueryVariable:
    query = f"label_values(nvlink_exporter_node_info{{{CLUSTER}}}, node)"
    return values("node", "Node", query, "Nodes that run the exporter.")


def namespace() -> QueryVariable:
    query = f"label_values(gpu:nvlink_allocation_info:max{{{CLUSTER}, {NODE}}}, namespace)"
    return values("namespace", "Namespace", query, "Namespaces of the pods that hold GPUs of the chosen nodes.")


def pod() -> QueryVariable:
    query = f'label_values(gpu:nvlink_allocation_info:max{{{CLUSTER}, {NODE}, namespace=~"$namespace"}}, pod)'
    return values("pod", "Pod", query, "Pods that hold GPUs of the chosen nodes.")


def link(title: str, uid: str, **fields: str) -> DynamicConfigValue:
    """A link of a table's column to a dashboard; it keeps time, data source, cluster and the `fields`.

    Each field is a variable of that dashboard and what it gets: a column of the row or a text.
    """
    chosen = "".join(f"&var-{variable}={value}" for variable, value in fields.items())
    url = f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{cluster:queryparam}}{chosen}"
    return DynamicConfigValue(id_val="links", value=[{"title": title, "url": url, "targetBlank": False}])


def column(name: str) -> str:
    return f"${{__data.fields.{name}}}"


def to_node(uid: str = "nvlink-fabric") -> DynamicConfigValue:
    return link("Fabric of this node", uid, node=column("node"))


def to_pod() -> DynamicConfigValue:
    return link("This job", "nvlink-job", namespace=column("namespace"), pod=column("pod"))


def alerts(name: str, expr: str) -> AnnotationQuery:
    made = AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color("red")
    # Grafana 11 reads `expr`, later versions the target.
    made = made.expr(expr).target(Dataquery().expr(expr).ref_id("Anno").interval("1m"))
    return made.title_format("{{alertname}}").text_format("{{node}} {{namespace}} {{pod}}").step("1m")


def dashboard(uid: str, title: str, description: str, variables: list, sections: list, notes: tuple = ()) -> Model:
    """A dashboard of `sections`: pairs of a row's title and its panels."""
    made = Dashboard(title).uid(uid).description(description).tags([TAG]).editable()
    made = made.time("now-6h", "now").refresh("1m").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    made = made.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        made = made.with_variable(variable)
    for note in notes:
        made = made.annotation(note)
    others = DashboardLink("NVLink").type(DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(False)
    made = made.link(others.include_vars(True).keep_time(True))
    number = 1
    for row, panels in sections:
        made = made.with_row(Row(row).id(number))
        for offset, panel in enumerate(panels, start=1):
            made = made.with_panel(panel.id(number + offset))
        number += 1 + len(panels)
    return _only_what_is_set(made.build())


def _only_what_is_set(made: Model) -> Model:
    """Without defaults of the SDK that Grafana's schema does not have, or that would hide something."""
    for variable in made.templating.list_val:
        variable.auto = variable.auto_count = variable.auto_min = None  # of variables of another type
    for note in made.annotations.list_val or []:
        note.placement = None  # else links and annotations are in a menu
    for others in made.links:
        others.placement = None
    for panel in made.panels:
        if panel.type_val == "table":
            panel.options.footer = None  # no longer an option
    return made
