//! Changes that make a hundred thousand reviews out of three hundred.

use fastrand::Rng;
use nvlink_topology::labels;
use serde_json::{Map, Value, json};

/// A megabyte, and other sizes, once in so many reviews: they take long.
const LARGE: u32 = 1_500;
/// Bytes of an annotation that is long: no limit of the API server's is asked for here.
const LONG: usize = 1 << 20;

/// Words that the webhook looks for, as keys and as values.
const WORDS: &[&str] = &[
    "",
    "name",
    "value",
    "env",
    "envFrom",
    "limits",
    "requests",
    "resources",
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "matchExpressions",
    "matchFields",
    "nodeSelectorTerms",
    "key",
    "operator",
    "Exists",
    "effect",
    "valueFrom",
    "claims",
    "restartPolicy",
    "Always",
    "spec",
    "containers",
    "initContainers",
    "ephemeralContainers",
    "tolerations",
    "privileged",
    "hostPath",
    "path",
    "/dev/nvidia0",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_IB_HCA",
    "CUDA_VISIBLE_DEVICES",
    "all",
    "void",
    "none",
    "all-reduce",
    "tp=8,dp=2",
    "pipeline",
    "node",
    "rack",
    "gpu",
    "8",
    "true",
    "nvidia",
    "queue",
    "kubernetes.io/config.mirror",
    "torchrun",
    "sh",
    "-c",
    "--nproc-per-node",
    "a/b~1c~0",
    "~",
    "/",
    "-",
    "ünï\u{1F980}cödé",
    "\u{202e}rtl\u{0}\u{7f}",
    "\u{feff}",
    "\n",
];

const CLASSES: &[&str] = &[
    "any",
    "claiming",
    "inference",
    "restricted",
    "roce",
    "tcp",
    "pcie",
    "kueue",
    "kai",
    "volcano",
    "case-gold",
    "case-open",
    "broken",
    "nope",
];

/// Odd quantities, and good ones.
const QUANTITIES: &[&str] = &[
    "0",
    "1",
    "2",
    "8",
    "08",
    "+4",
    "-1",
    "1.5",
    "2.0",
    "2.",
    ".5k",
    "4000m",
    "4001m",
    "1Ki",
    "1Ei",
    "2e1",
    "20E-1",
    "1e99",
    "1e-2147483649",
    "1e99999999999",
    "0x8",
    "8 ",
    "",
    ".",
    "n",
    "Ki",
    "٨",
    "99999999999999999999",
    "4294967295",
    "4294967296",
    "1\u{0}",
];

/// Changes a review in up to five ways.
pub(crate) fn review(review: &mut Value, rng: &mut Rng) {
    for _ in 0..rng.u32(0..5) {
        let place = match rng.u32(0..20) {
            0 => "/request",
            1 => "/request/oldObject",
            2 => "/request/userInfo",
            _ => "/request/object",
        };
        if let Some(place) = review.pointer_mut(place) {
            change(place, rng);
        }
    }
    let Some(pod) = review.pointer_mut("/request/object") else {
        return;
    };
    if rng.u32(0..3) > 0 {
        annotate(pod, labels::CLASS, json!(pick(CLASSES, rng)));
    }
    if rng.u32(0..LARGE) == 0 {
        let text = ["x", "\u{1F980}", "\\\"", "torchrun && "][rng.usize(0..4)];
        annotate(pod, "note", json!(text.repeat(LONG / text.len())));
    }
}

/// Sometimes changes the bytes themselves, so that they are hardly JSON any more.
pub(crate) fn bytes(body: &mut Vec<u8>, rng: &mut Rng) {
    if body.is_empty() || rng.u32(0..30) > 0 {
        return;
    }
    let at = rng.usize(0..body.len());
    match rng.u32(0..4) {
        0 => body.truncate(at),
        1 => body[at] = rng.u8(..),
        2 => body.insert(at, *rng.choice(b"{}[]\",:\\0\xff\xc0").unwrap_or(&0)),
        _ => {
            // A key that is there twice: the last one counts.
            let text = String::from_utf8_lossy(body).replacen(
                "\"metadata\":",
                "\"metadata\":7,\"metadata\":",
                1,
            );
            *body = text.into_bytes();
        }
    }
}

fn pick<'a>(words: &[&'a str], rng: &mut Rng) -> &'a str {
    rng.choice(words).copied().unwrap_or_default()
}

fn change(value: &mut Value, rng: &mut Rng) {
    match rng.u32(0..16) {
        0..4 => *descend(value, rng) = odd(rng, 3),
        4..7 => add_field(descend(value, rng), rng),
        7 => *descend(value, rng) = Value::Null,
        8 => shrink(descend(value, rng), rng),
        9 | 10 => quantity(value, rng),
        11 => own_annotation(value, rng),
        12 => variable(value, rng),
        13 => containers(value, rng),
        14 => repeat(descend(value, rng), rng),
        _ => nest(descend(value, rng), rng),
    }
}

/// Some value inside `value`, or itself.
fn descend<'v>(value: &'v mut Value, rng: &mut Rng) -> &'v mut Value {
    let size = match &*value {
        Value::Object(map) => map.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if size == 0 || rng.u32(0..6) == 0 {
        return value;
    }
    let at = rng.usize(0..size);
    let child = match value {
        Value::Object(map) => map.values_mut().nth(at),
        Value::Array(items) => items.get_mut(at),
        _ => None,
    };
    descend(child.expect("a child"), rng)
}

