//! The demo's output: numbered steps, commands with their output, tables.

use std::{
    cell::Cell,
    env,
    io::{self, IsTerminal, Write},
};

use anyhow::{Result, ensure};
use nvlink_tests::Kubectl;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

/// Standard output, which may be a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    color: bool,
    steps: Cell<u32>,
}

impl Terminal {
    /// Returns standard output, coloured on a terminal unless `NO_COLOR` is set.
    pub(crate) fn new() -> Self {
        let forbidden = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            color: io::stdout().is_terminal() && !forbidden,
            steps: Cell::new(0),
        }
    }

    /// Starts the next numbered step.
    pub(crate) fn step(&self, title: &str) -> Result<()> {
        self.steps.set(self.steps.get() + 1);
        self.print(&format!(
            "\n{}\n\n",
            self.style(BOLD, &format!("{}. {title}", self.steps.get()))
        ))
    }

    pub(crate) fn say(&self, text: &str) -> Result<()> {
        let lines: Vec<String> = text.lines().map(|line| format!("   {line}\n")).collect();
        self.print(&format!("{}\n", lines.concat()))
    }

    /// Prints a command that a user would type.
    pub(crate) fn command(&self, text: &str) -> Result<()> {
        self.print(&format!("   {}\n", self.style(CYAN, &format!("$ {text}"))))
    }

    /// Prints a command, runs it in a shell and prints its output.
    ///
    /// # Errors
    /// When the command fails, with its standard error.
    pub(crate) fn run(&self, kubectl: &Kubectl, command: &str) -> Result<()> {
        self.command(command)?;
        let output = kubectl.shell(command)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {error}");
        self.output(&String::from_utf8_lossy(&output.stdout))
    }

    pub(crate) fn output(&self, text: &str) -> Result<()> {
        let lines: Vec<String> = text.lines().map(expand_tabs).collect();
        self.lines(&lines.join("\n"), |_| None)
    }

    /// Prints one line of an output that goes on.
    pub(crate) fn output_line(&self, text: &str) -> Result<()> {
        self.print(&format!("     {text}\n"))
    }

    /// Prints the content of a file, less prominently.
    pub(crate) fn file(&self, text: &str) -> Result<()> {
        self.lines(text, |_| Some(DIM))
    }

    /// Prints a unified diff without its header.
    pub(crate) fn diff(&self, text: &str) -> Result<()> {
        let body = text
            .lines()
            .skip_while(|line| !line.starts_with("@@"))
            .skip(1);
        let elided = |line: &str| {
            if line.starts_with("@@") {
                "  …"
            } else {
                line
            }
            .to_owned()
        };
        let lines: Vec<String> = body.map(elided).collect();
        self.lines(&lines.join("\n"), |line| match line.chars().next() {
            Some('+') => Some(GREEN),
            Some('-') => Some(RED),
            _ => Some(DIM),
        })
    }

    /// Prints a table whose first row is the header.
    pub(crate) fn table(&self, rows: &[Vec<String>]) -> Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| {
            rows.iter()
                .map(|row| cell(row, column).chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let padded = widths.iter().enumerate();
            let cells = padded.map(|(column, &width)| format!("{:width$}", cell(row, column)));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
        };
        let lines: Vec<String> = rows.iter().map(line).collect();
        let header = lines.first().cloned().unwrap_or_default();
        self.lines(&lines.join("\n"), |line| (line == header).then_some(BOLD))
    }

    fn lines(&self, text: &str, style: impl Fn(&str) -> Option<&'static str>) -> Result<()> {
        let styled = text.lines().map(|line| match style(line) {
            Some(style) => format!("     {}\n", self.style(style, line)),
            None => format!("     {line}\n"),
        });
        self.print(&format!("{}\n", styled.collect::<String>()))
    }

    fn style(&self, style: &str, text: &str) -> String {
        if self.color {
            format!("\u{1b}[{style}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    fn print(&self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// Expands tabs as a terminal does, so that the indent does not shift columns.
fn expand_tabs(line: &str) -> String {
    line.split_inclusive('\t')
        .fold(String::new(), |mut out, part| {
            out.push_str(part.trim_end_matches('\t'));
            if part.ends_with('\t') {
                let filled = out.chars().count();
                out.extend(std::iter::repeat_n(' ', 8 - filled % 8));
            }
            out
        })
}
