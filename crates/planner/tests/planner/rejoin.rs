//! Members that come back to a gang that was released.

use nvlink_planner::{Class, Job, Member};

use crate::{
    cluster::{CLASS, With, job, name, switched},
    fed::Fed,
    gangs::start,
    waits::{pod, told},
};

/// Returns the pods that come back to a gang, each with its GPUs and rank.
fn back(fed: &Fed, members: &[(&str, u32, Option<u32>)]) -> Job {
    let member = |&(pod, gpus, rank): &(&str, u32, Option<u32>)| Member {
        pod: pod.into(),
        gpus,
        rank,
        role: None,
        resources: Vec::new(),
    };
    Job {
        members: members.iter().map(member).collect(),
        ..fed.jobs[&name("gang")].clone()
    }
}

/// Returns a gang of two pods with two GPUs each, of which one is lost. Its project may hold
/// four.
fn lost_one() -> Fed {
    let mut fed = Fed::default();
    let most = Class {
        max_gpus_per_project: Some(4),
        ..Class::default()
    };
    fed.class(CLASS, most);
    fed.node("n", switched());
    fed.node("m", switched());
    fed.job("gang", job(1, 0, 100).of(2, 2));
    assert_eq!(start(&mut fed, 0), "gang on m[0, 1] m[2, 3]");
    fed.pod("gang-01", None);
    fed
}

#[test]
fn as_many_members_rejoin_as_seats_are_vacant_and_the_others_are_under_the_quota() {
    let mut fed = lost_one();
    let names: Vec<String> = (0..20).map(|at| format!("new{at:02}")).collect();
    let members: Vec<_> = names.iter().map(|name| (&**name, 2, None)).collect();
    let many = back(&fed, &members);
    fed.set_job("gang", Some(many));
    assert_eq!(start(&mut fed, 1), "gang on m[2, 3] Rejoin");
    assert_eq!(fed.pods.len(), 2);
    assert_eq!(
        start(&mut fed, 1),
        "gang waits 1/1 some time: Quota { held: 4, most: 4 }"
    );
}

#[test]
fn a_member_does_not_rejoin_with_more_gpus_than_its_seat_had() {
    let mut fed = lost_one();
    let larger = back(&fed, &[("gang-01", 4, Some(1))]);
    fed.set_job("gang", Some(larger));
    let told = start(&mut fed, 1);
    assert!(
        told.ends_with("gang waits 1/1 at 1 to 100000: Quota { held: 2, most: 4 }"),
        "{told}"
    );
    // Of two, the one that fits takes the seat, whatever their names and ranks.
    let both = back(&fed, &[("a", 4, Some(1)), ("b", 2, None)]);
    fed.set_job("gang", Some(both));
    assert_eq!(start(&mut fed, 1), "gang on m[2, 3] Rejoin");
    assert!(fed.pods.contains_key(&name("b")));
}

/// Who is no true member waits for its turn like everybody.
#[test]
fn surplus_members_do_not_overtake() {
    let mut fed = lost_one();
    fed.class(CLASS, Class::default());
    let two = back(&fed, &[("new0", 2, None), ("new1", 2, None)]);
    fed.set_job("gang", Some(Job { created: 9, ..two }));
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5, 6], Some(50_000)));
    fed.job("first", job(2, 4, 100));
    fed.job("second", job(3, 4, 100));
    // Its seats are free for others again once it sits there.
    assert_eq!(
        start(&mut fed, 10).lines().next(),
        Some("gang on m[2, 3] Rejoin")
    );
    let told = start(&mut fed, 10);
    assert_eq!(
        told,
        "first on m[4, 5, 6, 7]\n\
         second waits 1/1 at 50000: Behind { ahead: 0 }\n\
         gang waits 2/2 at 50000: Behind { ahead: 0 }"
    );
}

/// The place that is kept for the member is the only one on these nodes: a larger job that has
/// waited as long has none, and a small one passes both.
#[test]
fn a_place_near_the_gang_is_one_of_those_that_are_kept() {
    const LATE: i64 = 3_600_000;
    let mut fed = lost_one();
    let usual_run = Some(1);
    let class = Class {
        usual_run,
        ..Class::default()
    };
    fed.class(CLASS, class);
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5, 6], None));
    fed.pod("q", pod("m", &[2, 3, 4, 5, 6, 7], None));
    let again = back(&fed, &[("gang-01", 2, Some(1))]);
    fed.set_job("gang", Some(again));
    fed.job("large", job(2, 8, 100));
    fed.job("small", job(3, 1, 100));
    let told = told(&fed.round(LATE));
    assert!(told.starts_with("small on n[7]"), "{told}");
}

/// One small pod of a gang stays alive. What its author creates much later, under the name of the
/// other one, is under order and quota like everybody.
#[test]
fn after_a_while_a_member_that_comes_back_has_no_privilege() {
    const HOLD: i64 = 300_000;
    let quota = |most| Class {
        max_gpus_per_project: Some(most),
        ..Class::default()
    };
    let mut fed = lost_one();
    fed.class(CLASS, quota(3));
    let again = back(&fed, &[("gang-01", 2, Some(1))]);
    fed.set_job(
        "gang",
        Some(Job {
            created: 9,
            ..again.clone()
        }),
    );
    let told_at = |fed: &mut Fed, now| told(&fed.round(now));
    let rejoins = "gang on m[2, 3] Rejoin";
    assert!(told_at(&mut fed, HOLD - 1).starts_with(rejoins));
    let told = told_at(&mut fed, HOLD);
    assert!(told.ends_with("Quota { held: 2, most: 3 }"), "{told}");

    // Within the quota it waits for its turn.
    fed.class(CLASS, quota(8));
    fed.pod("p", pod("n", &[0, 1, 2, 3, 4, 5], None));
    fed.job("first", job(2, 6, 100));
    let told = told_at(&mut fed, HOLD);
    assert!(told.starts_with("first on m[2, 3, 4, 5, 6, 7]"), "{told}");
    assert!(!told.contains(rejoins), "{told}");
    // Nobody is ahead: it starts near the rest of its gang.
    fed.set_job("first", None);
    let told = told_at(&mut fed, HOLD);
    assert_eq!(told, rejoins);

    // It lost the member again, a while later: the seat is kept again.
    fed.job("first", job(2, 6, 100));
    let lost = Job {
        released: HOLD,
        created: 9,
        ..again
    };
    fed.set_job("gang", Some(lost));
    let told = told_at(&mut fed, 2 * HOLD - 1);
    assert!(told.starts_with(rejoins), "{told}");
}

/// It waits as long as others for a place that is kept for it.
#[test]
fn a_member_that_comes_back_late_is_not_passed_for_ever() {
    const HOUR: i64 = 3_600_000;
    let mut fed = lost_one();
    fed.class(CLASS, Class::default());
    fed.node("n", None);
    let again = back(&fed, &[("gang-01", 2, Some(1))]);
    fed.set_job(
        "gang",
        Some(Job {
            created: 9,
            ..again
        }),
    );
    fed.pod("p", pod("m", &[2], Some(100 * HOUR)));
    fed.pod("q", pod("m", &[4, 5, 6, 7], None));
    let small = |created| job(created, 1, 100);
    fed.job("small", small(10));
    assert!(told(&fed.round(HOUR)).starts_with("small on m[3] Backfill"));
    let told = told(&fed.round(49 * HOUR));
    assert!(!told.contains("small on"), "{told}");
}
