//! The control plane that all tests share. Each test has namespaces of its own.

use std::sync::OnceLock;

use nvlink_tests::ControlPlane;

/// The control plane, started by the first test that asks.
pub(crate) fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
    let start = || ControlPlane::start().map_err(|error| format!("{error:#}"));
    match SHARED.get_or_init(start) {
        Ok(control_plane) => control_plane,
        Err(error) => panic!("no control plane: {error}"),
    }
}
