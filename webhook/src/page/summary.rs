//! The top of the page: what needs attention, and what still fits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use nvlink_queue::notice::REFUSED;
use nvlink_runtime::page::escape;
use nvlink_runtime::words::{count, gpus, percent, ranges};
use nvlink_topology::labels;

use super::board::{Board, Group, Kind, Row};

/// The most nodes that a list names: the search finds the others.
const NAMED: usize = 8;

/// Renders the sections.
pub(super) fn html(board: &Board) -> String {
    attention(board) + &fits(board)
}

/// Returns the mark of the page's title.
pub(super) fn mark(board: &Board) -> &'static str {
    let totals = &board.totals;
    match board.age {
        None => "✕ ",
        Some(age) if !age.is_zero() => "✕ ",
        _ if totals.broken_nodes + totals.unreadable > 0 || !board.queue.stuck().is_empty() => "▲ ",
        _ if board
            .groups
            .iter()
            .any(|group| group.incomplete().is_some()) =>
        {
            "▲ "
        }
        _ => "",
    }
}

fn attention(board: &Board) -> String {
    let mut items = items(board);
    items.extend(stuck(board));
    let Some(worst) = items.iter().map(|one| one.level).max() else {
        return "<section class=\"troubles good\"><h2 role=\"status\">✓ Nothing needs attention</h2></section>\n"
            .to_owned();
    };
    let title = count(items.len(), "item");
    let verb = if items.len() == 1 { "needs" } else { "need" };
    let (mark, class) = worst.mark();
    let mut html = format!(
        "<section class=\"troubles {class}\"><h2 role=\"status\">{mark} {title} {verb} attention</h2>\n<ul>\n"
    );
    for item in items {
        let (mark, class) = item.level.mark();
        let _ = writeln!(
            html,
            "<li class=\"{class}\"><span aria-hidden=\"true\">{mark}</span> {}</li>",
            item.html
        );
    }
    html + "</ul></section>\n"
}

struct Item {
    level: Level,
    html: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Warning,
    Bad,
}

impl Level {
    fn mark(self) -> (&'static str, &'static str) {
        match self {
            Self::Bad => ("✕", "bad"),
            Self::Warning => ("▲", "warning"),
        }
    }
}

fn items(board: &Board) -> Vec<Item> {
    let mut items = Vec::new();
    let mut add = |level, html: String| items.push(Item { level, html });
    match board.age {
        None => add(
            Level::Bad,
            "The NodeTopologies have not been read yet.".to_owned(),
        ),
        Some(age) if !age.is_zero() => add(
            Level::Bad,
            "The watch of NodeTopologies fails: the page shows the last known state, and the log of \
             the webhook says why."
                .to_owned(),
        ),
        Some(_) => {}
    }
    let lists = [
        (Level::Bad, broken(board)),
        (Level::Bad, lacking(board)),
        (Level::Warning, degraded(board)),
        (Level::Bad, unreadable(board)),
        (Level::Warning, unclear(board)),
        (Level::Warning, slow(board)),
        (Level::Warning, poor(board)),
    ];
    for (level, list) in lists {
        list.into_iter().for_each(|list| add(level, list));
    }
    if board.totals.unknown > 0 {
        let gpus = count(board.totals.unknown, "GPU");
        let text = format!(
            "<a href=\"/?q=is%3Aunknown\">{gpus}</a>: not known who holds them; their exporters \
             do not publish allocations"
        );
        add(Level::Warning, text);
    }
    if !board.knows_pods && board.age.is_some() {
        let text = "Classes and projects of pods are not known or not current: the log of the \
                    webhook says why.";
        add(Level::Warning, text.to_owned());
    }
    items
}

