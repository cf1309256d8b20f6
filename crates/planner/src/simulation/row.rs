//! One line of a trace.

use nvlink_topology::Pattern;

use super::trace::TraceError;
use crate::Millis;

const REQUIRED: [&str; 3] = ["time", "gpus", "duration"];
const OPTIONAL: [&str; 3] = ["project", "pattern", "priority"];

/// The most seconds of a time or duration: 317 years, which no clock in seconds exceeds and
/// every clock in milliseconds does.
const MOST_SECONDS: f64 = 1e10;
/// The most GPUs of a job: more than any cluster has.
const MOST_GPUS: f64 = 1e6;
/// The most characters of a value that an error shows.
const SHOWN: usize = 64;

/// The values of a line.
#[derive(Default)]
pub(super) struct Fields {
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl Fields {
    /// Splits a line that has a character other than white space. The error says what is wrong.
    pub(super) fn split(&mut self, line: &[u8]) -> Result<(), String> {
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 2, 0);
        let mut reader = csv_core::Reader::new();
        let (part, read, written, ended) = reader.read_record(line, &mut self.text, &mut self.ends);
        if !matches!(part, csv_core::ReadRecordResult::InputEmpty) {
            let reason = "it has a carriage return: end lines with LF or CRLF";
            return Err(reason.to_owned());
        }
        // The empty input is the end, which closes the last value.
        let (text, ends) = (&mut self.text[written..], &mut self.ends[ended..]);
        let (result, _, _, last) = reader.read_record(&line[read..], text, ends);
        self.count = ended + last;
        let quotes = line.iter().filter(|&&byte| byte == b'"').count();
        match result {
            csv_core::ReadRecordResult::Record if quotes % 2 == 0 => Ok(()),
            _ => Err("a quote is not closed: close it on the same line".to_owned()),
        }
    }

    /// Returns a value without white space around it; `None` if it is not UTF-8.
    fn get(&self, at: usize) -> Option<&str> {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        let value = std::str::from_utf8(&self.text[start..self.ends[at]]);
        value.ok().map(str::trim)
    }
}

/// Which value of a line is which.
pub(super) struct Columns {
    known: Vec<(&'static str, usize)>,
    count: usize,
    /// The names of the others.
    pub(super) ignored: Vec<String>,
}

impl Columns {
    /// Reads the header. The error says what is wrong.
    pub(super) fn of(header: &Fields) -> Result<Self, String> {
        let mut columns = Self {
            known: Vec::new(),
            count: header.count,
            ignored: Vec::new(),
        };
        for at in 0..header.count {
            let name = header.get(at).ok_or("the header is not UTF-8")?;
            let all = REQUIRED.into_iter().chain(OPTIONAL);
            let known = all
                .into_iter()
                .find(|known| name.eq_ignore_ascii_case(known));
            match known {
                Some(known) if columns.at(known).is_some() => {
                    return Err(format!("the column {known} is there twice: rename one"));
                }
                Some(known) => columns.known.push((known, at)),
                None => columns.ignored.push(shown(name)),
            }
        }
        let missing = REQUIRED
            .into_iter()
            .filter(|name| columns.at(name).is_none());
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return Ok(columns);
        }
        Err(format!(
            "the header has no column {}: expected time, gpus and duration, and optionally \
             project, pattern and priority, separated by commas",
            missing.join(", ")
        ))
    }

    fn at(&self, name: &str) -> Option<usize> {
        let known = self.known.iter().find(|(known, _)| *known == name);
        known.map(|&(_, at)| at)
    }

    /// Checks that a line has as many values as the header.
    pub(super) fn check(&self, fields: &Fields) -> Result<(), String> {
        match (fields.count, self.count) {
            (have, want) if have == want => Ok(()),
            (have, want) => Err(format!("{have} values, but the header has {want} columns")),
        }
    }
}

/// A line with the meaning of its values.
pub(super) struct Row<'a> {
    pub(super) line: u64,
    pub(super) columns: &'a Columns,
    pub(super) fields: &'a Fields,
}

impl Row<'_> {
    fn wrong(&self, column: &'static str, value: &str, reason: impl Into<String>) -> TraceError {
        TraceError::Value {
            line: self.line,
            column,
            value: shown(value),
            reason: reason.into(),
        }
    }

    /// Returns a value; empty if there is no such column.
    fn get(&self, column: &'static str) -> Result<&str, TraceError> {
        let Some(at) = self.columns.at(column) else {
            return Ok("");
        };
        let value = self.fields.get(at);
        value.ok_or_else(|| self.wrong(column, "", "is not UTF-8"))
    }

    fn number(&self, column: &'static str, most: f64, hint: &str) -> Result<f64, TraceError> {
        let value = self.get(column)?;
        let wrong = |reason: String| Err(self.wrong(column, value, reason));
        match value.parse::<f64>() {
            Err(_) => wrong(format!("is not a number: {hint}")),
            Ok(number) if !number.is_finite() => wrong(format!("is not a number: {hint}")),
            Ok(number) if number < 0.0 => wrong(format!("is negative: {hint}")),
            Ok(number) if number > most => wrong(format!("is more than {most}: {hint}")),
            Ok(number) => Ok(number),
        }
    }

    /// Returns a time in milliseconds.
    pub(super) fn seconds(&self, column: &'static str) -> Result<Millis, TraceError> {
        let hint = "give seconds, such as 90 or 0.5";
        let seconds = self.number(column, MOST_SECONDS, hint)?;
        #[allow(clippy::cast_possible_truncation)] // at most 1e13
        Ok((seconds * 1000.0).round() as Millis)
    }

    /// Returns the number of whole GPUs, and whether it was rounded up.
    pub(super) fn gpus(&self) -> Result<(u32, bool), TraceError> {
        let hint = "give GPUs, such as 8, or 0.5 for a share of one";
        let gpus = self.number("gpus", MOST_GPUS, hint)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at most 1e6
        Ok((gpus.ceil() as u32, gpus.fract() > 0.0))
    }

    pub(super) fn project(&self) -> Result<&str, TraceError> {
        self.get("project")
    }

    pub(super) fn pattern(&self, gpus: u32) -> Result<Pattern, TraceError> {
        let value = self.get("pattern")?;
        if value.is_empty() {
            return Ok(Pattern::AllReduce);
        }
        let pattern = value.parse().map_err(|_| {
            let reason = "is not a pattern: use all-reduce, all-to-all, pipeline, \
                          parameter-server, none, or a shape such as tp=4,pp=2 in quotes";
            self.wrong("pattern", value, reason)
        })?;
        match pattern {
            Pattern::Shape(shape) if shape.gpus() != gpus as usize => {
                let needs = shape.gpus();
                let reason = format!("is for {needs} GPUs, but the job has {gpus}");
                Err(self.wrong("pattern", value, reason))
            }
            pattern => Ok(pattern),
        }
    }

    pub(super) fn priority(&self) -> Result<i32, TraceError> {
        let value = self.get("priority")?;
        if value.is_empty() {
            return Ok(0);
        }
        let reason = "is not a priority: give a whole number, as in a PriorityClass";
        value
            .parse()
            .map_err(|_| self.wrong("priority", value, reason))
    }
}

fn shown(value: &str) -> String {
    value.chars().take(SHOWN).collect()
}
