//! Classification of a job's communication pattern if the job does not state it, from what
//! launchers, operators and CI systems write into a pod.

use nvlink_api::pod::{self, Container};
use nvlink_topology::Pattern;
use serde_json::Value;

use super::Intent;

mod launch;
mod marks;
mod shell;
mod sizes;
mod table;

use launch::{Command, Launch};
use marks::{MARKS, MPI_OPERATOR, NAME_VARIABLES, NAME_WORDS, NAMES, OWNERS, SILENT};
use sizes::Sizes;
use table::{
    DENSE, EXPERTS, IMAGES, LAUNCH_VARIABLES, Meaning, NODES, PROGRAMS, Program, SIZE_VARIABLES,
    VARIABLES,
};

/// The longest word of a pod that is shown in a reason, in characters.
const LONGEST_SHOWN: usize = 63;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Classified {
    pub(super) pattern: Pattern,
    /// The pattern is a guess.
    pub(super) guess: bool,
    /// Where the pattern comes from, in a few words.
    pub(super) from: String,
}

/// What a pod shows about its job. It does not depend on the class.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    finding: Option<Finding>,
    /// The job has other pods.
    pub(super) spans: bool,
    /// The number of its pods, if a command or variable of the pod says it.
    pub(super) pods: Option<u32>,
    /// The pod waits for others to start its ranks over ssh.
    pub(super) over_ssh: bool,
    /// The CI system whose pods do not contain the job's script.
    silent: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Finding {
    meaning: Meaning,
    sizes: Sizes,
    guess: bool,
    from: String,
}

impl Finding {
    fn fixed(pattern: Pattern, guess: bool, from: String) -> Self {
        let (meaning, sizes) = (Meaning::Always(pattern), Sizes::default());
        Self {
            meaning,
            sizes,
            guess,
            from,
        }
    }

    fn pattern(&self, gpus: u32) -> Pattern {
        match self.meaning {
            Meaning::Always(pattern) => pattern,
            // Experts that are not spread are split over all ranks as tensors are.
            _ if self.shares_experts() && !self.sizes.spreads_experts() => Pattern::AllReduce,
            _ if self.sizes.splits_model() => self.sizes.pattern(gpus),
            Meaning::ServeWhole if self.sizes.tensor.is_none() => Pattern::AllReduce,
            Meaning::Serve | Meaning::ServeExperts if self.sizes.hidden => Pattern::AllReduce,
            Meaning::Serve | Meaning::ServeExperts => Pattern::None,
            Meaning::ServeWhole | Meaning::ServeRanks => Pattern::None,
            Meaning::Train => Pattern::AllReduce,
        }
    }

    /// Marks the finding as a guess if `words` leave open whether the model has experts, or if
    /// sizes are in a file or variable. By default the experts of vLLM span data and tensor
    /// parallel ranks (<https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/>).
    fn doubted(mut self, words: &[String]) -> Self {
        let serves = matches!(self.meaning, Meaning::Serve | Meaning::ServeExperts);
        let unsure = if self.shares_experts() && !self.sizes.spreads_experts() {
            match has_experts(words) {
                Some(true) => return self,
                // These are replicas, which do not communicate.
                Some(false) => {
                    self.meaning = Meaning::Serve;
                    return self;
                }
                None => "the model may have experts, which data parallel ranks share",
            }
        } else if serves && self.sizes.hidden && !self.sizes.splits_model() {
            "its sizes are in a file or in a variable"
        } else {
            return self;
        };
        self.guess = true;
        self.from = format!("a guess: {}, and {unsure}", self.from);
        self
    }

    /// Reports whether data parallel ranks may share the experts of a model.
    fn shares_experts(&self) -> bool {
        self.meaning == Meaning::ServeExperts && self.sizes.data.is_some_and(|size| size > 1)
    }

    /// Returns the amount of communication. The container with the largest one decides for the pod.
    fn weight(&self) -> u8 {
        match self.pattern(u32::from(u16::MAX)) {
            Pattern::AllToAll | Pattern::Shape(_) => 4,
            // Tensor parallel ranks communicate in every layer.
            Pattern::AllReduce if self.sizes.inner() > 1 => 4,
            Pattern::AllReduce => 3,
            Pattern::Pipeline => 2,
            Pattern::ParameterServer => 1,
            Pattern::None => 0,
        }
    }
}

