//! Pods of every shape: no panic, the decision is idempotent, and nothing of the user's is lost.

#![allow(clippy::unwrap_used)]

#[path = "../../crates/admission/tests/all/fixture/mod.rs"]
mod fixture;

use fixture::{admission, pod, review, subject};
use nvlink_admission::decide::Refusal;
use nvlink_topology::labels;
use nvlink_webhook::admission::review;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Generates any JSON value. Its keys include words that the program looks for.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        "[a-z/~.]{0,6}",
        prop::sample::select(vec![
            "name",
            "value",
            "env",
            "limits",
            "nvidia.com/gpu",
            "matchExpressions",
            "matchFields",
            "prefix",
            "nodeSelectorTerms",
            "restartPolicy",
            "key",
            "effect",
            "operator",
            "valueFrom",
            "claims",
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..20).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop::sample::select(vec![
            "2",
            "8",
            "4000m",
            "1Ki",
            "x",
            "Always",
            "all-reduce",
            "none",
            "any"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Places in a pod that the program reads or writes.
const PLACES: &[&[&str]] = &[
    &["metadata"],
    &["metadata", "labels"],
    &["metadata", "labels", labels::GANG],
    &["metadata", "annotations"],
    &["metadata", "annotations", labels::CLASS],
    &["metadata", "annotations", labels::SCOPE],
    &["metadata", "annotations", labels::GANG_SCOPE],
    &["metadata", "annotations", labels::GANG],
    &["metadata", "annotations", labels::GANG_SIZE],
    &["metadata", "annotations", labels::PATTERN],
    &["metadata", "annotations", labels::DECISION],
    &["spec"],
    &["spec", "affinity"],
    &["spec", "affinity", "nodeAffinity"],
    &[
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ],
    &[
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ],
    &["spec", "affinity", "podAffinity"],
    &[
        "spec",
        "affinity",
        "podAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ],
    &["spec", "tolerations"],
    &["spec", "containers"],
    &["spec", "containers", "0"],
    &["spec", "containers", "0", "env"],
    &["spec", "containers", "0", "envFrom"],
    &["spec", "containers", "0", "resources"],
    &["spec", "containers", "0", "resources", "limits"],
    &[
        "spec",
        "containers",
        "0",
        "resources",
        "limits",
        "nvidia.com/gpu",
    ],
    &["spec", "initContainers"],
    &["spec", "unknownField"],
];

fn put(value: &mut Value, path: &[&str], new: Value) {
    let Some((key, rest)) = path.split_first() else {
        *value = new;
        return;
    };
    match value {
        Value::Array(items) => {
            if let Some(item) = key
                .parse::<usize>()
                .ok()
                .and_then(|index| items.get_mut(index))
            {
                put(item, rest, new);
            }
        }
        Value::Object(map) => put(map.entry(*key).or_insert(json!({})), rest, new),
        _ => {}
    }
}

fn any_pod() -> impl Strategy<Value = Value> {
    let class = prop::sample::select(vec![
        None,
        Some("any"),
        Some("restricted"),
        Some("roce"),
        Some("tcp"),
    ]);
    let gang = any::<bool>();
    let changes = prop::collection::vec((prop::sample::select(PLACES), any_json()), 0..4);
    (class, gang, 0_u32..10, changes).prop_map(|(class, gang, gpus, changes)| {
        let mut annotations = json!({});
        if let Some(class) = class {
            annotations[labels::CLASS] = json!(class);
        }
        if gang {
            annotations[labels::GANG] = json!("g");
        }
        let mut pod = pod(gpus, annotations);
        for (path, value) in changes {
            put(&mut pod, path, value);
        }
        pod
    })
}

/// Checks that everything in `before` is in `after`. Lists may only grow, and nulls may be filled.
fn kept(before: &Value, after: &Value, path: &str) -> Result<(), TestCaseError> {
    match (before, after) {
        (Value::Null, _) => Ok(()),
        (Value::Object(old), Value::Object(new)) => old.iter().try_for_each(|(key, value)| {
            if key == labels::DECISION {
                return Ok(());
            }
            prop_assert!(new.contains_key(key), "{path}/{key} is lost");
            kept(value, &new[key], &format!("{path}/{key}"))
        }),
        (Value::Array(old), Value::Array(new)) => {
            prop_assert!(old.len() <= new.len(), "{path} is shorter");
            old.iter()
                .zip(new)
                .enumerate()
                .try_for_each(|(index, (old, new))| kept(old, new, &format!("{path}/{index}")))
        }
        _ => {
            prop_assert_eq!(before, after, "{} changed", path);
            Ok(())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pod_is_decided_on(pod in any_pod()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let admission = admission(&["restricted"]);
        let admit = |pod: Value| runtime.block_on(admission.admit(pod, "ci", &subject()));
        match admit(pod.clone()) {
            Err(Refusal { message, .. }) => prop_assert!(!message.is_empty()),
            Ok(admitted) => {
                let mut patched = pod.clone();
                prop_assert!(json_patch::patch(&mut patched, &admitted.patch).is_ok());
                prop_assert_eq!(&patched, &admitted.pod);
                kept(&pod, &patched, "")?;
                let again = admit(patched).unwrap();
                prop_assert!(again.patch.is_empty(), "the second pass changes {:?}", again.patch);
            }
        }
    }

    #[test]
    fn any_review_is_parsed_without_a_panic(change in any_json(), at in prop::sample::select(vec![
        "", "/apiVersion", "/kind", "/request", "/request/uid", "/request/kind", "/request/namespace",
        "/request/operation", "/request/userInfo", "/request/userInfo/groups", "/request/object",
    ])) {
        let mut review = review(&pod(2, json!({})));
        *review.pointer_mut(at).unwrap() = change;
        let _ = review::read(review.to_string().as_bytes());
    }

    #[test]
    fn a_cut_review_is_refused(cut in 0_usize..600) {
        let text = review(&pod(2, json!({}))).to_string();
        prop_assume!(cut < text.len());
        prop_assert!(review::read(&text.as_bytes()[..cut]).is_err());
    }
}
