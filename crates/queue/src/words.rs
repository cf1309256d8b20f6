//! What a round says, in words. Pure.

use k8s_openapi::jiff::{Timestamp, Unit, tz::TimeZone};
use nvlink_api::class::duration;
use nvlink_planner::{Deadline, Eta, Millis, OnTimeout, Reason, Why};
use nvlink_topology::{Scope, labels};

use super::Member;

/// The word for a job that the nodes of its class can never run.
pub const IMPOSSIBLE: &str = "Impossible";

/// Returns the reason as one word, as conditions and Events have it. Of a class that `grows`, nodes may
/// come that do not exist yet.
pub fn word(reason: &Reason, grows: bool) -> &'static str {
    match reason {
        reason if grows && lacks_room(reason) => "Growing",
        Reason::Incomplete => "Incomplete",
        Reason::Never | Reason::NeverTogether { .. } | Reason::Unlabelled => IMPOSSIBLE,
        Reason::Spreads => "Spreads",
        Reason::Silent => "Silent",
        Reason::Quota { .. } => "Quota",
        Reason::Insufficient { .. } => "Insufficient",
        Reason::Resources { .. } => "Resources",
        Reason::Fragmented { .. } => "Fragmented",
        Reason::Behind { .. } => "Behind",
        Reason::Better { .. } => "Better",
    }
}

/// Reports whether the nodes that exist cannot run a job as it is asked for, not even when empty.
fn lacks_room(reason: &Reason) -> bool {
    reason.is_never() || *reason == Reason::Spreads
}

/// The same, as metrics have it.
pub(super) fn label(reason: &Reason, grows: bool) -> &'static str {
    match reason {
        reason if grows && lacks_room(reason) => "growing",
        Reason::Incomplete => "incomplete",
        Reason::Never | Reason::NeverTogether { .. } | Reason::Unlabelled => "impossible",
        Reason::Spreads => "spreads",
        Reason::Silent => "silent",
        Reason::Quota { .. } => "quota",
        Reason::Insufficient { .. } => "insufficient",
        Reason::Resources { .. } => "resources",
        Reason::Fragmented { .. } => "fragmented",
        Reason::Behind { .. } => "behind",
        Reason::Better { .. } => "better",
    }
}

/// Returns why a job started then and there.
pub fn why(why: &Why) -> String {
    match *why {
        Why::Turn => "it was its turn".to_owned(),
        Why::Backfill { ahead } => format!(
            "it passed {} that could not start there",
            count(ahead, "waiting job")
        ),
        Why::Worse { wait, longer, .. } => format!(
            "a better placement would have come in {}, but would have saved only {}",
            span(wait),
            span(longer)
        ),
        Why::Rejoin => "it took the place of an earlier pod of its gang".to_owned(),
        Why::Spread { .. } => {
            "it waited as long as its class lets it wait, so its GPUs need not share a domain"
                .to_owned()
        }
    }
}

/// Returns the kind of a start, as metrics have it.
pub(super) fn kind(why: &Why) -> &'static str {
    match why {
        Why::Turn => "turn",
        Why::Backfill { .. } => "backfill",
        Why::Worse { .. } => "worse",
        Why::Rejoin => "rejoin",
        Why::Spread { .. } => "spread",
    }
}

