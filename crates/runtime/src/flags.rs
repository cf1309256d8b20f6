//! Flags that may also come from environment variables.

use std::{env, ffi::OsString};

use clap::{
    Arg, Command, Error,
    error::{ContextKind, ContextValue},
};

/// Returns `error` with the name of the environment variable if the value came
/// from one: clap names the flag, which the user did not write.
#[must_use]
pub fn naming_variable(mut error: Error, command: &Command, args: &[OsString]) -> Error {
    let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    // `--flag <VALUE>`
    let flag = named.split(' ').next().unwrap_or_default().to_owned();
    let name = args.get(1).map(|name| name.to_string_lossy());
    let command = name.and_then(|name| command.find_subcommand(&*name));
    let arguments = command.into_iter().flat_map(Command::get_arguments);
    let long = |argument: &&Arg| argument.get_long().map(|long| format!("--{long}"));
    let argument = arguments
        .into_iter()
        .find(|argument| long(argument).as_ref() == Some(&flag));
    let Some(argument) = argument else {
        return error;
    };
    let is_written = args.iter().any(|arg| {
        let arg = arg.to_string_lossy();
        let short = argument.get_short().map(|short| format!("-{short}"));
        let is_short = short.is_some_and(|short| arg.starts_with(&short));
        is_short || arg == *flag || arg.starts_with(&format!("{flag}="))
    });
    let variable = argument
        .get_env()
        .filter(|name| env::var_os(name).is_some());
    if let Some(variable) = variable.filter(|_| !is_written) {
        let text = format!("the environment variable {}", variable.display());
        error.insert(ContextKind::InvalidArg, ContextValue::String(text));
    }
    error
}
