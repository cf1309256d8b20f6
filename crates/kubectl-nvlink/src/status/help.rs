//! What would help a job that waits: the planner tries it with changes.

use std::collections::BTreeSet;

use nvlink_api::class::Class;
use nvlink_planner::{Action, Eta, Job, Millis, Name, Planner, Release};
use nvlink_queue::feed::{giving, open_to};
use nvlink_topology::{Pattern, Scope};
use serde::Serialize;
use serde_json::Value;

use super::{state::State, variant, words};

/// A change with which a job would start earlier.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Help {
    /// `gpus`, `scope`, `gang-scope` or `class`.
    pub change: &'static str,
    /// The new value.
    pub to: String,
    /// When it would be expected to start; absent: at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The expected bandwidth over the best possible, in (0, 1], where it would start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<f64>,
    /// The change and its effect as a sentence.
    pub message: String,
}

/// When and how well a job would start.
enum Start {
    Now(Box<Release>),
    Later(Millis),
}

/// Returns the changes with which the job `id` would start earlier than at `eta`. Each is tried as
/// a job that is created now.
pub(super) fn find(state: &mut State<'_>, id: &Name, job: &Job, eta: Option<Eta>) -> Vec<Help> {
    let now = state.now;
    let variants = variants(state, id, job);
    let Some(plan) = state.plan.as_mut() else {
        return Vec::new();
    };
    let mut within = |pods: &[Value], open: &[Name]| {
        let demands = pods.iter().map(|pod| plan.demand(pod, now));
        let names: BTreeSet<Name> = demands.chain(open.iter().cloned()).collect();
        names.into_iter().collect::<Vec<Name>>()
    };
    let fresh = Job {
        created: now,
        deadline: None,
        within: within(&variants.any_size, &variants.open),
        ..job.clone()
    };
    let classes = variants.classes.iter().map(|(name, pods, open)| Job {
        class: Name::from(name.as_str()),
        within: within(pods, open),
        ..fresh.clone()
    });
    let classes: Vec<Job> = classes.collect();
    let planner = &mut plan.planner;
    let mut try_out = |changed: Job| {
        let start = start(planner, id, changed, now);
        let earlier = |at: Millis| eta.is_none_or(|eta| at < eta.mean);
        start.filter(|start| match start {
            Start::Now(_) => true,
            Start::Later(at) => earlier(*at),
        })
    };
    let mut found = Vec::new();
    found.extend(fewer(&fresh, &mut try_out, now));
    found.extend(wider(&fresh, &mut try_out, now));
    for changed in classes {
        let class = changed.class.clone();
        if let Some(start) = try_out(changed) {
            found.push(help(
                "class",
                &class,
                &format!("class {class}"),
                &start,
                now,
            ));
        }
    }
    planner.job(id, Some(job.clone()));
    found
}

/// The pods of a job with changes.
struct Variants {
    /// With any number of GPUs and any scope.
    any_size: Vec<Value>,
    /// The sets of nodes where new pods of their class may start.
    open: Vec<Name>,
    /// In each other class that whoever asks may use, with its sets of nodes.
    classes: Vec<(String, Vec<Value>, Vec<Name>)>,
}

fn variants(state: &State<'_>, id: &Name, job: &Job) -> Variants {
    let pods = job
        .members
        .iter()
        .filter_map(|member| state.pods.get(&member.pod));
    let pods: Vec<&Value> = pods.map(|pod| pod.value).collect();
    let own = state.class(&job.class);
    let member = state.plan.as_ref().and_then(|plan| plan.member(id));
    let gang = member.is_some_and(|member| member.gang.is_some());
    let open = |class: &Class| {
        let sets = std::iter::once(giving(class)).chain(open_to(class, gang));
        sets.collect::<Vec<Name>>()
    };
    let classes = usable(state, job).map(|class| {
        let changed = pods.iter().map(|pod| variant::of_class(pod, own, class));
        (class.name.clone(), changed.collect(), open(class))
    });
    Variants {
        any_size: pods.iter().map(|pod| variant::of_any_size(pod)).collect(),
        // Pods that take the place of lost ones may use spares.
        open: own.map_or_else(Vec::new, |own| {
            let left = open_to(own, gang).filter(|set| job.within.contains(set));
            std::iter::once(giving(own)).chain(left).collect()
        }),
        classes: classes.collect(),
    }
}

