//! Explains pods that do not wait in the queue.

use k8s_openapi::jiff::Timestamp;
use nvlink_admission::decide::elsewhere;
use nvlink_api::pod;
use nvlink_planner::Millis;
use nvlink_queue::{
    Life,
    outcome::{self, Outcome},
};
use nvlink_topology::{Allocation, Pattern, labels};
use serde_json::Value;

use super::{
    explain::Explained,
    node::Node,
    state::{Pod, State},
    words,
};

/// Describes a pod in the state `life`.
pub(super) fn describe(state: &State<'_>, pod: &Pod<'_>, life: &Life, this: &mut Explained) {
    (this.state, this.summary) = stage(state, pod, life);
    let messages = &mut this.messages;
    match life {
        Life::Gated { others } => messages.push(format!(
            "its scheduling gates are not the queue's: {}. Whoever added them must remove them",
            others.join(", ")
        )),
        Life::Released => scheduler(pod, messages),
        Life::Bound { .. } => {
            messages.extend(containers(pod));
            messages.extend(channel(pod));
        }
        Life::Ended { .. } => messages.extend(status(pod)),
        Life::Deleting { node: Some(_), .. } if pod.gpus > 0 => {
            messages.push("it holds its GPUs until it is gone".to_owned());
        }
        Life::Waiting { .. } | Life::Running { .. } | Life::Deleting { .. } => {}
    }
    let otherwise = otherwise(pod);
    let moved = otherwise.is_some();
    if let Some(node) = life.node() {
        let planned = otherwise.is_none() && pod.placement().is_some();
        holds(state, pod, node, planned, messages);
        messages.extend(otherwise);
    }
    unqueued(state, pod, life, messages);
    why(this, moved);
}

/// Returns the state in one word and in one sentence.
fn stage(state: &State<'_>, pod: &Pod<'_>, life: &Life) -> (&'static str, String) {
    let since = |text: &str| match pod.created {
        Some(created) => format!("{text}, created {}", words::moment(created, state.now)),
        None => text.to_owned(),
    };
    let waits = |usual: &str| {
        let place = elsewhere(pod.value).unwrap_or_else(|| usual.to_owned());
        format!("waits {place}")
    };
    match life {
        Life::Waiting { .. } => ("waiting", since("waits in the queue")),
        Life::Gated { .. } => ("gated", since(&waits("for somebody else"))),
        Life::Released => ("released", since(&waits("for the scheduler"))),
        Life::Bound { node } => (
            "bound",
            format!("is on node {node}, which has not started it"),
        ),
        Life::Running { node, since } => {
            let since = since.map(|since| words::moment(since.as_millisecond(), state.now));
            let since = since.map(|since| format!(", started {since}"));
            let text = format!("runs on node {node}{}", since.unwrap_or_default());
            ("running", text)
        }
        Life::Ended { succeeded, .. } => {
            let how = if *succeeded { "succeeded" } else { "failed" };
            ("ended", format!("has {how}"))
        }
        Life::Deleting { .. } => ("deleting", "is being deleted".to_owned()),
    }
}

/// Says what the scheduler says.
fn scheduler(pod: &Pod<'_>, messages: &mut Vec<String>) {
    let placed = pod.placement();
    let node = placed
        .as_ref()
        .and_then(|placed| placed.get("node")?.as_str());
    if let Some(node) = node {
        messages.push(format!(
            "the queue released it to node {node}, and the scheduler has not bound it yet"
        ));
    }
    let mut conditions = pod::list(pod.value, &["status", "conditions"]);
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    // The API server leaves what it wrote while the pod had gates.
    let gated = |one: &Value| text(one, "reason").as_deref() == Some("SchedulingGated");
    let scheduled = conditions.find(|one| text(one, "type").as_deref() == Some("PodScheduled"));
    let scheduled = scheduled.filter(|one| pod.life != Life::Released || !gated(one));
    match scheduled.and_then(|one| text(one, "message")) {
        Some(message) => messages.push(format!("the scheduler says: {message}")),
        None if node.is_none() => {
            messages.push("the scheduler has said nothing about it yet".to_owned())
        }
        None => {}
    }
}

