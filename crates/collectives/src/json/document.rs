//! One JSON document, key by key.

use std::fmt;

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use crate::{
    Collective,
    inspected::Key,
    log,
    run::{
        Device, Failure, Known, MOST_DEVICES, MOST_ROWS, Measured, Origin, Reason, Row, Run, short,
    },
    table,
    text::QUOTED,
};

/// A document, as far as it has been read.
#[derive(Default)]
pub(super) struct Document {
    program: Option<String>,
    devices: Vec<JsonDevice>,
    /// Whether there is a configuration or a list of results: it is a test of nccl-tests.
    test: bool,
    rows: Vec<JsonRow>,
    out_of_bounds: Option<Check>,
    bitwise_mismatches: Option<Check>,
    average: Option<Average>,
    errors: Vec<String>,
    /// Whether the environment turns NVLS off.
    without_nvls: bool,
    header: Header,
    pub(super) inspected: Option<(Header, Record)>,
    pub(super) truncated: Option<(u64, String)>,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    devices: Vec<JsonDevice>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonDevice {
    rank: u32,
    pid: u32,
    hostname: String,
    device_hex: String,
    device_info: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonRow {
    size: u64,
    r#type: String,
    redop: String,
    /// A string with spaces in front.
    root: Value,
    out_of_place: Option<JsonMeasured>,
    in_place: Option<JsonMeasured>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonMeasured {
    time: Value,
    /// In place of `time` with `-C`.
    cpu_time: Value,
    alg_bw: Value,
    bus_bw: Value,
    nwrong: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Check {
    count: Value,
    okay: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Average {
    bandwidth: Value,
    okay: Value,
}

/// The communicator of a record of NCCL Inspector.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    n_ranks: u32,
    nnodes: u32,
}

/// One collective that NCCL Inspector has timed.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    coll: String,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
    coll_algobw_gbs: f64,
    coll_busbw_gbs: f64,
}

impl Record {
    /// Returns what is measured, the size of the message and the measurement; `None` for a
    /// collective that is not known. A job has messages of any size: they are rounded down
    /// to a power of two.
    pub(super) fn measured(&self, header: &Header) -> Option<(Key, u64, Option<Measured>)> {
        let collective = Collective::of_function(&self.coll)?;
        let measured = Measured::new(
            self.coll_exec_time_us,
            self.coll_algobw_gbs,
            self.coll_busbw_gbs,
            None,
        );
        let key = (collective, header.n_ranks, header.nnodes);
        let size = self.coll_msg_size_bytes.checked_ilog2();
        Some((key, size.map_or(0, |bits| 1 << bits), measured))
    }
}

/// Returns the number in a value: a number, or a string with one.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Reports whether a value says no.
fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false) || *value == Value::String("false".to_owned())
}

impl Document {
    /// Reads a document into this one, as far as it goes.
    pub(super) fn deserialize_from<'de, D: Deserializer<'de>>(
        &mut self,
        json: D,
    ) -> Result<(), D::Error> {
        json.deserialize_map(Keys(self))
    }

    /// Reports whether it is a test of nccl-tests.
    pub(super) fn is_test(&self) -> bool {
        self.test
    }

