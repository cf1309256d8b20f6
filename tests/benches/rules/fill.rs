//! Writes the series of many nodes and a day, and makes blocks of them.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use nvlink_tests::{assets, command, workdir};

use crate::{
    sample::{KINDS, Template},
    series::{DAY, DENSITIES, Density, Series, Target},
};

const MINUTE: i64 = 60;
/// The range of a block. Blocks are aligned to it.
const RANGE: i64 = 120 * MINUTE;
/// How long it takes to make a series and a sample, at first.
const PER_SERIES: Duration = Duration::from_micros(25);
const PER_SAMPLE: Duration = Duration::from_micros(8);

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    /// The directory of the blocks.
    pub(crate) data: PathBuf,
    /// The time of the newest samples.
    pub(crate) end: i64,
    pub(crate) samples: u64,
    pub(crate) blocks: usize,
    pub(crate) spent: Duration,
    pub(crate) text_bytes: u64,
}

/// A cluster of any size.
pub(crate) struct Fleet {
    template: Template,
    pub(crate) nodes: usize,
    since: i64,
}

impl Fleet {
    pub(crate) fn new(template: Template, nodes: usize) -> Result<Self> {
        let since = (now()? - DAY) / RANGE * RANGE;
        Ok(Self {
            template,
            nodes,
            since,
        })
    }

    /// Returns the series of a node.
    fn of_node(&self, node: usize) -> &[Series] {
        let mut place = node % 100;
        let kind = KINDS.iter().position(|kind| {
            let found = place < kind.share;
            place = place.wrapping_sub(kind.share);
            found
        });
        &self.template.kinds[kind.unwrap_or_default()]
    }

    /// Returns all series, and the number and name of their node.
    fn all(&self) -> impl Iterator<Item = (usize, String, &[Series])> {
        let nodes =
            (0..self.nodes).map(|node| (node, format!("gpu-node-{node:04}"), self.of_node(node)));
        nodes.chain([(0, String::new(), &*self.template.cluster)])
    }

    /// Returns the number of series that exist at a time.
    pub(crate) fn series(&self) -> usize {
        self.all().map(|(.., series)| series.len()).sum()
    }

    /// Makes blocks until now. Each holds the samples of two hours, so that the text of only one of them is on the disk,
    /// and only its series are in memory. The newest samples are as old as the time when this returns.
    pub(crate) fn fill(&self) -> Result<Filled> {
        let mut filled = Filled {
            data: workdir::fresh("blocks")?,
            ..Filled::default()
        };
        // An estimate: only the newest blocks depend on it, and they know better.
        let mut end = now()? + 15 * MINUTE;
        let mut from = self.since;
        while from <= now()? {
            let last = (from / RANGE + 1) * RANGE;
            if last > now()? {
                end = now()? + self.estimate(&filled, from, last)?;
                end = end / MINUTE * MINUTE + MINUTE;
            }
            let to = last.min(end);
            self.block(from, to, end, &mut filled)?;
            from = to;
            filled.end = end.min(to);
        }
        let early = filled.end - now()?;
        std::thread::sleep(Duration::from_secs(
            u64::try_from(early).unwrap_or_default(),
        ));
        Ok(filled)
    }

    /// Returns how many seconds the next block takes.
    fn estimate(&self, filled: &Filled, from: i64, to: i64) -> Result<i64> {
        let end = now()?.clamp(from, to) + 5 * MINUTE;
        let times = |density: Density| times(density, from, end, end).len() as f64;
        let each = DENSITIES.map(times);
        let samples: f64 = self
            .all()
            .flat_map(|(.., series)| series)
            .map(|one| each[one.density as usize])
            .sum();
        let speed = match filled.samples {
            0 => PER_SAMPLE.as_secs_f64(),
            samples => filled.spent.as_secs_f64() / samples as f64,
        };
        let seconds = speed * samples + PER_SERIES.as_secs_f64() * self.series() as f64;
        Ok((1.1 * seconds) as i64 + 5)
    }

    fn block(&self, from: i64, to: i64, end: i64, filled: &mut Filled) -> Result<()> {
        let start = Instant::now();
        let directory = workdir::fresh("text")?;
        let path = directory.join("openmetrics.txt");
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let times = DENSITIES.map(|density| times(density, from, to, end));
        let mut samples = 0;
        for (number, name, all) in self.all() {
            let target = Target {
                name: &name,
                number,
                since: self.since,
            };
            for series in all {
                samples += series.write(&mut out, target, &times[series.density as usize])?;
            }
        }
        writeln!(out, "# EOF")?;
        out.flush()?;
        filled.text_bytes = filled.text_bytes.max(fs::metadata(&path)?.len());
        let mut promtool = command(assets::path("promtool")?);
        promtool.args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"]);
        let output = promtool.arg(&path).arg(&filled.data).output()?;
        ensure!(
            output.status.success(),
            "promtool cannot make blocks: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::remove_dir_all(&directory)?;
        filled.samples += samples;
        filled.blocks += 1;
        filled.spent += start.elapsed();
        eprintln!(
            "block {}: {samples} samples, {:.0?} in all",
            filled.blocks, filled.spent
        );
        Ok(())
    }
}

fn times(density: Density, from: i64, to: i64, end: i64) -> Vec<i64> {
    let minutes = (from..to).step_by(MINUTE as usize);
    minutes.filter(|time| density.has(*time, end)).collect()
}

fn now() -> Result<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(i64::try_from(now.as_secs())?)
}
