//! Which devices are nearest to others, by their PCI addresses. Pure.

/// Returns, for each of the `wants`, ascending, one of the `places`, ascending, each at most once, so that the
/// sum of the distances is least. There are at least as many places. Some best choice is ascending, too.
pub(super) fn nearest(wants: &[u64], places: &[u64]) -> Vec<usize> {
    let spare = places.len() - wants.len();
    // The least sum for the wants from `at` on, if `skipped` places were left out before.
    let mut least = vec![vec![0_u64; spare + 1]; wants.len() + 1];
    let here = |least: &[Vec<u64>], at: usize, skipped: usize| {
        let distance = places[at + skipped].abs_diff(wants[at]);
        distance.saturating_add(least[at + 1][skipped])
    };
    for at in (0..wants.len()).rev() {
        for skipped in (0..=spare).rev() {
            let skip = (skipped < spare).then(|| least[at][skipped + 1]);
            let here = here(&least, at, skipped);
            least[at][skipped] = skip.map_or(here, |skip| skip.min(here));
        }
    }
    let mut skipped = 0;
    let choose = |at: usize| {
        while here(&least, at, skipped) > least[at][skipped] {
            skipped += 1;
        }
        at + skipped
    };
    (0..wants.len()).map(choose).collect()
}

/// Returns the position of a PCI address such as `0000:0f:00.0` in the order of all; 0 if it is none.
pub(super) fn position(address: &str) -> u64 {
    let numbers = address.split([':', '.']);
    let numbers = numbers.map(|number| u64::from_str_radix(number, 16));
    let numbers: Vec<u64> = numbers.filter_map(Result::ok).collect();
    match numbers[..] {
        [domain, bus, device, function] if bus < 256 && device < 32 && function < 8 => {
            (domain << 16) | (bus << 8) | (device << 3) | function
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn addresses_have_an_order() {
        assert_eq!(position("0000:0f:1f.7"), 0x0fff);
        for odd in [
            "",
            "x",
            "0f:00.0",
            "0000:100:00.0",
            "0000:00:20.0",
            "0000:00:00.8:1",
        ] {
            assert_eq!(position(odd), 0, "{odd}");
        }
    }

    /// Returns the least sum of distances by trying all choices.
    fn by_force(wants: &[u64], places: &[u64]) -> u64 {
        let Some((first, rest)) = wants.split_first() else {
            return 0;
        };
        let without = |at: usize| [&places[..at], &places[at + 1..]].concat();
        let sums =
            (0..places.len()).map(|at| places[at].abs_diff(*first) + by_force(rest, &without(at)));
        sums.min().unwrap()
    }

    proptest! {
        #[test]
        fn the_nearest_are_exact(
            mut wants in proptest::collection::vec(0_u64..40, 0..4),
            mut places in proptest::collection::vec(0_u64..40, 4..7),
        ) {
            wants.sort_unstable();
            places.sort_unstable();
            let chosen = nearest(&wants, &places);
            prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", chosen);
            let pairs = wants.iter().zip(&chosen);
            let sum: u64 = pairs.map(|(want, at)| places[*at].abs_diff(*want)).sum();
            prop_assert_eq!(sum, by_force(&wants, &places));
        }
    }
}
