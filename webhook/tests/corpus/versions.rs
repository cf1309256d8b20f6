//! Pods as the API servers of Kubernetes 1.30 to 1.36 know them, and later
//! ones: `tests/versions/*.yaml`. What we do not know passes through.

use std::{fs, path::Path};

use nvlink_topology::labels;
use serde_json::{Value, json};

use crate::{
    check::{Kind, check},
    classes, seeds,
};

#[tokio::test]
async fn fields_of_each_version_pass_through() {
    let webhook = &classes::webhooks()[0];
    let folder = Path::new(crate::TESTS).join("versions");
    let mut versions = std::collections::BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let pod: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for (class, gang) in [("any", None), ("roce", Some("g")), ("kueue", None)] {
            let mut pod = pod.clone();
            let annotations = &mut pod["metadata"]["annotations"];
            *annotations = json!({labels::CLASS: class});
            if let Some(gang) = gang {
                annotations[labels::GANG] = json!(gang);
            }
            let review = seeds::review(&pod, &Value::Null).to_string();
            let kind = check(webhook, review.as_bytes()).await;
            assert_eq!(kind, Ok(Kind::Changed), "{name} in class {class}");
            change(webhook, &name, pod).await;
        }
        versions.insert(
            name.split_once('-')
                .map_or(name.clone(), |(version, _)| version.to_owned()),
        );
    }
    let expected = [
        "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "later",
    ];
    assert_eq!(versions.into_iter().collect::<Vec<_>>(), expected);
}

/// An update, of which the webhook has nothing to say.
async fn change(webhook: &classes::Webhook, name: &str, old: Value) {
    let mut new = old.clone();
    new["metadata"]["annotations"]["note"] = json!("new");
    let review = seeds::review(&new, &old).to_string();
    let kind = check(webhook, review.as_bytes()).await;
    assert_eq!(kind, Ok(Kind::Untouched), "{name}, changed");
}
