//! Writes series from the snapshot to the encoder of prometheus-client. Nothing
//! is kept between scrapes, and no label allocates a string, because the 72 GPUs
//! of a rack have 40,000 series.

use std::fmt;

use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabel,
    EncodeLabelSet, EncodeLabelValue, GaugeValueEncoder, LabelSetEncoder, LabelValueEncoder,
    MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

use super::family::{Family, Groups, Label, Value};

/// The writer of the families of one scrape.
pub(super) struct Writer<'a> {
    encoder: DescriptorEncoder<'a>,
    groups: Groups,
}

impl<'a> Writer<'a> {
    /// Returns a writer that skips the families that are not in `groups`.
    pub(super) fn new(encoder: DescriptorEncoder<'a>, groups: Groups) -> Self {
        Self { encoder, groups }
    }

    /// Writes a family: for each series its label values, in the order of
    /// [`Family::labels`], and its value. Writes nothing if there are no series.
    pub(super) fn write<'l, const N: usize>(
        &mut self,
        family: &Family,
        series: impl IntoIterator<Item = ([Label<'l>; N], Value)>,
    ) -> fmt::Result {
        debug_assert_eq!(family.labels.len(), N, "{}", family.name);
        let mut series = series.into_iter().peekable();
        if !self.groups.contains(family.group) || series.peek().is_none() {
            return Ok(());
        }
        let (encoder, kind) = (&mut self.encoder, family.kind);
        let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
        for (values, value) in series {
            let labels = Labels(family.labels, &values);
            match labels.is_empty() {
                // Without labels, prometheus-client must not write `{}`.
                true => sample(&mut metric, kind, value)?,
                false => sample(&mut metric.encode_family(&labels)?, kind, value)?,
            }
        }
        Ok(())
    }
}

fn sample(metric: &mut MetricEncoder<'_>, kind: MetricType, value: Value) -> fmt::Result {
    match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        _ => metric.encode_gauge(&value),
    }
}

struct Labels<'a>(&'a [&'static str], &'a [Label<'a>]);

impl Labels<'_> {
    fn is_empty(&self) -> bool {
        self.1.iter().all(|value| value.is_unknown())
    }
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let labels = self.0.iter().zip(self.1);
        for (&name, &value) in labels.filter(|(_, value)| !value.is_unknown()) {
            (name, value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

impl EncodeLabelValue for Label<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => EncodeLabelValue::encode(text, encoder),
            Self::Number(number) => EncodeLabelValue::encode(number, encoder),
            Self::Unknown => Ok(()),
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeGaugeValue::encode(value, encoder),
            Self::Real(value) => EncodeGaugeValue::encode(value, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeCounterValue::encode(value, encoder),
            Self::Real(value) => EncodeCounterValue::encode(value, encoder),
        }
    }
}
