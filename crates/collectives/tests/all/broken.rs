//! Inputs that are broken, truncated, mixed up or something else.

use nvlink_collectives::run::Reason;
use proptest::prelude::*;

use crate::{
    read, run,
    samples::{LOG, Test},
};

/// Returns reason, line and text of the failure of the only run.
fn failure(text: &str) -> (Reason, u64, String) {
    let failure = run(text).failure.expect("it failed");
    (failure.reason, failure.line, failure.text)
}

/// Ends of an output without a footer, the reason of the failure, and a part of its text.
const ENDS: [(&str, Reason, &str); 6] = [
    (
        "gpu-0: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details)'\n",
        Reason::NcclError,
        "Test NCCL failure",
    ),
    (
        "gpu-0:1:2 [0] transport/net_ib.cc:95 NCCL WARN NET/IB: Got completion with error 12\nmpirun noticed that process rank 3 exited on signal 6\n",
        Reason::NcclError,
        "Got completion with error 12",
    ),
    (
        "gpu-0:1:2 [0] misc/socket.cc:1 NCCL WARN socketPollConnect: Connection timed out\ngpu-0: Test NCCL failure common.cu:958 'unhandled system error'\n",
        Reason::Timeout,
        "first warning, on line",
    ),
    (
        "slurmstepd: error: *** CANCELLED DUE TO TIME LIMIT ***\n",
        Reason::Timeout,
        "TIME LIMIT",
    ),
    (
        "srun: error: gpu-0: task 3: Killed\n",
        Reason::Truncated,
        "task 3: Killed",
    ),
    (
        "",
        Reason::Truncated,
        "the output ends after the row of 8589934592 B",
    ),
];

#[test]
fn failed_runs_have_a_reason_and_a_line() {
    let test = Test::all_reduce(8, 200.0);
    let (head, table) = (test.head(), test.table());
    let started = head.clone() + &table;
    let line = started.lines().count() as u64 + 1;
    let wrong = Test {
        wrong: 12,
        ..test.clone()
    };
    let (reason, at, text) = failure(&wrong.text());
    assert_eq!((reason, at), (Reason::WrongResults, line));
    assert_eq!(text, "Out of bounds values : 12 FAILED");
    for (end, reason, expected) in ENDS {
        let found = failure(&(started.clone() + end));
        assert_eq!(found.0, reason, "{end}");
        assert!(found.2.contains(expected), "{found:?}");
        assert!(found.1 >= line - 1, "{found:?}");
    }
    let (reason, _, text) = failure(&head);
    assert_eq!(
        (reason, &*text),
        (Reason::Truncated, "the output ends before the first row")
    );
    let warned = head + "gpu-0:1:2 [0] NCCL WARN something harmless\n" + &table + &test.foot();
    assert_eq!(run(&warned).failure, None);
}

#[test]
fn an_error_of_another_program_is_a_failure() {
    let log = LOG.to_owned()
        + "[rank1]: torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to a network error\n";
    let (reason, line, text) = failure(&log);
    assert_eq!((reason, line), (Reason::NcclError, 9));
    assert!(text.contains("ncclRemoteError"), "{text}");
}

#[test]
fn a_log_that_ends_during_the_set_up_is_truncated() {
    let ends = |lines: usize| {
        let log: Vec<_> = LOG.lines().take(lines).collect();
        let (runs, _) = read(log.join("\n").as_bytes());
        let failure = runs.into_iter().next().and_then(|run| run.failure);
        failure.map(|failure| (failure.reason, failure.line, failure.text))
    };
    let text = "the log ends while NCCL sets up the communicator".to_owned();
    assert_eq!(ends(4), Some((Reason::Truncated, 4, text)));
    assert_eq!(ends(3), None, "no communicator yet");
    assert_eq!(ends(5), None, "the rings are connected");
}

#[test]
fn inputs_without_results_say_so() {
    let error = |input: &[u8]| {
        let (runs, error) = read(input);
        assert!(runs.is_empty());
        error.expect("an error").to_string()
    };
    assert_eq!(error(b""), "the input is empty (did the benchmark start?)");
    assert_eq!(
        error(b"\n \n"),
        "the input is empty (did the benchmark start?)"
    );
    assert!(
        error(b"hello\n1 2 3\n").starts_with("nothing found: expected the output of nccl-tests")
    );
    assert!(error(b"\x1f\x8b\x08").contains("gzip"));
    assert!(error(b"\xff\xfe#\0").contains("UTF-16"));
    assert!(error(b"{\"a\": 1}").contains("the JSON has no results"));
    assert!(error(b"\n\n{\"a\" 1}").contains("expected `:`"));
    assert!(error(b"# TYPE nccl_x gauge\nnccl_bus_bandwidth_gbs{ 1\n").starts_with("line 2: "));
}

#[test]
fn a_test_with_too_many_rows_is_an_error_with_its_line() {
    let test = Test::all_reduce(8, 200.0);
    let mut text = test.head() + &test.table();
    let line = text.lines().count() as u64;
    for size in 0..3000 {
        text += &format!("{size} 1 float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0\n");
    }
    let (_, error) = read(text.as_bytes());
    let error = error.unwrap().to_string();
    let expected = format!("line {}: the test has more than 2048", line + 2048 - 4 + 2);
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn every_truncation_gives_the_results_so_far() {
    let test = Test::all_reduce(2, 100.0);
    let whole = test.text();
    let expected = run(&whole);
    let average = whole.find("# Avg bus bandwidth").unwrap();
    for end in 0..whole.len() {
        let (runs, error) = read(&whole.as_bytes()[..end]);
        let [run] = &runs[..] else {
            assert!(runs.is_empty() && error.is_some(), "{end}");
            continue;
        };
        assert!(expected.rows.starts_with(&run.rows), "{end}");
        match &run.failure {
            Some(failure) => assert_eq!(failure.reason, Reason::Truncated, "{end}"),
            None => assert!(end > average && run.rows == expected.rows, "{end}"),
        }
        // Half of a number is not the average.
        assert!(
            matches!(run.average_bandwidth, None | Some(123.456)),
            "{end}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        read(&bytes);
        for start in ["{", "# nThread 1\n", "nccl_bus_bandwidth_gbs{", "{\"results\":["] {
            read(&[start.as_bytes(), &bytes].concat());
        }
    }

    #[test]
    fn no_change_of_a_good_file_panics(
        cuts in proptest::collection::vec((0_usize..6000, 0_usize..6000), 1..6),
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut text = (Test::all_reduce(8, 200.0).text() + LOG).into_bytes();
        for (from, to) in cuts {
            let (from, to) = (from % text.len(), to % text.len());
            let part = text[from.min(to)..from.max(to)].to_vec();
            text.splice(from..from, [&part[..part.len().min(300)], &bytes].concat());
        }
        let (runs, _) = read(&text);
        for run in runs {
            prop_assert!(run.rows.len() < 100 && run.line >= 1);
        }
    }
}
