//! Admission reviews: read, decided on, answered.

pub mod admit;
pub mod review;
pub mod server;
