//! Writes the manual pages and the shell completions of the programs into a
//! directory:
//! `PROGRAM/man/*.1` and `PROGRAM/completions/*`.

use std::{env, fs, path::Path};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};

fn main() -> Result<()> {
    let into = env::args_os().nth(1);
    let into = into.context("usage: nvlink-manuals DIRECTORY")?;
    let into = Path::new(&into);
    for command in [
        nvlink_exporter::args::Cli::command(),
        nvlink_webhook::args::Cli::command(),
        kubectl_nvlink::args::Cli::command(),
    ] {
        write(command, into).with_context(|| format!("cannot write into {}", into.display()))?;
    }
    Ok(())
}

fn write(mut command: Command, into: &Path) -> Result<()> {
    let name = command.get_name().to_owned();
    let (pages, completions) = (
        into.join(&name).join("man"),
        into.join(&name).join("completions"),
    );
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, &name, &completions)?;
    }
    // One language on every machine: the terminal's width would change the pages.
    clap_mangen::generate_to(command, &pages)?;
    Ok(())
}