/// Returns the reason and message of a pod's status.
fn status(pod: &Pod<'_>) -> Option<String> {
    let text = |key: &str| {
        let text = pod::at(pod.value, &["status", key]).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    match (text("reason"), text("message")) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (reason, message) => reason.or(message).map(str::to_owned),
    }
}

/// Returns why a container does not run.
fn containers(pod: &Pod<'_>) -> Option<String> {
    let all = pod::list(pod.value, &["status", "containerStatuses"]);
    let waits = |one: &Value| {
        let waiting = pod::at(one, &["state", "waiting"])?;
        let reason = waiting.get("reason")?.as_str()?;
        let message = waiting.get("message").and_then(Value::as_str);
        let name = one.get("name")?.as_str()?;
        let message = message.map(|message| format!(": {message}"));
        Some(format!(
            "container {name}: {reason}{}",
            message.unwrap_or_default()
        ))
    };
    all.into_iter().find_map(waits)
}

/// Says what must give a pod its IMEX channel before it starts.
fn channel(pod: &Pod<'_>) -> Option<String> {
    let placed = pod.placement()?;
    let domain = placed.get("computeDomain")?.as_str()?;
    Some(format!(
        "it starts when its node has an IMEX channel for it: kubectl get computedomain {domain} -n {} -o yaml \
         shows whether the daemon of the node is ready",
        pod.namespace
    ))
}

/// Says which GPUs a pod on `node` holds, and how good they are; of those that were `planned`, the
/// queue says that.
fn holds(state: &State<'_>, pod: &Pod<'_>, node: &str, planned: bool, messages: &mut Vec<String>) {
    if pod.gpus == 0 {
        messages.push("it requests no GPU".to_owned());
        return;
    }
    let Some(known) = state.nodes.get(node) else {
        return;
    };
    let published = known.known();
    let report = published.and_then(|published| published.allocations.as_ref());
    let reported = report.into_iter().flatten();
    let of_pod = reported.filter(|one| one.namespace == pod.namespace && one.pod == pod.name);
    let of_pod: Vec<_> = of_pod.collect();
    let mut gpus: Vec<u32> = of_pod.iter().flat_map(|one| one.gpus.clone()).collect();
    gpus.sort_unstable();
    if gpus.is_empty() {
        messages.push("the node's exporter has not reported which GPUs it holds".to_owned());
        return;
    }
    let listed = nvlink_runtime::words::ranges(&gpus);
    let noun = if gpus.len() == 1 { "GPU" } else { "GPUs" };
    let place = place(known, &gpus);
    messages.push(format!("it holds {noun} {listed}{place}"));
    let pattern = pod
        .member
        .as_ref()
        .map_or(Pattern::AllReduce, |member| member.pattern);
    let quality = published.and_then(|published| published.hardware.quality(&gpus, pattern));
    if let Some(quality) = quality.filter(|_| gpus.len() > 1 && !planned) {
        messages.push(format!(
            "the bandwidth between them is {:.0} % of the best that {} have on this node",
            quality * 100.0,
            words::gpus(u32::try_from(gpus.len()).unwrap_or(0))
        ));
    }
    messages.extend(idle(pod, &of_pod, state.now));
}

/// Says which domains GPUs of a node are in; nothing of one GPU.
fn place(known: &Node, gpus: &[u32]) -> String {
    if gpus.len() == 1 {
        return String::new();
    }
    let domains = known.domains.iter();
    let inside = domains.filter(|domain| domain.gpus.iter().any(|gpu| gpus.contains(gpu)));
    let inside: Vec<&str> = inside.map(|domain| domain.id.as_str()).collect();
    match inside[..] {
        [""] | [] => ", without NVLink between them".to_owned(),
        [one] => format!(", in domain {one}"),
        _ => format!(
            ", in {} domains, so a part of its traffic leaves NVLink",
            inside.len()
        ),
    }
}

