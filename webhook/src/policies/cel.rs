//! Pieces of CEL that the policies and the webhook's registration share.
//!
//! Each is one expression over `object` or `oldObject`. None fails on a pod
//! that the API server has read: what may be absent is asked for by `.?`.

use nvlink_topology::{GROUP, labels};

use crate::{
    authorize::{RELEASE, RESOURCE},
    class::GPU,
    decide::guard::{CAPABILITIES, CDI, DEVICE_MOUNTS, GATE, HARMLESS, HOST_PATHS, VARIABLES},
    decide::pod::{DEVICE_CLASSES, GPU_RESOURCES},
};

/// A list of strings.
pub(super) fn strings(items: &[&str]) -> String {
    let quoted: Vec<_> = items.iter().map(|item| format!("'{item}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// The labels or annotations of `object`.
pub(super) fn map(object: &str, map: &str) -> String {
    format!("{object}.metadata.?{map}.orValue({{}})")
}

/// A list in the spec of `object`.
fn list(object: &str, field: &str) -> String {
    format!("{object}.spec.?{field}.orValue([])")
}

/// Containers and init containers, a list.
pub(super) fn containers(object: &str) -> String {
    format!(
        "({object}.spec.containers + {})",
        list(object, "initContainers")
    )
}

/// Ephemeral containers, a list.
pub(super) fn ephemeral(object: &str) -> String {
    list(object, "ephemeralContainers")
}

/// Some container may hold a GPU.
pub(super) fn gpus(object: &str) -> String {
    asks(
        object,
        &format!("n.startsWith('nvidia.com/') || n.startsWith('{DEVICE_CLASSES}')"),
    )
}

/// Some container was handed GPUs, or what may be some: see
/// [`crate::decide::pod::GPU_RESOURCES`].
pub(super) fn holds(object: &str) -> String {
    let known = strings(&GPU_RESOURCES);
    asks(
        object,
        &format!("n == '{GPU}' || {known}.exists(g, n.startsWith(g))"),
    )
}

/// Some container has claims, or asks for a resource whose name `n` is `named`.
fn asks(object: &str, named: &str) -> String {
    format!(
        "{}.exists(c, c.?resources.?claims.orValue([]).size() > 0 || [c.?resources.?limits.orValue({{}}), c.?resources.?requests.orValue({{}})].exists(r, r.exists(n, ({named}) && string(r[n]) != '0')))",
        containers(object)
    )
}

/// A container that says itself which GPUs it sees.
pub(super) fn by_hand(container: &str) -> String {
    let (variables, harmless) = (strings(&VARIABLES), strings(&HARMLESS));
    format!(
        "({container}.?env.orValue([]).exists(e, e.name in {variables} && (has(e.valueFrom) || !(e.?value.orValue('') in {harmless}))) || {container}.?envFrom.orValue([]).exists(s, s.?prefix.orValue('') != '' && {variables}.exists(v, v.startsWith(s.prefix))) || {container}.?volumeMounts.orValue([]).exists(m, m.mountPath.contains('{DEVICE_MOUNTS}')))"
    )
}

/// The pod names devices to the runtime.
pub(super) fn names_devices(object: &str) -> String {
    format!(
        "{}.exists(k, k.startsWith('{CDI}'))",
        map(object, "annotations")
    )
}

/// A container that says that it sees no GPU.
pub(super) fn hides(container: &str) -> String {
    format!(
        "({container}.?env.orValue([]).exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES') && !{})",
        by_hand(container)
    )
}

/// The pod tolerates the taint of the class `name`, an expression.
pub(super) fn tolerates(object: &str, name: &str) -> String {
    format!(
        "{}.exists(t, t.?effect.orValue('') != 'PreferNoSchedule' && (t.?key.orValue('') == '' ? t.?operator.orValue('') == 'Exists' : t.key == '{}' && (!(t.?operator.orValue('') in ['', 'Equal']) || t.?value.orValue('') == {name})))",
        list(object, "tolerations"),
        labels::CLASS
    )
}

/// The pod's selector, with one of its affinity's terms, asks for all of the
/// labels `wanted`, an expression.
pub(super) fn selects(object: &str, wanted: &str) -> String {
    let selector = format!("{object}.spec.?nodeSelector.orValue({{}})");
    let chosen = format!("(k in {selector} && {selector}[k] == {wanted}[k])");
    let terms = format!(
        "{object}.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])"
    );
    format!(
        "({wanted}.size() > 0 && ({wanted}.all(k, {chosen}) || {terms}.exists(t, {wanted}.all(k, {chosen} || t.?matchExpressions.orValue([]).exists(e, e.key == k && e.operator == 'In' && {wanted}[k] in e.?values.orValue([]))))))"
    )
}

/// A container has rights by which it reaches all GPUs of its node.
pub(super) fn privileged(container: &str) -> String {
    let context = format!("{container}.?securityContext");
    format!(
        "({context}.?privileged.orValue(false) || {context}.?procMount.orValue('') == 'Unmasked' || {context}.?capabilities.?add.orValue([]).exists(n, (n.upperAscii().startsWith('CAP_') ? n.upperAscii().substring(4) : n.upperAscii()) in {}))",
        strings(&CAPABILITIES)
    )
}

/// A volume of the pod may lead to the host's GPUs.
pub(super) fn host_path(object: &str) -> String {
    // One list of one path: CEL has no `let` inside an expression.
    let path = "['/' + v.hostPath.path.split('/').filter(s, !(s in ['', '.'])).join('/')]";
    format!(
        "{}.exists(v, has(v.hostPath) && !{path}.exists(p, !p.contains('/..') && {}.exists(o, p == o || p.startsWith(o + '/'))))",
        list(object, "volumes"),
        strings(&HOST_PATHS)
    )
}

/// Our keys in labels or annotations are other than they were.
fn differ(name: &str) -> String {
    let (old, new) = (map("oldObject", name), map("object", name));
    let own = "k.startsWith('nvlink-domains.io/')";
    format!(
        "({new}.exists(k, {own} && !(k in {old} && {old}[k] == {new}[k])) || {old}.exists(k, {own} && !(k in {new})))"
    )
}

/// What the webhook wrote into a pod is changed.
pub(super) fn changed() -> String {
    let gated = |object: &str| {
        format!(
            "{}.exists(g, g.name == '{GATE}')",
            list(object, "schedulingGates")
        )
    };
    format!(
        "({} || {} || ({} && !{}))",
        differ("labels"),
        differ("annotations"),
        gated("oldObject"),
        gated("object")
    )
}

/// The user may change what the webhook wrote.
pub(super) fn may_release() -> String {
    format!(
        "authorizer.group('{GROUP}').resource('{RESOURCE}').namespace(request.namespace).check('{RELEASE}').allowed()"
    )
}

/// The request is the kubelet's, for the image of a pod that it runs from a file.
pub(super) fn mirror() -> String {
    format!(
        "(request.operation == 'CREATE' && 'kubernetes.io/config.mirror' in {} && 'system:nodes' in request.userInfo.?groups.orValue([]) && object.spec.?nodeName.orValue('') != '' && request.userInfo.username == 'system:node:' + object.spec.nodeName)",
        map("object", "annotations")
    )
}

/// The subresource that the request is for; empty for the pod itself.
pub(super) const SUBRESOURCE: &str = "request.?subResource.orValue('')";

/// A pod that is created does anything that a rule of some class is about.
pub(super) fn class_created() -> String {
    let own = |name| {
        format!(
            "{}.exists(k, k.startsWith('nvlink-domains.io/'))",
            map("object", name)
        )
    };
    let tolerations = list("object", "tolerations");
    format!(
        "({gpus} || {labels} || {annotations} || {tolerations}.exists(t, t.?key.orValue('') in ['', '{class}']) || object.spec.?nodeName.orValue('') != '')",
        gpus = gpus("object"),
        labels = own("labels"),
        annotations = own("annotations"),
        class = labels::CLASS,
    )
}

/// A pod that is created does anything that a rule is about. Most pods do not,
/// and are let in by this one expression.
#[must_use]
pub fn concerns_created() -> String {
    format!(
        "({class} || object.spec.?runtimeClassName.orValue('').contains('nvidia') || {devices} || {containers}.exists(c, {by_hand}))",
        class = class_created(),
        devices = names_devices("object"),
        containers = containers("object"),
        by_hand = by_hand("c"),
    )
}

/// A change of a pod does anything that a rule of some class is about. Only
/// tolerations may be added to a pod, and the selectors of a gated one
/// narrowed. One of two tolerations that are the same may be replaced: the
/// list is no longer then.
pub(super) fn class_changed() -> String {
    let tolerations = |object| list(object, "tolerations");
    let added = format!(
        "{}.exists(t, t.?key.orValue('') in ['', '{}'] && !(t in {}))",
        tolerations("object"),
        labels::CLASS,
        tolerations("oldObject")
    );
    format!(
        "({SUBRESOURCE} == 'ephemeralcontainers' || ({SUBRESOURCE} == '' && ({added} || ({gates}.size() > 0 && {gpus}))))",
        gates = list("oldObject", "schedulingGates"),
        gpus = gpus("object"),
    )
}

/// A change of a pod does anything that a rule is about. Its status concerns
/// none, but whoever may write it may write labels and annotations with it.
#[must_use]
pub fn concerns_changed() -> String {
    format!(
        "({} || {SUBRESOURCE} == 'resize' || {})",
        changed(),
        class_changed()
    )
}
