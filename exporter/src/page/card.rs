//! One GPU: a card with its links, which opens to a table of them.

use nvlink_source::FabricState;
use nvlink_topology::{Edge, Gpu, Via};

use super::{
    html::{count, escape, percent, rate, spaced},
    lane::{Lane, State},
    scene::Scene,
    trouble,
};
use crate::output::{self, summary};
use nvlink_history::load::LinkLoad;

pub(super) fn render(scene: &Scene<'_>, gpu: &Gpu, lanes: &[Lane<'_>]) -> String {
    let index = gpu.index;
    let badges = badges(scene, gpu, lanes);
    let class = match (badges.contains("\"bad\""), badges.contains("\"warning\"")) {
        (true, _) => " bad",
        (false, true) => " warning",
        (false, false) => "",
    };
    let marks: String = scene
        .jobs_on(index)
        .map(|job| format!(" <span class=\"mark\">job {}</span>", job.mark))
        .collect();
    format!(
        "<details class=\"gpu{class}\" id=\"gpu-{index}\"><summary><b>GPU {index}</b>{marks}{badges}\
         {strip}<span class=\"sum\">{sum}</span></summary>\n{more}</details>\n",
        strip = strip(scene, lanes),
        sum = sum(scene, gpu, lanes),
        more = more(scene, gpu, lanes),
    )
}

fn badges(scene: &Scene<'_>, gpu: &Gpu, lanes: &[Lane<'_>]) -> String {
    let mut html = String::new();
    let mut badge = |class: &str, text: &str| {
        html += &format!(" <span class=\"{class}\">{text}</span>");
    };
    match scene.missing(gpu) {
        0 => {}
        missing => badge(
            "bad",
            &format!("✕ {} missing", count(missing as usize, "link")),
        ),
    }
    let health = scene.data.health_of(gpu.index);
    let fabric = health.and_then(|health| health.fabric.as_ref());
    let state = fabric.map(|fabric| fabric.state);
    if let Some(state) = state.filter(|&state| state != FabricState::Completed) {
        badge("bad", &format!("✕ fabric {}", spaced(state.as_str())));
    }
    if lanes.iter().any(|lane| lane.state() == State::Rising) {
        badge("warning", "▲ new errors");
    }
    for (xid, _) in health.iter().flat_map(|health| &health.xids).flatten() {
        badge("warning", &format!("▲ XID {xid}"));
    }
    let conditions = fabric.iter().flat_map(|fabric| &fabric.conditions);
    for (condition, _) in conditions.filter(|(_, holds)| *holds) {
        badge("warning", &format!("▲ {}", spaced(condition.as_str())));
    }
    if gpu.mig_enabled {
        badge("plain", "MIG");
    }
    html
}

/// Renders the links as bars, filled by load and grouped by the device at the other end.
fn strip(scene: &Scene<'_>, lanes: &[Lane<'_>]) -> String {
    if lanes.is_empty() {
        return String::new();
    }
    let mut groups: Vec<(Option<String>, Vec<&Lane<'_>>)> = Vec::new();
    for (n, lane) in lanes.iter().enumerate() {
        let remote = scene.remote(lane).or_else(|| {
            // A link that is down does not report where it leads. Between two links
            // that lead to the same device, it is assumed to lead there, too.
            let before = groups.last().and_then(|(remote, _)| remote.clone());
            let after = lanes[n..].iter().find_map(|lane| scene.remote(lane));
            before.filter(|before| after.as_ref() == Some(before))
        });
        match groups.last_mut() {
            Some((known, group)) if *known == remote => group.push(lane),
            _ => groups.push((remote, vec![lane])),
        }
    }
    let mut html = "<span class=\"lanes\" aria-hidden=\"true\">".to_owned();
    for (remote, group) in groups {
        html += "<span><span>";
        for lane in group {
            html += &format!("<i class=\"{}\"></i>", lane.class());
        }
        let label = remote.unwrap_or_default().replace("GPU ", "→");
        html += &format!("</span><small>{label}</small></span>");
    }
    html + "</span>"
}

/// Summarizes the links in one line.
fn sum(scene: &Scene<'_>, gpu: &Gpu, lanes: &[Lane<'_>]) -> String {
    let Some(up) = summary::links_up(gpu) else {
        return unread(scene, gpu);
    };
    if lanes.is_empty() {
        return "no NVLink".to_owned();
    }
    if gpu.mig_enabled {
        return "split by MIG: no NVLink".to_owned();
    }
    let traffic = traffic(lanes);
    let busy: Vec<f64> = lanes.iter().filter_map(Lane::utilization).collect();
    let load = (!busy.is_empty()).then(|| {
        let mean = percent(busy.iter().sum::<f64>() / busy.len() as f64);
        format!(
            "<span title=\"Mean over the links, each with its busier direction\">{mean} load</span>"
        )
    });
    let plain = |part: String| format!("<span>{part}</span>");
    let parts = [Some(plain(format!("{up} up"))), load, traffic.map(plain)];
    let parts = parts.into_iter().flatten();
    parts.collect::<Vec<_>>().join(" ")
}