/// Returns why a job in `project` waits whose GPUs may be as far apart as `scope`, as a sentence
/// without its end. Of a class that `grows`, nodes may come that do not exist yet.
pub fn sentence(reason: &Reason, scope: Scope, project: &str, grows: bool) -> String {
    match *reason {
        ref reason if grows && lacks_room(reason) => {
            "the nodes that its class has now cannot run it, not even when empty".to_owned()
        }
        Reason::Incomplete => {
            "not all pods of its gang exist and are free of other scheduling gates".to_owned()
        }
        Reason::Never => {
            "no node of its class can run it, not even an empty one: request fewer GPUs, or use another scope or class".to_owned()
        }
        Reason::NeverTogether { pods } => never_together(pods, scope),
        Reason::Unlabelled => unlabelled(scope),
        Reason::Spreads => "nothing within its scope can run it, not even when empty".to_owned(),
        Reason::Silent => {
            "the nodes that could hold it are not ready, or do not report their GPUs".to_owned()
        }
        Reason::Quota { held, most } => format!(
            "project {project} holds {held} of the {most} GPUs that a project may hold in the class"
        ),
        Reason::Insufficient { asked, free } => full(asked, free, scope),
        Reason::Resources { asked } => format!(
            "{} {} free {}, but not with the CPU, memory and other resources that it requests",
            gpus(asked),
            are(asked),
            within(asked, scope)
        ),
        Reason::Fragmented { asked: 1, free } => format!(
            "{} {} free, but none that it may use",
            gpus(free),
            are(free)
        ),
        Reason::Fragmented { asked, free } => format!(
            "{} {} free, but no {asked} of them {}",
            gpus(free),
            are(free),
            within(asked, scope)
        ),
        Reason::Behind { ahead } => behind(ahead),
        Reason::Better { longer } => format!(
            "it could start now, but a better placement is worth the wait: it would run {} longer now",
            span(longer)
        ),
    }
}

/// Returns what to add to the reason for which a job waits that leaves nodes free as spares.
pub(super) const fn spares(reason: &Reason) -> &'static str {
    match reason {
        Reason::Never
        | Reason::NeverTogether { .. }
        | Reason::Spreads
        | Reason::Insufficient { .. }
        | Reason::Resources { .. }
        | Reason::Fragmented { .. } => {
            "; its class leaves spare nodes of each NVLink fabric free (placement.spareNodes)"
        }
        _ => "",
    }
}

fn full(asked: u32, free: u32, scope: Scope) -> String {
    let wanted = format!("it needs {} {}", gpus(asked), within(asked, scope));
    let there = match scope {
        Scope::Cluster if asked > 1 => "",
        Scope::Gpu | Scope::Node => " on one",
        _ if asked == 1 => " on one",
        _ => " in one",
    };
    match free {
        0 => format!("{wanted}, and none is free"),
        _ => format!("{wanted}, and at most {free} {} free{there}", are(free)),
    }
}

fn behind(ahead: u32) -> String {
    let jobs = count(ahead, "job");
    match ahead {
        0 => "GPUs are free, but jobs ahead of it take them now".to_owned(),
        1 => format!("GPUs are free, but {jobs} ahead of it needs them"),
        _ => format!("GPUs are free, but {jobs} ahead of it need them"),
    }
}

/// Returns why the pods of a gang, each of which could run, never start together within `scope`.
fn never_together(pods: usize, scope: Scope) -> String {
    let place = match scope {
        Scope::Gpu | Scope::NvlinkDomain => "NVLink domain over which pods reach each other",
        Scope::Node => "node",
        Scope::Rack => "rack",
        Scope::Zone => "zone",
        Scope::Cluster => "set of nodes of its class",
    };
    format!(
        "each of its {pods} pods could run, but no {place} can run all of them, not even when empty: use fewer pods, another class, or another {}",
        labels::GANG_SCOPE
    )
}

/// Returns why the pods of a gang never start together within `scope`, a rack or a zone.
fn unlabelled(scope: Scope) -> String {
    let group = if scope == Scope::Zone { "zone" } else { "rack" };
    format!(
        "its pods must share a {group}, and no node of its class has the label that names its {group}: an administrator labels the nodes, or names another label with --{group}-label; or use another {}",
        labels::GANG_SCOPE
    )
}

/// Returns when a job is expected to start and when its waiting ends, the earlier of the two first, as
/// seen at `now`.
pub(super) fn start(eta: Option<Eta>, deadline: Option<Deadline>, now: Millis) -> String {
    let Some(deadline) = deadline else {
        return expected(eta, now);
    };
    let ends = end(deadline, now);
    match eta {
        Some(eta) if eta.mean <= deadline.at => format!("{}; {ends}", expected(Some(eta), now)),
        Some(eta) if deadline.then == OnTimeout::Reject => format!(
            "{ends}, and its GPUs are not expected to be free before {}",
            clock(eta.mean, now)
        ),
        _ => format!("{ends}; {}", expected(eta, now)),
    }
}

