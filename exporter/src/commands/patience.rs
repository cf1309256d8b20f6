//! Tells a person who waits why.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// What ends sooner needs no explanation.
const PATIENCE: Duration = Duration::from_secs(2);

/// Does `work`, and calls `say` once if that takes longer than two seconds.
pub(super) fn patiently<T>(say: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    within(PATIENCE, say, work)
}

fn within<T>(patience: Duration, say: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    let (done, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn only_long_work_says_so_and_says_it_once() {
        let said = AtomicU32::new(0);
        let say = || {
            said.fetch_add(1, Ordering::SeqCst);
        };
        assert_eq!(within(Duration::MAX, say, || 1), 1);
        assert_eq!(said.load(Ordering::SeqCst), 0);
        let wait = || {
            while said.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            2
        };
        assert_eq!(within(Duration::ZERO, say, wait), 2);
        assert_eq!(said.load(Ordering::SeqCst), 1);
    }
}
