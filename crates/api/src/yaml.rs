//! Parses and writes YAML.

use serde_json::Value;

const UNFOLDED: usize = 1 << 30;

/// A document that cannot be parsed or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct YamlError(String);

/// Parses all documents of `text`, which may also be JSON. Skips empty documents.
/// The parser limits nesting, aliases and size.
pub fn read(text: &str) -> Result<Vec<Value>, YamlError> {
    if text.trim_start().starts_with('{')
        && let Ok(document) = serde_json::from_str(text)
    {
        return Ok(vec![document]);
    }
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let line = error
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        YamlError(line)
    })
}

/// Writes documents, separated by `---`.
pub fn write(documents: &[Value]) -> Result<String, YamlError> {
    // Long lines are not folded: a change in one would look like a change in many.
    let options =
        serde_saphyr::ser_options! { min_fold_chars: UNFOLDED, folded_wrap_chars: UNFOLDED };
    serde_saphyr::to_string_multiple_with_options(documents, options)
        .map_err(|error| YamlError(error.to_string()))
}
