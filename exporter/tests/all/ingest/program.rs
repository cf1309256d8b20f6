//! The program: output, exit statuses, messages.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, SystemTime},
};

use nvlink_collectives::{SizeClass, store, summary};
use serde_json::Value;

use super::samples::{LOG, Test};
use crate::support::golden;

const PROGRAM: &str = env!("CARGO_BIN_EXE_nvlink-exporter");

/// A directory with inputs, in which the program runs.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file that was changed `second` seconds after a fixed time.
    fn write(&self, name: &str, text: &str, second: u64) {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + second);
        File::open(path).unwrap().set_modified(at).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("ingest")
            .args(args.split_whitespace())
            .current_dir(self.0.path());
        command
    }

    fn run(&self, args: &str) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Returns what a successful call prints.
    fn text(&self, args: &str) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns what a call with exit status 1 prints on stderr.
    fn failure(&self, args: &str) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Writes files for each kind of result.
fn desk() -> Desk {
    let desk = Desk::new();
    let good = Test::all_reduce(8, 200.0);
    desk.write("a-good.txt", &(LOG.to_owned() + &good.text()), 0);
    let wrong = Test {
        wrong: 3,
        new: false,
        ..Test::all_reduce(4, 190.0)
    };
    desk.write("b-wrong.txt", &wrong.text(), 0);
    let across = Test {
        hosts: 2,
        ..Test::all_reduce(16, 30.0)
    };
    desk.write("c-cut.txt", &(across.head() + &across.table()), 0);
    desk
}

#[test]
fn the_table_and_the_json() {
    let desk = desk();
    let args = "a-good.txt b-wrong.txt c-cut.txt --source sim:dgx-h100";
    let output = desk.run(args);
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    golden(
        "ingest/table.txt",
        &format!("{table}\n--- stderr\n{errors}"),
    );
    let output = desk.run(&format!("{args} -o json"));
    golden(
        "ingest/runs.json",
        &String::from_utf8(output.stdout).unwrap(),
    );
}

#[test]
fn the_gate_refuses_what_is_too_slow() {
    let desk = Desk::new();
    desk.write("good.txt", &Test::all_reduce(8, 274.0).text(), 0);
    desk.write("slow.txt", &Test::all_reduce(8, 100.0).text(), 0);
    desk.text("good.txt --source sim:dgx-h100 --min-ratio 0.9");
    let error = desk.failure("slow.txt --source sim:dgx-h100 --min-ratio 0.9");
    let expected = "nvlink-exporter: slow.txt, line 1: all_reduce of 8 GiB reaches 175.00 GB/s and the model says 478.80 GB/s: the ratio 0.365 is below 0.9; the model expects NVLS (from the topology); without, 370.80 GB/s (see --nvls)\n";
    assert_eq!(error, expected);
    let error = desk.failure("good.txt --min-ratio 0.9");
    assert!(
        error.contains("cannot be compared with the model: name what it does not say itself"),
        "{error}"
    );
    let small = Test {
        rows: vec![(8, 0.1)],
        ..Test::all_reduce(8, 1.0)
    };
    desk.write("small.txt", &small.text(), 0);
    let error = desk.failure("small.txt --source sim:dgx-h100 --min-ratio 0.9");
    assert!(error.contains("no message of 256 MiB or more"), "{error}");
    // Rows without a number say nothing, with and without a gate.
    let nothing = Test::all_reduce(8, 100.0).text();
    let nothing: String = nothing
        .lines()
        .map(
            |line| match line.starts_with('#') || line.trim().is_empty() {
                true => format!("{line}\n"),
                false => format!("8 2 float sum -1{}\n", " nan nan nan 0".repeat(2)),
            },
        )
        .collect();
    desk.write("nothing.txt", &nothing, 0);
    let error = desk.failure("nothing.txt --source sim:dgx-h100 --min-ratio 0.9");
    assert!(error.contains("no row has a time and bandwidth"), "{error}");
    let output = desk.run("nothing.txt");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("no row has a time and bandwidth"), "{said}");
    desk.write("log.txt", LOG, 0);
    let error = desk.failure("log.txt --min-ratio 0.9");
    assert!(error.contains("no bandwidth was measured"), "{error}");
}

