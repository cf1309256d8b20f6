//! The programs that a container starts, directly or through shells, wrappers and CI systems.

use std::collections::HashMap;

use base64::Engine;
use nvlink_api::pod::{self, Container};
use serde_json::Value;

use super::shell;

/// The deepest nesting of shells that is followed.
const DEEPEST: usize = 4;
/// The most commands of a container that are read.
const MOST_COMMANDS: usize = 512;

/// Programs that start another program: their options with a value, and the number of words before
/// the other program.
const WRAPPERS: &[(&str, &[&str], usize)] = &[
    ("env", &["-u", "--unset", "-C", "--chdir"], 0),
    ("exec", &["-a"], 0),
    ("command", &[], 0),
    ("builtin", &[], 0),
    ("nohup", &[], 0),
    ("setsid", &[], 0),
    ("time", &["-f", "-o"], 0),
    ("nice", &["-n"], 0),
    ("ionice", &["-c", "-n"], 0),
    ("stdbuf", &["-i", "-o", "-e"], 0),
    ("timeout", &["-s", "-k", "--signal", "--kill-after"], 1),
    ("taskset", &[], 1),
    (
        "numactl",
        &[
            "-C",
            "-m",
            "-N",
            "-i",
            "-p",
            "--cpunodebind",
            "--membind",
            "--physcpubind",
        ],
        0,
    ),
    ("sudo", &["-u", "-g", "-h", "-p", "--user", "--group"], 0),
    ("gosu", &[], 1),
    ("su-exec", &[], 1),
    ("tini", &["-p", "-e"], 0),
    ("tini-static", &["-p", "-e"], 0),
    ("dumb-init", &["-r"], 0),
    ("catchsegv", &[], 0),
    (
        "uv",
        &[
            "--with",
            "--extra",
            "--python",
            "-p",
            "--project",
            "--group",
        ],
        1,
    ),
    ("poetry", &["-C", "--directory"], 1),
    ("pipenv", &[], 1),
    ("pixi", &["-e", "--environment"], 1),
    ("conda", &["-n", "-p", "--name", "--prefix", "--cwd"], 1),
    ("mamba", &["-n", "-p", "--name", "--prefix", "--cwd"], 1),
    (
        "micromamba",
        &["-n", "-p", "--name", "--prefix", "--cwd"],
        1,
    ),
    (
        "nsys",
        &[
            "-o", "-t", "-s", "-c", "-f", "-w", "-x", "--trace", "--output",
        ],
        1,
    ),
    ("ncu", &["-o", "-k", "-c", "-s", "--set", "--export"], 0),
    ("srun", &["-N", "-n", "-c", "-p", "-A", "-J", "-w"], 0),
    // trtllm-llmapi-launch COMMAND starts the ranks of one server.
    ("trtllm-llmapi-launch", &[], 0),
];

const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "zsh", "ksh"];
/// Shell keywords that may come before a command.
const KEYWORDS: &[&str] = &[
    "if", "then", "else", "elif", "while", "until", "do", "!", "{",
];
const ASSIGNERS: &[&str] = &["export", "declare", "local", "readonly", "typeset"];

/// A command that a container starts.
pub(super) struct Command {
    /// Its words; for `python -m`, they start with the module.
    pub(super) words: Vec<String>,
    /// It is a Python script or module.
    pub(super) python: bool,
}

/// What a container starts.
pub(super) struct Launch<'a> {
    pub(super) commands: Vec<Command>,
    pub(super) container: Container<'a>,
    foreign: &'a dyn Fn(&str) -> bool,
    /// Variables that scripts assign.
    assigned: HashMap<String, String>,
}

impl<'a> Launch<'a> {
    /// Reads `container` of `pod`. Variables for which `foreign` is true may come from a class, so
    /// they show nothing about the job.
    pub(super) fn of(
        pod: &Value,
        container: Container<'a>,
        foreign: &'a dyn Fn(&str) -> bool,
    ) -> Self {
        let mut launch = Self {
            commands: Vec::new(),
            container,
            foreign,
            assigned: HashMap::new(),
        };
        let list = |field: &str| {
            let words = container.value().get(field).and_then(Value::as_array);
            words.into_iter().flatten().filter_map(Value::as_str)
        };
        let words: Vec<_> = list("command")
            .chain(list("args"))
            .map(str::to_owned)
            .collect();
        launch.start(&words, 0);
        let tekton = words
            .iter()
            .find(|word| word.starts_with("/tekton/scripts/"));
        if let Some(script) = tekton.and_then(|path| tekton_script(pod, path)) {
            launch.script(&script, 0);
        }
        // Buildkite's agent runs the command in this variable.
        if let Some(command) = launch.variable("BUILDKITE_COMMAND").map(str::to_owned) {
            launch.script(&command, 0);
        }
        launch
    }

