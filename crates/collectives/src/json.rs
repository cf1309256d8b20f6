//! Reads JSON: what nccl-tests writes with `-J`, and the records of NCCL Inspector, one
//! after the other.
//!
//! Sources: `src/util.cu` of nccl-tests, where booleans are strings and a number that is not
//! one is `"nan"`; `inspector_json.cc` of NCCL's profiler plugin `inspector`.

mod document;

use std::{cell::Cell, io, rc::Rc};

use self::document::Document;
use super::{
    inspected::{Inspected, MOST_RUNS},
    run::{Run, short},
    text::QUOTED,
};

/// The size of the largest document, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Why JSON cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("{}", told(.0))]
    Json(serde_json::Error),
    #[error("record {0}: more than {MOST_RUNS} different communicators and collectives")]
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
pub(crate) fn read(input: impl io::Read, sink: &mut dyn FnMut(Run)) -> Result<(), JsonError> {
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
            let measured = record.measured(&header);
            let added = measured.is_none_or(|(key, size, measured)| {
                inspected.add(key, size, String::new(), measured)
            });
            if !added {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, SizeClass};

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
        assert_eq!(run.average_bandwidth, Some(92.4));
        assert_eq!(
            run.collective.as_ref().unwrap().value,
            Collective::AllReduce
        );
        assert_eq!(run.ranks.as_ref().unwrap().value, 2);
        assert_eq!(run.nodes.as_ref().unwrap().value, 1);
        assert_eq!((run.rows[0].root, run.rows[0].in_place), (-1, None));
        assert_eq!(run.nvls, None);
        let rings = one(&TEST.replace("PATH=/bin", "NCCL_ALGO=Ring"));
        assert_eq!(rings.nvls.map(|nvls| nvls.value), Some(false));
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