/// Any value, mostly of the wrong type.
fn odd(rng: &mut Rng, depth: u32) -> Value {
    match rng.u32(0..if depth == 0 { 8 } else { 10 }) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i64(-3..20)),
        3 => json!(rng.f64() * 1e300),
        4 => json!(rng.u64(..)),
        5 | 6 => json!(pick(WORDS, rng)),
        7 => json!(pick(QUANTITIES, rng)),
        8 => (0..rng.u32(0..4)).map(|_| odd(rng, depth - 1)).collect(),
        _ => {
            let entry = |rng: &mut Rng| (pick(WORDS, rng).to_owned(), odd(rng, depth - 1));
            Value::Object(
                (0..rng.u32(0..4))
                    .map(|_| entry(rng))
                    .collect::<Map<_, _>>(),
            )
        }
    }
}

/// A field that nobody knows, or one that somebody knows at another place.
fn add_field(value: &mut Value, rng: &mut Rng) {
    let new = odd(rng, 3);
    match value {
        Value::Object(map) => {
            let key = match rng.bool() {
                true => format!("field{}", rng.u8(..)),
                false => pick(WORDS, rng).to_owned(),
            };
            map.insert(key, new);
        }
        Value::Array(items) => items.insert(rng.usize(0..=items.len()), new),
        other => *other = new,
    }
}

fn shrink(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Object(map) => map.clear(),
        Value::Array(items) => items.truncate(rng.usize(0..=items.len())),
        other => *other = json!(""),
    }
}

/// The object or list at `path`, made where something else is there.
fn at<'v>(pod: &'v mut Value, path: &[&str], empty: Value) -> &'v mut Value {
    let place = path.iter().fold(pod, |value, key| {
        if !value.is_object() {
            *value = json!({});
        }
        &mut value[*key]
    });
    if std::mem::discriminant(place) != std::mem::discriminant(&empty) {
        *place = empty;
    }
    place
}

fn annotate(pod: &mut Value, key: &str, value: Value) {
    at(pod, &["metadata", "annotations"], json!({}))[key] = value;
}

fn own_annotation(pod: &mut Value, rng: &mut Rng) {
    let keys = [
        labels::SCOPE,
        labels::GANG_SCOPE,
        labels::PATTERN,
        labels::GANG,
        labels::GANG_SIZE,
        labels::ENVIRONMENT,
        labels::DECISION,
        labels::PROJECT,
        labels::CLASS,
    ];
    let key = pick(&keys, rng);
    let value = if rng.u32(0..4) == 0 {
        odd(rng, 2)
    } else {
        json!(pick(WORDS, rng))
    };
    match rng.u32(0..5) {
        0 => at(pod, &["metadata", "labels"], json!({}))[key] = value,
        _ => annotate(pod, key, value),
    }
}

/// A container of the pod, of any kind.
fn container<'v>(pod: &'v mut Value, rng: &mut Rng) -> &'v mut Value {
    let list = pick(
        &[
            "containers",
            "containers",
            "initContainers",
            "ephemeralContainers",
        ],
        rng,
    );
    let list = at(pod, &["spec", list], json!([]));
    let items = list.as_array_mut().expect("a list");
    if items.is_empty() {
        items.push(json!({"name": "made", "image": "i"}));
    }
    let index = rng.usize(0..items.len());
    &mut items[index]
}

fn quantity(pod: &mut Value, rng: &mut Rng) {
    let resource = pick(
        &[
            "nvidia.com/gpu",
            "nvidia.com/gpu",
            "nvidia.com/mig-1g.10gb",
            "cpu",
        ],
        rng,
    );
    let list = pick(&["limits", "limits", "requests"], rng);
    let amount = if rng.u32(0..8) == 0 {
        odd(rng, 1)
    } else {
        json!(pick(QUANTITIES, rng))
    };
    at(container(pod, rng), &["resources", list], json!({}))[resource] = amount;
}

fn variable(pod: &mut Value, rng: &mut Rng) {
    let name = pick(
        &[
            "NCCL_IB_HCA",
            "NCCL_SOCKET_IFNAME",
            "UCX_TLS",
            "NCCL_DEBUG",
            "NVIDIA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
        ],
        rng,
    );
    let variable = match rng.u32(0..4) {
        0 => json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        1 => odd(rng, 2),
        _ => json!({"name": name, "value": pick(WORDS, rng)}),
    };
    let env = at(container(pod, rng), &["env"], json!([]));
    env.as_array_mut().expect("a list").push(variable);
}

/// Another container, of any kind.
fn containers(pod: &mut Value, rng: &mut Rng) {
    let mut made = container(pod, rng).clone();
    if let Value::Object(map) = &mut made {
        map.insert("name".to_owned(), json!(format!("c{}", rng.u16(..))));
        if rng.bool() {
            map.insert("restartPolicy".to_owned(), json!("Always"));
        }
    }
    let list = pick(
        &["containers", "initContainers", "ephemeralContainers"],
        rng,
    );
    let list = at(pod, &["spec", list], json!([]));
    list.as_array_mut().expect("a list").push(made);
}

/// A list that is long, now and then very long.
fn repeat(value: &mut Value, rng: &mut Rng) {
    let many = if rng.u32(0..LARGE / 10) == 0 {
        5_000
    } else {
        8
    };
    let one = match &*value {
        Value::Array(items) => items.last().cloned().unwrap_or(odd(rng, 2)),
        other => other.clone(),
    };
    if one.to_string().len() < 1_000 {
        *value = json!(vec![one; rng.usize(0..many)]);
    }
}

/// Nests a value deeply: past what is read, or just not.
fn nest(value: &mut Value, rng: &mut Rng) {
    if rng.u32(0..8) > 0 {
        return;
    }
    for _ in 0..rng.u32(90..130) {
        let inner = value.take();
        *value = if rng.bool() {
            json!([inner])
        } else {
            json!({"name": inner})
        };
    }
}