/// Returns what happens to a job that waits for too long, as seen at `now`.
pub(super) fn end(deadline: Deadline, now: Millis) -> String {
    let then = match deadline.then {
        OnTimeout::Reject => "fails",
        OnTimeout::Spread => "starts without a common NVLink domain",
    };
    format!("{then} if it still waits at {}", clock(deadline.at, now))
}

/// Returns why a pod failed that waited for as long as `member` may, `why` being what it waited for. The
/// developer of a CI job reads this in the job's log, and cannot look into the cluster.
pub fn timed_out(member: &Member, why: &str, never: bool) -> String {
    let class = &member.class;
    let waited = member.timeout.unwrap_or_default();
    let waited = span(Millis::try_from(waited.as_millis()).unwrap_or(Millis::MAX));
    let again = if never {
        ""
    } else {
        ". Start the job again later"
    };
    let longer = match member.limited_by {
        _ if never => String::new(),
        None => format!(
            "; to let jobs wait longer, an administrator raises placement.queueTimeout of class {class:?}"
        ),
        Some(system) => format!(
            "; {} gives up after {}, so to let jobs wait longer, an administrator raises {}, and sets placement.queueTimeout of class {class:?}",
            system.name(),
            duration::shown(system.gives_up()),
            system.setting()
        ),
    };
    format!(
        "the pod waited {waited} in the queue of class {class:?}, which is as long as it may: {why}{again}{longer}"
    )
}

fn expected(eta: Option<Eta>, now: Millis) -> String {
    match eta {
        None => "when it starts is not known, since not all that it waits for say when they end"
            .to_owned(),
        Some(eta) if eta.at_least => {
            format!("expected to start no earlier than {}", clock(eta.mean, now))
        }
        Some(eta) => format!("expected to start at {}", clock(eta.mean, now)),
    }
}

/// Returns a time of day in whole minutes, rounded up, and with its date if that is not the one of
/// `now`. What stands in a pod gets old, so it says no "in 12 minutes".
fn clock(at: Millis, now: Millis) -> String {
    let utc = |at: Millis| {
        let at = Timestamp::from_millisecond(at).unwrap_or(Timestamp::MAX);
        at.to_zoned(TimeZone::UTC)
    };
    // Sums of estimates may be as large as numbers get.
    let up = at.saturating_add(59_999) / 60_000;
    let (then, today) = (utc(up.saturating_mul(60_000)), utc(now).date());
    match then.date() == today {
        true => then.strftime("%H:%M UTC").to_string(),
        false => then.strftime("%H:%M UTC on %Y-%m-%d").to_string(),
    }
}

/// Returns a point in time as the API writes it, in whole seconds.
pub fn stamp(at: Millis) -> String {
    let at = Timestamp::from_millisecond(at).unwrap_or(Timestamp::MAX);
    at.round(Unit::Second).unwrap_or(at).to_string()
}

/// Returns a time span as kubectl prints ages: `45s`, `12m`, `3h5m`, `2d4h`.
pub fn span(millis: Millis) -> String {
    let seconds = millis.max(0) / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |many: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{many}{unit}"),
        rest => format!("{many}{unit}{rest}{small}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0..2) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m"),
        (0, ..) => two(hours, "h", minutes % 60, "m"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

fn within(asked: u32, scope: Scope) -> &'static str {
    match scope {
        _ if asked == 1 => "on one node",
        Scope::NvlinkDomain => "in one NVLink domain",
        Scope::Gpu | Scope::Node => "on one node",
        Scope::Rack => "in one rack",
        Scope::Zone => "in one zone",
        Scope::Cluster => "for all of its pods",
    }
}

fn are(number: u32) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

fn gpus(number: u32) -> String {
    count(number, "GPU")
}

fn count(number: u32, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}
