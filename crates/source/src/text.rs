//! Turns bytes into text: limits and encodings, before anything is parsed.

use std::io::Read;

/// The largest accepted input. The recording of a node with 128 GPUs is smaller than 3 MiB.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// Why an input is not text that can be parsed.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It could not be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is empty or only white space.
    #[error("the input is empty (did the command that should write it fail?)")]
    Empty,
    /// It is larger than 16 MiB.
    #[error("the input is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// It has NUL bytes and no UTF-16 byte order mark.
    #[error("line {line}: a NUL byte: the input is binary, or UTF-16 without a byte order mark")]
    Binary {
        /// Line of the first NUL.
        line: usize,
    },
    /// It has a UTF-16 byte order mark but is not valid UTF-16.
    #[error("the input is marked as UTF-16, but is not valid UTF-16")]
    Utf16,
    /// It is neither UTF-8 nor UTF-16.
    #[error("line {line}: not UTF-8")]
    Utf8 {
        /// Line of the first invalid byte.
        line: usize,
    },
}

/// Why a text is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct LineError {
    /// Line of the text, from 1.
    pub line: usize,
    /// What is wrong in this line.
    pub reason: String,
}

impl LineError {
    pub(crate) fn new(line: usize, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { line, reason }
    }
}

/// Reads all of `input`, up to 16 MiB.
///
/// # Errors
/// When it cannot be read, or is larger.
pub fn read(input: impl Read) -> Result<Vec<u8>, TextError> {
    let mut bytes = Vec::new();
    input.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_BYTES {
        return Err(TextError::TooLarge);
    }
    Ok(bytes)
}

/// Decodes `bytes`: UTF-8 with or without a byte order mark, or UTF-16 with one
/// (as PowerShell's `>` writes it).
///
/// # Errors
/// Empty, binary or wrongly encoded input.
pub fn decode(bytes: &[u8]) -> Result<String, TextError> {
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes)?,
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes)?,
        [0xef, 0xbb, 0xbf, rest @ ..] => utf8(rest)?.to_owned(),
        bytes => utf8(bytes)?.to_owned(),
    };
    if let Some(at) = text.find('\0') {
        return Err(TextError::Binary {
            line: line_of(&text.as_bytes()[..at]),
        });
    }
    if text.trim().is_empty() {
        return Err(TextError::Empty);
    }
    Ok(text)
}

fn utf8(bytes: &[u8]) -> Result<&str, TextError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        match good.contains(&0) || bytes.contains(&0) {
            true => TextError::Binary {
                line: line_of(good),
            },
            false => TextError::Utf8 {
                line: line_of(good),
            },
        }
    })
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, TextError> {
    if !bytes.len().is_multiple_of(2) {
        return Err(TextError::Utf16);
    }
    let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
    char::decode_utf16(units)
        .collect::<Result<_, _>>()
        .map_err(|_| TextError::Utf16)
}

fn line_of(before: &[u8]) -> usize {
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        let utf16 = |text: &str, to: fn(u16) -> [u8; 2], mark: [u8; 2]| {
            let mut bytes = mark.to_vec();
            bytes.extend(text.encode_utf16().flat_map(to));
            bytes
        };
        assert_eq!(decode(b"a\r\nb").unwrap(), "a\r\nb");
        assert_eq!(decode(b"\xef\xbb\xbfa").unwrap(), "a");
        assert_eq!(
            decode(&utf16("añ", u16::to_le_bytes, [0xff, 0xfe])).unwrap(),
            "añ"
        );
        assert_eq!(
            decode(&utf16("añ", u16::to_be_bytes, [0xfe, 0xff])).unwrap(),
            "añ"
        );
    }

    #[test]
    fn refusals_name_the_reason() {
        let reason = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
        assert!(reason(b"").starts_with("the input is empty"));
        assert!(reason(b" \r\n\t").starts_with("the input is empty"));
        assert!(reason(b"a\nb\0c").starts_with("line 2: a NUL byte"));
        assert!(reason(b"a\n\xffb").starts_with("line 2: not UTF-8"));
        assert!(reason(b"\xff\xfea").contains("UTF-16"));
        assert!(reason(&[0xff, 0xfe, 0x00, 0xd8]).contains("not valid UTF-16"));
        assert!(reason(b"\x7fELF\x02\x01\x01\0\0\xff\xff").contains("binary"));
    }

    #[test]
    fn a_large_input_is_refused_without_being_read_to_its_end() {
        let error = read(std::io::repeat(b'x')).unwrap_err();
        assert_eq!(error.to_string(), "the input is larger than 16 MiB");
    }
}
