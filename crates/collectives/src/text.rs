//! Reads the text of nccl-tests and NCCL's log, line by line: one test after the other, with
//! anything in between.

use super::{
    Collective, inference,
    lines::Line,
    log::{self, Fact, Sign},
    run::{Device, Failure, Known, MOST_DEVICES, MOST_ROWS, Origin, Reason, Run, short},
    table::Columns,
};

/// The maximum number of characters of a quoted line.
pub(super) const QUOTED: usize = 200;

/// Reads lines and passes on each run when it ends.
pub(crate) struct Parser<'s> {
    sink: &'s mut dyn FnMut(Run),
    open: Option<Open>,
    /// Values of a row that a message of NCCL interrupts, and the row's line.
    partial: (u64, Vec<String>),
    line: u64,
    runs: u64,
}

/// Why the text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error(
        "line {0}: the test has more than {MOST_ROWS} different messages; this is not the output of nccl-tests"
    )]
    Rows(u64),
    #[error(
        "nothing found: expected the output of nccl-tests (text, or JSON of -J), files of NCCL Inspector or a log of NCCL"
    )]
    Nothing,
}

/// How far a test has come: what each of its lines must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Only lines of NCCL's log.
    Log,
    Version,
    Named,
    Threads,
    Devices,
    Table,
    Concluded,
}

/// A test in progress.
struct Open {
    run: Run,
    stage: Stage,
    columns: Option<Columns>,
    /// The footer's count of wrong values, its line and text.
    wrong: Option<(u64, String)>,
    warning: Option<(u64, String)>,
    aborted: Option<(u64, String)>,
    error: Option<(Reason, u64, String)>,
    /// Number of nodes that NCCL's log names.
    log_nodes: Option<u32>,
    /// Whether switches add up data, by the most certain sign of it in NCCL's log.
    nvls: Option<(Sign, bool)>,
    /// The last line on which NCCL sets up a communicator, as long as none is ready.
    set_up: Option<u64>,
    ready: bool,
}

impl<'s> Parser<'s> {
    /// Returns a parser that calls `sink` with each run, in the order of the input.
    pub(crate) fn new(sink: &'s mut dyn FnMut(Run)) -> Self {
        Self {
            sink,
            open: None,
            partial: (0, Vec::new()),
            line: 0,
            runs: 0,
        }
    }

    /// Reads one line.
    ///
    /// # Errors
    /// When a test has too many rows.
    pub(crate) fn line(&mut self, line: Line<'_>) -> Result<(), TextError> {
        self.line = line.number;
        let text = line.text;
        if let Some(comment) = text.strip_prefix('#') {
            self.drop_partial();
            self.comment(line, comment.trim());
        }
        if let Some(fact) = log::fact(text) {
            self.fact(fact);
        }
        let digit = text.starts_with(|c: char| c.is_ascii_digit());
        if line.ended && (digit || !self.partial.1.is_empty()) {
            return self.values(text);
        }
        Ok(())
    }

    /// Ends the input. Passes on the last run: one without its footer is truncated.
    ///
    /// # Errors
    /// When the input had no run.
    pub(crate) fn end(mut self) -> Result<(), TextError> {
        self.finish();
        match self.runs {
            0 => Err(TextError::Nothing),
            _ => Ok(()),
        }
    }

    fn comment(&mut self, line: Line<'_>, comment: &str) {
        let after = |mark: &str| comment.strip_prefix(mark).map(str::trim);
        if comment.starts_with("nccl-tests version") {
            self.reach(Stage::Version);
        } else if let Some(name) = after("Collective test starting:") {
            let named = Collective::of_program(name);
            let open = self.reach(Stage::Named);
            open.name(named);
            if named.is_none() {
                let name = short(name, 64);
                open.run.warn(format!("the test {name} is not known"));
            }
        } else if comment.starts_with("nThread ") {
            self.reach(Stage::Threads);
        } else if let Some(rest) = after("Rank ") {
            if let Some(device) = device(rest) {
                self.reach(Stage::Devices).device(device);
            }
        } else if let Some(columns) = Columns::of_header(line.text) {
            self.reach(Stage::Table).columns = Some(columns);
        } else if let Some(open) = &mut self.open {
            open.footer(line, comment);
        }
    }

