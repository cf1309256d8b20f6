//! A directory whose files come, grow and are renamed.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use nvlink_collectives::{
    Given, SizeClass, State, place,
    run::Reason,
    state::{Class, Kept},
    watch::{Found, Watched},
};

use crate::samples::Test;

const SETTLE: Duration = Duration::from_secs(600);

struct Scene {
    directory: tempfile::TempDir,
    watched: Watched,
    start: Instant,
    /// The time since the start.
    passed: Duration,
    /// What the clock showed at the start, as it is set now.
    clock: SystemTime,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            watched: Watched::new(directory.path().to_owned(), SETTLE),
            directory,
            start: Instant::now(),
            passed: Duration::ZERO,
            clock: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        }
    }

    /// Writes a file that was changed now.
    fn write(&self, name: &str, text: &str) {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        let now = self.clock + self.passed;
        File::open(path).unwrap().set_modified(now).unwrap();
    }

    fn look(&mut self) -> Vec<Found> {
        self.passed += Duration::from_secs(5);
        let (now, wall) = (self.start + self.passed, self.clock + self.passed);
        self.watched.look(now, wall).unwrap()
    }

    /// Returns for each file its name, and the rows of its runs.
    fn rows(&mut self) -> Vec<(String, Vec<usize>)> {
        let found = self.look().into_iter();
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        found
            .map(|one| {
                (
                    name(&one.path),
                    one.runs.iter().map(|run| run.rows.len()).collect(),
                )
            })
            .collect()
    }
}

#[test]
fn a_file_that_grows_is_read_when_a_test_ends() {
    let (test, mut scene) = (Test::all_reduce(8, 200.0), Scene::new());
    let name = "a.txt".to_owned();
    let parts = [test.head(), test.table(), test.foot()];
    let mut text = String::new();
    for part in &parts[..2] {
        text += part;
        scene.write(&name, &text);
        assert_eq!(scene.rows(), [], "it has no end yet");
    }
    text += &parts[2];
    scene.write(&name, &text);
    assert_eq!(scene.rows(), [(name.clone(), vec![4])]);
    assert_eq!(scene.rows(), [], "nothing has changed");
    text += &test.head();
    scene.write(&name, &text);
    assert_eq!(
        scene.rows(),
        [(name.clone(), vec![4])],
        "the second test runs"
    );
    text += &(test.table() + &test.foot());
    scene.write(&name, &text);
    assert_eq!(scene.rows(), [(name, vec![4, 4])]);
}

#[test]
fn a_test_without_an_end_fails_when_its_file_has_settled() {
    let (test, mut scene) = (Test::all_reduce(8, 200.0), Scene::new());
    scene.write("cut.txt", &(test.head() + &test.table()));
    scene.write("other.txt", "nothing of interest\n");
    assert!(scene.look().is_empty());
    scene.passed += SETTLE;
    let found = scene.look();
    let [cut, other] = &found[..] else {
        panic!("{found:?}")
    };
    let failure = cut.runs[0].failure.as_ref().unwrap();
    assert_eq!(
        (failure.reason, cut.runs[0].rows.len()),
        (Reason::Truncated, 4)
    );
    assert!(other.problem.as_ref().unwrap().starts_with("nothing found"));
    assert!(scene.look().is_empty(), "each is reported once");
}

/// A node boots with a wrong clock, which is set later; or another machine writes the file.
#[test]
fn a_clock_that_is_set_ends_no_test_and_keeps_none_open() {
    const HOURS: Duration = Duration::from_secs(5 * 3600);
    let test = Test::all_reduce(8, 200.0);
    for forward in [true, false] {
        let mut scene = Scene::new();
        scene.write("cut.txt", &(test.head() + &test.table()));
        assert!(scene.look().is_empty());
        match forward {
            true => scene.clock += HOURS,
            false => scene.clock -= HOURS,
        }
        assert!(scene.look().is_empty(), "the test runs: {forward}");
        scene.passed += SETTLE;
        assert_eq!(scene.rows(), [("cut.txt".to_owned(), vec![4])], "{forward}");
    }
}

