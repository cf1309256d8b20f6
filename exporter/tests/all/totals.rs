//! The totals of each GPU over its links, from readings with resets, failures and losses.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nvlink_exporter::{
    collect::{self, Open},
    metrics::{self, Groups},
    snapshot::{Latest, View},
};
use nvlink_history::totals::{GpuTotals, Totals};
use nvlink_runtime::supervise::Supervisor;
use nvlink_source::{ErrorKind, LinkCounters, Reading, Source, SourceError, SourceSpec};
use proptest::{collection::vec, option, prelude::*};

const SECONDS: u64 = 5;
const REPLAY: ErrorKind = ErrorKind::Replay;

/// What a link reports.
#[derive(Clone, Copy, Debug)]
enum Value {
    Count(u64),
    Rate(u32),
}

/// The values of a GPU's links; an empty place is a link that reports nothing.
type Links = Vec<Option<Value>>;

/// What is at an index of the node: the number of a GPU, and its links.
type Slot = Option<(usize, Links)>;

fn uuid(gpu: usize) -> String {
    format!("GPU-{gpu:08}-0000-4000-8000-000000000000")
}

/// Returns a reading of these GPUs, whose links report the values as traffic in both directions
/// and, if they are counts, as errors.
fn reading(slots: &[Slot]) -> Reading {
    let spec: SourceSpec = "sim:dgx-h100".parse().unwrap();
    let mut reading = spec.open(Some("n")).unwrap().read(Duration::ZERO).unwrap();
    let gpus = &mut reading.topology.spec.gpus;
    gpus.retain(|gpu| slots.get(gpu.index as usize).is_some_and(Option::is_some));
    reading.counters.clear();
    for gpu in gpus {
        let (number, links) = slots[gpu.index as usize].as_ref().unwrap();
        gpu.uuid = Some(uuid(*number));
        for (link, value) in (0..).zip(links) {
            let mut counters = LinkCounters {
                gpu: gpu.index,
                link,
                ..LinkCounters::default()
            };
            match *value {
                Some(Value::Count(count)) => {
                    counters.transmit_bytes = Some(count);
                    counters.receive_bytes = Some(count);
                    counters.errors = vec![(REPLAY, count)];
                }
                Some(Value::Rate(rate)) => {
                    counters.transmit_bytes_per_second = Some(rate.into());
                    counters.receive_bytes_per_second = Some(rate.into());
                }
                None => {}
            }
            reading.counters.push(counters);
        }
    }
    reading
}

/// All that the links of a GPU reported, by link, each with the seconds since the reading before.
type History = BTreeMap<usize, Vec<(Value, u64)>>;

/// Returns the sum of the links' increments.
fn increments(history: &History, rates: bool) -> u64 {
    let of = |values: &Vec<(Value, u64)>| -> u64 {
        let counted = values.windows(2).map(|two| match (two[0].0, two[1].0) {
            (Value::Count(before), Value::Count(now)) if now >= before => now - before,
            (Value::Count(_), Value::Count(now)) => now,
            _ => 0,
        });
        let rated = values.iter().map(|one| match *one {
            (Value::Rate(rate), seconds) if rates => u64::from(rate) * seconds,
            _ => 0,
        });
        counted.sum::<u64>() + rated.sum::<u64>()
    };
    history.values().map(of).sum()
}

fn value() -> impl Strategy<Value = Option<Value>> {
    // Small numbers, so that resets and standstills are frequent.
    let count = (0..20_u64, 0..2_u32).prop_map(|(count, far)| count << (40 * far));
    prop_oneof![
        1 => Just(None),
        6 => count.prop_map(|count| Some(Value::Count(count))),
        1 => (0..1000_u32).prop_map(|rate| Some(Value::Rate(rate))),
    ]
}

/// A collection: it fails, or reads two places in which there are some of three GPUs.
fn collection() -> impl Strategy<Value = Option<[Slot; 2]>> {
    let slot = |gpus: [usize; 2]| {
        let gpu = prop::sample::select(gpus.to_vec());
        option::weighted(0.9, (gpu, vec(value(), 3)))
    };
    // GPU 0 is replaced by GPU 2 now and then.
    option::weighted(0.9, (slot([0, 2]), slot([1, 1])).prop_map(Into::into))
}

proptest! {
    /// Whatever happens to GPUs, links and collections: a total is the sum of the increments of
    /// the GPU's links, so it never falls; it is absent only while no link reports it.
    #[test]
    fn totals_are_the_sum_of_increments(collections in vec(collection(), 1..30)) {
        let (start, mut totals) = (Instant::now(), Totals::default());
        let mut histories: BTreeMap<usize, History> = BTreeMap::new();
        let mut errors: BTreeMap<usize, History> = BTreeMap::new();
        let mut seen: BTreeMap<usize, u64> = BTreeMap::new();
        let mut last = None;
        for (n, slots) in (0_u64..).zip(&collections) {
            let Some(slots) = slots else { continue };
            let now = n * SECONDS;
            let seconds = now - last.replace(now).unwrap_or(now);
            let all = totals.observe(&reading(slots), start + Duration::from_secs(now));
            for (index, slot) in (0..).zip(slots) {
                let found = all.iter().find(|one| one.gpu == index);
                let Some((gpu, links)) = slot else {
                    prop_assert_eq!(found, None);
                    continue;
                };
                let (history, wrong) = (histories.entry(*gpu).or_default(), errors.entry(*gpu).or_default());
                for (link, value) in links.iter().enumerate() {
                    let Some(value) = *value else { continue };
                    history.entry(link).or_default().push((value, seconds));
                    if let Value::Count(_) = value {
                        wrong.entry(link).or_default().push((value, seconds));
                    }
                }
                let total = increments(history, true);
                let counts = links.iter().any(|one| matches!(one, Some(Value::Count(_))));
                let traffic = links.iter().any(Option::is_some).then_some(total);
                let found = found.unwrap();
                prop_assert_eq!(found.transmit_bytes, traffic);
                prop_assert_eq!(found.receive_bytes, traffic);
                let errors = counts.then(|| (REPLAY, increments(wrong, false)));
                prop_assert_eq!(&found.errors, &Vec::from_iter(errors));
                prop_assert!(seen.insert(*gpu, total).is_none_or(|before| before <= total));
            }
        }
    }
}