    /// Returns the test to which a line of `stage` belongs: the open one, or a new one if
    /// the open one is past that stage.
    fn reach(&mut self, stage: Stage) -> &mut Open {
        let past = |open: &Open| match stage {
            Stage::Devices => open.stage > stage,
            _ => open.stage >= stage,
        };
        if self.open.as_ref().is_some_and(past) {
            self.finish();
        }
        let line = self.line;
        let open = self.open.get_or_insert_with(|| Open::new(line));
        open.stage = stage;
        open
    }

    fn fact(&mut self, fact: Fact<'_>) {
        let line = self.line;
        let relevant = !matches!(fact, Fact::Warning(_) | Fact::Aborted(_));
        if self.open.is_none() && !relevant {
            // A warning or an abort alone is no run.
            return;
        }
        let open = self.open.get_or_insert_with(|| Open::new(line));
        let at = |text: &str| (line, short(text, QUOTED));
        match fact {
            Fact::Setup { seconds, ranks } => {
                let slowest = open.run.setup_seconds.unwrap_or(0.0).max(seconds);
                open.run.setup_seconds = Some(slowest);
                open.ready = true;
                ranks.into_iter().for_each(|ranks| open.ranks(ranks));
            }
            Fact::Communicator { ranks, nodes } => {
                open.ranks(ranks);
                open.log_nodes = open.log_nodes.max(nodes);
                open.set_up = Some(line);
            }
            Fact::Ready { ranks } => {
                ranks.into_iter().for_each(|ranks| open.ranks(ranks));
                open.ready = true;
            }
            Fact::RingPath(path) => {
                let from = Origin::Log;
                open.run.path = Some(Known { value: path, from });
            }
            Fact::Nvls(sign, used) => open.nvls = Some(sign.after(open.nvls, used)),
            Fact::Warning(text) => {
                open.warning.get_or_insert_with(|| at(text));
            }
            Fact::Aborted(text) => {
                open.aborted.get_or_insert_with(|| at(text));
            }
            Fact::Error(reason, text) => {
                let (line, text) = at(text);
                open.error.get_or_insert((reason, line, text));
            }
        }
    }

    /// Reads values of a row: a whole row, or a part of one that a message of NCCL
    /// interrupts, because both write to the same stream.
    fn values(&mut self, text: &str) -> Result<(), TextError> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let Some(columns) = open.columns.as_ref().filter(|_| open.stage == Stage::Table) else {
            return Ok(());
        };
        let message = before_message(text, &open.run.devices);
        let words: Vec<&str> = message.unwrap_or(text).split_whitespace().collect();
        let (start, partial) = &mut self.partial;
        let begins = columns.begin(&words);
        if partial.is_empty() && !begins || words.is_empty() {
            return Ok(());
        }
        if begins && !partial.is_empty() {
            // A whole new row: the rest of the earlier one is lost.
            open.run.warn(unread(*start, partial, columns));
            partial.clear();
        }
        if partial.is_empty() {
            *start = self.line;
        } else if !words.iter().all(|word| is_value(word)) {
            return Ok(());
        }
        let mut values: Vec<&str> = partial.iter().map(|one| &**one).collect();
        values.extend(&words);
        match columns.row(&values) {
            Ok(row) if message.is_none() || !columns.wants_more(values.len()) => {
                partial.clear();
                if !open.run.add(row) {
                    return Err(TextError::Rows(self.line));
                }
            }
            _ if columns.wants_more(values.len()) => {
                *partial = values.into_iter().map(str::to_owned).collect();
            }
            Ok(_) => {}
            Err(bad) => {
                open.run.warn(format!("line {start}: {bad}"));
                partial.clear();
            }
        }
        Ok(())
    }

    /// Drops the part of a row whose rest did not come.
    fn drop_partial(&mut self) {
        let (start, partial) = &mut self.partial;
        if let Some(open) = self.open.as_mut().filter(|_| !partial.is_empty())
            && let Some(columns) = &open.columns
        {
            open.run.warn(unread(*start, partial, columns));
        }
        partial.clear();
    }

    /// Passes on the open run.
    fn finish(&mut self) {
        self.partial.1.clear();
        if let Some(run) = self.open.take().and_then(|open| open.close(self.line)) {
            self.runs += 1;
            (self.sink)(run);
        }
    }
}

