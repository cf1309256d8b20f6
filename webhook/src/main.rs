//! The `nvlink-webhook` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    nvlink_webhook::run()
}
