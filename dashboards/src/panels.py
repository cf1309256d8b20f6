"""Panels in the house style, on top of Grafana's builders."""

from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, statushistory, table, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TableCellBackgroundDisplayMode,
    TableColoredBackgroundCellOptions,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

# The shortest step of a graph, because recording rules have a value a minute, and the number of its points:
# more cost the server time, and nobody sees them.
STEP, POINTS = "1m", 240

GREEN, YELLOW, ORANGE, RED, BLUE, TEXT = "green", "yellow", "orange", "red", "blue", "text"
# Steps of thresholds: the first colour is that of all lower values.
NEUTRAL = [(None, TEXT)]
NONE_IS_GOOD = [(None, GREEN), (1, RED)]
FEW_ARE_BAD = [(None, GREEN), (1, ORANGE)]
HIGH_IS_GOOD = [(None, RED), (0.5, ORANGE), (0.8, YELLOW), (0.95, GREEN)]
HIGH_IS_BAD = [(None, GREEN), (0.25, YELLOW), (0.5, ORANGE), (0.75, RED)]

RATIO, BYTES_PER_SECOND, SECONDS, COUNT = "percentunit", "Bps", "s", "short"


def thresholds(steps: list) -> ThresholdsConfig:
    made = [Threshold(value=value, color=color) for value, color in steps]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def by_thresholds() -> FieldColor:
    return FieldColor().mode(FieldColorModeId.THRESHOLDS)


def instant(expr: str, legend: str = "") -> Dataquery:
    """The value at the end of the time range."""
    return Dataquery().datasource(DATASOURCE).expr(expr).instant().legend_format(legend)


def over_time(expr: str, legend: str = "") -> Dataquery:
    return Dataquery().datasource(DATASOURCE).expr(expr).range().legend_format(legend)


def _common(panel, title: str, description: str, unit: str, queries: list, width: int, height: int):
    panel = panel.title(title).description(description).unit(unit).datasource(DATASOURCE)
    for number, query in enumerate(queries):
        panel = panel.with_target(query.ref_id(chr(ord("A") + number)))
    return panel.span(width).height(height)


