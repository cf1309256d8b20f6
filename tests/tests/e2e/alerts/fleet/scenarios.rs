//! What happens to a fleet of 100 boards with eight GPUs and 6 racks of 18 trays. The boards and the first rack run jobs:
//! promtool evaluates no query over more pods.

use std::ops::Range;

use super::{
    machine::{Errors, Life, Machine, Series, State},
    pages::{BROKEN_GPU, Kind},
    replica::{Replica, api_server},
    values::Sample,
};

const BOARDS: u32 = 100;
const RACKS: u32 = 6;
const TRAYS: u32 = 18;
/// When it happens: rules compare with an hour ago.
const START: u32 = 65;
/// How long it is watched afterwards, for the same reason.
const AFTER: u32 = 75;

pub(super) struct Scenario {
    /// The golden file.
    pub(super) name: &'static str,
    pub(super) machines: Vec<Machine>,
    pub(super) replicas: Vec<Replica>,
    pub(super) minutes: u32,
    /// Minutes from one evaluation to the next.
    pub(super) interval: u32,
    /// Minutes from one scrape to the next.
    pub(super) scrape: u32,
    /// While Prometheus is away.
    pub(super) unwatched: Range<u32>,
}

impl Scenario {
    fn new(name: &'static str, minutes: u32) -> Self {
        let mut replicas: Vec<_> = ["10.2.0.1:8080", "10.2.0.2:8080"].map(Replica::new).into();
        replicas[0].leads = Some(0);
        Self {
            name,
            machines: fleet(),
            replicas,
            minutes,
            interval: 1,
            scrape: 1,
            unwatched: 0..0,
        }
    }

    fn machine(&mut self, name: &str) -> &mut Machine {
        let mut machines = self.machines.iter_mut();
        machines.find(|machine| machine.name == name).unwrap()
    }

    /// Lets a machine live like this, and shows all of it.
    fn live(&mut self, name: &str, life: Life) -> &mut Machine {
        let machine = self.machine(name);
        machine.life = life;
        machine.whole = true;
        machine
    }

    /// Returns all series.
    pub(super) fn series(&self) -> Vec<Series> {
        let minutes = (0..self.minutes).step_by(self.scrape as usize);
        let minutes: Vec<u32> = minutes.collect();
        let mut all = api_server(&minutes);
        for replica in &self.replicas {
            all.extend(replica.series(&minutes));
        }
        let mut before = "";
        for machine in &self.machines {
            all.extend(machine.exported(&minutes));
            all.extend(machine.pod(&minutes));
            // The second exporter of a machine that gets another one.
            if machine.name != before {
                all.extend(machine.node(&minutes));
            }
            before = &machine.name;
        }
        for (_, samples) in &mut all {
            for (minute, sample) in minutes.iter().zip(samples) {
                if self.unwatched.contains(minute) {
                    *sample = Sample::Unseen;
                }
            }
        }
        all
    }
}

fn fleet() -> Vec<Machine> {
    let machine = |kind, name, instance, namespace, rack| Machine {
        kind,
        name,
        instance,
        namespace,
        rack,
        life: vec![(0, if rack > 1 { State::Empty } else { State::Busy })],
        whole: false,
        errors: Vec::new(),
    };
    let boards = (1..=BOARDS).map(|number| {
        let namespaces = ["ci", "research-vision", "research-speech", "simulation"];
        let namespace = namespaces[number as usize % namespaces.len()];
        let (name, instance) = (format!("gpu-{number:03}"), format!("10.1.0.{number}:9836"));
        machine(Kind::Board, name, instance, namespace, 0)
    });
    let trays = (1..=RACKS).flat_map(|rack| (1..=TRAYS).map(move |tray| (rack, tray)));
    let trays = trays.map(|(rack, tray)| {
        let name = format!("rack{rack}-tray{tray:02}");
        let instance = format!("10.1.{rack}.{tray}:9836");
        machine(Kind::Tray, name, instance, "research-language", rack)
    });
    boards.chain(trays).collect()
}

/// A board and a tray are drained and rebooted for maintenance, which takes 18 minutes.
pub(super) fn reboot() -> Scenario {
    let end = START + 30;
    let mut this = Scenario::new("reboot", end + AFTER);
    for name in ["gpu-042", "rack1-tray07"] {
        let life = vec![
            (0, State::Busy),
            (START, State::Empty),
            (START + 5, State::Down),
            (START + 23, State::Joining),
            (START + 27, State::Empty),
            (end, State::Busy),
        ];
        this.live(name, life);
    }
    this
}

/// Ten machines after ten others get another driver. From boards, the operator of the driver removes the exporter; on
/// trays, somebody releases the driver.
pub(super) fn driver() -> Scenario {
    let batches = (BOARDS + RACKS * TRAYS).div_ceil(10);
    let minutes = START + 10 * batches + AFTER;
    let mut this = Scenario::new("driver", minutes);
    for (number, machine) in this.machines.iter_mut().enumerate() {
        let start = START + number as u32 / 10 * 10;
        let away = match machine.kind {
            Kind::Board => State::Upgraded,
            Kind::Tray => State::Released,
        };
        let usual = machine.life[0];
        machine.life = vec![
            usual,
            (start - 3, State::Empty),
            (start, away),
            (start + 6, State::Joining),
            (start + 9, State::Empty),
            (start + 12, usual.1),
        ];
        machine.whole = number % 10 == 0;
    }
    this
}

