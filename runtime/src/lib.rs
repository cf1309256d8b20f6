//! What both programs need to live in a cluster, one subject a module.
//!
//! A long-running program starts with [`log::start`] and [`signals::install`],
//! so that from then on nothing that it says can stop it and whoever ends it is
//! heard. Its parts run under a [`supervise::Supervisor`]; what they ask of
//! Kubernetes goes through the client of [`client`], which waits for no answer
//! for ever, and what they follow there comes through [`watch`]. What one replica
//! alone may do is done by whoever has the [`lease`]. Its servers take their
//! [`connections`] within bounds.

pub mod client;
mod complaints;
pub mod connections;
pub mod files;
pub mod flags;
pub mod lease;
pub mod log;
mod panics;
pub mod signals;
pub mod supervise;
pub mod tls;
pub mod topology;
pub mod watch;
