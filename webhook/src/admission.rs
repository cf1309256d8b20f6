//! The way of a review: read, judged, answered.

pub mod admit;
pub mod review;
pub mod server;
