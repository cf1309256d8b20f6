//! What follows from several readings of a node, and from none alone. It does no IO.
//!
//! The modules; each uses only those above it:
//!
//! - `key` is the identity of a GPU from one reading to the next.
//! - [`load`] computes link rates and new errors from two readings.
//! - [`totals`] adds up the counters of each GPU's links.
//! - [`remotes`] keeps to which kind of device each link leads.
//! - [`marks`] marks broken GPUs in the document.
//! - [`xids`] keeps when each GPU last had each XID.
//! - [`faults`] finds the faults that began or ended between two readings, for the log.

pub mod faults;
mod key;
pub mod load;
pub mod marks;
pub mod remotes;
pub mod totals;
pub mod xids;

pub use key::Key;
