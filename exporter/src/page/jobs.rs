//! Which containers hold which GPUs, and how good the placements are.

use nvlink_source::LostGpu;
use nvlink_topology::NodeTopologyStatus;

use super::{
    card,
    html::{count, escape, gpus, percent},
    scene::{Job, Scene},
};
use crate::{output, placement::Judged};

/// Renders the jobs, and the free GPUs.
pub(super) fn render(scene: &Scene<'_>) -> String {
    let mut html = "<section class=\"jobs\"><h2>Jobs</h2>\n".to_owned();
    if !scene.knows_jobs() && scene.jobs.is_empty() {
        let why = match scene.asks_for_jobs() {
            true => "The kubelet did not report them.",
            false => "No kubelet is queried: set its socket with <code>--kubelet-socket</code>.",
        };
        return format!(
            "{html}<p class=\"soft\">GPU allocations are not known. {why}</p></section>\n"
        );
    }
    let allocations = scene.jobs.iter().map(|job| job.held.clone()).collect();
    let mut free = scene
        .spec()
        .free_gpus(Some(&NodeTopologyStatus { allocations }));
    let placements = scene.view.placements.as_deref();
    let uncertain = placements.map(|one| &one.uncertain);
    if let Some(uncertain) = uncertain.filter(|one| !one.is_empty()) {
        free.retain(|gpu| !uncertain.contains(gpu));
        let some: Vec<u32> = uncertain.iter().copied().collect();
        html += &format!(
            "<p class=\"soft\">Not known whether held or free: {}. The kubelet reports devices that \
             cannot be identified.</p>\n",
            gpus(&some)
        );
    }
    html += &match free.len() {
        0 if uncertain.is_some_and(|one| !one.is_empty()) => String::new(),
        0 => "<p class=\"soft\">All GPUs are held.</p>\n".to_owned(),
        all if all == scene.spec().gpus.len() => {
            "<p class=\"soft\">No job holds a GPU.</p>\n".to_owned()
        }
        _ => format!("<p class=\"soft\">Free: {}</p>\n", gpus(&free)),
    };
    for job in &scene.jobs {
        html += &entry(scene, job);
    }
    html + "</section>\n"
}

fn entry(scene: &Scene<'_>, job: &Job<'_>) -> String {
    let held = job.held;
    let name = escape(&format!("{}/{}", held.namespace, held.pod));
    let quality = job.judged.and_then(|judged| judged.quality_node);
    let quality = match quality {
        Some(quality) => {
            let (class, word) = grade(quality);
            // The bar is filled in tenths.
            let level = (quality * 10.0).round().clamp(0.0, 10.0);
            format!(
                "<span class=\"quality {class}\"><i class=\"bar l{level:.0}\" aria-hidden=\"true\"></i> {} {word}</span>",
                percent(quality)
            )
        }
        None => "<span class=\"quality\">not judged</span>".to_owned(),
    };
    let mark = &job.mark;
    format!(
        "<details class=\"job\" id=\"job-{mark}\"><summary><span class=\"mark\">job {mark}</span> \
         <b>{name}</b> <span>{}</span>{} {quality}</summary>\n<div class=\"more\"><dl>{}</dl></div></details>\n",
        holds(job),
        traffic(scene, job),
        facts(job)
    )
}

/// Renders what the NVLinks of a job's GPUs carry together.
fn traffic(scene: &Scene<'_>, job: &Job<'_>) -> String {
    let gpus = scene.spec().gpus.iter();
    let held = gpus.filter(|gpu| job.held.gpus.contains(&gpu.index));
    let lanes: Vec<_> = held.flat_map(|gpu| scene.lanes(gpu)).collect();
    match card::traffic(&lanes) {
        Some(traffic) => format!(
            " <span class=\"traffic\" title=\"Sent and received over all NVLinks of its GPUs\">NVLink {traffic}</span>"
        ),
        None => String::new(),
    }
}

/// Lists the GPUs of a job, and separately those that do not answer.
fn holds(job: &Job<'_>) -> String {
    let lost: Vec<u32> = lost(job).map(|gpu| gpu.index).collect();
    let answer = &job.held.gpus;
    match (answer.is_empty(), lost.is_empty()) {
        (_, true) => gpus(answer),
        (true, false) => format!("{} (lost)", gpus(&lost)),
        (false, false) => format!("{}, {} (lost)", gpus(answer), gpus(&lost)),
    }
}

fn lost<'a>(job: &Job<'a>) -> impl Iterator<Item = &'a LostGpu> {
    job.judged.into_iter().flat_map(|judged| &judged.lost)
}

/// Returns class and words of a quality. The words alone are enough to tell the grades apart.
fn grade(quality: f64) -> (&'static str, &'static str) {
    match quality {
        quality if quality >= 0.995 => ("good", "✓ the best here"),
        quality if quality >= 0.7 => ("fair", "of the best here"),
        _ => ("warning", "▲ of the best here"),
    }
}

fn facts(job: &Job<'_>) -> String {
    let mut facts = vec![("Container", escape(&job.held.container))];
    let links = job.held.gpus.iter();
    let links = links.map(|gpu| format!("<a href=\"#gpu-{gpu}\">GPU {gpu}</a>"));
    let links = links.chain(lost(job).map(|gpu| {
        let index = gpu.index;
        format!("<a class=\"bad\" href=\"#gpu-{index}\">✕ GPU {index} (lost)</a>")
    }));
    facts.push(("GPUs", links.collect::<Vec<_>>().join(" ")));
    if let Some(judged) = job.judged {
        facts.extend(judgement(judged));
    }
    let fact = |(name, value)| format!("<div><dt>{name}</dt><dd>{value}</dd></div>");
    facts.into_iter().map(fact).collect()
}

fn judgement(judged: &Judged) -> Vec<(&'static str, String)> {
    let why = judged.pattern_from.as_str();
    let mut facts = vec![("Pattern", escape(&format!("{} ({why})", judged.pattern)))];
    if let Some(domains) = judged.domains {
        facts.push(("Spread over", count(domains, "domain")));
    }
    if let Some(rate) = judged.bottleneck_bytes_per_second {
        facts.push(("Slowest path", output::rate(rate)));
    }
    let free = match judged.quality_free {
        Some(quality) => percent(quality),
        None => "not known which GPUs were free".to_owned(),
    };
    facts.push(("Of the best among free GPUs", free));
    facts
}