/// Names the jobs that do not start unless somebody does something, and why: an item for each reason.
fn stuck(board: &Board) -> Vec<Item> {
    let mut reasons = board.queue.stuck().iter();
    let item = |(reason, jobs): (&String, &Vec<String>)| {
        let (word, why) = reason.split_once(": ").unwrap_or(("", reason));
        let jobs = named(
            jobs.iter().map(|job| waiting(job)),
            &format!("reason:{word}"),
        )?;
        let level = match word {
            // The queue tries again.
            REFUSED => Level::Warning,
            _ => Level::Bad,
        };
        let html = format!("{}: {jobs} cannot start: {}", escape(word), escape(why));
        Some(Item { level, html })
    };
    let mut items: Vec<Item> = reasons.by_ref().take(NAMED).filter_map(item).collect();
    let more: usize = reasons.map(|(_, jobs)| jobs.len()).sum();
    if more > 0 {
        items.push(Item {
            level: Level::Bad,
            html: format!(
                "<a href=\"/?q=is%3Astuck\">{}</a> cannot start",
                count(more, "more job")
            ),
        });
    }
    items
}

/// Returns a link to a job that waits.
fn waiting(job: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let query = query.append_pair("q", &format!("pod:{job}")).finish();
    format!("<a href=\"/?{}\">{}</a>", escape(&query), escape(job))
}

fn broken(board: &Board) -> Option<String> {
    let broken = board.rows().filter(|row| !row.broken().is_empty());
    let line = |row: &Row| {
        let broken = row.broken();
        let parts = broken
            .iter()
            .map(|(what, of)| format!("{}: {}", gpus(of), escape(what)));
        format!("{} ({})", link(row), parts.collect::<Vec<_>>().join("; "))
    };
    let list = named(broken.map(line), "is:broken")?;
    Some(format!("Broken: {list}"))
}

fn lacking(board: &Board) -> Option<String> {
    let fabrics = board.groups.iter().enumerate().filter_map(|(n, group)| {
        let lacking = of(group.totals.gpus, Some(group.incomplete()?), "GPU");
        let title = escape(&group.kind.title());
        Some(format!("<a href=\"#group-{n}\">{title}</a> ({lacking})"))
    });
    let nodes = board.rows().filter_map(|row| {
        let lacking = row.lacking()?;
        Some(format!("{} ({lacking})", link(row)))
    });
    let lines = fabrics.chain(nodes);
    let list = named(lines, "is:lacking")?;
    Some(format!("GPUs that are not there: {list}"))
}

/// Names the domains with a fault that all their GPUs share: a line each, however many nodes they
/// span.
fn degraded(board: &Board) -> Option<String> {
    let nodes = board.rows().filter_map(Row::node);
    let domains = nodes.flat_map(|node| &node.domains);
    let mut faults: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for domain in domains.filter(|one| !one.faults.is_empty()) {
        let words = domain.faults.iter().map(ToString::to_string);
        faults.entry(&domain.id).or_default().extend(words);
    }
    let lines = faults.into_iter().map(|(id, words)| {
        let words = words.into_iter().collect::<Vec<_>>().join(", ");
        format!("{} ({})", escape(id), escape(&words))
    });
    let list = named(lines, "is:degraded")?;
    Some(format!(
        "NVLink domains whose GPUs all have the same fault, so that a switch or its cables are broken: {list}"
    ))
}

fn unreadable(board: &Board) -> Option<String> {
    let rows = board.rows().filter(|row| row.node().is_none());
    let list = named(rows.map(link), "is:unreadable")?;
    Some(format!("NodeTopologies that cannot be shown: {list}"))
}

/// Names the nodes whose label of the size of their fabric says no number.
fn unclear(board: &Board) -> Option<String> {
    let lines = board.rows().filter_map(|row| {
        let text = escape(row.unclear_size()?);
        Some(format!("{} ({text})", link(row)))
    });
    let list = named(lines, "is:lacking")?;
    let label = labels::FABRIC_GPUS;
    Some(format!("The label {label} is not a number of GPUs: {list}"))
}

fn slow(board: &Board) -> Option<String> {
    let lines = board.rows().filter_map(|row| {
        let ratio = row.node()?.slow?;
        Some(format!("{} ({})", link(row), percent(ratio)))
    });
    let list = named(lines, "is:slow")?;
    Some(format!("Measured slower than their siblings: {list}"))
}