fn unread(line: u64, partial: &[String], columns: &Columns) -> String {
    let values: Vec<&str> = partial.iter().map(|one| &**one).collect();
    match columns.row(&values) {
        Err(bad) => format!("line {line}: {bad}"),
        Ok(_) => format!("line {line}: the row has no end"),
    }
}

impl Open {
    fn new(line: u64) -> Self {
        Self {
            run: Run {
                line,
                ..Run::default()
            },
            stage: Stage::Log,
            columns: None,
            wrong: None,
            warning: None,
            aborted: None,
            error: None,
            log_nodes: None,
            nvls: None,
            set_up: None,
            ready: false,
        }
    }

    fn name(&mut self, collective: Option<Collective>) {
        let from = Origin::Output;
        let known = collective.map(|value| Known { value, from });
        self.run.collective = self.run.collective.take().or(known);
    }

    fn ranks(&mut self, value: u32) {
        // A job has communicators of several sizes; the largest one has all ranks.
        if value > 0
            && self
                .run
                .ranks
                .as_ref()
                .is_none_or(|known| known.value < value)
        {
            let from = Origin::Log;
            self.run.ranks = Some(Known { value, from });
        }
    }

    fn device(&mut self, device: Device) {
        let rank = device.rank;
        let devices = &self.run.devices;
        let in_order = devices.last().is_none_or(|last| last.rank < rank);
        if !in_order && devices.iter().any(|one| one.rank == rank) {
            self.run.warn(format!(
                "several processes have rank {rank}, so each of them measures on its own: build nccl-tests with MPI=1"
            ));
        } else if self.run.devices.len() < MOST_DEVICES {
            self.run.devices.push(device);
        }
    }

    fn footer(&mut self, line: Line<'_>, comment: &str) {
        let Some((name, value)) = comment.split_once(':') else {
            return;
        };
        let (name, value) = (name.trim(), value.trim());
        let number = value.split_whitespace().next().unwrap_or_default();
        match name {
            "Out of bounds values" | "Bitwise mismatches" => {
                let failed = value.ends_with("FAILED") || number.parse().is_ok_and(|n: u64| n > 0);
                if failed && self.wrong.is_none() {
                    self.wrong = Some((line.number, short(comment, QUOTED)));
                }
            }
            "Avg bus bandwidth" => {
                self.stage = Stage::Concluded;
                let average = number.parse().ok().filter(|value: &f64| value.is_finite());
                self.run.average_bandwidth = average.filter(|_| line.ended);
                if value.ends_with("FAILED") {
                    let reason = "the average is below the minimum that NCCL_TESTS_MIN_BW sets";
                    self.run.warn(reason.to_owned());
                }
            }
            "Collective test concluded" => self.name(Collective::of_program(value)),
            "error" => {
                let warning = || (line.number, short(value, QUOTED));
                self.warning.get_or_insert_with(warning);
            }
            _ => {}
        }
    }

    /// Returns the run with all that follows from it; `None` if there was none.
    fn close(mut self, last: u64) -> Option<Run> {
        let failure = self.failure(last);
        let mut run = self.run;
        let says_nothing = run.setup_seconds.is_none() && run.ranks.is_none();
        if self.stage == Stage::Log && says_nothing && failure.is_none() {
            return None;
        }
        run.failure = failure;
        run.nvls = self.nvls.map(|(_, used)| Known::new(used, Origin::Log));
        run.nvls_refused = matches!(self.nvls, Some((Sign::Support | Sign::Channels, false)));
        run.conclude(self.log_nodes);
        Some(run)
    }

