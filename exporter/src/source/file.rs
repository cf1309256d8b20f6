//! The source `file`: a recording or a capture, told apart by content.

use std::{fs::File, io, time::Duration};

use nvlink_topology::{NodeTopology, Source as ReadFrom, SourceKind};

use super::{
    Reading, Source, SourceError, host_name,
    recording::{self, RecordingError},
    text::{self, TextError},
    topo_matrix,
};

/// Reads a file anew at each reading, so that a replaced file is noticed.
/// The standard input is read once.
pub struct FileSource {
    path: String,
    node: Option<String>,
    stdin: Option<Reading>,
}

impl FileSource {
    /// Of the file `path` (`-`: the standard input), for the node `node`.
    #[must_use]
    pub fn new(path: String, node: Option<String>) -> Self {
        Self {
            path,
            node,
            stdin: None,
        }
    }
}

impl Source for FileSource {
    fn read(&mut self, _now: Duration) -> Result<Reading, SourceError> {
        if let Some(reading) = &self.stdin {
            return Ok(reading.clone());
        }
        let stdin = self.path == "-";
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
        let reading = parse(name, &bytes, self.node.as_deref())?;
        if stdin {
            self.stdin = Some(reading.clone());
        }
        Ok(reading)
    }
}

/// What `bytes`, read from `name`, say about the node `node` (by default the
/// recorded name, else the host's).
///
/// # Errors
/// Anything that is not wholly understood, with the line or the path.
pub fn parse(name: &str, bytes: &[u8], node: Option<&str>) -> Result<Reading, SourceError> {
    let failed = |error| SourceError::Text {
        name: name.to_owned(),
        error,
    };
    let text = text::decode(bytes).map_err(failed)?;
    let unsupported = |what: &str| Err(SourceError::Unsupported(format!("{name}: {what}")));
    let start = text.trim_start();
    let (mut topology, matrix) = match start.as_bytes().first() {
        Some(b'{') => (of_recording(name, &text, node)?, None),
        Some(b'<') if start.contains("<system") => {
            return unsupported("an NCCL topology XML file; this version does not read them yet");
        }
        Some(b'<') => return unsupported("this is XML; expected JSON or `nvidia-smi topo -m`"),
        Some(b'[') if !start.starts_with("[4m") => {
            return unsupported("this is a JSON list; give one NodeTopology object");
        }
        _ if start.starts_with("apiVersion:") => {
            return unsupported(
                "this is YAML; give JSON (`kubectl get nodetopology NODE -o json`)",
            );
        }
        _ => {
            let (topology, matrix) = of_matrix(name, &text, node)?;
            (topology, Some(matrix))
        }
    };
    let node = topology.metadata.name.clone();
    let warnings = topology
        .spec
        .complete(&node)
        .map_err(|error| SourceError::Invalid {
            name: name.to_owned(),
            error,
        })?;
    Ok(Reading {
        topology,
        counters: Vec::new(),
        health: Vec::new(),
        lost: Vec::new(),
        matrix,
        warnings,
    })
}

fn of_recording(name: &str, text: &str, node: Option<&str>) -> Result<NodeTopology, SourceError> {
    let mut topology = recording::parse(text).map_err(|error| SourceError::Recording {
        name: name.to_owned(),
        error,
    })?;
    let recorded = &mut topology.metadata.name;
    match node {
        Some(node) => node.clone_into(recorded),
        None => {
            crate::args::node_name(recorded).map_err(|reason| SourceError::Recording {
                name: name.to_owned(),
                error: RecordingError::Name {
                    name: recorded.chars().take(80).collect(),
                    reason,
                },
            })?;
        }
    }
    Ok(topology)
}

fn of_matrix(
    name: &str,
    text: &str,
    node: Option<&str>,
) -> Result<(NodeTopology, topo_matrix::Matrix), SourceError> {
    let matrix = topo_matrix::parse(text).map_err(|error| SourceError::Matrix {
        name: name.to_owned(),
        error,
    })?;
    let source = ReadFrom {
        kind: SourceKind::File,
        from: name.to_owned(),
    };
    let spec = topo_matrix::spec(&matrix, source);
    let node = node.map_or_else(host_name, str::to_owned);
    Ok((NodeTopology::new(node, spec), matrix))
}
