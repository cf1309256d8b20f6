//! Generates the page of a program's flags from the code. The webhook's test uses it, too.

use std::fmt::Write;

use clap::{Arg, Command};

/// Returns the page: `preface`, and a table for each subcommand.
pub(crate) fn page(preface: &str, mut command: Command) -> String {
    command.build();
    let mut text = preface.to_owned();
    let subcommands = command.get_subcommands();
    for command in subcommands.filter(|one| one.get_name() != "help") {
        section(&mut text, command);
    }
    text
}

fn section(text: &mut String, command: &Command) {
    let about = command.get_about().unwrap();
    write!(text, "\n## {}\n\n{about}.\n\n", command.get_name()).unwrap();
    let arguments = command.get_arguments();
    let shown = |one: &&Arg| !one.is_hide_set() && one.get_id() != "help";
    let arguments: Vec<_> = arguments.filter(shown).collect();
    if arguments.is_empty() {
        return text.push_str("This command has no flags.\n");
    }
    text.push_str("| flag | variable | default | what it does |\n|---|---|---|---|\n");
    for argument in arguments {
        row(text, argument);
    }
}

fn row(text: &mut String, argument: &Arg) {
    let short = argument
        .get_short()
        .map(|short| format!("-{short}, "))
        .unwrap_or_default();
    let aliases = argument.get_visible_aliases().unwrap_or_default();
    let aliases: String = aliases.iter().map(|name| format!(", --{name}")).collect();
    let value = match argument.get_action().takes_values() {
        true => format!(
            " {}",
            argument.get_value_names().unwrap_or_default().join(" ")
        ),
        false => String::new(),
    };
    let flag = match argument.get_long() {
        Some(long) => format!("`{short}--{long}{aliases}{value}`"),
        None => format!("`{}`", value.trim_start()),
    };
    let variable = argument
        .get_env()
        .map(|name| format!("`{}`", name.to_str().unwrap()))
        .unwrap_or_default();
    let default: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    let default = match argument.get_action().takes_values() && !default.is_empty() {
        true => format!("`{}`", default.join(",")),
        false => String::new(),
    };
    let help = help(argument);
    writeln!(text, "| {flag} | {variable} | {default} | {help} |").unwrap();
}

fn help(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).unwrap();
    let mut help = help
        .to_string()
        .replace("\n\n", " · ")
        .replace('\n', " ")
        .replace('|', "\\|");
    let values = argument.get_possible_values();
    if argument.get_action().takes_values() && !values.is_empty() {
        let values: Vec<_> = values
            .iter()
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        write!(help, ": {}", values.join(", ")).unwrap();
    }
    help
}