/// Says what is not known of a GPU whose links were not read one by one: it may be known how many lead
/// to which GPU.
fn unread(scene: &Scene<'_>, gpu: &Gpu) -> String {
    let all = scene.spec().edges.iter();
    let own: Vec<&Edge> = all
        .filter(|edge| edge.a == gpu.index || edge.b == gpu.index)
        .collect();
    let of = |direct: bool| {
        let kind = own
            .iter()
            .filter(move |edge| (edge.via == Via::Direct) == direct);
        kind.map(|edge| edge.links as usize)
    };
    // Direct links lead to one GPU each; those to switches lead to every other GPU.
    let (direct, switched): (usize, _) = (of(true).sum(), of(false).max());
    match direct + switched.unwrap_or(0) {
        0 => "NVLink not known".to_owned(),
        known => format!("{}, state and load not known", count(known, "link")),
    }
}

/// Returns the bytes per second that links send and receive together; `measuring…`
/// before the second reading, none if they are not counted.
pub(super) fn traffic(lanes: &[Lane<'_>]) -> Option<String> {
    let loads: Vec<_> = lanes.iter().filter_map(|lane| lane.load).collect();
    let total = |value: fn(&LinkLoad) -> Option<f64>| {
        let known: Vec<f64> = loads.iter().filter_map(|load| value(load)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>())
    };
    let sent = total(|load| load.transmit_bytes_per_second);
    let received = total(|load| load.receive_bytes_per_second);
    let measuring = || lanes.iter().any(|lane| lane.measuring);
    both(sent, received).or_else(|| measuring().then(|| "measuring…".to_owned()))
}

/// Formats what is sent and received: `↑ 261 ↓ 265 GB/s`, with a common unit only once.
fn both(sent: Option<f64>, received: Option<f64>) -> Option<String> {
    let (sent, received) = (sent.map(rate), received.map(rate));
    match (sent, received) {
        (None, None) => None,
        (Some(sent), None) => Some(format!("↑ {sent}")),
        (None, Some(received)) => Some(format!("↓ {received}")),
        (Some(sent), Some(received)) => {
            let unit = received.rsplit_once(' ').map_or("", |(_, unit)| unit);
            let sent = sent.strip_suffix(unit).unwrap_or(&sent).trim_end();
            Some(format!("↑ {sent} ↓ {received}"))
        }
    }
}

fn more(scene: &Scene<'_>, gpu: &Gpu, lanes: &[Lane<'_>]) -> String {
    let nics = summary::nics(scene.spec(), gpu.index).join(", ");
    let facts = [
        ("Model", gpu.model.clone()),
        ("UUID", gpu.uuid.clone()),
        ("PCI", gpu.pci_bus_id.clone()),
        ("Nearest NICs", Some(nics).filter(|nics| !nics.is_empty())),
        ("Fabric", fabric(scene, gpu)),
    ];
    let mut html = "<div class=\"more\"><dl>".to_owned();
    for (name, value) in facts {
        if let Some(value) = value {
            html += &format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
        }
    }
    for job in scene.jobs_on(gpu.index) {
        let name = escape(&format!("{}/{}", job.held.namespace, job.held.pod));
        let mark = &job.mark;
        html += &format!(
            "<div><dt>Held by</dt><dd><a href=\"#job-{mark}\">{mark}: {name}</a></dd></div>"
        );
    }
    html += "</dl>";
    if !lanes.is_empty() {
        html += &table(scene, gpu, lanes);
    }
    html + "</div>"
}

fn fabric(scene: &Scene<'_>, gpu: &Gpu) -> Option<String> {
    let health = scene.data.health_of(gpu.index)?;
    Some(spaced(health.fabric.as_ref()?.state.as_str()))
}

fn table(scene: &Scene<'_>, gpu: &Gpu, lanes: &[Lane<'_>]) -> String {
    let index = gpu.index;
    let mut html = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Links of GPU {index}\"><table>\n\
         <thead><tr><th scope=\"col\">Link<th scope=\"col\">State<th scope=\"col\">Errors\
         <th scope=\"col\">To<th scope=\"col\">Load<th scope=\"col\">Sent<th scope=\"col\">Received\
         <th scope=\"col\">Line rate</thead>\n<tbody>\n"
    );
    for lane in lanes {
        let link = lane.link.index;
        let class = match lane.state() {
            State::Down => " class=\"bad\"",
            State::Rising => " class=\"warning\"",
            State::Up | State::Unused => "",
        };
        let moved = |value: Option<f64>| value.map(rate).unwrap_or_default();
        html += &format!(
            "<tr id=\"gpu-{index}-link-{link}\" tabindex=\"-1\"{class}><th scope=\"row\">{link}\
             <td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}\n",
            lane.word(),
            errors(lane),
            scene.remote(lane).unwrap_or_default(),
            lane.utilization().map(percent).unwrap_or_default(),
            moved(lane.load.and_then(|load| load.transmit_bytes_per_second)),
            moved(lane.load.and_then(|load| load.receive_bytes_per_second)),
            lane.link
                .bytes_per_second
                .map(output::rate)
                .unwrap_or_default(),
        );
    }
    html + "</tbody></table></div>"
}

/// Lists the recent errors, else the counters that are not zero.
fn errors(lane: &Lane<'_>) -> String {
    if lane.errors() > 0 {
        return format!("{} in 5 min", trouble::rises(lane));
    }
    let errors = lane.counters.iter().flat_map(|one| &one.errors);
    let some = errors.filter(|(_, count)| *count > 0);
    let some = some.map(|(kind, count)| format!("{count} {}", kind.as_str()));
    some.collect::<Vec<_>>().join(", ")
}
