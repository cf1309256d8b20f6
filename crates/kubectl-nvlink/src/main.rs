//! The `kubectl-nvlink` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_nvlink::run()
}