/// Says since when the NVLinks of a pod have been idle: of no container if one communicates.
fn idle(pod: &Pod<'_>, allocations: &[&Allocation], now: Millis) -> Option<String> {
    let uid = pod::at(pod.value, &["metadata", "uid"]).and_then(Value::as_str);
    let several = allocations.iter().filter(|one| one.gpus.len() > 1);
    let since = several.map(|one| {
        // Another pod of this name had them, and its exporter has not answered since.
        uid.filter(|uid| one.pod_uid.as_deref() == Some(*uid))?;
        one.idle_since.as_ref()?.parse::<Timestamp>().ok()
    });
    let since: Option<Vec<_>> = since.collect();
    let since = since?.into_iter().max()?;
    Some(format!(
        "its NVLinks have been idle at least since {}. If its GPUs work, it communicates over PCIe or the network: \
         docs/runbooks/NvlinkJobSlow.md lists the causes. If they need not communicate, annotate the pod \
         template with {}: none",
        words::moment(since.as_millisecond(), now),
        labels::PATTERN
    ))
}

/// Returns what the leader wrote into a pod that has other GPUs than planned.
fn otherwise(pod: &Pod<'_>) -> Option<String> {
    let told = Outcome::told(pod.value).filter(|told| *told != Outcome::AsPlanned);
    let message = outcome::message(pod.value)?;
    told.map(|_| words::clean(message))
}

/// Says why a pod with GPUs is in no queue.
fn unqueued(state: &State<'_>, pod: &Pod<'_>, life: &Life, messages: &mut Vec<String>) {
    let waits = matches!(life, Life::Gated { .. } | Life::Released);
    if pod.gpus == 0 && waits {
        messages.push("it requests no GPU, so it is in no queue".to_owned());
        return;
    }
    match pod.class() {
        None if waits => messages.push(format!(
            "it has no class (annotation {}), so it is in no queue",
            labels::CLASS
        )),
        Some(class) if waits && pod.placement().is_none() => {
            let queues = state.class(class).map(|class| class.queue.is_some());
            if queues == Some(false) {
                messages.push(format!("its class {class} does not queue"));
            }
        }
        _ => {}
    }
}

/// Says what webhook and queue decided. A pod that has `moved` has other GPUs.
fn why(this: &mut Explained, moved: bool) {
    let text = |value: &Option<Value>, key: &str| {
        let text = value.as_ref()?.get(key)?.as_str()?;
        (!text.is_empty()).then(|| text.to_owned())
    };
    if let Some(why) = text(&this.decision, "why") {
        let class = this.class.as_deref().unwrap_or_default();
        this.messages
            .push(format!("it has class {class} because {why}"));
    }
    let Some(placement) = &this.placement else {
        return;
    };
    let field = |key: &str| placement.get(key);
    let chosen = field("node").and_then(Value::as_str);
    let gpus = field("gpus")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let gpus: Vec<String> = gpus.map(ToString::to_string).collect();
    let mut sentence = match chosen {
        Some(node) => format!("the queue chose node {node}"),
        None => "the queue left the choice of the node to the scheduler".to_owned(),
    };
    match &gpus[..] {
        [] => {}
        [gpu] => sentence += &format!(", GPU {gpu}"),
        gpus => sentence += &format!(", GPUs {} in rank order", gpus.join(",")),
    }
    let communicates = this.gpus > 1 || this.gang.is_some();
    let quality = field("quality").and_then(Value::as_f64);
    if let Some(quality) = quality.filter(|_| communicates && !moved) {
        let percent = quality * 100.0;
        sentence +=
            &format!(", with {percent:.0} % of the best bandwidth on empty nodes of the class");
    }
    if let Some(why) = text(&this.placement, "why") {
        sentence += &format!(": {why}");
    }
    this.messages.push(sentence);
}
