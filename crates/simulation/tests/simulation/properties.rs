//! What holds for every trace.

use std::collections::BTreeMap;

use nvlink_simulation::{Options, Policy, Report, plot, run, table};
use proptest::prelude::*;

use crate::{cluster, generate, options, outcome, read, simulate};

/// Checks that the jobs under each policy are those of the trace, and that they never hold
/// more GPUs than there are. (No GPU is held twice: the run itself fails if one is.)
fn conserved(report: &Report) {
    let jobs = report.jobs - report.rejected;
    for outcome in &report.outcomes {
        let name = outcome.policy.into_str();
        assert_eq!(outcome.ran.len(), jobs, "{name}");
        let mut changes: BTreeMap<i64, i64> = BTreeMap::new();
        for one in &outcome.ran {
            assert!(one.start >= one.time, "{name}: {one:?}");
            assert!(one.quality > 0.0 && one.quality <= 1.0, "{name}: {one:?}");
            *changes.entry(one.start).or_default() += i64::from(one.gpus);
            *changes.entry(one.start + one.duration).or_default() -= i64::from(one.gpus);
        }
        let mut held = 0;
        for (at, change) in changes {
            held += change;
            assert!(held <= report.gpus as i64, "{name}: {held} GPUs at {at}");
        }
        assert_eq!(held, 0);
    }
}

#[test]
fn a_trace_of_thousands_of_jobs_is_conserved_and_the_same_seed_gives_the_same_bytes() {
    let trace = read(&generate::trace(7, 2_000, 96.0));
    let on = cluster("dgx-h100=4,a100-pcie-pairs=8");
    let mut moments = 0;
    // Each of the three takes seconds.
    let (once, again, other) = std::thread::scope(|scope| {
        let again = scope.spawn(|| run(&trace, &on, &options(3), &mut |_| {}).unwrap());
        let other = scope.spawn(|| run(&trace, &on, &options(4), &mut |_| {}).unwrap());
        let once = run(&trace, &on, &options(3), &mut |_| moments += 1).unwrap();
        (once, again.join().unwrap(), other.join().unwrap())
    });
    conserved(&once);
    assert!(moments > 2_000);
    assert_eq!(once, again);
    assert_eq!((table(&once), plot(&once)), (table(&again), plot(&again)));
    assert_ne!(
        once.outcomes, other.outcomes,
        "the seed decides what is arbitrary"
    );
    assert!(table(&once).lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn who_communicates_faster_than_usual_under_packed_ends_sooner() {
    let trace = read(&generate::trace(5, 600, 48.0));
    let on = cluster("dgx1-v100=3,a100-pcie-pairs=3");
    let share = Options {
        communication_share: 0.5,
        ..options(1)
    };
    let without = run(&trace, &on, &options(1), &mut |_| {}).unwrap();
    let packed = outcome(&without, Policy::Packed);
    let usual = |gpus: u32| {
        let alike = trace.jobs.iter().zip(&packed.ran);
        let costs = alike.filter(|(job, _)| job.gpus == gpus);
        let costs: Vec<f64> = costs.map(|(_, ran)| ran.cost).collect();
        costs.iter().sum::<f64>() / costs.len() as f64
    };
    let usual: BTreeMap<u32, f64> = trace
        .jobs
        .iter()
        .map(|job| (job.gpus, usual(job.gpus)))
        .collect();
    let report = run(&trace, &on, &share, &mut |_| {}).unwrap();
    conserved(&report);
    let (mut faster, mut slower) = (0, 0);
    for own in &report.outcomes {
        for (one, job) in own.ran.iter().zip(&trace.jobs) {
            let wanted = job.duration as f64 * (0.5 + 0.5 * ratio(one.cost, usual[&job.gpus]));
            assert!(
                (one.duration as f64 - wanted).abs() <= 1.0,
                "{one:?} {job:?}"
            );
            faster += usize::from(one.duration < job.duration);
            slower += usize::from(one.duration > job.duration);
        }
    }
    assert!(faster > 0 && slower > 0, "{faster} {slower}");
    for one in report.summaries() {
        assert!(
            one.lost_gpu_hours > 0.0 && one.lost_gpu_hours < one.gpu_hours,
            "{one:?}"
        );
        let jobs: usize = one.by_size.iter().map(|size| size.jobs).sum();
        assert_eq!(jobs, one.jobs - one.rejected);
    }
}

/// Returns how many times as long communication takes; 1 without any.
fn ratio(cost: f64, usual: f64) -> f64 {
    if usual > 0.0 { cost / usual } else { 1.0 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_trace_is_conserved(
        jobs in proptest::collection::vec((0..50_u32, 0..40_u32, 0..30_u32, -1..2_i32), 1..60),
        on in 0..4_usize,
    ) {
        let clusters = [
            "rtx-a6000-pairs=2,l40s=1", "gb200-nvl72=3", "dgx1-v100=1", "a100-pcie-pairs=2,hgx-a100-4=2",
        ];
        let mut text = "time,gpus,duration,priority\n0,1,1,0\n".to_owned();
        for (time, gpus, duration, priority) in jobs {
            text += &format!("{time},{gpus},{duration},{priority}\n");
        }
        conserved(&simulate(&text, clusters[on]));
    }

    #[test]
    fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut text = b"time,gpus,duration\n".to_vec();
        text.extend(&bytes);
        let _ = nvlink_simulation::Trace::read(&text[..]);
        let _ = nvlink_simulation::Trace::read(&bytes[..]);
    }
}
