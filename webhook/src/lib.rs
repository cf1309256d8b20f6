//! Admission of GPU pods into NVLink domains.
pub mod admit;
pub mod authorize;
pub mod class;
pub mod crd;
pub mod decide;
pub mod patch;
pub mod pod;
pub mod quantity;
pub mod view;
