//! The project's own JSON format, which `record` writes, `/api/v1/topology`
//! serves and `kubectl get nodetopology NODE -o json` prints.
//!
//! `record` adds one key to the document, `samples`: the counters and the health
//! of the GPUs, by seconds since the recording began.

mod samples;

use std::time::Duration;

use nvlink_topology::{API_VERSION, KIND, NodeTopology};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{GpuHealth, LinkCounters, Reading, text::MAX_BYTES};

pub(super) use self::samples::check as check_samples;

/// Why a text is not a valid recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It is not JSON, or is nested too deeply.
    #[error("not valid JSON: {0}")]
    Syntax(serde_json::Error),
    /// It is an object of another kind or version.
    #[error("{path} is {found:?}, expected {expected:?}")]
    Foreign {
        /// `apiVersion` or `kind`.
        path: &'static str,
        found: String,
        expected: &'static str,
    },
    /// A key is missing, or its value has the wrong type.
    #[error("{path}: {error}")]
    Shape {
        /// Path in the document.
        path: String,
        /// What is wrong, with line and column.
        error: serde_json::Error,
    },
    /// A sample contradicts the document or another sample.
    #[error("{path}: {reason}")]
    Sample {
        /// Path in the document.
        path: String,
        reason: String,
    },
    /// Its node name is not valid in Kubernetes.
    #[error("metadata.name: {name:?}: {reason} (--node-name overrides it)")]
    Name {
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The two keys that identify the type of a document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: Option<String>,
    kind: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) topology: NodeTopology,
    /// Counters and health by ascending time; empty in a document that only describes the node.
    pub(crate) samples: Vec<Sample>,
}

/// Counters and health at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the recording began.
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<LinkCounters>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<GpuHealth>,
}

impl Sample {
    /// Returns the time of the sample; `None` if `seconds` is not a valid time.
    pub(super) fn at(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds).ok()
    }
}

/// The key that `record` adds.
#[derive(Deserialize)]
struct Samples {
    #[serde(default)]
    samples: Vec<Sample>,
}

/// Parses `text`; keys of later versions are ignored. Whether the content is
/// consistent is checked separately.
///
/// # Errors
/// Anything but a document of this version, with the path of the first invalid key.
pub(crate) fn parse(text: &str) -> Result<Recording, RecordingError> {
    // For another kind of object the error names the kind, not a missing `spec.gpus`.
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
    let topology: NodeTopology = read(text)?;
    let Samples { samples } = read(text)?;
    Ok(Recording { topology, samples })
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, RecordingError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let document = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = match error.path().to_string() {
            root if root == "." => "the document".to_owned(),
            path => path,
        };
        let error = error.into_inner();
        match error.classify() {
            serde_json::error::Category::Data => RecordingError::Shape { path, error },
            _ => RecordingError::Syntax(error),
        }
    })?;
    json.end().map_err(RecordingError::Syntax)?;
    Ok(document)
}

/// Writes a recording, sample by sample.
#[derive(Debug)]
pub struct Recorder {
    document: String,
    lines: Vec<String>,
    bytes: usize,
    moving: bool,
}

impl Recorder {
    /// Creates a recorder for the node that `topology` describes.
    ///
    /// # Errors
    /// When the document cannot be written as JSON (which does not happen).
    pub fn new(topology: &NodeTopology) -> Result<Self, serde_json::Error> {
        let document = serde_json::to_string_pretty(topology)?;
        Ok(Self {
            bytes: document.len(),
            document,
            lines: Vec::new(),
            moving: false,
        })
    }

    /// Adds the counters and the health of `reading`, taken `at` after the
    /// recording began. Returns `false` and adds nothing if the recording would
    /// become too large to be read back.
    ///
    /// # Errors
    /// When the sample cannot be written as JSON (which does not happen).
    pub fn add(&mut self, at: Duration, reading: &Reading) -> Result<bool, serde_json::Error> {
        let sample = Sample {
            seconds: at.as_millis() as f64 / 1000.0,
            counters: reading.counters.clone(),
            health: reading.health.clone(),
        };
        let line = serde_json::to_string(&sample)?;
        // Reserve for the key and the line separators.
        if self.bytes + line.len() + 64 > MAX_BYTES {
            return Ok(false);
        }
        self.bytes += line.len() + 8;
        self.lines.push(line);
        self.moving |= !(sample.counters.is_empty() && sample.health.is_empty());
        Ok(true)
    }

    /// Reports whether any counters or health were added.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// Returns the recording so far: the document as `topology --output json`
    /// prints it, with a line for each sample unless all samples are empty.
    #[must_use]
    pub fn text(&self) -> String {
        match self.document.strip_suffix('}') {
            Some(open) if self.moving => {
                let (open, lines) = (open.trim_end(), self.lines.join(",\n    "));
                format!("{open},\n  \"samples\": [\n    {lines}\n  ]\n}}\n")
            }
            _ => format!("{}\n", self.document),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"apiVersion": "nvlink-domains.io/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": "n", "uid": "later"}, "future": [1],
        "spec": {"source": {"kind": "file"}, "gpus": [{"index": 0}, {"index": 1, "new": {}}]}}"#;

    #[test]
    fn unknown_keys_are_ignored() {
        assert_eq!(parse(SMALL).unwrap().topology.spec.gpus.len(), 2);
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
