//! The view that watches write and decisions read.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::View;

/// A [`View`] that watchers write and decisions read.
#[derive(Clone, Debug, Default)]
pub struct SharedView(Arc<RwLock<View>>);

impl SharedView {
    /// Returns a handle that shares `view`.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self(Arc::new(RwLock::new(view)))
    }

    /// Borrows the view. Hold it for the duration of a decision, never across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, View> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Borrows the view to change it.
    pub fn write(&self) -> RwLockWriteGuard<'_, View> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
