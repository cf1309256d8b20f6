//! Ends the process between two writes, in tests of what a later leader then does. A release ignores it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// `prepare=2`: after the second pod that was prepared; or `release=N`, `reject=N` (also of pods
/// whose node is lost), `show=N`, `event=N` (about a placement). `decide=N`: before the first write of the Nth job.
const VARIABLE: &str = "NVLINK_WEBHOOK_TEST_DIES_AFTER";
static PASSED: AtomicUsize = AtomicUsize::new(0);

/// Reports whether the process is to die somewhere.
pub(super) fn is_set() -> bool {
    cfg!(debug_assertions) && std::env::var_os(VARIABLE).is_some()
}

/// Ends the process if it is to die here.
pub(super) fn passed(kind: &str) {
    if !is_set() {
        return;
    }
    let Ok(wanted) = std::env::var(VARIABLE) else {
        return;
    };
    let Some((wanted, count)) = wanted.split_once('=') else {
        return;
    };
    let count = count.parse().unwrap_or(1);
    if wanted == kind && PASSED.fetch_add(1, Ordering::SeqCst) + 1 >= count {
        std::process::abort();
    }
}
