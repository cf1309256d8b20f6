//! The report of `explain` as text for a terminal.

use k8s_openapi::jiff::Timestamp;
use nvlink_planner::Millis;

use super::{
    explain::Explained,
    table::wrap,
    text::{domain_table, notes},
    waiting::EtaRow,
    words,
};

/// The column at which values begin.
const INDENT: usize = 12;
/// The most seats, and the most jobs ahead, that are named.
const SEATS: usize = 4;

impl Explained {
    /// Returns the report, at most `width` columns wide where words allow it; `None`: no line is
    /// wrapped or cut.
    #[must_use]
    pub fn text(&self, width: Option<usize>) -> String {
        let title = format!("Pod {}/{} {}.", self.namespace, self.pod, self.summary);
        let mut out = wrap("", &title, 0, width) + "\n";
        let mut line = |key: &str, value: &str| out += &wrap(key, value, INDENT, width);
        for (n, message) in self.messages.iter().enumerate() {
            let key = match (n, self.state) {
                (0, "waiting") => "Why",
                (0, _) => "What",
                _ => "",
            };
            line(key, &sentence(message));
        }
        line("Asks for", &self.asks());
        if let Some(gang) = &self.gang {
            let pods = match (gang.pods, gang.size) {
                (pods, Some(size)) => format!("{pods} of {size} pods exist"),
                // Its size mattered while it waited.
                (pods, None) if self.state != "waiting" => {
                    words::plural(u32::try_from(pods).unwrap_or(u32::MAX), "pod")
                }
                (1, None) => "1 pod exists; how many the gang has is not known".to_owned(),
                (pods, None) => format!("{pods} pods exist; how many the gang has is not known"),
            };
            let name = gang.name.strip_prefix("gang ").unwrap_or(&gang.name);
            let within = match gang.scope.as_str() {
                "cluster" => "as close as possible".to_owned(),
                scope => format!("within one {scope}"),
            };
            line("Gang", &format!("{name}, {within}: {pods}"));
            for doubt in &gang.doubts {
                line("", &sentence(doubt));
            }
        }
        self.start(&mut line);
        if !self.domains.is_empty() {
            out += "\nDomains of its class that could hold it, what is expected first:\n";
            out += &domain_table(&self.domains, Some(self.now()), width);
            if self.more_domains > 0 {
                out += &format!("and {} more: kubectl nvlink status\n", self.more_domains);
            }
        }
        out += &self.remedies(width);
        if !self.notes.is_empty() {
            out += "\n";
            out += &notes(&self.notes, width);
        }
        out
    }

    fn now(&self) -> Millis {
        let time: Option<Timestamp> = self.time.parse().ok();
        time.map_or(0, Timestamp::as_millisecond)
    }

    fn asks(&self) -> String {
        let gpus = match self.gpus {
            0 => "no GPU".to_owned(),
            gpus => words::gpus(gpus),
        };
        let each = if self.gang.is_some() {
            " for this pod"
        } else {
            ""
        };
        let scope = self.scope.as_ref().filter(|_| self.gpus > 1);
        let scope = scope.map(|scope| format!(" within one {scope}"));
        let pattern = self.pattern.as_ref().filter(|_| self.gpus > 1);
        let pattern = pattern.map(|pattern| format!(", pattern {pattern}"));
        let class = self.class.as_ref().map(|class| format!(", class {class}"));
        let project = self
            .project
            .as_ref()
            .map(|project| format!(", project {project}"));
        let parts = [scope, pattern, class, project].into_iter().flatten();
        gpus + each + &parts.collect::<String>()
    }

    /// Says how long the pod has waited, and when it is expected to start.
    fn start(&self, line: &mut impl FnMut(&str, &str)) {
        if self.state != "waiting" {
            return;
        }
        line("Waited", &self.waited());
        match &self.eta {
            Some(eta) => line("Starts", &self.expected(eta)),
            None if self.reason.as_deref() == Some("Starting") => {}
            None => line("Starts", "unknown"),
        }
        let seats = self.expected_on.iter().take(SEATS).map(|seat| {
            let gpus = nvlink_runtime::words::ranges(&sorted(&seat.gpus));
            let gpus = Some(gpus).filter(|gpus| !gpus.is_empty());
            let gpus = gpus.map(|gpus| format!(", GPUs {gpus}"));
            let pod = Some(&seat.pod).filter(|_| self.expected_on.len() > 1);
            let pod = pod.map(|pod| format!("{pod} on "));
            let node = seat.node.as_deref().unwrap_or("any node");
            pod.unwrap_or_default() + node + &gpus.unwrap_or_default()
        });
        list(line, "Expected on", seats);
        list(line, "When", self.eta_from.iter().cloned());
        list(line, "After", self.after().into_iter());
        let lower = self.lower_priority.iter().map(|holder| {
            format!(
                "{} has a lower priority and holds {} that it could use; the queue does not stop jobs that run",
                holder.pod,
                words::gpus(holder.gpus)
            )
        });
        list(line, "Priority", lower);
    }

    fn waited(&self) -> String {
        let waited = self.waited_seconds;
        let waited = waited.map_or_else(|| "?".to_owned(), |waited| words::span(waited * 1000));
        let Some(deadline) = &self.deadline else {
            return waited;
        };
        let then = match deadline.then {
            "Spread" => "it starts outside its domain",
            _ => "it is rejected",
        };
        let at = words::moment(deadline.millis, self.now());
        format!("{waited}; its time in the queue ends {at}, then {then}")
    }

    fn expected(&self, eta: &EtaRow) -> String {
        let at = words::moment(eta.at, self.now());
        let ends = self.deadline.as_ref().filter(|end| end.then == "Reject");
        if ends.is_some_and(|end| end.millis < eta.at) {
            return format!(
                "no, as far as can be told: its GPUs are expected to be free {at}, after it is rejected"
            );
        }
        let least = if eta.at_least { "not before " } else { "" };
        let upper = eta
            .upper
            .map(|upper| format!(", at the latest {}", words::moment(upper, self.now())));
        format!("{least}{at}{}", upper.unwrap_or_default())
    }

    /// Names the jobs that use the GPUs first.
    fn after(&self) -> Option<String> {
        let shown: Vec<&str> = self.before.iter().take(SEATS).map(String::as_str).collect();
        let more = match self.before.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!shown.is_empty()).then(|| {
            let names = shown.join(", ");
            format!("{names}{more}, which use these GPUs first")
        })
    }

    fn remedies(&self, width: Option<usize>) -> String {
        let Some(help) = &self.help else {
            return String::new();
        };
        let mut out = "\nWhat would help, if the pod were created again now:\n".to_owned();
        if help.is_empty() {
            let none = "Neither fewer GPUs, nor a wider scope, nor another class that you may use would help.";
            return format!("\n{}", wrap("", none, 0, width));
        }
        for one in help {
            out += &wrap("-", &one.message, 2, width);
        }
        out
    }
}

/// Adds lines, of which only the first has the key.
fn list(line: &mut impl FnMut(&str, &str), key: &str, values: impl Iterator<Item = String>) {
    for (n, value) in values.enumerate() {
        line(if n == 0 { key } else { "" }, &value);
    }
}

fn sorted(gpus: &[u32]) -> Vec<u32> {
    let mut gpus = gpus.to_vec();
    gpus.sort_unstable();
    gpus
}

/// Returns a sentence with its first letter in upper case and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    let end = if text.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    format!("{}{}{end}", first.unwrap_or_default(), chars.as_str())
}
