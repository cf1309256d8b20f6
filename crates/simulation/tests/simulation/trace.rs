//! Reading traces.

use nvlink_simulation::Trace;

use crate::read;

#[test]
fn columns_come_in_any_order_and_the_optional_ones_may_be_absent() {
    let plain = read("time,gpus,duration\n1.5,2,60\n");
    let job = &plain.jobs[0];
    assert_eq!((job.time, job.gpus, job.duration), (1500, 2, 60_000));
    assert_eq!((&*job.project, job.priority), ("", 0));
    assert_eq!(job.pattern.to_string(), "all-reduce");

    let full = "# a comment\n\nuser,priority,duration,pattern,project,gpus,Time\n\
                ann,-5,1e3,\"tp=2,pp=2\", research ,4,0\nbob,,7,,,1,0\n";
    let full = read(full);
    let (first, second) = (&full.jobs[0], &full.jobs[1]);
    assert_eq!((first.priority, &*first.project), (-5, "research"));
    assert_eq!(first.pattern.to_string(), "tp=2,pp=2");
    assert_eq!((first.duration, second.duration), (1_000_000, 7_000));
    assert_eq!(
        (second.priority, second.pattern.to_string().as_str()),
        (0, "all-reduce")
    );
    assert_eq!(full.ignored, ["user"]);
}

#[test]
fn files_of_other_systems_are_read() {
    let plain = read("time,gpus,duration\n0,1,2\n3,4,5\n");
    for text in [
        "\u{feff}time,gpus,duration\r\n0,1,2\r\n3,4,5\r\n",
        "\u{feff}# exported\r\n\r\ntime,gpus,duration\r\n0,1,2\r\n# day 2\r\n3,4,5",
        "\"time\",\"gpus\",\"duration\"\n\"0\",\"1\",\"2\"\n3 , 4,5\n",
    ] {
        assert_eq!(read(text), plain, "{text:?}");
    }
}

#[test]
fn what_is_odd_is_counted() {
    let trace = read("time,gpus,duration\n9,0.5,1\n2,1.2,2\n2,0,3\n2,3,4\n");
    let jobs: Vec<_> = trace.jobs.iter().map(|job| (job.time, job.gpus)).collect();
    assert_eq!(
        jobs,
        [(2000, 2), (2000, 3), (9000, 1)],
        "sorted, and stable"
    );
    assert_eq!(
        (trace.rounded, trace.without_gpus, trace.unsorted),
        (2, 1, 1)
    );
}

#[test]
fn errors_name_line_column_and_value_and_say_what_to_do() {
    let rows = [
        (
            "x,1,1",
            "line 4, column time: \"x\" is not a number: give seconds, such as 90 or 0.5",
        ),
        (
            ",1,1",
            "line 4, column time: \"\" is not a number: give seconds, such as 90 or 0.5",
        ),
        (
            "0,nan,1",
            "line 4, column gpus: \"nan\" is not a number: give GPUs, such as 8, or 0.5 for a share of one",
        ),
        (
            "0,-1,1",
            "line 4, column gpus: \"-1\" is negative: give GPUs, such as 8, or 0.5 for a share of one",
        ),
        (
            "0,1e7,1",
            "line 4, column gpus: \"1e7\" is more than 1000000: give GPUs, such as 8, or 0.5 for a share of one",
        ),
        (
            "0,1,inf",
            "line 4, column duration: \"inf\" is not a number: give seconds, such as 90 or 0.5",
        ),
        (
            "1790000000000,1,1",
            "line 4, column time: \"1790000000000\" is more than 10000000000: give seconds, such as 90 or 0.5",
        ),
        ("0,1", "line 4: 2 values, but the header has 3 columns"),
        (
            "0,1,1,1",
            "line 4: 4 values, but the header has 3 columns; quote values with commas, as in \"tp=4,pp=2\"",
        ),
        (
            "0,1,\"1",
            "line 4: a quote is not closed: close it on the same line",
        ),
        (
            "0,1\r0,1",
            "line 4: it has a carriage return: end lines with LF or CRLF",
        ),
    ];
    for (row, expected) in rows {
        let text = format!("# a comment\r\n\r\ntime,gpus,duration\r\n{row}\r\n");
        let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, expected, "{row}");
    }
}

#[test]
fn white_space_of_any_kind_around_values_is_no_part_of_them() {
    let text = "\u{a0}time , gpus,duration\u{a0}\n\u{a0}0,\t1 , 2\u{a0}\n";
    let trace = Trace::read(text.as_bytes()).unwrap();
    assert_eq!(trace.jobs.len(), 1);
}

#[test]
fn errors_of_whole_files_and_of_optional_columns() {
    let more = [
        (
            "",
            "it is empty: expected a header with the columns time, gpus and duration",
        ),
        (
            "# nothing\n",
            "it is empty: expected a header with the columns time, gpus and duration",
        ),
        (
            "time,gpus,duration\n",
            "it has a header and no jobs with GPUs",
        ),
        (
            "time,gpus,duration\n0,0,1\n",
            "it has a header and no jobs with GPUs",
        ),
        (
            "time;gpus;duration\n",
            "line 1: the header has no column time, gpus, duration: expected time, gpus and \
             duration, and optionally project, pattern and priority, separated by commas",
        ),
        (
            "time,gpus,Time,duration\n",
            "line 1: the column time is there twice: rename one",
        ),
        (
            "time,gpus,duration,pattern\n0,4,1,ring\n",
            "line 2, column pattern: \"ring\" is not a pattern: use all-reduce, all-to-all, \
             pipeline, parameter-server, none, or a shape such as tp=4,pp=2 in quotes",
        ),
        (
            "time,gpus,duration,pattern\n0,4,1,tp=8\n",
            "line 2, column pattern: \"tp=8\" is for 8 GPUs, but the job has 4",
        ),
        (
            "time,gpus,duration,priority\n0,4,1,high\n",
            "line 2, column priority: \"high\" is not a priority: give a whole number, as in a \
             PriorityClass",
        ),
    ];
    for (text, expected) in more {
        let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
    }
}

#[test]
fn bytes_that_are_no_csv_are_refused() {
    let error = |bytes: &[u8]| Trace::read(bytes).unwrap_err().to_string();
    assert_eq!(
        error(&[0xff, 0xfe, b't', 0]),
        "line 1: the header is not UTF-8"
    );
    let text = b"time,gpus,duration\n0,\xff,1\n";
    assert_eq!(error(text), "line 2, column gpus: \"\" is not UTF-8");
    let long = vec![b'x'; 2 << 20];
    assert_eq!(
        error(&long),
        "line 1: longer than 1 MiB: is this a CSV file?"
    );
}
