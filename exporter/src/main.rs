//! The program; all its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    nvlink_exporter::run(std::env::args_os())
}
