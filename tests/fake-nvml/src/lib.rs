//! A fake `libnvidia-ml.so` for tests: the functions that the exporter calls, on boards
//! described by a file.
//!
//! It is loaded by path, like the driver's own library, and answers with the C types,
//! units, enums and error codes of the real one. The environment variable
//! `FAKE_NVML_CONFIG` names the file, a `config::Config` in JSON. The file is read
//! again whenever another file is renamed over it, so that hardware and faults can
//! change while a program runs.
//!
//! Symbols of a loaded library cannot be hidden. For missing symbols, the harness
//! copies the library file and overwrites their names.
#![allow(
    unsafe_code,
    reason = "a C library reads and writes through pointers; see `c`"
)]

mod board;
mod c;
mod call;
mod config;
mod device;
mod events;
mod fabric;
mod fields;
mod generation;
mod gpm;
mod link;
mod peers;
mod system;
mod traffic;
