//! One line of a capture, without terminal escapes and quote marks.

use super::cell;

/// A line and its words.
pub(super) struct Line<'a> {
    pub(super) number: usize,
    pub(super) text: &'a str,
    pub(super) words: Vec<&'a str>,
}

/// The titles after the device columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Title {
    Cpu,
    Numa,
    GpuNuma,
}

/// The devices and the titles of a header line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) devices: Vec<String>,
    pub(super) titles: Vec<Title>,
}

impl<'a> Line<'a> {
    pub(super) fn new(number: usize, text: &'a str) -> Self {
        Self {
            number,
            text,
            words: text.split_whitespace().collect(),
        }
    }

    pub(super) fn first(&self) -> &'a str {
        self.words.first().copied().unwrap_or_default()
    }

    /// Reports whether the line starts like a header: a GPU, then anything but a relation.
    pub(super) fn looks_like_header(&self) -> bool {
        let second = self.words.get(1).copied().unwrap_or("CPU");
        let title = matches!(second, "CPU" | "NUMA" | "GPU");
        cell::gpu(self.first()).is_some()
            && (title || cell::gpu(second).is_some() || cell::is_nic(second))
    }

    /// Reports whether the line starts like a row: a device, then a word of a matrix.
    pub(super) fn looks_like_row(&self) -> bool {
        let device = cell::gpu(self.first()).is_some() || cell::is_nic(self.first());
        device
            && self
                .words
                .get(1)
                .is_some_and(|word| cell::parse(word).is_some())
    }

    /// Parses a line of the NIC legend, such as `NIC3: mlx5_3`.
    pub(super) fn legend(&self) -> Option<(&'a str, &'a str)> {
        let [title, name] = self.words[..] else {
            return None;
        };
        let title = title.strip_suffix(':')?;
        (cell::is_nic(title) && title.starts_with("NIC")).then_some((title, name))
    }

    /// Parses the line as a header. The error is the first unexpected word.
    pub(super) fn header(&self) -> Result<Header, &'a str> {
        let is_title = |word: &&str| matches!(*word, "CPU" | "NUMA" | "GPU");
        let end = self
            .words
            .iter()
            .position(is_title)
            .unwrap_or(self.words.len());
        let (devices, mut rest) = self.words.split_at(end);
        let device = |word: &&&str| cell::gpu(word).is_some() || cell::is_nic(word);
        if let Some(word) = devices.iter().find(|word| !device(word)) {
            return Err(word);
        }
        let mut titles = Vec::new();
        while let Some(first) = rest.first() {
            let (title, words) = match rest {
                ["CPU", "Affinity", ..] => (Title::Cpu, 2),
                ["NUMA", "Affinity", ..] => (Title::Numa, 2),
                ["GPU", "NUMA", "ID", ..] => (Title::GpuNuma, 3),
                _ => return Err(first),
            };
            titles.push(title);
            rest = &rest[words..];
        }
        Ok(Header {
            devices: devices.iter().map(|&word| word.to_owned()).collect(),
            titles,
        })
    }
}

/// Removes the quote marks of mail programs and forges: `> `, once or more.
pub(super) fn unquoted(mut line: &str) -> &str {
    while let Some(rest) = line.trim_start_matches(' ').strip_prefix('>') {
        line = rest.strip_prefix(' ').unwrap_or(rest);
    }
    line
}

/// Removes the escapes that underline the header, even if the escape character was
/// lost by copying and only `[4m` is left.
pub(super) fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\x1b', '[']) {
        out.push_str(&rest[..at]);
        let escape = rest[at..].strip_prefix('\x1b');
        let body = escape.unwrap_or(&rest[at..]);
        let length = body.strip_prefix('[').and_then(|codes| {
            let end = codes.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            let last = codes[end..].chars().next()?;
            let known = if escape.is_some() {
                last.is_ascii_alphabetic()
            } else {
                last == 'm'
            };
            known.then_some(1 + end + last.len_utf8())
        });
        match length {
            Some(length) => rest = &body[length..],
            None => {
                // Drop a lone escape character; keep a lone bracket.
                if escape.is_none() {
                    out.push('[');
                }
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}
