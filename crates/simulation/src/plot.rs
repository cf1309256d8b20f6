//! The report as an SVG: how waits and qualities are distributed under each policy.

use std::fmt::Write;

use crate::{
    summary::{Outcome, Ran, Report, Sorted},
    words::{duration, number, short},
};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 700.0;
/// The left and right edges of both panels.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 736.0;
/// The height of a panel.
const TALL: f64 = 230.0;
/// The most points of a curve: one for each half of a percent.
const POINTS: usize = 200;

/// Marks of the axis of waits, seconds.
const MARKS: [(f64, &str); 10] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (36_000.0, "10 h"),
    (86_400.0, "1 d"),
    (864_000.0, "10 d"),
    (8_640_000.0, "100 d"),
    (86_400_000.0, "1,000 d"),
];

/// Colours that differ for colour-blind people too, by policy; the dashes differ as well.
const STYLE: &str = "\
svg { --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --c0: #0060b0; --c1: #c04000; --c2: #007a55; --c3: #9a3f7f; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0e1217; --ink: #e6edf3; --soft: #a3adb8; --line: #323a44;
    --c0: #6cb6ff; --c1: #ff9a56; --c2: #3fd0a0; --c3: #eaa0d0; }
}
.paper { fill: var(--paper); }
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.head { font-size: 15px; font-weight: 600; }
.soft { fill: var(--soft); }
.grid { stroke: var(--line); fill: none; }
.curve { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.p0 { stroke: var(--c0); stroke-width: 3.5; }
.p1 { stroke: var(--c1); stroke-dasharray: 8 4; }
.p2 { stroke: var(--c2); stroke-dasharray: 2 4; }
.p3 { stroke: var(--c3); stroke-dasharray: 12 4 2 4; }
";

/// Returns the report as an SVG document: for each policy the cumulative distribution of
/// waits, on a logarithmic axis, and of qualities.
#[must_use]
pub fn plot(report: &Report) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">Waits and placement quality of {} jobs on {} GPUs</title>\n\
         <desc id=\"desc\">{}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        number(report.jobs),
        number(report.gpus),
        description(report)
    );
    legend(&mut svg, &report.outcomes);
    waits(&mut svg, &report.outcomes);
    qualities(&mut svg, &report.outcomes);
    svg + "</svg>\n"
}

/// Says what the curves show.
fn description(report: &Report) -> String {
    let said = report.summaries().into_iter().map(|one| {
        let mut text = one.name.to_owned();
        if let Some(wait) = one.wait_seconds {
            let (half, most) = (duration(wait.p50), duration(wait.p95));
            text += &format!(": half of the jobs start within {half}, 95 % within {most}");
        }
        if let Some((quality, time)) = one.quality.zip(one.communication_seconds) {
            let time = short(time.mean);
            let mean = quality.mean;
            text += &format!("; the mean quality is {mean:.2}, and 1 GiB takes {time}");
        }
        text + "."
    });
    said.collect::<Vec<_>>().join(" ")
}

fn legend(svg: &mut String, outcomes: &[Outcome]) {
    for (at, outcome) in outcomes.iter().enumerate() {
        #[allow(clippy::cast_precision_loss)] // a handful
        let x = LEFT + 170.0 * at as f64;
        let (end, text) = (x + 34.0, x + 42.0);
        line(
            svg,
            &format!("<path class=\"curve p{at}\" d=\"M{x} 24H{end}\"/>"),
        );
        let name = outcome.policy.into_str();
        line(svg, &format!("<text x=\"{text}\" y=\"28\">{name}</text>"));
    }
}

/// A panel with its axes.
struct Panel<'a> {
    /// The position of its upper edge.
    top: f64,
    head: &'a str,
    /// What the horizontal axis shows.
    axis: &'a str,
    /// Positions of the marks, from 0 to 1, and their labels.
    marks: Vec<(f64, &'a str)>,
}

