//! Lines of an input of any length, in bounded memory, without what launchers and terminals
//! put around them.

use std::io::{self, BufRead};

/// The maximum length of a line, in bytes; the rest of a longer line is skipped. The tables
/// and messages that are read are far shorter.
pub const MOST_BYTES: usize = 64 << 10;

/// Reads lines into one buffer.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    number: u64,
    bytes: Vec<u8>,
    text: String,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its number, from 1.
    pub number: u64,
    /// Its text without what surrounds it: see [`clean`].
    pub text: &'a str,
    /// Whether a line break ends it; the last line of a file that grows may be half of one.
    pub ended: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Self {
        Self::after(input, 0)
    }

    /// Returns a reader of an input of which `lines` lines have been read.
    pub fn after(input: R, lines: u64) -> Self {
        Self {
            input,
            number: lines,
            bytes: Vec::new(),
            text: String::new(),
        }
    }

    /// Returns the next line; `None` at the end. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        self.bytes.clear();
        let ended = match self.fill()? {
            None => return Ok(None),
            Some(ended) => ended,
        };
        self.number += 1;
        self.text.clear();
        plain(&String::from_utf8_lossy(&self.bytes), &mut self.text);
        Ok(Some(Line {
            number: self.number,
            text: clean(&self.text),
            ended,
        }))
    }

    /// Reads up to and including the next line break, of which the first [`MOST_BYTES`] are
    /// kept. Returns whether there was a line break; `None` at the end of the input.
    fn fill(&mut self) -> io::Result<Option<bool>> {
        let mut any = false;
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                return Ok(any.then_some(false));
            }
            any = true;
            let end = available.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(available.len());
            let room = MOST_BYTES - self.bytes.len();
            self.bytes.extend_from_slice(&available[..taken.min(room)]);
            self.input.consume(end.map_or(taken, |end| end + 1));
            if end.is_some() {
                return Ok(Some(true));
            }
        }
    }

    /// Returns the number of bytes that the reader holds, whatever the length of the input.
    #[must_use]
    pub fn held(&self) -> usize {
        self.bytes.capacity() + self.text.capacity()
    }
}

/// Appends `from` without control sequences of a terminal and other control characters; a
/// tab becomes a space.
fn plain(from: &str, to: &mut String) {
    let mut chars = from.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                // CSI: `ESC [`, parameters, one final character from `@` to `~`.
                let rest = chars.as_str();
                if let Some(sequence) = rest.strip_prefix('[') {
                    let end = sequence.find(|c: char| ('@'..='~').contains(&c));
                    let after = end.map_or("", |end| &sequence[end + 1..]);
                    chars = after.chars();
                }
            }
            '\t' => to.push(' '),
            '\u{feff}' => {}
            c if c.is_control() => {}
            c => to.push(c),
        }
    }
}

/// Removes the marks that launchers and log readers put in front of a line: `[1,0]<stdout>:`
/// (Open MPI), `0: ` (srun --label), `[0] ` (MPICH), time stamps and `[pod/…]` (kubectl
/// logs), `stdout F ` (container runtimes).
#[must_use]
pub fn clean(line: &str) -> &str {
    let mut text = line.trim_end();
    // Each mark occurs once; a launcher in a container has two of them.
    for _ in 0..4 {
        let start = text.trim_start();
        match unmarked(start) {
            Some(rest) => text = rest,
            None => return start,
        }
    }
    text.trim_start()
}

fn unmarked(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('[') {
        let (mark, after) = rest.split_once(']')?;
        let number = !mark.is_empty() && mark.bytes().all(|b| b.is_ascii_digit());
        return match after.strip_prefix("<std") {
            Some(stream) => {
                let (_, after) = stream.split_once('>')?;
                Some(after.strip_prefix(':').unwrap_or(after))
            }
            None if number || mark.starts_with("pod/") => after.strip_prefix(' '),
            None => None,
        };
    }
    let stream = ["stdout F ", "stderr F ", "stdout P ", "stderr P "];
    if let Some(rest) = stream.iter().find_map(|mark| text.strip_prefix(mark)) {
        return Some(rest);
    }
    let (first, rest) = text.split_once(' ')?;
    let rank = first.strip_suffix(':');
    let is_rank = rank.is_some_and(|rank| {
        (1..=6).contains(&rank.len()) && rank.bytes().all(|b| b.is_ascii_digit())
    });
    (is_rank || is_timestamp(first)).then_some(rest)
}

/// Reports whether `word` is a time stamp of RFC 3339.
fn is_timestamp(word: &str) -> bool {
    let bytes = word.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        let part = bytes.get(range);
        part.is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let mark = |at: usize, mark: u8| bytes.get(at) == Some(&mark);
    let zone = word.ends_with('Z') || word.get(19..).is_some_and(|rest| rest.contains(['+', '-']));
    digits(0..4)
        && mark(4, b'-')
        && digits(5..7)
        && mark(7, b'-')
        && digits(8..10)
        && mark(10, b'T')
        && digits(11..13)
        && mark(13, b':')
        && digits(14..16)
        && zone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8]) -> Vec<(u64, String, bool)> {
        // Small pieces: a line spans several reads.
        let mut lines = Lines::new(io::BufReader::with_capacity(7, input));
        let mut all = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            all.push((line.number, line.text.to_owned(), line.ended));
        }
        all
    }

    #[test]
    fn marks_of_launchers_and_terminals_are_removed() {
        for marked in [
            "# size count",
            "  # size count \r",
            "[1,0]<stdout>:# size count",
            "[prterun-host-77@1,0]<stdout>: # size count",
            "[0] # size count",
            "0: # size count",
            " 12: # size count",
            "2026-08-01T10:11:12.123456789Z # size count",
            "2026-08-01T10:11:12+02:00 # size count",
            "2026-08-01T10:11:12.1Z stdout F [1,0]<stderr>:# size count",
            "[pod/bench-x/nccl] 2026-08-01T10:11:12.1Z # size count",
            "\u{1b}[32m# size\u{1b}[0m count\u{1b}[K",
            "\u{feff}# size\tcount\0",
        ] {
            let found = lines(format!("{marked}\n").as_bytes());
            assert_eq!(found, [(1, "# size count".to_owned(), true)], "{marked:?}");
        }
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "x:12:13 [0] NCCL INFO a",
            "12 13",
            "[x] y",
            "1234567: x",
            "[1,0] x",
            "[",
        ] {
            assert_eq!(clean(text), text);
        }
    }

    #[test]
    fn lines_have_numbers_and_the_last_one_may_lack_its_end() {
        let found = lines(b"a\n\nb\xffc\nhalf");
        let texts: Vec<_> = found.iter().map(|(_, text, _)| &**text).collect();
        assert_eq!(texts, ["a", "", "b\u{fffd}c", "half"]);
        assert_eq!(found[3], (4, "half".to_owned(), false));
        assert_eq!(lines(b""), []);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let mut input = vec![b'x'; MOST_BYTES * 3];
        input.extend(b"\nnext\n");
        let found = lines(&input);
        assert_eq!(found[0].1.len(), MOST_BYTES);
        assert_eq!(found[1], (2, "next".to_owned(), true));
    }
}
