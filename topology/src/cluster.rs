//! Placed below.
