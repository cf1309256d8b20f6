//! Room in memory for responses.

#![allow(clippy::unwrap_used)]

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nvlink_runtime::connections::{Bounds, CutOff, Peer, Place, Places};

const BOUNDS: Bounds = Bounds {
    connections: 64,
    connections_of_peer: 32,
    bytes: 1000,
    bytes_of_peer: 600,
    patience: Duration::ZERO,
    taken: Duration::from_secs(1),
    silent: Duration::from_secs(1),
};

fn peer(last: u8) -> Peer {
    Peer::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
}

fn count(places: &Places, why: CutOff) -> u64 {
    let counts = places.cut_offs().counts();
    counts.into_iter().find(|one| one.0 == why).unwrap().1
}

#[tokio::test]
async fn concurrent_responses_stay_within_the_memory_bound() {
    const THREADS: usize = 8;
    let places = Places::new(BOUNDS);
    let enter = |index: usize| places.enter(peer(u8::try_from(index).unwrap())).unwrap();
    let open: Vec<Place> = (0..THREADS).map(enter).collect();
    let (start, now, most) = (
        Barrier::new(THREADS),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    std::thread::scope(|scope| {
        for place in &open {
            let (seat, start, now, most) = (place.seat(), &start, &now, &most);
            scope.spawn(move || {
                for _ in 0..2000 {
                    start.wait();
                    if let Some(held) = seat.hold(300) {
                        most.fetch_max(
                            now.fetch_add(300, Ordering::SeqCst) + 300,
                            Ordering::SeqCst,
                        );
                        std::thread::yield_now();
                        now.fetch_sub(300, Ordering::SeqCst);
                        drop(held);
                    }
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 900);
}

#[tokio::test]
async fn a_peer_gets_its_share_and_an_oversized_response_is_admitted_alone() {
    let places = Places::new(BOUNDS);
    let (one, two) = (
        places.enter(peer(1)).unwrap(),
        places.enter(peer(2)).unwrap(),
    );
    let first = one.seat().hold(500).unwrap();
    assert!(one.seat().hold(101).is_none());
    let rest = one.seat().hold(100).unwrap();
    assert!(two.seat().hold(401).is_none());
    drop((first, rest));
    let large = two.seat().hold(5000).unwrap();
    assert!(one.seat().hold(1).is_none());
    drop(large);
    assert!(one.seat().hold(1).is_some());
    assert_eq!(count(&places, CutOff::Memory), 3);
}

#[tokio::test]
async fn memory_of_a_connection_that_lost_its_place_still_counts() {
    let places = Places::new(Bounds {
        connections: 1,
        ..BOUNDS
    });
    let slow = places.enter(peer(1)).unwrap();
    let held = slow.seat().hold(900).unwrap();
    let next = places.enter(peer(2)).unwrap();
    assert_eq!(count(&places, CutOff::Idle), 1);
    assert!(next.seat().hold(200).is_none());
    drop(held);
    assert!(next.seat().hold(200).is_some());
}