    pub(super) fn run(self) -> Run {
        let from = Origin::Output;
        let collective = self.program.as_deref().and_then(Collective::of_program);
        let mut run = Run {
            line: 1,
            collective: collective.map(|value| Known { value, from }),
            nvls: self.without_nvls.then_some(Known { value: false, from }),
            average_bandwidth: self.average.as_ref().and_then(|one| number(&one.bandwidth)),
            ..Run::default()
        };
        run.average_bandwidth = run.average_bandwidth.filter(|average| average.is_finite());
        run.devices = self.devices.into_iter().map(JsonDevice::device).collect();
        for row in self.rows {
            run.add(row.row());
        }
        let failed = |check: &Check| {
            is_false(&check.okay) || number(&check.count).is_some_and(|count| count > 0.0)
        };
        let checks = [
            (&self.out_of_bounds, "out_of_bounds"),
            (&self.bitwise_mismatches, "bitwise_mismatches"),
        ];
        let wrong = checks.into_iter().find_map(|(check, name)| {
            let check = check.as_ref().filter(|check| failed(check))?;
            let count = number(&check.count).map_or(0, table::count);
            Some(format!("{name}.count is {count}"))
        });
        let rows = run
            .wrong()
            .map(|(count, size)| format!("{count} wrong values, up to messages of {size} B"));
        let failure = |reason, line, text| Failure { reason, line, text };
        let error = self.errors.into_iter().find(|text| !text.is_empty());
        let broken = self.truncated.map(|(line, text)| match &error {
            Some(error) => failure(log::reason(error), line, short(error, QUOTED)),
            None => failure(Reason::Truncated, line, text),
        });
        let wrong = wrong
            .or(rows)
            .map(|text| failure(Reason::WrongResults, 1, text));
        let ends = self.average.is_some();
        let unfinished = || {
            let text = "average_bus_bandwidth is missing: the test did not end";
            (!ends).then(|| failure(Reason::Truncated, 1, text.to_owned()))
        };
        run.failure = broken.or(wrong).or_else(unfinished);
        if self.average.is_some_and(|one| is_false(&one.okay)) {
            let reason = "the average is below the minimum that NCCL_TESTS_MIN_BW sets";
            run.warn(reason.to_owned());
        }
        run.conclude(None);
        run
    }
}

impl JsonDevice {
    fn device(self) -> Device {
        Device {
            rank: self.rank,
            pid: self.pid,
            host: short(&self.hostname, 253),
            pci: short(&self.device_hex, 32),
            model: short(&self.device_info, 64),
        }
    }
}

impl JsonRow {
    fn row(self) -> Row {
        // The cast saturates.
        let root = number(&self.root).map_or(-1, |root| root as i64);
        let measured = |one: Option<JsonMeasured>| {
            let one = one?;
            let time = number(&one.time).or(number(&one.cpu_time))?;
            let wrong = match &one.nwrong {
                Value::Null => None,
                // `"nan"` is a wrong result.
                wrong => number(wrong).map(table::count),
            };
            Measured::new(time, number(&one.alg_bw)?, number(&one.bus_bw)?, wrong)
        };
        Row {
            size: self.size,
            kind: short(&self.r#type, 32),
            redop: short(&self.redop, 32),
            root,
            out_of_place: measured(self.out_of_place),
            in_place: measured(self.in_place),
            measurements: 1,
        }
    }
}

/// Reports whether an environment, a list of `NAME=VALUE`, turns off NVLS.
fn turns_nvls_off(environment: &Value) -> bool {
    let all = environment.as_array().into_iter().flatten();
    let mut set = all.filter_map(|one| one.as_str()?.split_once('='));
    set.any(|(name, value)| log::turns_nvls_off(name, value))
}

/// Reads the keys of a document into it, so that a document that ends early is not lost.
struct Keys<'a>(&'a mut Document);

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let document = self.0;
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "args" => {
                    let args: Vec<String> = map.next_value()?;
                    document.program = args.into_iter().next();
                }
                "env" => document.without_nvls = turns_nvls_off(&map.next_value()?),
                "config" => {
                    document.test = true;
                    let config: Config = map.next_value()?;
                    document.devices = config.devices;
                    document.devices.truncate(MOST_DEVICES);
                }
                "results" => {
                    document.test = true;
                    map.next_value_seed(Rows(&mut document.rows))?;
                }
                "out_of_bounds" => document.out_of_bounds = map.next_value()?,
                "bitwise_mismatches" => document.bitwise_mismatches = map.next_value()?,
                "average_bus_bandwidth" => document.average = map.next_value()?,
                "errors" => document.errors = map.next_value()?,
                "header" => document.header = map.next_value()?,
                "coll_perf" => {
                    let record: Record = map.next_value()?;
                    document.inspected = Some((Header::default(), record));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if let Some((header, _)) = &mut document.inspected {
            header.clone_from(&document.header);
        }
        Ok(())
    }
}

/// Reads rows into a list.
struct Rows<'a>(&'a mut Vec<JsonRow>);

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of results")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element()? {
            if self.0.len() >= MOST_ROWS {
                let reason = format!("results has more than {MOST_ROWS} rows");
                return Err(A::Error::custom(reason));
            }
            self.0.push(row);
        }
        Ok(())
    }
}
