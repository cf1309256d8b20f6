//! Tells the formats apart by content, and reads them in bounded memory.

use std::io::{self, BufRead, Read};

use super::{
    exposition::{self, ExpositionError},
    json::{self, JsonError},
    lines::Lines,
    run::Run,
    text::{self, TextError},
};

/// The size of the buffer of an input.
const BUFFER: usize = 64 << 10;

/// Why an input cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing, or only white space.
    #[error("the input is empty (did the benchmark start?)")]
    Empty,
    #[error("the input is compressed with {0}: decompress it first, such as with {1}")]
    Compressed(&'static str, &'static str),
    #[error("the input is UTF-16: convert it first, such as with iconv -f UTF-16 -t UTF-8")]
    Utf16,
    #[error("{0}")]
    Text(#[from] TextError),
    #[error("{0}")]
    Json(#[from] JsonError),
    #[error("{0}")]
    Exposition(#[from] ExpositionError),
}

/// First bytes of files that have to be converted.
const SIGNATURES: [(&[u8], InputError); 5] = [
    (&[0x1f, 0x8b], InputError::Compressed("gzip", "zcat")),
    (
        &[0x28, 0xb5, 0x2f, 0xfd],
        InputError::Compressed("zstd", "zstdcat"),
    ),
    (
        &[0xfd, 0x37, 0x7a, 0x58],
        InputError::Compressed("xz", "xzcat"),
    ),
    (&[0xff, 0xfe], InputError::Utf16),
    (&[0xfe, 0xff], InputError::Utf16),
];

/// Reads `input` and passes on each run as soon as it ends. The memory that it needs does
/// not depend on the size of the input.
///
/// # Errors
/// When it cannot be read, or has no run. Runs before the error have been passed on.
pub fn read(input: impl Read, sink: &mut dyn FnMut(Run)) -> Result<(), InputError> {
    let mut input = io::BufReader::with_capacity(BUFFER, input);
    let start = input.fill_buf()?;
    for (signature, error) in SIGNATURES {
        if start.starts_with(signature) {
            return Err(error);
        }
    }
    let (first, lines) = skip_blank(&mut input)?;
    if first == b'{' {
        return Ok(json::read(input, sink)?);
    }
    read_lines(Lines::after(input, lines), sink)
}

/// Skips white space and a byte order mark. Returns the first other byte, and the number of
/// lines before it.
fn skip_blank(input: &mut impl BufRead) -> Result<(u8, u64), InputError> {
    if input.fill_buf()?.starts_with(&[0xef, 0xbb, 0xbf]) {
        input.consume(3);
    }
    let mut lines = 0;
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Err(InputError::Empty);
        }
        let first = buffer.iter().position(|byte| !byte.is_ascii_whitespace());
        let blank = &buffer[..first.unwrap_or(buffer.len())];
        lines += blank.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let (blank, found) = (blank.len(), first.map(|at| buffer[at]));
        input.consume(blank);
        if let Some(found) = found {
            return Ok((found, lines));
        }
    }
}

/// Reads text, of a benchmark or for Prometheus.
fn read_lines(mut lines: Lines<impl BufRead>, sink: &mut dyn FnMut(Run)) -> Result<(), InputError> {
    let mut parser = text::Parser::new(sink);
    let mut prometheus: Option<exposition::Parser> = None;
    let mut first = true;
    while let Some(line) = lines.next_line()? {
        if first && !line.text.is_empty() {
            first = false;
            prometheus = exposition::begins(line.text).then(exposition::Parser::default);
        }
        match &mut prometheus {
            Some(prometheus) => prometheus.line(line)?,
            None => parser.line(line)?,
        }
    }
    match prometheus {
        Some(prometheus) => {
            drop(parser);
            Ok(prometheus.end(sink)?)
        }
        None => Ok(parser.end()?),
    }
}
