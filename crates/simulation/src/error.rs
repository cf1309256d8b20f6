//! Why a file is no trace.

use std::io;

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file has no header.
    #[error("it is empty: expected a header with the columns time, gpus and duration")]
    Empty,
    /// The file has a header and no jobs with GPUs.
    #[error("it has a header and no jobs with GPUs")]
    NoJobs,
    /// A line is wrong as a whole.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A value is wrong.
    #[error("line {line}, column {column}: {value:?} {reason}")]
    Value {
        /// The number of the line, from 1.
        line: u64,
        /// The name of the column.
        column: &'static str,
        /// The value, cut to 64 characters.
        value: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}