impl Evidence {
    /// Reads `pod`. Variables for which `foreign` is true may come from a class.
    pub(super) fn of(
        pod: &Value,
        containers: &[Container<'_>],
        foreign: &dyn Fn(&str) -> bool,
    ) -> Self {
        let holders: Vec<_> = containers
            .iter()
            .filter(|container| container.may_hold_gpu(nvlink_api::class::GPU))
            .map(|container| Launch::of(pod, *container, foreign))
            .collect();
        let (mark, owner) = (marked(pod), owned(pod));
        let spans = mark.as_ref().is_some_and(|(_, spans)| *spans)
            || owner.as_ref().is_some_and(|(_, spans)| *spans)
            || holders.iter().any(|launch| several_nodes(launch));
        let over_ssh = holders.iter().any(|launch| waits_for_ssh(pod, launch));
        let finding = started(&holders)
            .or_else(|| variables(&holders))
            .or(mark.map(|(finding, _)| finding))
            .or(owner.map(|(finding, _)| finding))
            .or_else(|| named(pod, &holders));
        let has = |(key, _): &&(&str, _)| {
            let label = |map| pod::metadata(pod, map, key).is_some();
            label("labels") || label("annotations")
        };
        let silent = SILENT.iter().find(has).map(|(_, system)| *system);
        Self {
            finding,
            spans,
            pods: holders.iter().filter_map(nodes).max(),
            over_ssh,
            silent,
        }
    }

    /// Returns the pattern of a pod with `gpus` GPUs. If nothing is known, it guesses data parallel
    /// training: most jobs with several GPUs do that, and its ring suffers most from one slow link,
    /// so a wrong guess costs the least.
    pub(super) fn classify(&self, intent: &Intent, gpus: u32) -> Classified {
        let is = |pattern, guess, from: String| Classified {
            pattern,
            guess,
            from,
        };
        if let Some(said) = intent.pattern {
            return is(said, false, "the pod's annotation".to_owned());
        }
        if gpus < 2 && intent.gang.is_none() && !self.spans {
            return is(
                Pattern::None,
                false,
                "a single GPU does not communicate".to_owned(),
            );
        }
        if let Some(finding) = &self.finding {
            let gpus = gpus.saturating_mul(intent.gang_size.unwrap_or(1));
            return is(finding.pattern(gpus), finding.guess, finding.from.clone());
        }
        let from = match self.silent {
            Some(system) => {
                format!("a guess: {system} gets the script later, so the pod does not show it")
            }
            None => "a guess: nothing in the pod says how its GPUs communicate".to_owned(),
        };
        is(Pattern::AllReduce, true, from)
    }
}

/// Returns the finding about the programs that the containers start: of several, the one that
/// communicates most.
fn started(holders: &[Launch<'_>]) -> Option<Finding> {
    let mut best: Option<Finding> = None;
    for launch in holders {
        let commands = launch.commands.iter();
        let found = commands.filter_map(|command| started_by(command, launch));
        for finding in found.chain(image(launch)) {
            if best
                .as_ref()
                .is_none_or(|best| finding.weight() > best.weight())
            {
                best = Some(finding);
            }
        }
    }
    best
}

fn started_by(command: &Command, launch: &Launch<'_>) -> Option<Finding> {
    let words = &command.words;
    let program = program(words);
    let sizes = sized(program.map(|(row, _)| row), words, launch);
    let name = shown(launch.container.name());
    let Some((row, word)) = program else {
        // A custom script with well-known flags.
        let from = || format!("container {name:?} starts a script with {}", sizes.said());
        return (command.python && sizes.splits_model()).then(|| Finding {
            meaning: Meaning::Train,
            sizes,
            guess: false,
            from: from(),
        });
    };
    let said = sizes.said();
    let processes = sizes.processes.or(row.one_process.then_some(1));
    let alone = processes == Some(1) && sizes.nodes.unwrap_or(1) == 1;
    let from = match (&row.meaning, said.is_empty()) {
        (Meaning::Train, _) if alone => {
            format!("a guess: container {name:?} starts {word} with one process")
        }
        (Meaning::Always(_), _) | (_, true) => {
            format!("container {name:?} starts {word}: {}", row.why)
        }
        (_, false) => format!("container {name:?} starts {word} with {said}"),
    };
    let guess = row.meaning == Meaning::Train && alone;
    let finding = Finding {
        meaning: row.meaning,
        sizes,
        guess,
        from,
    };
    Some(finding.doubted(words))
}

/// Returns the sizes that a command shows: in its flags, in the variables that its program passes
/// on, and by the ranks that it starts.
fn sized(row: Option<&Program>, words: &[String], launch: &Launch<'_>) -> Sizes {
    let mut sizes = Sizes::of(words, launch);
    let variables = LAUNCH_VARIABLES.iter();
    for (name, dimension) in variables.filter(|_| row.is_some_and(|row| row.reads_variables)) {
        let value = launch.variable(name).and_then(|value| value.parse().ok());
        if let Some(size) = value.filter(|_| sizes.get(*dimension).is_none()) {
            sizes.set(*dimension, size);
        }
    }
    if row.is_some_and(|row| row.meaning == Meaning::ServeRanks) {
        sizes.tensor = sizes::ranks(words, launch);
    }
    sizes
}

/// Returns the row of the program that a command starts, and the program's name.
fn program(words: &[String]) -> Option<(&'static Program, &'static str)> {
    let row = |words: &[String]| {
        let first = words.first()?;
        let name = first.rsplit('/').next()?;
        let then = words.get(1).map(String::as_str);
        PROGRAMS.iter().find_map(|row| {
            let word = *row.names.iter().find(|known| **known == name)?;
            let follows = row.then.is_empty() || then.is_some_and(|then| row.then.contains(&then));
            follows.then_some((row, word))
        })
    };
    let script = || {
        let python = words.first()?.starts_with("python");
        let at = 1 + words[1..].iter().position(|word| !word.starts_with('-'))?;
        row(&words[at..]).filter(|_| python)
    };
    let found = row(words).or_else(script)?;
    if !found.0.starts_others {
        return Some(found);
    }
    let inner =
        (1..words.len()).find_map(|at| row(&words[at..]).filter(|(row, _)| !row.starts_others));
    Some(inner.unwrap_or(found))
}

/// Returns the finding about the image if the container sets no command.
fn image(launch: &Launch<'_>) -> Option<Finding> {
    let container = launch.container;
    let given = container.value().get("command").and_then(Value::as_array);
    if given.is_some_and(|command| !command.is_empty()) {
        return None;
    }
    let image = container.value().get("image")?.as_str()?;
    let (_, meaning, why) = IMAGES.iter().find(|(part, ..)| image.contains(part))?;
    let commands = launch.commands.iter();
    let words: Vec<_> = commands
        .flat_map(|command| &command.words)
        .cloned()
        .collect();
    let mut sizes = Sizes::of(&words, launch);
    for (name, dimension) in SIZE_VARIABLES {
        if let Some(size) = launch.variable(name).and_then(|value| value.parse().ok()) {
            sizes.set(*dimension, size);
        }
    }
    let (name, said) = (shown(container.name()), sizes.said());
    let from = if said.is_empty() {
        format!("container {name:?}: {why}")
    } else {
        format!("container {name:?} serves with {said}")
    };
    let finding = Finding {
        meaning: *meaning,
        sizes,
        guess: false,
        from,
    };
    Some(finding.doubted(&words))
}

/// Reports whether the commands or variables of the pod's containers start one part of a job with
/// several pods, as `torchrun --nnodes=2` does.
pub fn starts_part(pod: &Value) -> bool {
    let containers = pod::containers(pod).into_iter();
    let mut holders = containers.filter(|container| container.may_hold_gpu(nvlink_api::class::GPU));
    holders.any(|container| several_nodes(&Launch::of(pod, container, &|_| false)))
}

/// Reports whether a container starts one part of a job with several pods.
fn several_nodes(launch: &Launch<'_>) -> bool {
    let gpus = launch.container.amount(nvlink_api::class::GPU).unwrap_or(0);
    launch.commands.iter().any(|command| {
        let row = program(&command.words).map(|(row, _)| row);
        let sizes = sized(row, &command.words, launch);
        match row {
            Some(row) => sizes.outgrow(gpus, row.meaning == Meaning::ServeExperts),
            None => command.python && sizes.splits_model() && sizes.outgrow(gpus, false),
        }
    })
}

/// Returns the number of nodes, that is pods, which a command or torchrun's variable says.
fn nodes(launch: &Launch<'_>) -> Option<u32> {
    let said = launch.commands.iter().filter_map(|command| {
        let row = program(&command.words).map(|(row, _)| row);
        sized(row, &command.words, launch).nodes
    });
    let variable = || sizes::number(launch.variable(NODES)?);
    said.max().or_else(variable).filter(|&nodes| nodes > 1)
}

/// Reports whether the model that a command names has experts; `None` if its name does not show it.
fn has_experts(words: &[String]) -> Option<bool> {
    let names = words.iter().filter(|word| !word.starts_with('-'));
    names
        .map(|word| word.to_ascii_lowercase())
        .find_map(|name| {
            let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
            let distilled = name.contains("distill");
            let active = |part: &str| {
                let size = part
                    .strip_prefix('a')
                    .and_then(|part| part.strip_suffix('b'));
                size.is_some_and(|size| size.parse::<f32>().is_ok())
            };
            let experts = has(EXPERTS) || name.split('-').any(active);
            match experts && !distilled {
                true => Some(true),
                false => (distilled || has(DENSE)).then_some(false),
            }
        })
}

/// Reports whether a container runs the ssh server over which others start its ranks. A worker of
/// mpi-operator without a command will run it: the operator sets the command before it creates the
/// pod, but a template does not show it (`newWorker` of
/// <https://github.com/kubeflow/mpi-operator/blob/master/pkg/controller/mpi_job_controller.go>).
fn waits_for_ssh(pod: &Value, launch: &Launch<'_>) -> bool {
    let mut commands = launch.commands.iter();
    let silent = || {
        let operator = pod::metadata(pod, "labels", MPI_OPERATOR.0).and_then(Value::as_str);
        launch.commands.is_empty() && operator == Some(MPI_OPERATOR.1)
    };
    commands.any(|command| command.words.first().is_some_and(|word| word == "sshd")) || silent()
}

fn variables(holders: &[Launch<'_>]) -> Option<Finding> {
    let set = |name: &str, part: &str| {
        let mut values = holders.iter().filter_map(|launch| launch.variable(name));
        values.any(|value| value.contains(part))
    };
    let (_, _, pattern, why) = VARIABLES.iter().find(|(name, part, ..)| set(name, part))?;
    Some(Finding::fixed(*pattern, false, (*why).to_owned()))
}

fn marked(pod: &Value) -> Option<(Finding, bool)> {
    let maps = ["labels", "annotations"].map(|map| pod::at(pod, &["metadata", map]));
    let says = |map: &Value, key: &str, value: &str| {
        let own = map.get(key).and_then(Value::as_str);
        own.is_some_and(|own| value.is_empty() || own.eq_ignore_ascii_case(value))
    };
    let mark = MARKS.iter().find(|mark| {
        let mut maps = maps.iter().flatten();
        maps.any(|map| says(map, mark.key, mark.value))
    })?;
    let from = format!("{}{} ({})", guessed(mark.guess), mark.why, mark.key);
    Some((Finding::fixed(mark.pattern, mark.guess, from), mark.spans))
}

fn owned(pod: &Value) -> Option<(Finding, bool)> {
    let owners = pod::list(pod, &["metadata", "ownerReferences"]);
    let mut kinds = owners.filter_map(|owner| owner.get("kind")?.as_str());
    let (_, pattern, guess, spans, why) =
        kinds.find_map(|kind| OWNERS.iter().find(|(known, ..)| *known == kind))?;
    let from = format!("{}{why}", guessed(*guess));
    Some((Finding::fixed(*pattern, *guess, from), *spans))
}

/// Returns the finding about the name of a CI job.
fn named(pod: &Value, holders: &[Launch<'_>]) -> Option<Finding> {
    let written = NAMES
        .iter()
        .filter_map(|(map, key, system)| Some((pod::metadata(pod, map, key)?.as_str()?, *system)));
    let variables = NAME_VARIABLES.iter().flat_map(|name| {
        let values = holders.iter().filter_map(|launch| launch.variable(name));
        values.map(|value| (value, "Buildkite"))
    });
    written.chain(variables).find_map(|(name, system)| {
        let lower = name.get(..256).unwrap_or(name).to_ascii_lowercase();
        let from = format!("a guess: {system} names the job {:?}", shown(name));
        let sizes = Sizes::in_name(&lower);
        if sizes.splits_model() {
            return Some(Finding {
                meaning: Meaning::Train,
                sizes,
                guess: true,
                from,
            });
        }
        let lower = lower
            .replace("all-reduce", "allreduce")
            .replace("all_reduce", "allreduce");
        let lower = lower
            .replace("all-to-all", "alltoall")
            .replace("all_to_all", "alltoall");
        let word = |word: &str| NAME_WORDS.iter().find(|(known, _)| known.contains(&word));
        let (_, pattern) = lower
            .split(|c: char| !c.is_ascii_alphanumeric())
            .find_map(word)?;
        Some(Finding::fixed(*pattern, true, from))
    })
}

fn guessed(guess: bool) -> &'static str {
    if guess { "a guess: " } else { "" }
}

fn shown(text: &str) -> String {
    text.chars().take(LONGEST_SHOWN).collect()
}