impl Panel<'_> {
    fn bottom(&self) -> f64 {
        self.top + TALL
    }

    fn frame(&self, svg: &mut String) {
        let (top, bottom) = (self.top, self.bottom());
        let (head, axis) = (top - 14.0, bottom + 38.0);
        line(
            svg,
            &format!(
                "<text class=\"head\" x=\"{LEFT}\" y=\"{head}\">{}</text>",
                self.head
            ),
        );
        for quarter in [0.0, 25.0, 50.0, 75.0, 100.0] {
            let y = bottom - TALL * quarter / 100.0;
            let (x, text) = (LEFT - 8.0, y + 4.0);
            line(
                svg,
                &format!("<path class=\"grid\" d=\"M{LEFT} {y}H{RIGHT}\"/>"),
            );
            line(
                svg,
                &format!(
                    "<text class=\"soft\" text-anchor=\"end\" x=\"{x}\" y=\"{text}\">{quarter} %</text>"
                ),
            );
        }
        for (at, label) in &self.marks {
            let (x, text) = (LEFT + (RIGHT - LEFT) * at, bottom + 18.0);
            line(
                svg,
                &format!("<path class=\"grid\" d=\"M{x:.1} {top}V{bottom}\"/>"),
            );
            line(
                svg,
                &format!(
                    "<text class=\"soft\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{text}\">{label}</text>"
                ),
            );
        }
        line(
            svg,
            &format!(
                "<text class=\"soft\" x=\"{LEFT}\" y=\"{axis}\">{}</text>",
                self.axis
            ),
        );
    }

    /// Draws the share of values up to each position, from 0 to 1.
    fn curve(&self, svg: &mut String, at: usize, values: &Sorted, place: impl Fn(f64) -> f64) {
        let values = values.values();
        let mut path = format!("M{LEFT} {}", self.bottom());
        for step in 1..=POINTS {
            let rank = (step * values.len()).div_ceil(POINTS).max(1);
            let Some(&value) = values.get(rank - 1) else {
                continue;
            };
            #[allow(clippy::cast_precision_loss)] // at most POINTS
            let share = step as f64 / POINTS as f64;
            let x = LEFT + (RIGHT - LEFT) * place(value).clamp(0.0, 1.0);
            // Writing to a String cannot fail.
            let _ = write!(path, "L{x:.1} {:.1}", self.bottom() - TALL * share);
        }
        path += &format!("H{RIGHT}");
        line(svg, &format!("<path class=\"curve p{at}\" d=\"{path}\"/>"));
    }
}

fn waits(svg: &mut String, outcomes: &[Outcome]) {
    let waits = |outcome: &Outcome| Sorted::of(outcome.ran.iter().map(Ran::wait));
    let all: Vec<_> = outcomes.iter().map(waits).collect();
    let last = |sorted: &Sorted| sorted.values().last().copied();
    let longest = all.iter().flatten().filter_map(last).fold(10.0, f64::max);
    let place = |wait: f64| wait.max(1.0).ln() / longest.ln();
    let marks = MARKS.iter().filter(|(seconds, _)| *seconds <= longest);
    let panel = Panel {
        top: 76.0,
        head: "Waits",
        axis: "share of jobs that start within this time (logarithmic; 1 s or less is at the left edge)",
        marks: marks
            .map(|&(seconds, label)| (place(seconds), label))
            .collect(),
    };
    panel.frame(svg);
    for (at, values) in all.iter().enumerate() {
        if let Some(values) = values {
            panel.curve(svg, at, values, place);
        }
    }
}

fn qualities(svg: &mut String, outcomes: &[Outcome]) {
    let panel = Panel {
        top: 400.0,
        head: "Placement quality",
        axis: "share of jobs on several GPUs with at most this quality (1 is the best possible)",
        marks: [
            (0.0, "0"),
            (0.25, "0.25"),
            (0.5, "0.5"),
            (0.75, "0.75"),
            (1.0, "1"),
        ]
        .into(),
    };
    panel.frame(svg);
    for (at, outcome) in outcomes.iter().enumerate() {
        let communicating = outcome.ran.iter().filter(|one| one.communicates);
        if let Some(values) = Sorted::of(communicating.map(|one| one.quality)) {
            panel.curve(svg, at, &values, |quality| quality);
        }
    }
}

fn line(svg: &mut String, text: &str) {
    svg.push_str(text);
    svg.push('\n');
}
