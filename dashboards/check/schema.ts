// The types of Grafana's package @grafana/schema, in the form that the JSON of a dashboard has.
//
// The package's `Dashboard` leaves open what a panel, its fields and its queries contain. Here they are
// the types that Grafana's own panels and its Prometheus data source declare, chosen by the panel's
// `type`, so that a wrong option is an error, too.

import type {
  AnnotationQuery,
  Dashboard as AnyDashboard,
  FieldConfig,
  MatcherConfig,
  Panel as AnyPanel,
  RowPanel,
} from '@grafana/schema';
import type * as bargauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as statushistory from '@grafana/schema/dist/esm/raw/composable/statushistory/panelcfg/x/StatusHistoryPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

/** T as JSON: the value of an enum instead of its name. */
type Json<T> = T extends string
  ? `${T}`
  : T extends number
    ? `${T}` extends `${infer Value extends number}` ? Value : T
    : T extends object
      ? { [Key in keyof T]: Json<T[Key]> }
      : T;

/** A query of the Prometheus data source. The package has no type for it; these are the fields that are used. */
interface Query {
  datasource?: { type: 'prometheus'; uid: '${datasource}' };
  expr: string;
  refId: string;
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
  legendFormat?: string;
  interval?: string;
}

/** What an override may set: an option of all fields, or one of the panel's own. */
type Property<Custom> =
  | { [Key in keyof FieldConfig]-?: { id: Key; value: FieldConfig[Key] } }[keyof FieldConfig]
  | { [Key in keyof Custom & string]-?: { id: `custom.${Key}`; value: Custom[Key] } }[keyof Custom & string];

interface Fields<Custom> {
  defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> };
  overrides: Array<{ matcher: MatcherConfig<string>; properties: Array<Property<Custom>> }>;
}

type Panel<Type extends string, Options, Custom> = Omit<AnyPanel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: Type;
  options: Partial<Options>;
  fieldConfig: Fields<Custom>;
  targets: Query[];
};

type Panels =
  | Panel<'bargauge', bargauge.Options, {}>
  | Panel<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Panel<'stat', stat.Options, {}>
  | Panel<'status-history', statushistory.Options, statushistory.FieldConfig>
  | Panel<'table', table.Options, table.FieldConfig>
  | Panel<'timeseries', timeseries.Options, timeseries.FieldConfig>;

/** The Prometheus data source reads these from an annotation, besides the target. */
interface Annotation extends AnnotationQuery<Query> {
  expr?: string;
  step?: string;
  titleFormat?: string;
  textFormat?: string;
}

interface Typed extends Omit<AnyDashboard, 'panels' | 'annotations'> {
  panels: Array<Panels | RowPanel>;
  annotations?: { list?: Annotation[] };
}

export type Dashboard = Json<Typed>;
