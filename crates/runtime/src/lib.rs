//! What the programs need to run in a cluster, one subject per module.
//!
//! A long-running program starts with [`log::start`], so that logging cannot
//! block it, and [`signals::install`], so that it handles SIGTERM. Its parts run
//! under a [`supervise::Supervisor`]. Requests to Kubernetes go through the
//! client of [`client`], which never waits forever; [`watch`] follows objects.
//! Work that only one replica may do belongs to the holder of the [`lease`].
//! Servers limit their [`connections`]; what people and scrapers read is served by
//! [`web`], which `--web.config.file` protects, [`page`] has what pages share, and [`columns`]
//! makes tables for terminals. [`words`] puts numbers and lists into words, [`stdout`] prints.
//! [`files`] are read again when they change, [`flags`] may come from
//! the environment, [`duration`] reads durations as Go writes them, [`complaints`] limits repeated
//! log lines, and [`tls`] installs the provider of cryptography.
//!
//! Connections, `page` and `web` need the feature `server`.

pub mod client;
pub mod columns;
pub mod complaints;
#[cfg(feature = "server")]
pub mod connections;
pub mod duration;
pub mod files;
pub mod flags;
pub mod lease;
pub mod log;
#[cfg(feature = "server")]
pub mod page;
mod panics;
pub mod signals;
pub mod stdout;
pub mod supervise;
pub mod tls;
pub mod watch;
#[cfg(feature = "server")]
pub mod web;
pub mod words;
