//! What waiting pods say: `tests/golden/shown.txt`.

use std::fmt::Write;

use nvlink_planner::{Deadline, Eta, OnTimeout, Reason};
use nvlink_queue::notice::{About, Notice};
use nvlink_topology::{Scope, labels};

use super::{MINUTE, NOW, about, at, notice};
use crate::fixture::check_golden;

#[test]
fn each_reason_in_words() {
    let soon = at(NOW + 12 * MINUTE);
    let later = at(NOW + 20 * 60 * MINUTE);
    let no_earlier = soon.map(|eta| Eta {
        at_least: true,
        ..eta
    });
    let domain = Scope::NvlinkDomain;
    let fragmented = |asked, free| Reason::Fragmented { asked, free };
    let lacks = |asked, free| Reason::Insufficient { asked, free };
    let mut text = String::new();
    for (scope, reason, position, eta) in [
        (domain, fragmented(8, 8), 3, soon),
        (domain, fragmented(1, 1), 1, soon),
        (domain, Reason::Resources { asked: 8 }, 1, soon),
        (Scope::Node, Reason::Resources { asked: 1 }, 1, None),
        (Scope::Rack, fragmented(16, 24), 3, later),
        (domain, lacks(8, 0), 1, None),
        (Scope::Node, lacks(4, 1), 1, soon),
        (Scope::Zone, lacks(64, 48), 120, no_earlier),
        (domain, lacks(1, 0), 2, soon),
        (domain, Reason::Behind { ahead: 1 }, 2, soon),
        (domain, Reason::Behind { ahead: 7 }, 8, later),
        (domain, Reason::Quota { held: 14, most: 16 }, 2, soon),
        (domain, Reason::Better { longer: 11_100_000 }, 1, soon),
        (domain, Reason::Silent, 1, None),
        (domain, Reason::Incomplete, 4, soon),
        (domain, Reason::Never, 5, None),
        (Scope::Rack, Reason::Unlabelled, 5, None),
        (domain, Reason::Spreads, 5, None),
    ] {
        let notice = notice(reason, position, eta);
        let message = notice.message(about(scope), NOW);
        writeln!(text, "{}: {message}", notice.word()).unwrap();
        let [annotations @ .., since] = notice.annotations(about(scope));
        assert_eq!(since, (labels::QUEUE_SINCE, None), "no clock was set");
        for (key, value) in annotations {
            let value = value.as_deref().unwrap_or("(none)");
            writeln!(text, "    {key}: {value}").unwrap();
        }
    }
    check_golden("shown.txt", &text);
}

#[test]
fn the_earlier_of_start_and_deadline_comes_first() {
    let said = |then, minutes, eta, reason| {
        let at = NOW + minutes * MINUTE;
        let notice = Notice {
            deadline: Some(Deadline { at, then }),
            ..notice(reason, 1, eta)
        };
        let promised = notice.start().is_some();
        (notice.message(about(Scope::Node), NOW), promised)
    };
    let full = Reason::Insufficient { asked: 4, free: 1 };
    let soon = at(NOW + 12 * MINUTE);
    for (then, minutes, eta, promised, words) in [
        (
            OnTimeout::Reject,
            20,
            soon,
            true,
            "; expected to start at 14:06 UTC; fails if it still waits at 14:14 UTC",
        ),
        (
            OnTimeout::Reject,
            2,
            soon,
            false,
            "; fails if it still waits at 13:56 UTC, and its GPUs are not expected to be free before 14:06 UTC",
        ),
        (
            OnTimeout::Spread,
            2,
            soon,
            true,
            "; starts without a common NVLink domain if it still waits at 13:56 UTC; expected to start at 14:06 UTC",
        ),
        (
            OnTimeout::Reject,
            2,
            None,
            false,
            "; fails if it still waits at 13:56 UTC; when it starts is not known, since not all that it waits for say when they end",
        ),
    ] {
        let (text, start) = said(then, minutes, eta, full.clone());
        assert!(text.ends_with(words), "{text}");
        assert_eq!(start, promised, "{text}");
    }
    let (text, _) = said(OnTimeout::Spread, 20, None, Reason::Spreads);
    assert_eq!(
        text,
        "nothing within its scope can run it, not even when empty; position 1 of class training; starts \
         without a common NVLink domain if it still waits at 14:14 UTC"
    );
    let (text, _) = said(OnTimeout::Reject, 2, None, Reason::Never);
    assert!(
        text.ends_with("; fails if it still waits at 13:56 UTC"),
        "{text}"
    );
}

/// Nodes that may come can also run a job that the present ones would run only spread.
#[test]
fn a_class_that_grows_hides_what_the_present_nodes_cannot_run() {
    for reason in [Reason::Never, Reason::Spreads] {
        let notice = Notice {
            grows: true,
            ..notice(reason, 1, None)
        };
        assert_eq!(notice.word(), "Growing");
    }
}

#[test]
fn what_keeps_spare_nodes_free_is_said_where_room_is_missing() {
    let about = |spares| About {
        spares,
        ..about(Scope::Cluster)
    };
    let why = |reason: Reason, spares| notice(reason, 1, None).why(about(spares));
    let never = Reason::NeverTogether { pods: 18 };
    let added = "; its class leaves spare nodes of each NVLink fabric free (placement.spareNodes)";
    assert_eq!(why(never.clone(), true), why(never.clone(), false) + added);
    assert_eq!(why(Reason::Silent, true), why(Reason::Silent, false));
}
