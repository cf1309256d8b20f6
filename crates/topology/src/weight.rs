//! The time of one byte, and the capacity of what it passes.

/// The time of one byte over the path of two GPUs, in [`UNIT`]s.
///
/// Costs are whole numbers inside the search, so that equal costs compare as equal
/// whatever the order of the additions.
pub(crate) type Weight = u64;

/// The length of one unit of [`Weight`], seconds.
pub(crate) const UNIT: f64 = 1.0 / UNITS_PER_SECOND as f64;

/// The number of units in a second. A path whose weight exceeds [`MAX_WEIGHT`] gets that
/// weight. The number is a multiple of 1 to 20, so that 3 transfers over 3 links weigh
/// the same as one over 1 link.
const UNITS_PER_SECOND: u128 = 232_792_560 * 400_000_000_000;

/// The weight of a path of 10 MB/s. With it, no sum over 128 GPUs with the largest
/// volumes overflows 64 bits.
const MAX_WEIGHT: u128 = 10_000_000_000_000;

/// Returns the weight of one byte at `bytes_per_second`.
pub(crate) fn weight_of(bytes_per_second: u64) -> Weight {
    let weight = (UNITS_PER_SECOND / u128::from(bytes_per_second.max(1))).min(MAX_WEIGHT);
    // At most MAX_WEIGHT.
    Weight::try_from(weight).unwrap_or(Weight::MAX)
}

/// The capacity of a resource in one direction. Greater is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Capacity {
    /// Bytes per second.
    pub(crate) bytes_per_second: u64,
    /// Time of one byte.
    pub(crate) weight: Weight,
}

impl Capacity {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        let weight = weight_of(bytes_per_second);
        Self {
            bytes_per_second,
            weight,
        }
    }

    /// Returns the faster of two capacities.
    pub(crate) fn max(self, other: Self) -> Self {
        if other.bytes_per_second > self.bytes_per_second {
            other
        } else {
            self
        }
    }
}