    fn failure(&mut self, last: u64) -> Option<Failure> {
        let failure = |reason, line, text| Some(Failure { reason, line, text });
        let cause = self.warning.take();
        if let Some((reason, line, text)) = self.error.take() {
            let Some((at, warning)) = cause else {
                return failure(reason, line, text);
            };
            let reason = match log::reason(&warning) {
                Reason::Timeout => Reason::Timeout,
                _ => reason,
            };
            let text = format!("{text}; first warning, on line {at}: {warning}");
            return failure(reason, line, text);
        }
        if let Some((line, text)) = self.wrong.take() {
            return failure(Reason::WrongResults, line, text);
        }
        if let Some((count, size)) = self.run.wrong() {
            let text = format!("{count} wrong values, up to messages of {size} B");
            return failure(Reason::WrongResults, self.run.line, text);
        }
        if self.stage == Stage::Concluded {
            return None;
        }
        match (self.aborted.take(), cause) {
            (Some(_), Some((line, text))) => failure(log::reason(&text), line, text),
            (Some((line, text)), None) => failure(Reason::Truncated, line, text),
            (None, _) if self.stage == Stage::Log => {
                let line = self.set_up.filter(|_| !self.ready)?;
                let text = "the log ends while NCCL sets up the communicator";
                failure(Reason::Truncated, line, text.to_owned())
            }
            (None, _) => failure(Reason::Truncated, last, self.stops()),
        }
    }

    /// Says where an output without a footer stops.
    fn stops(&self) -> String {
        match self.run.rows.last() {
            Some(row) => format!("the output ends after the row of {} B", row.size),
            None => "the output ends before the first row".to_owned(),
        }
    }
}

impl Run {
    /// Adds what follows from the rest: collective, ranks and nodes.
    pub(super) fn conclude(&mut self, log_nodes: Option<u32>) {
        let from = Origin::Bandwidths;
        if self.collective.is_none() {
            let found = inference::collective(&self.rows);
            self.collective = found.map(|value| Known { value, from });
        }
        let listed = self
            .devices
            .iter()
            .map(|one| one.rank.saturating_add(1))
            .max();
        if let Some(value) = listed {
            let from = Origin::Output;
            self.ranks = Some(Known { value, from });
        } else if let (None, Some(collective)) = (&self.ranks, &self.collective) {
            let found = inference::ranks(collective.value, &self.rows);
            self.ranks = found.map(|value| Known { value, from });
        }
        let all = listed.is_some_and(|ranks| ranks as usize == self.devices.len());
        let hosts = u32::try_from(self.hosts().len()).ok().filter(|_| all);
        self.nodes = self
            .nodes
            .take()
            .or(hosts.map(|hosts| Known::new(hosts, Origin::Output)))
            .or(log_nodes.map(|nodes| Known::new(nodes, Origin::Log)));
        if let (Some(hosts), Some(nodes)) = (hosts, log_nodes)
            && nodes > hosts
        {
            self.warn(format!(
                "NCCL counts {nodes} nodes although the ranks run on {hosts}: it uses no NVLink between ranks that it takes for other nodes (check NCCL_HOSTID, host names and /dev/shm of the containers)"
            ));
        }
    }
}

/// Reads `0 Group  0 Pid  12812 on HOST device  0 [0000:06:00] MODEL`, with or without the group.
fn device(text: &str) -> Option<Device> {
    let mut words = text.split_whitespace();
    let rank = words.next()?.parse().ok()?;
    let (head, rest) = text.split_once(" on ")?;
    let pid = head.split_once("Pid")?.1.trim().parse().ok()?;
    let (host, rest) = rest.trim_start().split_once(' ')?;
    let (_, rest) = rest.split_once('[')?;
    let (pci, model) = rest.split_once(']')?;
    Some(Device {
        rank,
        pid,
        host: short(host, 253),
        pci: short(pci, 32),
        model: short(model, 64),
    })
}

/// Returns what stands in front of a message of NCCL, `HOST:PID:TID [0] NCCL INFO …`, on the
/// same line; `None` if there is no such message. The host follows the values without a space.
fn before_message<'a>(text: &'a str, devices: &[Device]) -> Option<&'a str> {
    let head = text[..text.find(" NCCL ")?].trim_end();
    let head = head.rfind(" [").map_or(head, |at| &head[..at]);
    let word = head.rfind(' ').map_or(0, |at| at + 1);
    let glued = &head[word..];
    let host = devices.iter().find_map(|one| {
        let at = glued.find(&*one.host)?;
        glued[at + one.host.len()..].starts_with(':').then_some(at)
    });
    let value = |c: char| c.is_ascii_digit() || matches!(c, '-' | '.');
    let end = host.unwrap_or_else(|| glued.find(|c| !value(c)).unwrap_or(0));
    Some(&head[..word + end])
}

fn is_value(word: &str) -> bool {
    word == "N/A" || word.parse::<f64>().is_ok()
}
