#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use super::*;

fn site(groups: &[Option<u8>], members: u32) -> Site {
    let name = |one: &Option<u8>| one.map(|one| Name::from(one.to_string()));
    Site {
        groups: groups.iter().map(name).collect(),
        members,
    }
}

/// Returns how many pairs of members are near, by level, of members so distributed. Sites without a
/// group are near if they share a narrower one.
fn score(sites: &[Site], given: &[u32]) -> Vec<u64> {
    let levels = sites[0].groups.len();
    let mut score: Vec<u64> = (1..=levels)
        .map(|depth| {
            let mut sums: HashMap<String, u64> = HashMap::new();
            for (at, (site, &given)) in sites.iter().zip(given).enumerate() {
                let path = (0..depth).map(|level| {
                    let mut narrower = site.groups.iter().enumerate().skip(level);
                    let group = narrower.find(|(_, group)| group.is_some());
                    group.map_or(format!("alone-{at}"), |group| format!("{group:?}"))
                });
                let path = path.collect::<Vec<_>>().join("/");
                *sums.entry(path).or_default() += u64::from(given);
            }
            sums.values().map(|&sum| square(sum)).sum()
        })
        .collect();
    score.push(given.iter().map(|&given| square(given.into())).sum());
    score
}

/// Returns the best score of all ways to distribute members.
fn best(sites: &[Site], members: u32, given: &mut Vec<u32>) -> Option<Vec<u64>> {
    let Some(next) = sites.get(given.len()) else {
        return (members == 0).then(|| score(sites, given));
    };
    let ways = (0..=next.members.min(members)).filter_map(|taken| {
        given.push(taken);
        let best = best(sites, members - taken, given);
        given.pop();
        best
    });
    ways.max()
}

#[test]
fn the_choice_is_the_nearest_of_all() {
    let mut random = fastrand::Rng::with_seed(36);
    let mut compared = 0;
    for _ in 0..3_000 {
        let levels = random.usize(0..=3);
        let sites: Vec<Site> = (0..random.usize(1..=6))
            .map(|_| {
                let mut group = || Some(random.u8(0..4)).filter(|&group| group > 0);
                let groups: Vec<Option<u8>> = (0..levels).map(|_| group()).collect();
                site(&groups, random.u32(0..=4))
            })
            .collect();
        let room: u32 = sites.iter().map(|site| site.members).sum();
        for members in 1..=room {
            let picks = nearest(&sites, members).unwrap();
            let mut given = vec![0; sites.len()];
            for &(at, members) in &picks {
                assert!(given[at] == 0 && members > 0, "{picks:?}");
                given[at] = members;
            }
            assert_eq!(given.iter().sum::<u32>(), members);
            assert!(
                given
                    .iter()
                    .zip(&sites)
                    .all(|(given, site)| *given <= site.members)
            );
            let best = best(&sites, members, &mut Vec::new()).unwrap();
            assert_eq!(
                score(&sites, &given),
                best,
                "{sites:?} {members}: {picks:?}"
            );
            compared += 1;
        }
        assert_eq!(nearest(&sites, room + 1), None);
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn the_largest_groups_stay_whole() {
    // Racks of 4, 2 and 3 nodes: two nodes go where nothing else would remain, three likewise.
    let racks = [0, 0, 0, 0, 1, 1, 2, 2, 2];
    let sites = racks.map(|rack| site(&[Some(rack)], 1));
    let racks_of = |members| {
        let picks = nearest(&sites, members).unwrap();
        let mut used: Vec<u8> = picks.iter().map(|&(at, _)| racks[at]).collect();
        used.sort_unstable();
        used
    };
    assert_eq!(racks_of(2), [1, 1]);
    assert_eq!(racks_of(3), [2, 2, 2]);
    assert_eq!(racks_of(4), [0, 0, 0, 0]);
    assert_eq!(racks_of(6), [0, 0, 0, 0, 1, 1]);
    assert_eq!(racks_of(7), [0, 0, 0, 0, 2, 2, 2]);
}
