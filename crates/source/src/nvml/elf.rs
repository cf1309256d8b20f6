//! Checks whether a library file is complete.
//!
//! The loader maps a file without checking its length. If a copy was interrupted,
//! access to the missing part ends the process with SIGBUS and without an error.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
/// Segments that are mapped.
const LOAD: u64 = 1;
/// Sections that have no data in the file.
const NO_BITS: u64 = 8;

/// Checks that the file at `path` has all parts that its headers describe. The
/// loader reports all other errors.
///
/// # Errors
/// When the file cannot be read, or ends too early.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let data = fs::metadata(path)?;
    // Opening anything else, such as a pipe, may block forever.
    if !data.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let file = File::open(path)?;
    let length = data.len();
    let mut header = [0; HEADER];
    // The loader refuses libraries of other machines and files that are not libraries.
    if (&file).read_exact(&mut header).is_err() || header[..6] != *b"\x7fELF\x02\x01" {
        return Ok(());
    }
    let end = program_end(&file, &header)?.max(section_end(&file, &header)?);
    match end > length {
        true => Err(io::Error::other(format!(
            "the file is truncated: it has {length} bytes, but its headers require {end}"
        ))),
        false => Ok(()),
    }
}

/// Returns the end of the last segment.
fn program_end(file: &File, header: &[u8; HEADER]) -> io::Result<u64> {
    let table = Table {
        at: number(header, 32, 8),
        size: PROGRAM_HEADER,
        count: number(header, 56, 2),
    };
    table.end(file, |entry| {
        let is_mapped = number(entry, 0, 4) == LOAD;
        is_mapped.then(|| number(entry, 8, 8).saturating_add(number(entry, 32, 8)))
    })
}

/// Returns the end of the last section. A stripped library may have none.
fn section_end(file: &File, header: &[u8; HEADER]) -> io::Result<u64> {
    let table = Table {
        at: number(header, 40, 8),
        size: SECTION_HEADER,
        count: number(header, 60, 2),
    };
    table.end(file, |entry| {
        let is_there = number(entry, 4, 4) != NO_BITS;
        is_there.then(|| number(entry, 24, 8).saturating_add(number(entry, 32, 8)))
    })
}

/// A table of headers of the same size.
struct Table {
    at: u64,
    size: usize,
    count: u64,
}

impl Table {
    /// Returns the end of the table, or that of the last part that its entries describe.
    fn end(&self, file: &File, end_of: impl Fn(&[u8]) -> Option<u64>) -> io::Result<u64> {
        // At most 65,535 entries of 64 bytes.
        let length = self.count as usize * self.size;
        let end = self.at.saturating_add(length as u64);
        let mut entries = vec![0; length];
        match file.read_exact_at(&mut entries, self.at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(end),
            Err(error) => return Err(error),
        }
        let ends = entries.chunks_exact(self.size).filter_map(end_of);
        Ok(ends.fold(end, u64::max))
    }
}

/// Returns the little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let digits = bytes[at..at + size].iter().rev();
    digits.fold(0, |number, &byte| number << 8 | u64::from(byte))
}
