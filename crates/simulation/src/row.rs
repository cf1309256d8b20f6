//! One line of a trace.

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use nvlink_planner::Millis;
use nvlink_topology::Pattern;
use serde::Deserialize;

use crate::error::TraceError;

const REQUIRED: [&str; 3] = ["time", "gpus", "duration"];
const OPTIONAL: [&str; 3] = ["project", "pattern", "priority"];

/// The most seconds of a time or duration: 317 years, which no clock in seconds exceeds and
/// every clock in milliseconds does.
const MOST_SECONDS: f64 = 1e10;
/// The most GPUs of a job: more than any cluster has.
const MOST_GPUS: f64 = 1e6;
/// The most characters of a value that an error shows.
const SHOWN: usize = 64;

/// Splits a line that has a character other than white space. The error says what is wrong.
///
/// Each line has a reader of its own: the position that `csv` gives to a record is that of the
/// comments before it, and a quote that is not closed takes the lines after it as well.
pub(crate) fn split(line: &[u8], values: &mut ByteRecord) -> Result<(), String> {
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .buffer_capacity(line.len())
        .from_reader(line);
    // Reading from memory cannot fail, and what the lines lack is checked against the header.
    let read = |reader: &mut Reader<_>, values: &mut _| {
        let read = reader.read_byte_record(values);
        read.map_err(|error| error.to_string())
    };
    read(&mut reader, values)?;
    let quotes = line.iter().filter(|&&byte| byte == b'"').count();
    if quotes % 2 != 0 {
        return Err("a quote is not closed: close it on the same line".to_owned());
    }
    if read(&mut reader, &mut ByteRecord::new())? {
        return Err("it has a carriage return: end lines with LF or CRLF".to_owned());
    }
    Ok(())
}

/// Which value of a line is which.
pub(crate) struct Header {
    /// The known names in lower case, and the others as they are.
    names: ByteRecord,
    /// The names of the others.
    pub(crate) ignored: Vec<String>,
}

impl Header {
    /// Reads the header. The error says what is wrong.
    pub(crate) fn of(values: &ByteRecord) -> Result<Self, String> {
        let mut names = ByteRecord::new();
        let mut ignored = Vec::new();
        for value in values {
            let name = str::from_utf8(value).map_err(|_| "the header is not UTF-8")?;
            let name = name.trim();
            match known().find(|known| name.eq_ignore_ascii_case(known)) {
                Some(known) if names.iter().any(|name| name == known.as_bytes()) => {
                    return Err(format!("the column {known} is there twice: rename one"));
                }
                Some(known) => names.push_field(known.as_bytes()),
                None => {
                    ignored.push(shown(name));
                    names.push_field(name.as_bytes());
                }
            }
        }
        let missing = REQUIRED
            .into_iter()
            .filter(|known| names.iter().all(|name| name != known.as_bytes()));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return Ok(Self { names, ignored });
        }
        Err(format!(
            "the header has no column {}: expected time, gpus and duration, and optionally \
             project, pattern and priority, separated by commas",
            missing.join(", ")
        ))
    }

    /// Checks that a line has as many values as the header.
    pub(crate) fn check(&self, values: &ByteRecord) -> Result<(), String> {
        match (values.len(), self.names.len()) {
            (have, want) if have == want => Ok(()),
            (have, want) => {
                let commas = "; quote values with commas, as in \"tp=4,pp=2\"";
                let hint = if have > want { commas } else { "" };
                Err(format!(
                    "{have} values, but the header has {want} columns{hint}"
                ))
            }
        }
    }

    /// Returns the name of a known column.
    fn column(&self, at: Option<u64>) -> Option<&'static str> {
        let name = self.names.get(usize::try_from(at?).ok()?)?;
        known().find(|known| known.as_bytes() == name)
    }
}

fn known() -> impl Iterator<Item = &'static str> {
    REQUIRED.into_iter().chain(OPTIONAL)
}

