//! Generates the page of a program's flags from the code. The webhook's test uses it, too.

use std::{collections::BTreeMap, fmt::Write};

use clap::{Arg, Command};

/// Returns the page: `preface`, and a table for each subcommand.
///
/// A table leaves out the rows of an earlier one, and names their flags below it. A subcommand of
/// `elsewhere` has its table on the page that stands beside it there.
pub(crate) fn page(preface: &str, mut command: Command, elsewhere: &[(&str, &str)]) -> String {
    command.build();
    let mut text = preface.to_owned();
    let mut written = Vec::new();
    let subcommands = command.get_subcommands();
    for command in subcommands.filter(|one| one.get_name() != "help") {
        let (name, about) = (command.get_name(), command.get_about().unwrap());
        write!(text, "\n## {name}\n\n{about}.\n\n").unwrap();
        match elsewhere.iter().find(|(one, _)| *one == name) {
            Some((_, page)) => writeln!(text, "[Its flags]({page}#{name}).").unwrap(),
            None => table(&mut text, command, &mut written),
        }
    }
    text
}

/// Writes the table of a subcommand. `written` has the subcommand and the text of all earlier rows.
fn table(text: &mut String, command: &Command, written: &mut Vec<(String, String)>) {
    let shown = |one: &&Arg| !one.is_hide_set() && one.get_id() != "help";
    let mut rows = String::new();
    let mut repeated: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for argument in command.get_arguments().filter(shown) {
        let row = row(argument);
        let earlier = written.iter().find(|(_, one)| *one == row);
        if let Some(earlier) = earlier.map(|(earlier, _)| earlier.clone()) {
            repeated.entry(earlier).or_default().push(name(argument));
            continue;
        }
        rows.push_str(&row);
        written.push((command.get_name().to_owned(), row));
    }
    let nested = command.get_subcommands();
    let nested: Vec<_> = nested.filter(|one| one.get_name() != "help").collect();
    for one in &nested {
        let places = one.get_positionals().filter_map(Arg::get_value_names);
        let places: String = places.flatten().map(|place| format!(" {place}")).collect();
        let (name, about) = (one.get_name(), one.get_about().unwrap());
        writeln!(text, "- `{name}{places}`: {about}.").unwrap();
    }
    if rows.is_empty() && repeated.is_empty() && nested.is_empty() {
        return text.push_str("No flags.\n");
    }
    if !rows.is_empty() {
        text.push_str("| flag | variable | default | what it does |\n|---|---|---|---|\n");
        text.push_str(&rows);
    }
    if !rows.is_empty() && !repeated.is_empty() {
        text.push('\n');
    }
    for (earlier, names) in repeated {
        let names = names.join(", ");
        writeln!(text, "As for [{earlier}](#{earlier}): {names}.").unwrap();
    }
}

/// Returns the word by which a page refers to a flag.
fn name(argument: &Arg) -> String {
    match argument.get_long() {
        Some(long) => format!("`--{long}`"),
        None => format!("`{}`", argument.get_id()),
    }
}

/// Returns the row of a flag.
fn row(argument: &Arg) -> String {
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
    format!("| {flag} | {variable} | {default} | {help} |\n")
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
