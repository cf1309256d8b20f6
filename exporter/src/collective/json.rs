//! Reads JSON: what nccl-tests writes with `-J`, and the records of NCCL Inspector, one
//! after the other.
//!
//! Sources: `src/util.cu` of nccl-tests, where booleans are strings and a number that is not
//! one is `"nan"`; `inspector_json.cc` of NCCL's profiler plugin `inspector`.

use std::{cell::Cell, collections::BTreeMap, fmt, io, rc::Rc};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    Collective, log,
    run::{
        Device, Failure, Known, MOST_DEVICES, MOST_ROWS, Measured, Origin, Reason, Row, Run, short,
    },
    table,
    text::QUOTED,
};

/// The size of the largest document, in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// The maximum number of combinations of collective, ranks and nodes in one file of NCCL
/// Inspector.
const MOST_INSPECTED: usize = 256;

/// Why JSON cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("{}", told(.0))]
    Json(serde_json::Error),
    #[error("record {0}: more than {MOST_INSPECTED} different communicators and collectives")]
    Inspected(u64),
    #[error(
        "the JSON has no results: expected the file that nccl-tests writes with -J, or records of NCCL Inspector"
    )]
    Nothing,
}

/// Returns the message with its place in front.
fn told(error: &serde_json::Error) -> String {
    let text = short(&error.to_string(), QUOTED);
    match text.rsplit_once(" at line ") {
        Some((cause, _)) => format!("line {}, column {}: {cause}", error.line(), error.column()),
        None => text,
    }
}

/// Reads all documents, and passes on each run.
///
/// # Errors
/// When it is not JSON, has no results, or a document is too large. What was read before is
/// passed on: a document that ends early is a truncated run.
pub fn read(input: impl io::Read, sink: &mut dyn FnMut(Run)) -> Result<(), JsonError> {
    let left = Rc::new(Cell::new(MOST_BYTES));
    let input = Budget {
        input,
        left: Rc::clone(&left),
    };
    let mut json = serde_json::Deserializer::from_reader(io::BufReader::new(input));
    let (mut runs, mut records, mut inspected) = (0_u64, 0_u64, Inspected::default());
    loop {
        match json.end() {
            Ok(()) => break,
            Err(error) if error.is_io() => return Err(JsonError::Json(error)),
            Err(_) => {}
        }
        left.set(MOST_BYTES);
        let mut document = Document::default();
        let read = document.deserialize_from(&mut json);
        if let Err(error) = read {
            let cut = error.is_eof() && document.is_test();
            if cut {
                let line = error.line() as u64;
                let text = "the JSON ends early: the test was aborted, or is still running";
                document.truncated = Some((line, text.to_owned()));
                sink(document.run());
            }
            inspected.end(sink);
            return if cut {
                Ok(())
            } else {
                Err(JsonError::Json(error))
            };
        }
        if let Some((header, record)) = document.inspected.take() {
            records += 1;
            if !inspected.add(&header, &record) {
                return Err(JsonError::Inspected(records));
            }
        } else if document.is_test() {
            runs += 1;
            sink(document.run());
        }
    }
    runs += inspected.end(sink);
    match runs {
        0 => Err(JsonError::Nothing),
        _ => Ok(()),
    }
}

/// Limits what is read for one document.
struct Budget<R> {
    input: R,
    left: Rc<Cell<u64>>,
}

impl<R: io::Read> io::Read for Budget<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        let too_large = || {
            let mebibytes = MOST_BYTES >> 20;
            io::Error::other(format!("the document is larger than {mebibytes} MiB"))
        };
        self.left.set(left.ok_or_else(too_large)?);
        Ok(read)
    }
}

