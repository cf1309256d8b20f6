//! A series of a sample node, from which the same series of any number of nodes is written.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// The name of the sample node of a kind in all its labels.
pub(crate) fn sample_node(kind: usize) -> String {
    format!("sample{kind}node")
}

/// Names of pods that hold GPUs begin so.
pub(crate) const JOB: &str = "train-";

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
pub(crate) const DAY: i64 = 24 * HOUR;

/// From the start of a pod to the start of its successor on the same GPUs. With 2,400 pods at a
/// time, 20,000 pods live in a day.
const LIFE: i64 = 170 * MINUTE;
/// How long the GPUs are free then. Longer than a series lasts after its last sample (5 minutes), because samples from
/// files cannot tell that a series ends.
const GAP: i64 = 6 * MINUTE;

/// At which times a series has samples, before the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Density {
    /// One for each link or pair of GPUs: every minute of the last 10.
    Links,
    /// Every minute of the last hour, every 15 of the day.
    Raw,
    /// Recorded by a rule, or read over time by a panel: every minute of the last 6 hours, every 5 of the day.
    Kept,
    /// Read by a rule over a day: every minute.
    Day,
}

pub(crate) const DENSITIES: [Density; 4] =
    [Density::Links, Density::Raw, Density::Kept, Density::Day];

impl Density {
    /// Reports whether there is a sample at `time`, a whole minute.
    pub(crate) fn has(self, time: i64, end: i64) -> bool {
        let every = |minutes: i64| time % (minutes * MINUTE) == 0;
        match self {
            Self::Links => time >= end - 10 * MINUTE,
            Self::Raw => time >= end - HOUR || every(15),
            Self::Kept => time >= end - 6 * HOUR || every(5),
            Self::Day => true,
        }
    }
}

/// The node whose series are written.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    pub(crate) number: usize,
    /// The time at which the counters have the values of the sample.
    pub(crate) since: i64,
}

#[derive(Debug)]
enum Piece {
    Text(String),
    Node,
    /// The end of a GPU's UUID.
    Number,
    Generation,
}

#[derive(Debug)]
pub(crate) struct Series {
    pieces: Vec<Piece>,
    pub(crate) density: Density,
    /// The pod of a job, as a number; its series come and go.
    job: Option<u64>,
    seed: u64,
    value: f64,
    per_second: f64,
}

impl Series {
    /// Makes one from the labels of a sample, its value, and how fast that grows.
    pub(crate) fn new(
        labels: &BTreeMap<String, String>,
        node: Option<&str>,
        density: Density,
        value: f64,
        per_second: f64,
    ) -> Self {
        let name = labels.get("__name__").map_or("", String::as_str);
        let mut pieces = vec![Piece::Text(format!("{name}{{"))];
        let mut job = None;
        let others = labels.iter().filter(|(label, _)| *label != "__name__");
        for (index, (label, value)) in others.enumerate() {
            let comma = if index > 0 { "," } else { "" };
            add_text(&mut pieces, &format!("{comma}{label}=\""));
            add_value(&mut pieces, value, node);
            if label == "pod" && value.starts_with(JOB) {
                pieces.push(Piece::Generation);
                job = Some(hash(
                    value
                        .bytes()
                        .fold(0, |sum, byte| hash(sum ^ u64::from(byte))),
                ));
            }
            add_text(&mut pieces, "\"");
        }
        add_text(&mut pieces, "} ");
        let text = format!("{labels:?}");
        let seed = text
            .bytes()
            .fold(1, |sum, byte| hash(sum ^ u64::from(byte)));
        Self {
            pieces,
            density,
            job,
            seed,
            value,
            per_second,
        }
    }

    /// Writes the samples at `times` in OpenMetrics and returns their number.
    pub(crate) fn write(
        &self,
        out: &mut impl Write,
        target: Target<'_>,
        times: &[i64],
    ) -> io::Result<u64> {
        let mut count = 0;
        let mut text = (None, Vec::new());
        for &time in times {
            let generation = match self.job {
                None => 0,
                Some(job) => match generation(job, target, time) {
                    Some(generation) => generation,
                    None => continue,
                },
            };
            if text.0 != Some(generation) {
                text = (Some(generation), self.text(target, generation)?);
            }
            out.write_all(&text.1)?;
            writeln!(out, "{} {time}", self.at(target, time))?;
            count += 1;
        }
        Ok(count)
    }

    fn text(&self, target: Target<'_>, generation: i64) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(256);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.write_all(text.as_bytes())?,
                Piece::Node => out.write_all(target.name.as_bytes())?,
                Piece::Number => write!(out, "{:04x}", target.number)?,
                Piece::Generation => write!(out, "-{generation}")?,
            }
        }
        Ok(out)
    }

    /// Counters grow at the speed of the sample and half as fast to twice as fast; fractions vary by a tenth;
    /// whole numbers stay.
    fn at(&self, target: Target<'_>, time: i64) -> f64 {
        let noise = |seed: u64| (hash(seed) >> 11) as f64 / (1_u64 << 53) as f64;
        if self.per_second > 0.0 {
            let speed = self.per_second * (0.5 + 1.5 * noise(target.number as u64));
            return (self.value + speed * (time - target.since) as f64).floor();
        }
        match self.value.fract() == 0.0 {
            true => self.value,
            false => {
                self.value
                    * (0.9 + 0.2 * noise(self.seed ^ (target.number as u64) << 32 ^ time as u64))
            }
        }
    }
}

/// Returns which pod in the place of `job` runs at `time`, if one does.
fn generation(job: u64, target: Target<'_>, time: i64) -> Option<i64> {
    let phase = (hash(job ^ target.number as u64) % LIFE as u64) as i64;
    let age = time - target.since + phase;
    (age % LIFE < LIFE - GAP).then_some(age / LIFE)
}

fn add_text(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        Some(Piece::Text(last)) => last.push_str(text),
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
}

fn add_value(pieces: &mut Vec<Piece>, value: &str, node: Option<&str>) {
    const UUID: usize = "GPU-00000000-0000-0000-0000-000000000000".len();
    const KEPT: usize = UUID - 4;
    let escaped = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let Some(node) = node else {
        return add_text(pieces, &escaped);
    };
    if value.starts_with("GPU-") && value.len() == UUID {
        add_text(pieces, &value[..KEPT]);
        pieces.push(Piece::Number);
        return;
    }
    for (index, part) in escaped.split(node).enumerate() {
        if index > 0 {
            pieces.push(Piece::Node);
        }
        add_text(pieces, part);
    }
}

/// The finalizer of SplitMix64: numbers that look random, and are the same in each run.
pub(crate) fn hash(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