/// Eight H100 reach about 480 GB/s, and 360 GB/s without the reduction in the switches.
#[test]
fn the_gate_refuses_a_machine_that_lost_nvls() {
    let desk = Desk::new();
    let test = Test::all_reduce(8, 360.0 / 1.75);
    let log = |words: &str| format!("gpu-0:4000:4010 [0] NCCL INFO {words}\n");
    let with = |line: &str| test.head() + line + &test.table() + &test.foot();
    desk.write("silent.txt", &test.text(), 0);
    let lost = log("NVLS multicast support is not available on dev 0");
    desk.write("lost.txt", &with(&lost), 0);
    let off = log("NCCL_NVLS_ENABLE set by environment to 0.");
    desk.write("off.txt", &with(&off), 0);
    let gate = "--source sim:dgx-h100 --min-ratio 0.9";
    let error = desk.failure(&format!("silent.txt {gate}"));
    assert!(
        error.contains("the model says 478.80 GB/s: the ratio 0.752 is below 0.9"),
        "{error}"
    );
    // A flag says what should be, whatever the log says.
    desk.text(&format!("silent.txt {gate} --nvls off"));
    desk.failure(&format!("lost.txt {gate} --nvls on"));
    let told = desk.text(&format!("lost.txt {gate}"));
    assert!(told.contains("370.80 GB/s  0.97"), "{told}");
    assert!(
        told.contains("; the model expects no NVLS (from NCCL's log); with it, 478.80 GB/s;"),
        "{told}"
    );
    assert!(
        told.contains("  warning: NCCL's log says that it has no NVLS, although"),
        "{told}"
    );
    let told = desk.text(&format!("off.txt {gate}"));
    assert!(!told.contains("warning"), "{told}");
    let json: Value =
        serde_json::from_str(&desk.text("silent.txt --source sim:dgx-h100 -o json")).unwrap();
    let expected = serde_json::json!({
        "bytesPerSecond": 370_800_000_000_u64,
        "nvls": {
            "bytesPerSecond": 478_800_000_000_u64,
            "expected": {"value": true, "from": "topology"},
        },
    });
    assert_eq!(json["runs"][0]["modelSays"], expected);
    assert_eq!(
        json["runs"][0]["sizes"][2]["modelBytesPerSecond"],
        478_800_000_000_u64
    );
}

#[test]
fn the_baseline_comes_from_earlier_calls() {
    let desk = Desk::new();
    let gate = "--state kept --against baseline --min-ratio 0.9";
    for number in 0..3_u32 {
        let gbps = 200.0 + f64::from(number);
        desk.write("run.txt", &Test::all_reduce(8, gbps).text(), number.into());
        let output = desk.run(&format!("run.txt {gate}"));
        assert!(output.status.success(), "{output:?}");
        let warning = String::from_utf8(output.stderr).unwrap();
        assert!(
            warning.contains("has no baseline yet: it needs 3 earlier runs"),
            "{warning}"
        );
    }
    desk.write("slow.txt", &Test::all_reduce(8, 150.0).text(), 10);
    for _ in 0..2 {
        let error = desk.failure(&format!("slow.txt {gate}"));
        assert!(
            error.contains("the baseline is 351.75 GB/s: the ratio 0.746 is below 0.9"),
            "{error}"
        );
    }
    let bytes = fs::read(desk.path("kept").join(store::FILE)).unwrap();
    let state = store::parse(&bytes).unwrap();
    let [entry] = &state.collectives[..] else {
        panic!("{state:?}")
    };
    assert_eq!(entry.total, 4, "the same file again counts once");
    assert_eq!(entry.baseline(SizeClass::Large), Some(351_750_000_000));
    let json = desk.run(&format!("slow.txt {gate} -o json"));
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        json["runs"][0]["sizes"][2]["baselineBytesPerSecond"],
        351_750_000_000_u64
    );
    // A class of its own.
    let text = desk.run("slow.txt --state kept --model X");
    assert!(String::from_utf8(text.stdout).unwrap().contains("8 x X"));
}

#[test]
fn the_baseline_says_nothing_about_what_was_not_measured() {
    let desk = Desk::new();
    let gate = "--state kept --against baseline --min-ratio 0.9";
    let zero = Test {
        rows: vec![(1 << 30, f64::INFINITY)],
        ..Test::all_reduce(8, 200.0)
    };
    desk.write("zero.txt", &zero.text(), 0);
    let error = desk.failure(&format!("zero.txt --collective all_reduce {gate}"));
    assert!(
        error.contains("no row has a time and bandwidth that can be used"),
        "{error}"
    );
    let small = Test {
        rows: vec![(8, 0.01)],
        ..Test::all_reduce(8, 200.0)
    };
    let nameless = small.table() + &small.foot();
    desk.write("nameless.txt", &nameless, 0);
    let error = desk.failure(&format!("nameless.txt {gate}"));
    assert!(error.contains("can have no baseline"), "{error}");
}

#[test]
fn inputs_come_from_standard_input_and_directories() {
    let desk = Desk::new();
    let text = Test::all_reduce(8, 200.0).text();
    let mut child = desk
        .command("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(
        found.contains("standard input, line 1: all_reduce: "),
        "{found}"
    );
    fs::create_dir(desk.path("results")).unwrap();
    assert!(
        desk.failure("results")
            .contains("the directory has no files")
    );
    desk.write("results/b", &text, 0);
    desk.write("results/a", &text, 0);
    let found = desk.text("results");
    let at = |name: &str| found.find(name).unwrap();
    assert!(at("results/a, line 1") < at("results/b, line 1"));
}

