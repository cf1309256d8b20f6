//! Admission reviews: read, decided on, answered.

pub mod review;
pub mod server;
