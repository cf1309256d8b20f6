//! The parts that need no cluster: the graph of a node, and the preview of a decision.

use std::{fs, path::PathBuf};

use anyhow::{Result, ensure};
use nvlink_tests::{Exporter, programs, workdir};

use crate::terminal::Terminal;

/// The files that a user would write.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    pub(crate) const JOB: &'static str = include_str!("job.yaml");
    pub(crate) const CLASS: &'static str = include_str!("class.yaml");
    pub(crate) const RESTRICTED: &'static str = include_str!("restricted.yaml");

    /// The annotation that names a class, in the template of the job's pods.
    pub(crate) const NAMES_CLASS: &'static str = include_str!("names-class.yaml");

    /// Returns the job with the annotation that names the class.
    pub(crate) fn job_of_class() -> String {
        Self::JOB.replace("  template:\n", Self::NAMES_CLASS)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

pub(crate) fn write_files() -> Result<Files> {
    let files = Files {
        directory: workdir::fresh("files")?,
    };
    fs::create_dir(files.path("nodes"))?;
    fs::write(files.path("job.yaml"), Files::JOB)?;
    fs::write(files.path("class.yaml"), Files::CLASS)?;
    fs::write(files.path("high-throughput.yaml"), Files::RESTRICTED)?;
    Ok(files)
}

pub(crate) fn show_graph(terminal: &Terminal, keep: bool) -> Result<Exporter> {
    terminal.step("What a GPU node looks like from inside")?;
    terminal.say(
        "There is no GPU here, so the exporter simulates a node. With `--source file:PATH` it reads a\n\
         real one: the text of `nvidia-smi topo -m`, or a recording.",
    )?;
    excerpt(
        terminal,
        &["topology", "--source", "sim:dgx-h100", "--node-name", "dgx"],
        15,
    )?;
    terminal.say("Eight GPUs behind switches are one domain. A board with bridges has a domain for each pair:")?;
    excerpt(
        terminal,
        &[
            "topology",
            "--source",
            "sim:a100-pcie-pairs",
            "--output",
            "matrix",
        ],
        9,
    )?;
    let arguments = [
        ["--source", "sim:dgx-h100"],
        ["--node-name", "dgx"],
        ["--collection-interval", "1s"],
    ];
    let exporter = Exporter::start(&arguments.concat())?;
    terminal.command("nvlink-exporter serve --source sim:dgx-h100")?;
    let until = if keep {
        "until Ctrl-C"
    } else {
        "while the demo runs; `make demo KEEP=1` keeps it running"
    };
    terminal.say(&format!(
        "The same as a page ({until}): {}",
        exporter.url("/")
    ))?;
    Ok(exporter)
}

/// Shows the first lines of the exporter's output.
fn excerpt(terminal: &Terminal, arguments: &[&str], lines: usize) -> Result<()> {
    terminal.command(&format!(
        "nvlink-exporter {} | head -n {lines}",
        arguments.join(" ")
    ))?;
    let text = programs::run(programs::EXPORTER, arguments, "")?;
    let first: Vec<&str> = text.lines().take(lines).collect();
    terminal.output(&first.join("\n"))
}

pub(crate) fn show_preview(terminal: &Terminal, files: &Files) -> Result<()> {
    terminal.step("What the webhook would do with a job, from files alone")?;
    terminal.say("An ordinary job, which knows nothing about NVLink:")?;
    terminal.file(Files::JOB)?;
    terminal.say(
        "A class, which an administrator writes once. It claims pods with two or more GPUs:",
    )?;
    terminal.file(Files::CLASS)?;
    let record = ["record", "--source", "sim:dgx-h100", "--node-name", "dgx"];
    let recording = programs::run(programs::EXPORTER, &record, "")?;
    fs::write(files.path("nodes/dgx.json"), recording)?;
    terminal.command(
        "kubectl-nvlink preview -f job.yaml --cluster class.yaml --cluster nodes/ --output diff",
    )?;
    let (job, class, nodes) = (
        files.path("job.yaml"),
        files.path("class.yaml"),
        files.path("nodes"),
    );
    let arguments = [
        "preview",
        "-f",
        &job,
        "--cluster",
        &class,
        "--cluster",
        &nodes,
        "--output",
        "diff",
    ];
    let output = programs::output(programs::PLUGIN, &arguments, "")?;
    let reasons = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "preview: {reasons}");
    terminal.output(&reasons)?;
    terminal.diff(&String::from_utf8_lossy(&output.stdout))
}