/// A document, as far as it has been read.
#[derive(Default)]
struct Document {
    program: Option<String>,
    devices: Vec<JsonDevice>,
    /// Whether there is a configuration or a list of results: it is a test of nccl-tests.
    test: bool,
    rows: Vec<JsonRow>,
    out_of_bounds: Option<Check>,
    bitwise_mismatches: Option<Check>,
    average: Option<Average>,
    errors: Vec<String>,
    header: Header,
    inspected: Option<(Header, Record)>,
    truncated: Option<(u64, String)>,
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
struct Header {
    n_ranks: u32,
    nnodes: u32,
}

/// One collective that NCCL Inspector has timed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Record {
    coll: String,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
    coll_algobw_gbs: f64,
    coll_busbw_gbs: f64,
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
    fn deserialize_from<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(Keys(self))
    }

    fn is_test(&self) -> bool {
        self.test
    }

    fn run(self) -> Run {
        let from = Origin::Output;
        let collective = self.program.as_deref().and_then(Collective::of_program);
        let mut run = Run {
            line: 1,
            collective: collective.map(|value| Known { value, from }),
            average_gbps: self.average.as_ref().and_then(|one| number(&one.bandwidth)),
            ..Run::default()
        };
        run.average_gbps = run.average_gbps.filter(|average| average.is_finite());
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

/// What NCCL Inspector reports, by collective, ranks and nodes.
#[derive(Default)]
pub(super) struct Inspected(BTreeMap<(Collective, u32, u32), Run>);

impl Inspected {
    /// Adds a record; a collective that is not known is skipped. Returns `false` if there
    /// are too many different ones.
    fn add(&mut self, header: &Header, record: &Record) -> bool {
        let Some(collective) = Collective::of_function(&record.coll) else {
            return true;
        };
        let measured = Measured::new(
            record.coll_exec_time_us,
            record.coll_algobw_gbs,
            record.coll_busbw_gbs,
            None,
        );
        let key = (collective, header.n_ranks, header.nnodes);
        self.measured(key, record.coll_msg_size_bytes, String::new(), measured)
    }

    /// Adds a measurement of messages of `size` bytes.
    pub(super) fn measured(
        &mut self,
        key: (Collective, u32, u32),
        size: u64,
        kind: String,
        measured: Option<Measured>,
    ) -> bool {
        if !self.0.contains_key(&key) && self.0.len() >= MOST_INSPECTED {
            return false;
        }
        let (value, ranks, nodes) = key;
        let from = Origin::Output;
        let known = |value: u32| (value > 0).then_some(Known { value, from });
        let run = self.0.entry(key).or_insert_with(|| Run {
            line: 1,
            collective: Some(Known { value, from }),
            ranks: known(ranks),
            nodes: known(nodes),
            ..Run::default()
        });
        run.add(Row {
            size,
            kind,
            root: -1,
            out_of_place: measured,
            measurements: 1,
            ..Row::default()
        })
    }

    /// Passes on all runs; returns how many.
    pub(super) fn end(self, sink: &mut dyn FnMut(Run)) -> u64 {
        let count = self.0.len() as u64;
        self.0.into_values().for_each(sink);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::run::SizeClass;

    const TEST: &str = r#"{"version":2,"start_time":"2026-08-01 10:11:12","args":["/opt/all_reduce_perf","-b","8"],
        "env":["PATH=/bin"],"nccl_version":22807,"config":{"nthreads":1,"devices":[
        {"rank":0,"group":0,"pid":7,"hostname":"n1","device":0,"device_hex":"0000:1b:00","device_info":"NVIDIA H100 80GB HBM3"},
        {"rank":1,"group":0,"pid":8,"hostname":"n1","device":1,"device_hex":"0000:43:00","device_info":"NVIDIA H100 80GB HBM3"}]},
        "results":[{"size":8,"count":2,"type":"float","redop":"sum","root":"    -1",
        "out_of_place":{"time":10.5,"alg_bw":0.01,"bus_bw":0.01,"nwrong":0.0},
        "in_place":{"time":11.5,"alg_bw":"nan","bus_bw":0.01,"nwrong":null}},
        {"size":1073741824,"count":268435456,"type":"float","redop":"sum","root":"    -1","out_of_place":null,
        "in_place":{"cpu_time":5808.25,"alg_bw":184.87,"bus_bw":184.87,"nwrong":0.0},"actual_iterations":20}],
        "out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":92.4,"okay":"unchecked"},
        "errors":[],"end_time":"2026-08-01 10:12:12"}"#;

    fn runs(text: &str) -> (Vec<Run>, Result<(), JsonError>) {
        let mut runs = Vec::new();
        let result = read(text.as_bytes(), &mut |run| runs.push(run));
        (runs, result)
    }

    fn one(text: &str) -> Run {
        let (mut runs, result) = runs(text);
        result.unwrap();
        assert_eq!(runs.len(), 1);
        runs.remove(0)
    }

    #[test]
    fn a_file_of_nccl_tests() {
        let run = one(TEST);
        assert_eq!(run.failure, None);
        assert_eq!(run.average_gbps, Some(92.4));
        assert_eq!(
            run.collective.as_ref().unwrap().value,
            Collective::AllReduce
        );
        assert_eq!(run.ranks.as_ref().unwrap().value, 2);
        assert_eq!(run.nodes.as_ref().unwrap().value, 1);
        assert_eq!((run.rows[0].root, run.rows[0].in_place), (-1, None));
        let level = run.level(SizeClass::Large).unwrap();
        assert_eq!(level.bytes_per_second, 184_870_000_000);
        assert_eq!(
            run.level(SizeClass::Small).unwrap().bytes_per_second,
            10_000_000
        );
    }

    #[test]
    fn failures_have_a_reason() {
        let reason = |text: &str| one(text).failure.map(|one| (one.reason.as_str(), one.text));
        let wrong = TEST.replace(r#""count":0,"okay":"true""#, r#""count":3,"okay":"false""#);
        let (word, text) = reason(&wrong).unwrap();
        assert_eq!(
            (word, &*text),
            ("wrong_results", "out_of_bounds.count is 3")
        );
        let rows = TEST.replace("\"nwrong\":0.0}", "\"nwrong\":\"nan\"}");
        assert_eq!(reason(&rows).unwrap().0, "wrong_results");
        let cut = TEST.split("\"out_of_bounds\"").next().unwrap();
        assert_eq!(reason(cut).unwrap().0, "truncated");
        let open = TEST.replace("average_bus_bandwidth", "other");
        assert_eq!(reason(&open).unwrap().0, "truncated");
    }

    #[test]
    fn every_truncation_is_a_failure_or_an_error() {
        for end in 1..TEST.len() - 1 {
            let (runs, result) = runs(&TEST[..end]);
            match &runs[..] {
                [] => drop(result.expect_err("nothing was read")),
                [run] => assert!(run.failure.is_some(), "{end}"),
                _ => panic!("{end}"),
            }
        }
    }

    #[test]
    fn records_of_inspector_become_means() {
        let record = |size: u64, bus: f64| {
            format!(
                r#"{{"header":{{"id":"0x1","rank":0,"n_ranks":8,"nnodes":1}},"metadata":{{"pid":1}},
                "coll_perf":{{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":{size},
                "coll_exec_time_us":100,"coll_algobw_gbs":{bus},"coll_busbw_gbs":{bus}}}}}"#
            )
        };
        let stats = r#"{"header":{"n_ranks":8},"dump_stats":{"coll_records":2}}"#;
        let text = [
            stats.to_owned(),
            record(1 << 30, 300.0),
            record(1 << 30, 310.0),
            record(8, 0.1),
        ];
        let run = one(&text.join("\n"));
        assert_eq!(
            (run.ranks.as_ref().unwrap().value, run.failure.as_ref()),
            (8, None)
        );
        assert_eq!(
            run.level(SizeClass::Large).unwrap().bytes_per_second,
            305_000_000_000
        );
        assert_eq!(run.rows[0].measurements, 2);
    }

    #[test]
    fn other_json_is_an_error_with_its_line() {
        let error = |text: &str| runs(text).1.unwrap_err().to_string();
        assert!(error("{}").starts_with("the JSON has no results"));
        assert!(error("{\n\"a\": }").starts_with("line 2, column 6: expected value"));
        assert!(error("{\"results\": 7}").contains("a list of results"));
        assert!(error("[1]").contains("an object"));
    }
}