    /// Returns the value of a variable, if it is known.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        if let Some(value) = self.assigned.get(name) {
            return Some(value);
        }
        let env = self
            .container
            .value()
            .get("env")
            .and_then(Value::as_array)?;
        let named = |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some(name);
        let value = env.iter().rfind(named)?.get("value")?.as_str()?;
        (!(self.foreign)(name)).then_some(value)
    }

    /// Returns `word`, or the value of the variable that it names as `$A`, `${A}`, `${A:-default}`
    /// or, in Kubernetes, `$(A)`.
    pub(super) fn resolve<'w>(&'w self, word: &'w str) -> Option<&'w str> {
        let mut word = word;
        for _ in 0..DEEPEST {
            let Some(name) = word.strip_prefix('$') else {
                return Some(word);
            };
            let inner = name
                .strip_prefix('{')
                .and_then(|name| name.strip_suffix('}'))
                .or_else(|| {
                    name.strip_prefix('(')
                        .and_then(|name| name.strip_suffix(')'))
                })
                .unwrap_or(name);
            let (name, default) = match inner.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (inner, None),
            };
            word = self.variable(name).or(default)?;
        }
        None
    }

    fn script(&mut self, script: &str, depth: usize) {
        for words in shell::commands(script) {
            self.start(&words, depth + 1);
        }
    }

    fn start(&mut self, words: &[String], depth: usize) {
        let mut words = words;
        while let Some(program) = words.first() {
            let name = program.rsplit('/').next().unwrap_or(program);
            if KEYWORDS.contains(&name) {
                words = &words[1..];
            } else if let Some((variable, value)) = assignment(program) {
                self.assigned.insert(variable.to_owned(), value.to_owned());
                words = &words[1..];
            } else if ASSIGNERS.contains(&name) {
                let assigned = words.iter().filter_map(|word| assignment(word));
                let assigned = assigned.map(|(name, value)| (name.to_owned(), value.to_owned()));
                self.assigned.extend(assigned.collect::<Vec<_>>());
                return;
            } else if SHELLS.contains(&name) || name == "eval" {
                let script = if name == "eval" {
                    Some(words[1..].join(" "))
                } else {
                    argument(words)
                };
                if let Some(script) = script.filter(|_| depth < DEEPEST) {
                    self.script(&script, depth);
                }
                return;
            } else if name == "entrypoint" && program.starts_with("/tekton/") {
                return self.start(&tekton_words(words), DEEPEST);
            } else if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.0 == name) {
                words = unwrapped(words, wrapper.1, wrapper.2);
            } else {
                return self.keep(words, name);
            }
        }
    }

    fn keep(&mut self, words: &[String], name: &str) {
        if self.commands.len() >= MOST_COMMANDS {
            return;
        }
        let python = name.starts_with("python");
        let options = words
            .iter()
            .skip(1)
            .take_while(|word| word.starts_with('-'));
        let at = 1 + options.take_while(|word| *word != "-m").count();
        let module = python && words.get(at).is_some_and(|word| word == "-m");
        let words = if module {
            words[at + 1..].to_vec()
        } else {
            let name = std::iter::once(name.to_owned());
            name.chain(words.iter().skip(1).cloned()).collect()
        };
        self.commands.push(Command { words, python });
    }
}

fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    (!name.is_empty() && nvlink_api::class::syntax::is_variable(name)).then_some((name, value))
}

/// Returns the words that a wrapper starts: those after its options, their values and `before`
/// words.
fn unwrapped<'a>(words: &'a [String], valued: &[&str], before: usize) -> &'a [String] {
    let (mut at, mut before) = (1, before);
    while let Some(word) = words.get(at) {
        if word == "--" {
            return &words[at + 1..];
        }
        if word.starts_with('-') {
            at += 1 + usize::from(valued.contains(&word.as_str()));
        } else if before > 0 {
            before -= 1;
            at += 1;
        } else {
            break;
        }
    }
    words.get(at..).unwrap_or_default()
}

/// Returns the script of `sh -c SCRIPT`, after any other options.
fn argument(words: &[String]) -> Option<String> {
    let (mut at, mut script) = (1, false);
    while let Some(word) = words.get(at).filter(|word| word.starts_with(['-', '+'])) {
        let short = !word.starts_with("--");
        script |= short && word.contains('c');
        let valued =
            short && word.ends_with(['o', 'O']) || word == "--rcfile" || word == "--init-file";
        at += 1 + usize::from(valued);
    }
    words.get(at).filter(|_| script).cloned()
}

/// Returns PROGRAM and ARGUMENTS of `entrypoint [options] -entrypoint PROGRAM -- ARGUMENTS`.
fn tekton_words(words: &[String]) -> Vec<String> {
    let program = words.iter().position(|word| word == "-entrypoint");
    let program = program.and_then(|at| words.get(at + 1));
    let rest = words.iter().position(|word| word == "--");
    let rest = rest.map_or(&[][..], |at| &words[at + 1..]);
    program.into_iter().chain(rest).cloned().collect()
}

/// Decodes the script that Tekton's init container writes to `path`, which is in base64.
fn tekton_script(pod: &Value, path: &str) -> Option<String> {
    let containers = pod::containers(pod);
    let place = containers
        .iter()
        .find(|container| container.name() == "place-scripts")?;
    let start = format!("scriptfile=\"{path}\"");
    let texts = place.value().get("args")?.as_array()?.iter();
    let mut texts = texts.filter_map(Value::as_str);
    let (_, after) = texts.find_map(|text| text.split_once(&start))?;
    let (_, body) = after.split_once("_EOF_'\n")?;
    let (body, _) = body.split_once("\n_EOF_")?;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(body.trim())
        .ok()?;
    let script = String::from_utf8(bytes).ok()?;
    let foreign = script.starts_with("#!") && !script.lines().next()?.contains("sh");
    (!foreign).then_some(script)
}
