//! The output of commands.

use std::io::{self, Write};

/// Prints to standard output. It is not an error if the reader closes the pipe, as `head` does.
///
/// # Errors
/// When nothing can be written there, as on a full disk.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let why = format!("cannot write to stdout: {error}");
            Err(io::Error::new(error.kind(), why))
        }
        _ => Ok(()),
    }
}
