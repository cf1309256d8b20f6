//! Which GPU is which, from one reading to the next.

use nvlink_source::LostGpu;

/// The identity of a GPU, which does not change while it exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Its UUID.
    Uuid(String),
    /// If the source does not know the UUID.
    Index(u32),
}

impl Key {
    /// Returns the identity of a GPU.
    #[must_use]
    pub fn new(index: u32, uuid: Option<&str>) -> Self {
        uuid.map_or(Self::Index(index), |uuid| Self::Uuid(uuid.to_owned()))
    }

    /// Returns the identity of a GPU that does not answer.
    #[must_use]
    pub fn of(gpu: &LostGpu) -> Self {
        Self::new(gpu.index, gpu.uuid.as_deref())
    }
}