/// Observes one GPU with these links every [`SECONDS`], and returns its totals of sent bytes.
fn sent<const N: usize>(links: [&[Option<Value>]; N]) -> [Option<u64>; N] {
    let (start, mut totals) = (Instant::now(), Totals::default());
    let mut seconds = 0;
    links.map(|links| {
        seconds += SECONDS;
        let slots = [Some((0, links.to_vec()))];
        let now = start + Duration::from_secs(seconds);
        let all: Vec<GpuTotals> = totals.observe(&reading(&slots), now);
        all[0].transmit_bytes
    })
}

#[test]
fn the_first_value_of_a_link_and_a_reset_are_no_jump() {
    let count = |count| Some(Value::Count(count));
    let far = 1 << 50;
    let totals = sent([
        &[count(far), None],
        // A link that appears later starts from its value at that time.
        &[count(far + 10), count(far)],
        &[count(far + 10), count(far + 5)],
        // After the reset of a link, its new value is what it has counted since.
        &[count(3), count(far + 6)],
        // A link that comes back continues from its last value.
        &[None, count(far + 6)],
        &[count(4), count(far + 6)],
    ]);
    assert_eq!(totals, [0, 10, 15, 19, 19, 20].map(Some));
}

#[test]
fn rates_are_summed_over_time_and_are_not_counted_twice() {
    let (count, rate) = (|one| Some(Value::Count(one)), |one| Some(Value::Rate(one)));
    let totals = sent([&[rate(100)], &[rate(100)], &[count(700)], &[count(701)]]);
    assert_eq!(totals, [0, 500, 500, 501].map(Some));
    assert_eq!(sent([&[None], &[None, None]]), [None, None]);
}

enum Step {
    Count(u64),
    Fail,
    Panic,
}

/// Follows a script, and repeats its last step.
#[derive(Clone)]
struct Scripted(Arc<Mutex<VecDeque<Step>>>);

impl Source for Scripted {
    fn read(&mut self, _: Duration) -> Result<Reading, SourceError> {
        let mut script = self.0.lock().unwrap_or_else(|error| error.into_inner());
        let step = match script.len() {
            1 => script.front().map(|step| match step {
                Step::Count(count) => Step::Count(*count),
                Step::Fail | Step::Panic => Step::Fail,
            }),
            _ => script.pop_front(),
        };
        drop(script);
        match step.unwrap() {
            Step::Count(count) => Ok(reading(&[Some((0, vec![Some(Value::Count(count)); 2]))])),
            Step::Fail => Err(SourceError::Unsupported("out of order".to_owned())),
            Step::Panic => panic!("out of order"),
        }
    }
}

/// Waits until the state is as `wanted`, and returns its metrics.
async fn wait(latest: &Latest, wanted: impl Fn(&View, &str) -> bool) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let view = latest.view(Instant::now());
        let text = metrics::render(&view, Groups::ALL).unwrap();
        if wanted(&view, &text) {
            return text;
        }
        assert!(Instant::now() < until, "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn totals_continue_after_failures_and_after_a_panic_of_the_source() {
    use Step::{Count, Fail, Panic};
    let steps = [
        Count(1000),
        Count(1500),
        Fail,
        Count(2500),
        Panic,
        Count(100),
    ];
    let script = Arc::new(Mutex::new(VecDeque::from(steps)));
    let source = Scripted(Arc::clone(&script));
    let again = source.clone();
    let open: Open = Box::new(move || Ok(Box::new(again.clone())));
    let latest = Arc::new(Latest::new(
        "of-the-flag".to_owned(),
        Duration::from_secs(30),
    ));
    let supervisor = Supervisor::default();
    let (name, interval) = ("scripted".to_owned(), Duration::from_millis(1));
    let before = metrics::render(&latest.view(Instant::now()), Groups::NONE).unwrap();
    assert!(before.contains("\nnvlink_exporter_node_info{node=\"of-the-flag\"} 1\n"));
    collect::start(&supervisor, name, Box::new(source), open, interval, &latest).unwrap();

    // Two links: 500 + 1000 + 100 each.
    let series = format!(
        "\nnvlink_gpu_transmit_bytes_total{{gpu=\"0\",UUID=\"{}\"}} 3200\n",
        uuid(0)
    );
    wait(&latest, |_, text| text.contains(&series)).await;

    // While collections fail, there are no data, and the node has the name that it gave itself.
    let put = |step| {
        let mut script = script.lock().unwrap_or_else(|error| error.into_inner());
        script.push_back(step);
    };
    put(Fail);
    let text = wait(&latest, |view, _| view.data().is_none()).await;
    assert!(!text.contains("nvlink_gpu_"), "{text}");
    assert!(text.contains("\nnvlink_exporter_node_info{node=\"n\"} 1\n"));
    put(Count(101));
    let series = series.replace("3200", "3202");
    wait(&latest, |_, text| text.contains(&series)).await;
}
