//! The order of names for people: `gpu-2` before `gpu-10`.

use std::cmp::Ordering;

/// Compares two names; numbers in them count as numbers.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (Some(one), Some(other)) = (left.chars().next(), right.chars().next()) else {
            // Names that differ only in leading zeros still have an order.
            return left.cmp(right).then_with(|| a.cmp(b));
        };
        let order = match (one.is_ascii_digit(), other.is_ascii_digit()) {
            (true, true) => {
                let (first, second) = (digits(&mut left), digits(&mut right));
                first.len().cmp(&second.len()).then(first.cmp(second))
            }
            _ => {
                left = &left[one.len_utf8()..];
                right = &right[other.len_utf8()..];
                one.cmp(&other)
            }
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Takes the digits at the start of `text`; returns them without leading zeros.
fn digits<'a>(text: &mut &'a str) -> &'a str {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    *text = rest;
    digits.trim_start_matches('0')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let mut names = ["b1", "a10", "a2", "a02", "a", "a2b", "ä1", "a9-10", "a9-9"];
        names.sort_by(|a, b| natural(a, b));
        let sorted = ["a", "a02", "a2", "a2b", "a9-9", "a9-10", "a10", "b1", "ä1"];
        assert_eq!(names, sorted);
    }

    proptest! {
        #[test]
        fn it_is_a_total_order(mut names in prop::collection::vec("[a0-9é-]{0,6}", 0..6)) {
            // `sort_by` panics where an order is not total.
            names.sort_by(|a, b| natural(a, b));
            for pair in names.windows(2) {
                prop_assert!(natural(&pair[0], &pair[1]).is_le());
                prop_assert_eq!(natural(&pair[0], &pair[1]), natural(&pair[1], &pair[0]).reverse());
                prop_assert_eq!(natural(&pair[0], &pair[1]).is_eq(), pair[0] == pair[1]);
            }
        }
    }
}