/// The values of a line. They are text, because serde's errors do not tell which column a value
/// of another type is in.
#[derive(Deserialize)]
pub(crate) struct Row<'a> {
    #[serde(skip)]
    line: u64,
    time: &'a str,
    gpus: &'a str,
    duration: &'a str,
    #[serde(default)]
    pub(crate) project: &'a str,
    #[serde(default)]
    pattern: &'a str,
    #[serde(default)]
    priority: &'a str,
}

impl<'a> Row<'a> {
    /// Reads a line whose number of values is that of the header.
    pub(crate) fn of(
        values: &'a ByteRecord,
        header: &'a Header,
        line: u64,
    ) -> Result<Self, TraceError> {
        let row = values.deserialize::<Self>(Some(&header.names));
        row.map(|row| row.trimmed(line))
            .map_err(|error| match error.kind() {
                ErrorKind::Deserialize { err, .. } => match header.column(err.field()) {
                    Some(column) => wrong(line, column, "", "is not UTF-8"),
                    None => whole(line, err),
                },
                _ => whole(line, &error),
            })
    }

    /// Returns the row of a line, without white space around its values.
    fn trimmed(self, line: u64) -> Self {
        Self {
            line,
            time: self.time.trim(),
            gpus: self.gpus.trim(),
            duration: self.duration.trim(),
            project: self.project.trim(),
            pattern: self.pattern.trim(),
            priority: self.priority.trim(),
        }
    }

    fn wrong(&self, column: &'static str, value: &str, reason: impl Into<String>) -> TraceError {
        wrong(self.line, column, value, reason)
    }

    fn number(
        &self,
        column: &'static str,
        value: &str,
        most: f64,
        hint: &str,
    ) -> Result<f64, TraceError> {
        let wrong = |reason: String| Err(self.wrong(column, value, reason));
        match value.parse::<f64>() {
            Err(_) => wrong(format!("is not a number: {hint}")),
            Ok(number) if !number.is_finite() => wrong(format!("is not a number: {hint}")),
            Ok(number) if number < 0.0 => wrong(format!("is negative: {hint}")),
            Ok(number) if number > most => wrong(format!("is more than {most}: {hint}")),
            Ok(number) => Ok(number),
        }
    }

    fn seconds(&self, column: &'static str, value: &str) -> Result<Millis, TraceError> {
        let hint = "give seconds, such as 90 or 0.5";
        let seconds = self.number(column, value, MOST_SECONDS, hint)?;
        #[allow(clippy::cast_possible_truncation)] // at most 1e13
        Ok((seconds * 1000.0).round() as Millis)
    }

    /// Returns the time in milliseconds.
    pub(crate) fn time(&self) -> Result<Millis, TraceError> {
        self.seconds("time", self.time)
    }

    /// Returns the duration in milliseconds.
    pub(crate) fn duration(&self) -> Result<Millis, TraceError> {
        self.seconds("duration", self.duration)
    }

    /// Returns the number of whole GPUs, and whether it was rounded up.
    pub(crate) fn gpus(&self) -> Result<(u32, bool), TraceError> {
        let hint = "give GPUs, such as 8, or 0.5 for a share of one";
        let gpus = self.number("gpus", self.gpus, MOST_GPUS, hint)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at most 1e6
        Ok((gpus.ceil() as u32, gpus.fract() > 0.0))
    }

    pub(crate) fn pattern(&self, gpus: u32) -> Result<Pattern, TraceError> {
        let value = self.pattern;
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

    pub(crate) fn priority(&self) -> Result<i32, TraceError> {
        let value = self.priority;
        if value.is_empty() {
            return Ok(0);
        }
        let reason = "is not a priority: give a whole number, as in a PriorityClass";
        value
            .parse()
            .map_err(|_| self.wrong("priority", value, reason))
    }
}

fn wrong(line: u64, column: &'static str, value: &str, reason: impl Into<String>) -> TraceError {
    TraceError::Value {
        line,
        column,
        value: shown(value),
        reason: reason.into(),
    }
}

/// Says that a line is wrong as a whole.
fn whole(line: u64, error: &dyn std::fmt::Display) -> TraceError {
    TraceError::Line {
        line,
        reason: error.to_string(),
    }
}

fn shown(value: &str) -> String {
    value.chars().take(SHOWN).collect()
}
