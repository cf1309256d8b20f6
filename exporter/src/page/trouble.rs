//! The list of problems at the top of the page.

use nvlink_source::{FabricState, GpuHealth, RowRemap};
use nvlink_topology::{
    Fault, Gpu, RecoveryAction, missing_gpus, own_missing_links, shared_missing_links,
};

use super::{
    html::{count, escape, gpus, percent, spaced},
    lane::State,
    scene::Scene,
};
use crate::output::summary;

/// A problem.
pub(super) struct Trouble {
    level: Level,
    /// The GPUs that have it, in ascending order; none if it is a problem of the node.
    gpus: Vec<u32>,
    /// Its description, without the GPUs.
    text: String,
    /// The element of the page with the details.
    place: Option<String>,
}

/// How bad a problem is, worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Bad,
    Warning,
}

/// Placements below this share of the best are listed.
const POOR: f64 = 0.7;

/// Finds all problems, worst first. GPUs with the same problem share a line.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Trouble> {
    let mut all = Vec::new();
    for lost in &scene.data.lost {
        let text = match &lost.reason {
            Some(reason) => format!("lost: {reason}"),
            None => "lost: it no longer answers".to_owned(),
        };
        add(&mut all, Level::Bad, Some(lost.index), text);
    }
    let missing = usize::try_from(missing_gpus(scene.spec()).unwrap_or(0)).unwrap_or(usize::MAX);
    // Those that are lost are listed.
    let missing = missing.saturating_sub(scene.data.lost.len());
    if missing > 0 {
        let verb = if missing == 1 { "does" } else { "do" };
        let text = format!("{} of the board {verb} not answer", count(missing, "GPU"));
        add(&mut all, Level::Bad, None, text);
    }
    for unread in &scene.data.unread {
        add(&mut all, Level::Bad, None, unread.reason.clone());
    }
    fabric(scene, &mut all);
    for domain in &scene.spec().domains {
        let missing = shared_missing_links(domain, scene.spec());
        if missing > 0 {
            let text = format!(
                "NVLink domain {}: {}",
                domain.id,
                summary::each_lacks(missing)
            );
            add(&mut all, Level::Bad, None, text);
        }
    }
    links(scene, &mut all);
    for warning in &scene.data.warnings {
        add(&mut all, Level::Warning, None, warning.clone());
    }
    for slow in scene.view.comparisons().iter().filter(|one| one.is_slow()) {
        add(&mut all, Level::Warning, None, summary::slower(slow));
    }
    allocations(scene, &mut all);
    all.sort_by_key(|one| one.level);
    all
}

fn add(all: &mut Vec<Trouble>, level: Level, gpu: Option<u32>, text: String) {
    let same = |one: &&mut Trouble| one.text == text && gpu.is_some() && !one.gpus.is_empty();
    match all.iter_mut().find(same) {
        Some(one) => one.gpus.extend(gpu),
        None => all.push(Trouble {
            level,
            gpus: gpu.into_iter().collect(),
            text,
            place: gpu.map(|gpu| format!("gpu-{gpu}")),
        }),
    }
}

fn fabric(scene: &Scene<'_>, all: &mut Vec<Trouble>) {
    for health in &scene.data.health {
        let gpu = Some(health.gpu);
        for (xid, times) in health.xids.iter().flatten() {
            let text = format!(
                "XID {xid}, {} since the start",
                count(*times as usize, "time")
            );
            add(all, Level::Warning, gpu, text);
        }
        verdict(health, all);
        let Some(fabric) = &health.fabric else {
            continue;
        };
        if fabric.state != FabricState::Completed {
            let state = spaced(fabric.state.as_str());
            add(all, Level::Bad, gpu, format!("NVLink fabric is {state}"));
        }
        for (condition, _) in fabric.conditions.iter().filter(|(_, holds)| *holds) {
            let text = format!("fabric reports {}", spaced(condition.as_str()));
            add(all, Level::Warning, gpu, text);
        }
    }
}

/// Lists what the driver says of a GPU.
fn verdict(health: &GpuHealth, all: &mut Vec<Trouble>) {
    let gpu = Some(health.gpu);
    if let Some(action) = health.recovery.filter(|one| *one != RecoveryAction::None) {
        let level = match action.breaks_gpu() {
            true => Level::Bad,
            false => Level::Warning,
        };
        let text = format!("the driver asks for: {}", spaced(action.as_str()));
        add(all, level, gpu, text);
    }
    for (state, _) in health.row_remap.iter().filter(|(_, holds)| *holds) {
        let (level, text) = match state {
            RowRemap::Pending => (Level::Warning, "rows of memory wait to be remapped"),
            RowRemap::Failed => (Level::Bad, "rows of memory could not be remapped"),
        };
        add(all, level, gpu, text.to_owned());
    }
}