/// Returns when the changed job would start; `None` if it never would, or nobody knows.
fn start(planner: &mut Planner, id: &Name, changed: Job, now: Millis) -> Option<Start> {
    planner.job(id, Some(changed));
    let round = planner.round(now);
    let mut releases = round.actions.into_iter().filter_map(|action| match action {
        Action::Release(release) if release.job == *id => Some(release),
        _ => None,
    });
    if let Some(release) = releases.next() {
        return Some(Start::Now(Box::new(release)));
    }
    let waiting = round.waiting.into_iter().find(|one| one.job == *id)?;
    Some(Start::Later(waiting.eta.filter(|eta| !eta.at_least)?.mean))
}

/// Tries fewer GPUs: the most that would start at once, else half of them.
fn fewer(job: &Job, try_out: &mut impl FnMut(Job) -> Option<Start>, now: Millis) -> Option<Help> {
    let sizes: BTreeSet<u32> = job.members.iter().map(|member| member.gpus).collect();
    let gpus = *sizes.first()?;
    // A shape needs its number of GPUs, and unlike pods have no common number.
    if sizes.len() > 1 || gpus < 2 || matches!(job.pattern, Pattern::Shape(_)) {
        return None;
    }
    let mut with = |gpus: u32| {
        let mut changed = job.clone();
        changed
            .members
            .iter_mut()
            .for_each(|member| member.gpus = gpus);
        try_out(changed)
    };
    let each = if job.members.len() > 1 { " a pod" } else { "" };
    let what = |few: u32| format!("{}{each} instead of {gpus}", words::gpus(few));
    for few in (1..gpus).rev() {
        if let Some(start @ Start::Now(_)) = with(few) {
            return Some(help("gpus", &few.to_string(), &what(few), &start, now));
        }
    }
    let half = gpus / 2;
    let start = with(half)?;
    Some(help("gpus", &half.to_string(), &what(half), &start, now))
}

/// Tries wider scopes: of the GPUs of each pod, then of the pods of a gang; the closest that helps.
fn wider(job: &Job, try_out: &mut impl FnMut(Job) -> Option<Start>, now: Millis) -> Option<Help> {
    let of_gpus = (job.scope < Scope::Node).then(|| Job {
        scope: Scope::Node,
        ..job.clone()
    });
    let wider = [Scope::Node, Scope::Rack, Scope::Zone, Scope::Cluster].into_iter();
    let wider = wider.filter(|scope| job.members.len() > 1 && *scope > job.gang_scope);
    let of_pods = wider.map(|gang_scope| Job {
        gang_scope,
        ..job.clone()
    });
    of_gpus.into_iter().chain(of_pods).find_map(|changed| {
        let (change, to, from) = match changed.scope == job.scope {
            true => ("gang-scope", changed.gang_scope, job.gang_scope),
            false => ("scope", changed.scope, job.scope),
        };
        let start = try_out(changed)?;
        let what = format!("{change} {to} instead of {from}");
        Some(help(change, &to.to_string(), &what, &start, now))
    })
}

/// Returns the other classes that whoever asks may use.
fn usable<'s>(state: &'s State<'_>, job: &'s Job) -> impl Iterator<Item = &'s Class> {
    let own = state.class(&job.class).map(|class| &class.resource);
    let classes = state
        .classes
        .values()
        .filter_map(|class| class.as_ref().ok());
    classes
        .filter(move |class| class.name != *job.class && Some(&class.resource) == own)
        .filter(|class| !class.restricted || state.objects.usable.contains(&class.name))
}

fn help(change: &'static str, to: &str, what: &str, start: &Start, now: Millis) -> Help {
    let (when, expected, quality) = match start {
        Start::Now(release) => (
            "would start at once".to_owned(),
            None,
            Some(release.quality),
        ),
        Start::Later(at) => {
            let when = format!("would start {}", words::moment(*at, now));
            (when, Some(words::stamp(*at)), None)
        }
    };
    let poor = quality.filter(|quality| *quality < 0.995);
    let poor = poor.map(|quality| format!(", with {:.0} % of the best bandwidth", quality * 100.0));
    Help {
        change,
        to: to.to_owned(),
        expected,
        quality,
        message: format!("{what}: {when}{}", poor.unwrap_or_default()),
    }
}
