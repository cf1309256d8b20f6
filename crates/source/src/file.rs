//! The source `file`: a recording or a capture, distinguished by content.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    time::Duration,
};

use nvlink_topology::{NodeTopology, Source as ReadFrom, SourceKind};

use super::{
    Reading, Source, SourceError, host_name, nccl_xml,
    recording::{self, Recording, RecordingError},
    replay::Replay,
    text::{self, TextError},
    topo_matrix,
};

/// A file, read again at each reading so that a replaced file is noticed. The
/// standard input is read once. The samples of a recording are replayed.
pub struct FileSource {
    path: String,
    node: Option<String>,
    loaded: Option<Loaded>,
}

/// The content that was read last.
struct Loaded {
    /// Hash of the file's bytes.
    hash: u64,
    reading: Reading,
    replay: Replay,
}

impl FileSource {
    /// Creates a source of the file `path` (`-` is the standard input) for the node `node`.
    #[must_use]
    pub fn new(path: String, node: Option<String>) -> Self {
        Self {
            path,
            node,
            loaded: None,
        }
    }

    /// Reads the file, and parses it if it has changed.
    fn load(&mut self) -> Result<&Loaded, SourceError> {
        let stdin = self.path == "-";
        let last = match self.loaded.take() {
            Some(loaded) if stdin => return Ok(self.loaded.insert(loaded)),
            last => last,
        };
        let name = if stdin { "standard input" } else { &self.path };
        let bytes = match stdin {
            true => text::read(io::stdin().lock()),
            false => File::open(&self.path)
                .map_err(TextError::Io)
                .and_then(text::read),
        };
        let bytes = bytes.map_err(|error| SourceError::Text {
            name: name.to_owned(),
            error,
        })?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let hash = hasher.finish();
        let loaded = match last {
            Some(loaded) if loaded.hash == hash => loaded,
            _ => {
                let (reading, replay) = load(name, &bytes, self.node.as_deref())?;
                Loaded {
                    hash,
                    reading,
                    replay,
                }
            }
        };
        Ok(self.loaded.insert(loaded))
    }
}

impl Source for FileSource {
    fn read(&mut self, now: Duration) -> Result<Reading, SourceError> {
        let loaded = self.load()?;
        let (counters, health) = loaded.replay.at(now);
        Ok(Reading {
            counters,
            health,
            ..loaded.reading.clone()
        })
    }
}

/// Parses `bytes`, which were read from `name`, as the node `node` (by default
/// the recorded name, else the host's). Counters and health are those at the
/// beginning of a recording.
///
/// # Errors
/// Anything that cannot be parsed completely, with the line or the path.
pub fn parse(name: &str, bytes: &[u8], node: Option<&str>) -> Result<Reading, SourceError> {
    let (mut reading, replay) = load(name, bytes, node)?;
    (reading.counters, reading.health) = replay.at(Duration::ZERO);
    Ok(reading)
}

/// Returns the static part of the document, and its samples for replay.
fn load(name: &str, bytes: &[u8], node: Option<&str>) -> Result<(Reading, Replay), SourceError> {
    let failed = |error| SourceError::Text {
        name: name.to_owned(),
        error,
    };
    let text = text::decode(bytes).map_err(failed)?;
    let unsupported = |what: &str| Err(SourceError::Unsupported(format!("{name}: {what}")));
    let start = after_comments(&text);
    let (before, _) = text.split_at(text.len() - start.len());
    let body = || lines_of(before) + start;
    match start.as_bytes().first() {
        Some(b'{') => of_recording(name, &body(), node),
        Some(b'<') => Ok((of_xml(name, &body(), node)?, Replay::default())),
        Some(b'[') if !start.starts_with("[4m") => {
            unsupported("this is a JSON list; use one NodeTopology object")
        }
        _ if start.starts_with("apiVersion:") => {
            unsupported("this is YAML; use JSON (`kubectl get nodetopology NODE -o json`)")
        }
        _ => Ok((of_matrix(name, &text, node)?, Replay::default())),
    }
}

/// Returns `text` after the lines with `#` and the XML comments at its beginning, and after an XML
/// declaration, which XML allows in the first line only.
fn after_comments(text: &str) -> &str {
    let comments = [("#", "\n"), ("<!--", "-->"), ("<?xml ", "?>")];
    let mut rest = text.trim_start();
    // Each turn shortens the text.
    while let Some((_, after)) = comments
        .iter()
        .find_map(|(start, end)| rest.strip_prefix(start)?.split_once(end))
    {
        rest = after.trim_start();
    }
    rest
}

/// Returns the line ends of `text`, so that errors name the lines of the file.
fn lines_of(text: &str) -> String {
    text.chars().filter(|&char| char == '\n').collect()
}

/// Returns a reading of `topology` without counters and health.
fn reading(
    name: &str,
    mut topology: NodeTopology,
    matrix: Option<topo_matrix::Matrix>,
) -> Result<Reading, SourceError> {
    let node = topology.metadata.name.clone();
    let warnings = topology
        .spec
        .complete(&node)
        .map_err(|error| SourceError::Invalid {
            name: name.to_owned(),
            error,
        })?;
    Ok(Reading {
        matrix,
        warnings,
        ..Reading::of(topology)
    })
}

fn of_recording(
    name: &str,
    text: &str,
    node: Option<&str>,
) -> Result<(Reading, Replay), SourceError> {
    let failed = |error| SourceError::Recording {
        name: name.to_owned(),
        error,
    };
    let recording = recording::parse(text).map_err(failed)?;
    let Recording {
        mut topology,
        samples,
    } = recording;
    let recorded = &mut topology.metadata.name;
    match node {
        Some(node) => node.clone_into(recorded),
        None => {
            super::node_name(recorded).map_err(|reason| {
                let name = recorded.chars().take(80).collect();
                failed(RecordingError::Name { name, reason })
            })?;
        }
    }
    let reading = reading(name, topology, None)?;
    recording::check_samples(&reading.topology, &samples).map_err(failed)?;
    Ok((reading, Replay::new(samples)))
}

fn of_xml(name: &str, text: &str, node: Option<&str>) -> Result<Reading, SourceError> {
    let node = node.map_or_else(host_name, str::to_owned);
    let parsed = nccl_xml::parse(text, name, &node).map_err(|error| SourceError::Line {
        name: name.to_owned(),
        error,
    })?;
    Ok(Reading {
        matrix: Some(parsed.matrix),
        warnings: parsed.warnings,
        ..Reading::of(NodeTopology::new(node, parsed.spec))
    })
}

fn of_matrix(name: &str, text: &str, node: Option<&str>) -> Result<Reading, SourceError> {
    let matrix = topo_matrix::parse(text).map_err(|error| SourceError::Line {
        name: name.to_owned(),
        error,
    })?;
    let source = ReadFrom {
        kind: SourceKind::File,
        from: name.to_owned(),
    };
    let spec = topo_matrix::spec(&matrix, source);
    let node = node.map_or_else(host_name, str::to_owned);
    reading(name, NodeTopology::new(node, spec), Some(matrix))
}