#[test]
fn bad_input_has_its_reason_and_the_rest_is_shown() {
    let desk = Desk::new();
    desk.write("good.txt", &Test::all_reduce(8, 200.0).text(), 0);
    desk.write("bad.txt", "hello\n", 0);
    desk.write("bad.json", "{\"results\": [\n{\"size\": -1}]}", 0);
    let output = desk.run("bad.txt good.txt bad.json");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("good.txt, line 1")
    );
    let errors = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = errors.lines().collect();
    assert!(
        lines[0].starts_with("nvlink-exporter: warning: bad.txt: nothing found"),
        "{errors}"
    );
    assert!(
        lines[1].starts_with("nvlink-exporter: bad.json: line 2, column 12: "),
        "{errors}"
    );
    assert!(
        desk.failure("missing.txt")
            .contains("missing.txt: No such file")
    );
    for usage in [
        "",
        "good.txt --min-ratio x",
        "--watch d",
        "--watch d --state s good.txt",
    ] {
        assert_eq!(desk.run(usage).status.code(), Some(2), "{usage}");
    }
}

#[test]
fn the_summary_fits_into_a_termination_message() {
    let desk = Desk::new();
    let test = Test::all_reduce(8, 200.0);
    desk.write("one.txt", &test.text(), 0);
    desk.text("one.txt --summary summary.json");
    let read = |desk: &Desk| fs::read_to_string(desk.path("summary.json")).unwrap();
    let text = read(&desk);
    golden("ingest/summary.json", &text);
    let [run] = &summary::read(&text).unwrap()[..] else {
        panic!("{text}")
    };
    assert_eq!(
        run.level(SizeClass::Large).unwrap().bytes_per_second,
        350_000_000_000
    );
    assert_eq!((run.devices.len(), &*run.devices[3].pci), (8, "0000:61:00"));
    desk.write("many.txt", &test.text().repeat(40), 0);
    desk.text("many.txt --summary summary.json");
    let text = read(&desk);
    assert!(
        (3000..=summary::MOST_BYTES).contains(&text.len()),
        "{}",
        text.len()
    );
    let document: Value = serde_json::from_str(&text).unwrap();
    let there = document["runs"].as_array().unwrap().len() as u64;
    assert_eq!(document["leftOut"], 40 - there);
    for other in ["", "{}", "OOM", "{\"nvlinkCollectives\":2,\"runs\":[]}"] {
        assert!(summary::read(other).is_none(), "{other}");
    }
}

#[test]
fn a_watched_directory_is_read_until_the_end() {
    let desk = Desk::new();
    fs::create_dir(desk.path("in")).unwrap();
    let mut child = desk
        .command("--watch in --state kept --interval 100ms --source sim:dgx-h100")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    desk.write("in/a.txt", &Test::all_reduce(8, 200.0).text(), 0);
    let total = |path: &Path| {
        let state = store::parse(&fs::read(path).ok()?).unwrap();
        Some(
            state
                .collectives
                .iter()
                .map(|entry| entry.total)
                .sum::<u64>(),
        )
    };
    let path = desk.path("kept").join(store::FILE);
    let wait = |expected| {
        for _ in 0..300 {
            if total(&path) == Some(expected) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{:?} runs after 30 s; expected {expected}", total(&path));
    };
    wait(1);
    desk.write("in/b.txt", &Test::all_reduce(8, 201.0).text(), 1);
    wait(2);
    let kill = Command::new("kill").arg(child.id().to_string()).status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Returns the number of runs of the only class, and the time of the latest one.
fn counted(desk: &Desk) -> (u64, u64) {
    let state = store::read(&desk.path("state")).unwrap();
    let [entry] = &state.collectives[..] else {
        panic!("{state:?}")
    };
    (entry.total, entry.runs.last().unwrap().at)
}

#[test]
fn a_long_file_that_grows_counts_each_run_once() {
    let desk = Desk::new();
    let test = |number: u32| Test::all_reduce(8, 200.0 + f64::from(number)).text();
    let mut text: String = (0..40).map(test).collect();
    for number in 40..43 {
        desk.write("log.txt", &text, number.into());
        desk.text("log.txt --state state");
        assert_eq!(counted(&desk).0, u64::from(number), "more than are kept");
        text += &test(number);
    }
}

#[test]
fn a_file_of_the_future_is_one_of_now() {
    let desk = Desk::new();
    let century = 100 * 365 * 24 * 3600;
    desk.write("a.txt", &Test::all_reduce(8, 200.0).text(), century);
    desk.text("a.txt --state state");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    assert!(counted(&desk).1 <= now.unwrap().as_secs());
}
