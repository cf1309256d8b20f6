//! Sets of GPUs of one graph.

/// The maximum number of GPUs in a graph: more than the 72 of the largest NVLink fabric
/// sold as one domain.
pub const MAX_GPUS: usize = 128;

/// A set of GPU *positions* in a [`crate::Graph`]. Positions are not GPU indices: a lost
/// GPU leaves a gap in the indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GpuSet(pub(crate) u128);

impl GpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Returns the positions `0..n`.
    ///
    /// # Panics
    /// When `n` is more than [`MAX_GPUS`].
    #[must_use]
    pub fn first(n: usize) -> Self {
        assert!(n <= MAX_GPUS, "a graph holds at most {MAX_GPUS} GPUs");
        if n == 128 {
            Self(u128::MAX)
        } else {
            Self((1 << n) - 1)
        }
    }

    /// Returns the number of GPUs.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Reports whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Reports whether `position` is in the set.
    #[must_use]
    pub fn contains(self, position: usize) -> bool {
        position < MAX_GPUS && self.0 >> position & 1 == 1
    }

    /// Reports whether the set contains every member of `other`.
    #[must_use]
    pub fn is_superset(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Adds `position`.
    ///
    /// # Panics
    /// When `position` is not below [`MAX_GPUS`].
    pub fn insert(&mut self, position: usize) {
        assert!(position < MAX_GPUS, "a graph holds at most {MAX_GPUS} GPUs");
        self.0 |= 1 << position;
    }

    /// Returns the members of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the members of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the members of this set that are not in `other`.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the positions in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let lowest = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                lowest
            })
        })
    }
}

impl FromIterator<usize> for GpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Self {
        let mut set = Self::EMPTY;
        positions
            .into_iter()
            .for_each(|position| set.insert(position));
        set
    }
}
