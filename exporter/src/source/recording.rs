//! The project's own JSON: what `record` writes, what `/api/v1/topology` serves,
//! what `kubectl get nodetopology NODE -o json` prints.

use nvlink_topology::{API_VERSION, KIND, NodeTopology};
use serde::Deserialize;

/// Why a text is not such a document.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It is no JSON, or too deeply nested.
    #[error("not valid JSON: {0}")]
    Syntax(serde_json::Error),
    /// It is JSON of another kind.
    #[error("{path} is {found:?}, expected {expected:?}")]
    Foreign {
        /// `apiVersion` or `kind`.
        path: &'static str,
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// A key is missing, or holds the wrong type.
    #[error("{path}: {error}")]
    Shape {
        /// Path in the document.
        path: String,
        /// What is wrong, with line and column.
        error: serde_json::Error,
    },
    /// It is of a node that no cluster could have.
    #[error("metadata.name: {name:?}: {reason} (--node-name gives another)")]
    Name {
        /// What is there.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The two keys that say what a document is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: Option<String>,
    kind: Option<String>,
}

/// Parses `text`; keys of later versions are ignored.
///
/// # Errors
/// Anything but a document of this version, with the path of the first wrong key.
pub fn parse(text: &str) -> Result<NodeTopology, RecordingError> {
    // Another kind of object is told so, not that it lacks `spec.gpus`.
    if let Ok(meta) = serde_json::from_str::<TypeMeta>(text) {
        let foreign = |path, found: Option<String>, expected: &'static str| match found {
            Some(found) if found != expected => {
                let found = found.chars().take(80).collect();
                Err(RecordingError::Foreign {
                    path,
                    found,
                    expected,
                })
            }
            _ => Ok(()),
        };
        foreign("kind", meta.kind, KIND)?;
        foreign("apiVersion", meta.api_version, API_VERSION)?;
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let document = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        match error.classify() {
            serde_json::error::Category::Data => RecordingError::Shape { path, error },
            _ => RecordingError::Syntax(error),
        }
    })?;
    json.end().map_err(RecordingError::Syntax)?;
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": "n", "uid": "later"}, "future": [1],
        "spec": {"source": {"kind": "file"}, "gpus": [{"index": 0}, {"index": 1, "new": {}}]}}"#;

    #[test]
    fn unknown_keys_are_ignored() {
        assert_eq!(parse(SMALL).unwrap().spec.gpus.len(), 2);
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (
                r#""index": 0"#,
                r#""index": "0""#,
                "spec.gpus[0].index: invalid type: string",
            ),
            (
                r#"{"index": 0}"#,
                "{}",
                "spec.gpus[0]: missing field `index`",
            ),
            (
                r#""kind": "file""#,
                r#""kind": "tea""#,
                "spec.source.kind: unknown variant `tea`",
            ),
            (
                r#""NodeTopology""#,
                r#""Pod""#,
                r#"kind is "Pod", expected "NodeTopology""#,
            ),
            (
                "v1alpha1",
                "v2",
                r#"apiVersion is "nvlink-domains.io/v2", expected"#,
            ),
            (r#""name": "n", "#, "", "metadata: missing field `name`"),
        ];
        for (from, to, expected) in cases {
            let error = parse(&SMALL.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn syntax_errors_name_the_line() {
        let cut = parse(&SMALL[..100]).unwrap_err().to_string();
        assert!(
            cut.starts_with("not valid JSON") && cut.contains("line 2"),
            "{cut}"
        );
        assert!(
            parse(&format!("{SMALL} x"))
                .unwrap_err()
                .to_string()
                .contains("trailing")
        );
        let deep = parse(&"{\"spec\":".repeat(100_000))
            .unwrap_err()
            .to_string();
        assert!(
            deep.contains("recursion limit") || deep.contains("JSON"),
            "{deep}"
        );
    }
}
