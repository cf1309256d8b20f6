//! Long inputs in bounded memory.

use std::io::{self, BufReader, Read};

use nvlink_collectives::{input, lines::Lines};

use crate::samples::{LOG, Test};

/// Makes the same text again and again.
struct Repeated {
    text: Vec<u8>,
    at: usize,
    left: usize,
}

fn repeated(text: &str, bytes: usize) -> Repeated {
    // A read gives the rest of the text, so a short one would take a read for each byte.
    let times = (64 << 10) / text.len() + 1;
    Repeated {
        text: text.repeat(times).into(),
        at: 0,
        left: bytes,
    }
}

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.text[self.at..];
        let count = rest.len().min(buffer.len()).min(self.left);
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at = (self.at + count) % self.text.len();
        self.left -= count;
        Ok(count)
    }
}

const MIB: usize = 1 << 20;

#[test]
fn a_long_log_of_one_test_holds_one_run() {
    let test = Test::all_reduce(8, 200.0);
    // Cycles of the same sizes, with a log in between, and no end.
    let start = test.head() + &test.table();
    let cycle = test
        .table()
        .lines()
        .skip(4)
        .map(|row| row.to_owned() + "\n")
        .collect::<String>()
        + LOG;
    let input = start.as_bytes().chain(repeated(&cycle, 24 * MIB));
    let mut runs = Vec::new();
    input::read(input, &mut |run| runs.push(run)).unwrap();
    let [run] = &runs[..] else {
        panic!("{}", runs.len())
    };
    assert_eq!(run.rows.len(), 4);
    assert!(run.rows[3].measurements > 1000, "{:?}", run.rows[3]);
    assert!(run.devices.len() == 8 && run.warnings.len() <= 8);
}

#[test]
fn each_test_of_a_long_input_is_passed_on_when_it_ends() {
    let text = Test::all_reduce(8, 200.0).text();
    let (mut count, mut most) = (0_usize, 0);
    input::read(repeated(&text, 16 * MIB), &mut |run| {
        count += 1;
        most = most.max(run.rows.len() + run.devices.len() + run.warnings.len());
    })
    .unwrap();
    assert!(count >= 16 * MIB / text.len());
    assert_eq!(most, 12);
}

#[test]
fn a_line_without_an_end_is_not_kept() {
    let mut lines = Lines::new(BufReader::new(
        repeated("x", 24 * MIB).chain(&b"\nnext"[..]),
    ));
    while lines.next_line().unwrap().is_some() {}
    assert!(lines.held() < MIB, "{}", lines.held());
    let mut json = Vec::new();
    let input = b"{\"args\": [\"".chain(repeated("x", 65 * MIB));
    let error = input::read(input, &mut |run| json.push(run)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.ends_with("the document is larger than 64 MiB"),
        "{error}"
    );
}