fn links(scene: &Scene<'_>, all: &mut Vec<Trouble>) {
    let own = own_missing_links(scene.spec());
    for (gpu, own) in scene.spec().gpus.iter().zip(own) {
        earlier_xids(scene, gpu, all);
        let own = own.filter(|_| scene.data.is_read(gpu.index));
        let missing = own.unwrap_or(0) as usize;
        let lanes = scene.lanes(gpu);
        let index = Some(gpu.index);
        if missing > 0 {
            let down: Vec<_> = lanes
                .iter()
                .filter(|lane| lane.state() == State::Down)
                .map(|lane| lane.link.index)
                .collect();
            let which = match down.len() == lanes.len() {
                true => String::new(),
                false => format!(": {}", crate::output::ranges(&down)),
            };
            let text = format!("{} missing{which}", count(missing, "link"));
            add(all, Level::Bad, index, text);
        }
        for lane in lanes.iter().filter(|lane| lane.state() == State::Rising) {
            let link = lane.link.index;
            let text = format!("new errors on link {link}: {} in 5 minutes", rises(lane));
            add(all, Level::Warning, index, text);
            if let Some(last) = all.last_mut().filter(|last| last.gpus == [gpu.index]) {
                last.place = Some(format!("gpu-{}-link-{link}", gpu.index));
            }
        }
    }
}

/// Lists the XIDs by which the GPU is still marked as broken and that happened before the
/// exporter started.
fn earlier_xids(scene: &Scene<'_>, gpu: &Gpu, all: &mut Vec<Trouble>) {
    let counted = |xid: u64| {
        let health = scene.data.health_of(gpu.index);
        let xids = health.and_then(|health| health.xids.as_ref());
        xids.into_iter().flatten().any(|(one, _)| *one == xid)
    };
    for fault in &gpu.faults {
        if let Fault::Xid(xid) = *fault
            && !counted(xid)
        {
            let text = format!("XID {xid} before the start, and not reset since");
            add(all, Level::Warning, Some(gpu.index), text);
        }
    }
}

/// Lists recent errors: `20 crc_flit, 5 replay`.
pub(super) fn rises(lane: &super::lane::Lane<'_>) -> String {
    let rises = lane.load.iter().flat_map(|load| &load.rises);
    let rises = rises.map(|rise| format!("{} {}", rise.recent, rise.kind.as_str()));
    rises.collect::<Vec<_>>().join(", ")
}

fn allocations(scene: &Scene<'_>, all: &mut Vec<Trouble>) {
    let placements = scene.view.placements.as_ref();
    let health = placements.and_then(|one| one.health.as_ref());
    if let Some(error) = health.and_then(|health| health.error.as_ref()) {
        let text = format!("allocations are not known: {error}");
        add(all, Level::Warning, None, text);
    }
    for job in &scene.jobs {
        let quality = job.judged.and_then(|judged| judged.quality_node);
        if let Some(quality) = quality.filter(|&quality| quality < POOR) {
            let name = format!("{}/{}", job.held.namespace, job.held.pod);
            let text = format!(
                "job {} ({name}) is placed at {} of the best",
                job.mark,
                percent(quality)
            );
            add(all, Level::Warning, None, text);
            if let Some(last) = all.last_mut() {
                last.place = Some(format!("job-{}", job.mark));
            }
        }
    }
}

/// Renders the list, or a line if it is empty.
pub(super) fn render(troubles: &[Trouble]) -> String {
    let Some(worst) = troubles.first() else {
        return "<section class=\"troubles good\"><h2 role=\"status\">✓ Nothing needs attention</h2></section>\n"
            .to_owned();
    };
    let title = count(troubles.len(), "item");
    let verb = if troubles.len() == 1 { "needs" } else { "need" };
    let (mark, class) = worst.level.mark();
    let mut html = format!(
        "<section class=\"troubles {class}\"><h2 role=\"status\">{mark} {title} {verb} attention</h2>\n<ul>\n"
    );
    for trouble in troubles {
        html += &trouble.render();
    }
    html + "</ul></section>\n"
}

impl Trouble {
    fn render(&self) -> String {
        let (mark, class) = self.level.mark();
        let text = match self.gpus.is_empty() {
            true => escape(&self.text),
            false => format!("<b>{}</b>: {}", gpus(&self.gpus), escape(&self.text)),
        };
        let text = match &self.place {
            Some(place) => format!("<a href=\"#{place}\">{text}</a>"),
            None => text,
        };
        format!("<li class=\"{class}\"><span aria-hidden=\"true\">{mark}</span> {text}</li>\n")
    }
}

impl Level {
    fn mark(self) -> (&'static str, &'static str) {
        match self {
            Self::Bad => ("✕", "bad"),
            Self::Warning => ("▲", "warning"),
        }
    }
}
