//! What each format says.

use nvlink_collectives::{
    Collective, Run, SizeClass,
    run::{Origin, Reason},
};
use nvlink_topology::PathClass;

use crate::{
    run, runs,
    samples::{LOG, Test},
};

/// Returns bus bandwidth in bytes per second of each row, out-of-place.
fn bandwidths(run: &Run) -> Vec<f64> {
    let rows = run.rows.iter();
    rows.map(|row| row.out_of_place.unwrap().bus_bandwidth)
        .collect()
}

#[test]
fn old_and_new_outputs_say_the_same() {
    let new = Test::all_reduce(8, 200.0);
    let old = Test {
        new: false,
        ..new.clone()
    };
    let (new, old) = (run(&new.text()), run(&old.text()));
    assert_eq!(bandwidths(&new), [0.09, 175.0, 315.0, 350.0]);
    assert_eq!(new.rows, old.rows);
    for (run, from) in [(&new, Origin::Output), (&old, Origin::Bandwidths)] {
        let collective = run.collective.as_ref().unwrap();
        assert_eq!(
            (collective.value, collective.from),
            (Collective::AllReduce, from)
        );
        assert_eq!(run.ranks.as_ref().unwrap().value, 8);
        assert_eq!(run.nodes.as_ref().unwrap().value, 1);
        assert_eq!(
            (run.average_bandwidth, &run.failure),
            (Some(123.456), &None)
        );
        assert_eq!(run.devices[7].pci, "0000:df:00");
        assert_eq!(run.devices[7].model, "NVIDIA H100 80GB HBM3");
        let level = run.level(SizeClass::Large).unwrap();
        assert_eq!(
            (level.size, level.bytes_per_second),
            (1 << 33, 350_000_000_000)
        );
    }
}

#[test]
fn what_surrounds_the_lines_does_not_matter() {
    let text = Test::all_reduce(8, 200.0).text();
    let expected = run(&text);
    let each = |mark: fn(usize, &str) -> String| {
        let lines = text.lines().enumerate();
        lines
            .map(|(at, line)| mark(at, line) + "\n")
            .collect::<String>()
    };
    for marked in [
        each(|_, line| format!("{line}\r")),
        each(|_, line| format!("[1,0]<stdout>:{line}")),
        each(|_, line| format!("[prterun-a@1,0]<stdout>: {line}")),
        each(|_, line| format!("0: {line}")),
        each(|at, line| format!("2026-08-01T10:11:12.{at:09}Z {line}")),
        each(|_, line| format!("\u{1b}[33m{line}\u{1b}[0m")),
        each(|_, line| format!("{line}\nWARNING: some library says something, 7 times")),
        each(|_, line| {
            format!("{line}\ngpu-0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
        }),
        format!("\u{feff}{text}"),
    ] {
        let marked = run(&marked);
        assert_eq!(
            (&marked.rows, &marked.devices),
            (&expected.rows, &expected.devices)
        );
        assert_eq!(
            (marked.average_bandwidth, marked.failure),
            (expected.average_bandwidth, None)
        );
    }
}

#[test]
fn several_tests_in_one_file() {
    let all_reduce = Test::all_reduce(8, 200.0);
    let gather = Test {
        collective: Collective::AllGather,
        ..all_reduce.clone()
    };
    let slow = Test::all_reduce(4, 20.0);
    let text = all_reduce.text() + &gather.text() + &gather.head() + "Killed\n" + &slow.text();
    let found = runs(&text);
    let summary: Vec<_> = found
        .iter()
        .map(|run| {
            let failure = run.failure.as_ref().map(|failure| failure.reason);
            (
                run.collective.as_ref().unwrap().value,
                run.rows.len(),
                failure,
            )
        })
        .collect();
    let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
    let truncated = Some(Reason::Truncated);
    let expected = [
        (reduce, 4, None),
        (gather, 4, None),
        (gather, 0, truncated),
        (reduce, 4, None),
    ];
    assert_eq!(summary, expected);
    let text: Vec<_> = text.lines().collect();
    for run in &found {
        let line = text[run.line as usize - 1];
        assert!(line.starts_with("# nccl-tests version"), "{line}");
    }
}

#[test]
fn a_log_between_the_lines_adds_what_it_knows() {
    let test = Test {
        hosts: 2,
        ..Test::all_reduce(4, 100.0)
    };
    let log = LOG.replace("nRanks 2 nNodes 1", "nRanks 4 nNodes 4");
    let found = run(&(test.head() + &log + &test.table() + &test.foot()));
    assert_eq!(found.setup_seconds, Some(2.25));
    let path = found.path.unwrap();
    assert_eq!((path.value, path.from), (PathClass::Nvlink, Origin::Log));
    assert_eq!(found.nodes.unwrap().value, 2, "the ranks run on two hosts");
    let [warning] = &found.warnings[..] else {
        panic!("{:?}", found.warnings)
    };
    assert!(
        warning.starts_with("NCCL counts 4 nodes although the ranks run on 2"),
        "{warning}"
    );
    // The same log alone.
    let alone = run(LOG);
    assert_eq!((alone.setup_seconds, alone.collective), (Some(2.25), None));
    assert_eq!(
        (alone.ranks.unwrap().value, alone.nodes.unwrap().value),
        (2, 1)
    );
}

#[test]
fn rows_that_a_log_interrupts_are_put_together() {
    let test = Test::all_reduce(2, 100.0);
    let whole = test.text();
    let expected = run(&whole);
    let row = whole
        .lines()
        .find(|line| line.contains("8589934592  "))
        .unwrap();
    let message = "gpu-0:4000:4010 [0] NCCL INFO Connected NVLS tree";
    // After the root, and after the out-of-place columns.
    for cuts in [&[52][..], &[52 + 33][..], &[52, 52 + 33][..]] {
        let mut broken = row.to_owned();
        for &cut in cuts.iter().rev() {
            broken.insert_str(cut, &format!("{message}\n{message}\n"));
        }
        let found = run(&whole.replace(row, &broken));
        assert_eq!(
            (&found.rows, &found.warnings),
            (&expected.rows, &Vec::new()),
            "{broken}"
        );
    }
    // A host whose name looks like a number.
    let named = whole.replace("gpu-0", "0fed198e");
    let broken = row.replace("      -1", "      -10fed198e:4000:4010 [0] NCCL INFO x\n");
    assert_eq!(run(&named.replace(row, &broken)).rows, expected.rows);
}

#[test]
fn a_row_that_cannot_be_read_is_reported_with_its_line() {
    let test = Test::all_reduce(2, 100.0);
    let text = test
        .text()
        .replace("float     sum", "float     sum extra words");
    let found = run(&text);
    assert!(found.rows.is_empty());
    let line = 1 + text
        .lines()
        .position(|line| line.contains("extra"))
        .unwrap();
    let expected = format!("line {line}: the row has 15 values; expected 13");
    assert_eq!(found.warnings[0], expected);
}