/// The chart is upgraded: a tenth of the exporters at a time, and one replica of the webhook after the other.
pub(super) fn programs() -> Scenario {
    let waves = 11;
    let minutes = START + 2 * waves + AFTER;
    let mut this = Scenario::new("programs", minutes);
    let old = std::mem::take(&mut this.machines);
    for (number, mut machine) in old.into_iter().enumerate() {
        let start = START + 2 * (number as u32 / 20);
        let mut next = machine.clone();
        machine
            .life
            .extend([(start, State::Ending), (start + 1, State::Gone)]);
        next.instance = next.instance.replacen("10.1.", "10.3.", 1);
        next.life = vec![(0, State::Gone), (start + 2, machine.life[0].1)];
        (machine.whole, next.whole) = (number % 10 == 0, number % 10 == 0);
        this.machines.extend([machine, next]);
    }
    for (number, replica) in (0..).zip(&mut this.replicas) {
        replica.life.push((START + 3 * number + 3, State::Gone));
        replica.outdated = Some(START);
    }
    for (number, instance) in (0..).zip(["10.4.0.1:8080", "10.4.0.2:8080"]) {
        let mut next = Replica::new(instance);
        let start = START + 3 * number + 1;
        next.life = vec![
            (0, State::Gone),
            (start, State::Joining),
            (start + 1, State::Busy),
        ];
        next.leads = (number == 0).then_some(START + 3);
        this.replicas.push(next);
    }
    this
}

/// 30 of the boards from Friday at 14:00 to Monday at 13:00. Of five jobs three end on Friday evening, one goes on, and one keeps its GPUs
/// without work until Monday at 9:00.
pub(super) fn weekend() -> Scenario {
    const HOUR: u32 = 60;
    let monday = 67 * HOUR;
    let mut this = Scenario::new("weekend", monday + 4 * HOUR);
    // NvlinkGpusIdle reads what is recorded every five minutes, and NvlinkJobSlow a day of it: of more nodes, that would
    // be more samples than promtool allows. Messages are by namespace, so more nodes make no more of them.
    (this.interval, this.scrape) = (5, 2);
    this.machines.truncate(30);
    let jobs = this.machines.iter_mut().filter(|machine| machine.rack < 2);
    for (number, machine) in (0..).zip(jobs) {
        // Two hours apart, so that it is certain which of them a group waits for.
        let evening = (4 + 2 * (number % 4)) * HOUR;
        let state = match number % 5 {
            0 => State::Idle,
            1 => State::Busy,
            _ => State::Empty,
        };
        machine
            .life
            .extend([(evening, state), (monday, State::Busy)]);
    }
    this
}

/// One of the nine switch trays of a rack fails, and is replaced after 80 minutes: each GPU of the rack lacks two links.
pub(super) fn tray() -> Scenario {
    let end = START + 80;
    let mut this = Scenario::new("tray", end + AFTER);
    for machine in this.machines.iter_mut().filter(|machine| machine.rack == 1) {
        machine
            .life
            .extend([(START, State::Broken), (end, State::Busy)]);
        machine.whole = true;
        machine.errors = [(START, "recovery_failed"), (end, "recovery")]
            .map(|(minute, kind)| Errors {
                minute,
                gpu: None,
                kind,
                count: 2,
            })
            .into();
    }
    this
}

/// A link is down for two of each twelve minutes, and is trained again each time, for three hours.
pub(super) fn flap() -> Scenario {
    let times = 15;
    let end = START + 12 * times;
    let mut this = Scenario::new("flap", end + AFTER);
    let downs = (0..times).map(|number| START + 12 * number);
    let mut life = vec![(0, State::Busy)];
    life.extend(
        downs
            .clone()
            .flat_map(|down| [(down, State::Broken), (down + 2, State::Busy)]),
    );
    let errors = downs.map(|down| Errors {
        minute: down + 2,
        gpu: Some(BROKEN_GPU),
        kind: "recovery",
        count: 1,
    });
    this.live("gpu-017", life).errors = errors.collect();
    this
}

/// Prometheus is away for two hours. One link is down before, during and after it; a second one fails in the meantime, and
/// a third one fails and works again. A node reboots, and a rack's jobs end.
pub(super) fn away() -> Scenario {
    let (from, to) = (START, START + 120);
    let mut this = Scenario::new("away", to + AFTER);
    this.unwatched = from..to;
    this.live("gpu-017", vec![(0, State::Busy), (20, State::Broken)]);
    this.live(
        "gpu-033",
        vec![(0, State::Busy), (from + 40, State::Broken)],
    );
    let short = [
        (0, State::Busy),
        (from + 40, State::Broken),
        (from + 70, State::Busy),
    ];
    this.live("gpu-050", short.into());
    let reboot = [
        (0, State::Busy),
        (from + 30, State::Down),
        (from + 48, State::Joining),
        (from + 52, State::Busy),
    ];
    this.live("gpu-042", reboot.into());
    for machine in this.machines.iter_mut().filter(|machine| machine.rack == 1) {
        machine.life.push((from + 60, State::Empty));
    }
    this
}