fn poor(board: &Board) -> Option<String> {
    let lines = board.rows().flat_map(|row| {
        row.poor().filter_map(|(job, quality)| {
            let held = row.node()?.allocations.as_ref()?.get(job)?;
            let pod = escape(&format!("{}/{}", held.namespace, held.pod));
            Some(format!("{pod} on {} ({})", link(row), percent(quality)))
        })
    });
    let list = named(lines, "is:poor")?;
    Some(format!("Placed below 70 % of the best: {list}"))
}

/// Joins the first lines, and says where the others are.
fn named(lines: impl Iterator<Item = String>, find: &str) -> Option<String> {
    let mut lines = lines.fuse();
    let first: Vec<String> = lines.by_ref().take(NAMED).collect();
    if first.is_empty() {
        return None;
    }
    let list = first.join(", ");
    Some(match lines.count() {
        0 => list,
        more => {
            let find = find.replace(':', "%3A");
            format!("{list} and <a href=\"/?q={find}\">{more} more</a>")
        }
    })
}

fn link(row: &Row) -> String {
    let name = escape(&row.name);
    format!("<a href=\"#node-{name}\">{name}</a>")
}

fn fits(board: &Board) -> String {
    let totals = &board.totals;
    let mut html = format!(
        "<section class=\"fits\"><h2>What still fits</h2>\n<p><b>{}</b> of {} on {} {} free.",
        totals.free,
        count(totals.gpus, "GPU"),
        count(totals.nodes, "node"),
        if totals.free == 1 { "is" } else { "are" }
    );
    match totals.largest_free_sets.last_key_value() {
        Some((most, nodes)) => {
            let _ = write!(
                html,
                " The largest free set in one domain of a node: <b>{}</b>, on {}.",
                count(*most, "GPU"),
                count(*nodes, "node")
            );
        }
        None if totals.gpus > totals.unknown => html += " Nothing fits.",
        None => {}
    }
    let fabrics = board.groups.iter().filter(|group| is_fabric(group));
    if let Some(best) = fabrics.max_by_key(|group| group.totals.free) {
        let _ = write!(
            html,
            " In one fabric over several nodes: <b>{}</b> ({}).",
            count(best.totals.free, "GPU"),
            escape(&best.kind.title())
        );
    }
    html += "</p>\n<ul class=\"sizes\">";
    for size in totals.sizes() {
        let nodes = totals.holding(size);
        let class = if nodes == 0 { " class=\"none\"" } else { "" };
        let _ = write!(
            html,
            "<li{class}><b>{}</b> {}</li>",
            count(size, "GPU"),
            match nodes {
                0 => "nowhere".to_owned(),
                nodes => format!("on {}", count(nodes, "node")),
            }
        );
    }
    html + "</ul></section>\n"
}

/// Returns how many things are there, of how many there should be if that is known.
fn of(there: usize, all: Option<usize>, what: &str) -> String {
    match all.filter(|&all| there <= all) {
        Some(all) => format!("{there} of {}", count(all, what)),
        None => count(there, what),
    }
}

fn is_fabric(group: &Group) -> bool {
    matches!(group.kind, Kind::Fabric(_))
}

/// Says what is free in a group.
pub(super) fn of_group(group: &Group) -> String {
    let totals = &group.totals;
    let mut text = of(totals.nodes, group.expected_nodes(), "node");
    let away: Vec<u32> = group.away.iter().copied().map(u32::from).collect();
    let _ = match away.as_slice() {
        [] => Ok(()),
        [tray] => write!(text, " (tray {tray} is away)"),
        trays => write!(text, " (trays {} are away)", ranges(trays)),
    };
    let _ = write!(text, ", {}", of(totals.gpus, group.expected, "GPU"));
    if totals.gpus > totals.unknown {
        let _ = write!(text, ", {} free", totals.free);
    }
    if let (false, Some((most, _))) = (is_fabric(group), totals.largest_free_sets.last_key_value())
    {
        let _ = write!(text, ", at most {most} together");
    }
    if totals.broken_nodes > 0 {
        let nodes = count(totals.broken_nodes, "node");
        let _ = write!(text, ", {nodes} with broken GPUs");
    }
    text
}