def number(title, description, expr, unit=COUNT, steps=NEUTRAL, width=4, no_value=None, decimals=None):
    """One number, coloured by its thresholds."""
    panel = _common(stat.Panel(), title, description, unit, [instant(expr)], width, 4)
    panel = panel.thresholds(thresholds(steps)).color_scheme(by_thresholds())
    panel = panel.color_mode(BigValueColorMode.VALUE).graph_mode(BigValueGraphMode.NONE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if no_value is not None:
        panel = panel.no_value(no_value)
    return panel if decimals is None else panel.decimals(decimals)


def lines(title, description, queries, unit, width=12, height=8, stacked=False, most=None, no_value=None):
    """Lines over time; `queries` are pairs of expression and legend."""
    made = [over_time(expr, legend) for expr, legend in queries]
    panel = _common(timeseries.Panel(), title, description, unit, made, width, height)
    panel = panel.interval(STEP).max_data_points(POINTS)
    panel = panel.min(0).line_width(1).fill_opacity(30 if stacked else 0).show_points(VisibilityMode.AUTO)
    panel = panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    panel = panel.tooltip(
        common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if most is not None:
        panel = panel.max(most)
    return panel if no_value is None else panel.no_value(no_value)


def bars(title, description, queries, unit=COUNT, steps=NEUTRAL, width=8, height=8, most=None, no_value=None):
    """Horizontal bars at the end of the time range; `queries` are pairs of expression and legend."""
    made = [instant(expr, legend) for expr, legend in queries]
    panel = _common(bargauge.Panel(), title, description, unit, made, width, height)
    panel = panel.thresholds(thresholds(steps)).color_scheme(by_thresholds()).min(0)
    panel = panel.display_mode(BarGaugeDisplayMode.BASIC).orientation(VizOrientation.HORIZONTAL)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if most is not None:
        panel = panel.max(most)
    return panel if no_value is None else panel.no_value(no_value)


def rows(title, description, expr, legend, unit=RATIO, scheme="Turbo", most=1, width=24, height=10, no_value=None):
    """A heatmap with one row for each series, coloured by its value."""
    panel = _common(heatmap.Panel(), title, description, unit, [over_time(expr, legend)], width, height)
    panel = _heat(panel, unit, scheme).y_axis(heatmap.YAxisConfig().axis_placement(AxisPlacement.LEFT))
    # Without a filter: by default, 0 is not drawn.
    panel = panel.color(_colors(scheme).min(0).max(most)).filter_values(heatmap.FilterValueRange())
    return panel if no_value is None else panel.no_value(no_value)


def histogram(title, description, expr, unit=SECONDS, width=12, height=8):
    """A heatmap of a classic histogram, by its label `le`."""
    query = over_time(expr, "{{le}}").format(PromQueryFormat.HEATMAP)
    panel = _common(heatmap.Panel(), title, description, unit, [query], width, height)
    axis = heatmap.YAxisConfig().axis_placement(AxisPlacement.LEFT).unit(unit)
    return _heat(panel, "reqps", "Turbo").y_axis(axis).color(_colors("Turbo"))


def _colors(scheme: str):
    return heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme(scheme).steps(64).exponent(0.5)


def _heat(panel, unit: str, scheme: str):
    panel = panel.calculate(False).cell_gap(1).cell_values(heatmap.CellValues().unit(unit))
    panel = panel.show_value(VisibilityMode.NEVER).show_legend().interval(STEP).max_data_points(POINTS)
    return panel.tooltip(heatmap.HeatmapTooltip().mode(TooltipDisplayMode.SINGLE).show_color_scale(True))


def history(
    title, description, expr, legend, unit=RATIO, steps=HIGH_IS_GOOD, names=None, width=24, height=10, no_value=None
):
    """One row for each series, with a cell for each step, coloured by thresholds; `names` are names of values."""
    panel = _common(statushistory.Panel(), title, description, unit, [over_time(expr, legend)], width, height)
    panel = panel.thresholds(thresholds(steps)).color_scheme(by_thresholds()).interval(STEP).max_data_points(100)
    panel = panel.show_value(VisibilityMode.NEVER).row_height(0.9).per_page(50).fill_opacity(80)
    panel = panel.legend(common.VizLegendOptions().show_legend(False).placement(LegendPlacement.BOTTOM))
    if names is not None:
        texts = {value: ValueMappingResult(text=text) for value, text in names.items()}
        panel = panel.mappings([ValueMap(options=texts)])
    return panel if no_value is None else panel.no_value(no_value)


def grid(title, description, queries, columns, unit=COUNT, sort=None, width=24, height=8, no_value=None):
    """A table at the end of the time range, joined by the labels of its series.

    `queries` are pairs of expression and the name of the value's column; `columns` are overrides, by name
    of the column: labels keep their names.
    """
    made = [instant(expr).format(PromQueryFormat.TABLE) for expr, _ in queries]
    panel = _common(table.Panel(), title, description, unit, made, width, height)
    if len(queries) > 1:
        panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
        names = {f"Value #{chr(ord('A') + number)}": name for number, (_, name) in enumerate(queries)}
    else:
        names = {"Value": queries[0][1]}
    options = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
    panel = panel.with_transformation(DataTransformerConfig(id_val="organize", options=options))
    for name, properties in columns.items():
        panel = panel.override_by_name(name, properties)
    if sort is not None:
        panel = panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    return panel if no_value is None else panel.no_value(no_value)


def matrix(title, description, expr, row, column, unit=RATIO, steps=HIGH_IS_GOOD, links=(), height=16, no_value=None):
    """A table with a coloured cell for each pair of the labels `row` and `column`."""
    query = instant(expr).format(PromQueryFormat.TABLE)
    panel = _common(table.Panel(), title, description, unit, [query], 24, height)
    corner = f"{row}\\{column}"
    order = {"sort": [{"field": column}]}
    panel = panel.with_transformation(DataTransformerConfig(id_val="sortBy", options=order))
    panel = panel.sort_by([common.TableSortByFieldState().display_name(corner)])
    options = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "null"}
    panel = panel.with_transformation(DataTransformerConfig(id_val="groupingToMatrix", options=options))
    panel = panel.thresholds(thresholds(steps)).color_scheme(by_thresholds())
    panel = panel.cell_options(TableColoredBackgroundCellOptions(mode=TableCellBackgroundDisplayMode.BASIC))
    # The column of row names is text; thresholds would colour it, too.
    plain = [DynamicConfigValue(id_val="custom.cellOptions", value={"type": "auto"}), *links]
    panel = panel.override_by_name(corner, plain)
    return panel if no_value is None else panel.no_value(no_value)


def unit(name: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="unit", value=name)


def colored(steps: list) -> list[DynamicConfigValue]:
    """The overrides that colour a column's cells by thresholds."""
    made = [{"value": value, "color": color} for value, color in steps]
    return [
        DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": made}),
        DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
    ]
