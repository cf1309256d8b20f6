//! Output of the subcommands.

use std::io::{self, Write};

use anyhow::Context;

/// Prints to stdout. It is not an error if the reader closes the pipe, as `head` does.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}