#[test]
fn files_are_read_when_they_get_their_name() {
    let (test, mut scene) = (Test::all_reduce(8, 200.0), Scene::new());
    let path = |scene: &Scene, name: &str| scene.directory.path().join(name);
    scene.write(".hidden", &test.text());
    scene.write("b.txt.tmp", &test.text());
    fs::create_dir(path(&scene, "directory")).unwrap();
    assert_eq!(scene.rows(), []);
    fs::rename(path(&scene, "b.txt.tmp"), path(&scene, "b.txt")).unwrap();
    assert_eq!(scene.rows(), [("b.txt".to_owned(), vec![4])]);
    fs::remove_file(path(&scene, "b.txt")).unwrap();
    assert_eq!(scene.rows(), []);
    scene.write("b.txt", &test.text());
    assert_eq!(scene.rows(), [("b.txt".to_owned(), vec![4])]);
}

#[test]
fn a_file_of_too_many_runs_is_read_in_bounded_memory() {
    let mut scene = Scene::new();
    scene.write("many.txt", &"# nThread 1 nGpus 8\n".repeat(10_000));
    let found = scene.look();
    let [many] = &found[..] else {
        panic!("{} files", found.len())
    };
    assert_eq!(many.runs.len(), 4096);
    let problem = many.problem.as_deref().unwrap();
    assert!(
        problem.starts_with("the last 5904 runs are left out"),
        "{problem}"
    );
}

/// Returns the numbers of all runs and of failed ones after each of the contents of one file, of
/// which the watcher looks at each twice: at once, and after it has settled.
fn counts(contents: &[&str]) -> Vec<(u64, u64)> {
    let (mut scene, mut state) = (Scene::new(), State::default());
    let mut counts = Vec::new();
    for text in contents {
        scene.write("result", text);
        for settled in [false, true] {
            if settled {
                scene.passed += SETTLE;
            }
            for found in scene.look() {
                for (index, run) in (0..).zip(found.runs) {
                    let kept = Kept::new(&run, "result", index, 1);
                    let placed = place(run, &Given::default(), None);
                    state.add(&Class::of(&placed).unwrap(), kept, placed.expected);
                }
            }
        }
        let all = state.collectives.iter();
        let failed = all.clone().flat_map(|one| one.failures.values()).sum();
        counts.push((all.map(|one| one.total).sum(), failed));
    }
    counts
}

#[test]
fn a_file_that_is_written_again_does_not_count_its_runs_again() {
    let test = Test::all_reduce(8, 200.0);
    let (whole, cut) = (test.text(), test.head() + &test.table());
    let two_rows: String = (test.head() + &test.table())
        .rsplit_once("8589934592")
        .unwrap()
        .0
        .to_owned();
    assert_eq!(counts(&[&whole, "", &whole]), [(1, 0); 3]);
    assert_eq!(counts(&[&whole, &cut, &whole]), [(1, 0); 3]);
    assert_eq!(counts(&[&two_rows, &cut, &whole, &cut]), [(1, 1); 4]);
    let next = Test::all_reduce(8, 201.0).text();
    assert_eq!(
        counts(&[&whole, &next, &(whole.clone() + &next)]),
        [(1, 0), (2, 0), (2, 0)]
    );
}

/// NCCL Inspector rewrites its file every 30 seconds for as long as the job runs.
#[test]
fn a_job_that_nccl_inspector_measures_counts_once_when_its_file_has_settled() {
    let text = |gbps: u32| {
        format!(
            "nccl_bus_bandwidth_gbs{{n_nodes=\"1\",nranks=\"8\",collective=\"AllReduce\",message_size=\"536-537MB\"}} {gbps}\n"
        )
    };
    let mut scene = Scene::new();
    for gbps in 300..310 {
        scene.write("nccl_inspector_metrics_a.prom", &text(gbps));
        assert!(scene.look().is_empty(), "the job runs");
    }
    scene.passed += SETTLE;
    let found = scene.look();
    let level = found[0].runs[0].level(SizeClass::Large).unwrap();
    assert_eq!(level.bytes_per_second, 309_000_000_000);
    assert!(scene.look().is_empty());
}
