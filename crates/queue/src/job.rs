//! The name by which a job is known again, when the same job runs another time.

use serde_json::Value;

use nvlink_api::pod;

/// Labels and annotations in which CI systems write the name of a job.
const NAMES: [(&str, &str); 3] = [
    ("annotations", "job.runner.gitlab.com/name"),
    ("labels", "tekton.dev/pipelineTask"),
    ("labels", "tekton.dev/task"),
];
/// Labels with the name of the job or of the object that its author created.
const LABELS: [&str; 6] = [
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
];
/// The most characters of a name that are kept.
const LONGEST: usize = 128;

/// Returns the name of the pod's job: that of its CI system, else of the object that its author
/// created, else of the pod. A trailing word that differs from run to run is cut off: that of a
/// `generateName`, and the number of a CronJob's run.
#[must_use]
pub(crate) fn name(pod: &Value) -> String {
    let text = |map, key| pod::metadata(pod, map, key).and_then(Value::as_str);
    let ci = NAMES.iter().find_map(|(map, key)| text(map, key));
    let own = || LABELS.iter().find_map(|key| text("labels", key));
    let field = |key| pod::at(pod, &["metadata", key]).and_then(Value::as_str);
    let name = match (ci, own()) {
        (Some(name), _) => name,
        (None, Some(name)) => without_run(name),
        (None, None) => match field("generateName") {
            Some(prefix) if !prefix.is_empty() => prefix.trim_end_matches('-'),
            _ => without_run(field("name").unwrap_or_default()),
        },
    };
    name.chars().take(LONGEST).collect()
}

/// Cuts off the last word if it has at least six characters and only digits, as the times in the
/// names of a CronJob's Jobs, and the numbers of CI builds.
fn without_run(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((rest, run)) if run.len() >= 6 && run.bytes().all(|byte| byte.is_ascii_digit()) => {
            rest
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_of_the_same_job_have_the_same_name() {
        for (metadata, expected) in [
            (
                json!({
                    "name": "runner-x-project-42-concurrent-0-abc",
                    "annotations": {"job.runner.gitlab.com/name": "train: [a100]"}
                }),
                "train: [a100]",
            ),
            (
                json!({"labels": {"tekton.dev/pipelineTask": "bench", "tekton.dev/taskRun": "r-9"}}),
                "bench",
            ),
            (
                json!({"labels": {"batch.kubernetes.io/job-name": "nightly-29384720"}}),
                "nightly",
            ),
            (
                json!({"labels": {"jobset.sigs.k8s.io/jobset-name": "llm", "job-name": "llm-w-0"}}),
                "llm",
            ),
            (
                json!({"generateName": "train-", "name": "train-x7k2p"}),
                "train",
            ),
            (json!({"name": "eval-1722506400"}), "eval"),
            (json!({"name": "eval-2"}), "eval-2"),
            (json!({}), ""),
        ] {
            assert_eq!(name(&json!({"metadata": metadata})), expected);
        }
    }
}
